//! Test support for every crate: a new database from a migrated template ([`database`]), accounts, agents and tasks in
//! it ([`fixture`]), rows of any kind and number ([`rows`]), an account with one of everything ([`tenant`]), checks of
//! query plans ([`plans`]), a scripted provider with a log ([`provider`]), which can imitate real servers ([`server`]), a scripted model ([`model`]), a provider of OpenID Connect ([`openid`]), a mail server ([`smtp`]),
//! a proxy with network faults ([`proxy`]), a fuzzer ([`fuzz`]), hostile texts ([`hostile`]), calls of every tool
//! ([`tools`]), and waiting for a condition with a limit ([`wait`]). [`envelope`] has the services' signing key. A
//! [`world`] has all of it and runs services.
//! Dev-dependency only.

pub mod callout;
pub mod database;
pub mod envelope;
pub mod fixture;
pub mod fuzz;
pub mod hostile;
pub mod model;
pub mod openid;
pub mod plans;
pub mod provider;
pub mod proxy;
pub mod rows;
pub mod server;
pub mod smtp;
pub mod tenant;
pub mod tools;
pub mod wait;
pub mod world;

pub use callout::{CALLOUT, nats_users_and_keys};
pub use database::TestDatabase;
pub use envelope::{ENVELOPE, keyring};
pub use fixture::{Fixture, twin_sql};
pub use model::{Says, StubModel};
pub use openid::OpenIdProvider;
pub use provider::{Reply, Seen, StubProvider, outputs, repeating_codes};
pub use proxy::{Counts, NetworkFault, Proxy, Way};
pub use rows::{Rows, enqueued, rows};
pub use server::Server;
pub use smtp::{MailServer, Manner};
pub use tenant::Tenant;
pub use wait::eventually;
pub use world::{OPERATOR_TOKEN, Running, World, nats_users};

/// Every process of ours installs its TLS provider first; a test may be the first code that creates an HTTP client.
pub fn install_tls_provider() {
    // Fails if another test of this process has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
