//! The keys of the auth callout of a test's broker and its orchestrators: with them API keys open NATS.

use contracts::Root;
use devstack::NatsUsers;
use messaging::{callout::Issuer, users};

use crate::nats_users;

/// The orchestrator's settings, as variables.
pub const CALLOUT: [(&str, &str); 2] = [
    (
        "SIGNALBOX__ORCHESTRATOR__CALLOUT_ISSUER_SEED",
        "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I",
    ),
    (
        "SIGNALBOX__ORCHESTRATOR__CALLOUT_XKEY_SEED",
        "SXAAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAT5QQ",
    ),
];

/// The users of a broker that asks an orchestrator with [`CALLOUT`] about everyone else.
pub fn nats_users_and_keys() -> NatsUsers {
    let issuer = Issuer::from_seeds(CALLOUT[0].1, CALLOUT[1].1).expect("seeds");
    let (issuer, xkey) = issuer.public_keys();
    let (users, callout) = (nats_users(), users::callout(&Root::default()));
    NatsUsers {
        config: format!(
            "{}: \"{issuer}\"\n{}: \"{xkey}\"\n{}{callout}",
            users::ISSUER_VARIABLE,
            users::XKEY_VARIABLE,
            users.config
        ),
        ..users
    }
}
