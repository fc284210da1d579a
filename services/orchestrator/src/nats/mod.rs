//! Who connects to NATS with an API key: the server's questions ([`messaging::callout`]) and their answers. The user is the
//! account's id, the password the key.
//!
//! Every refusal is the same to the client and comes after the same time; the reason is in the log and in
//! `signalbox.nats.refused`. A replica that ends leaves questions unanswered: the server refuses after its own time-out, and
//! clients try again. The services' own users are not asked about, so nothing here keeps them from working.

mod recent;

use std::{sync::Arc, time::Duration};

use domain::{AccountId, ApiKey, error_chain};
use futures::StreamExt;
use messaging::{
    Bus,
    callout::{ADMITTED_FOR, Admitted, CalloutError, Issuer, Question},
    connections_count,
    users::{Permissions, of_key, outside_account},
};
use parking_lot::Mutex;
use secrecy::ExposeSecret;
use storage::{
    Accounts, StorageError,
    api_key::{KeyHolder, api_key_holder},
};
use time::OffsetDateTime;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use self::recent::Recent;
use crate::{app::App, event_consumers::store::event_consumers, settings::OrchestratorSettings};

/// Questions that are answered at one time; later ones wait. Refusals stay for [`REFUSED_AFTER`].
const IN_PROGRESS_MAX: usize = 1_024;
/// Look-ups at one time: half of the connections on which requests are authenticated, too.
const LOOK_UPS_MAX: usize = 2;
/// The server waits for 2 s.
const LOOK_UP_MAX: Duration = Duration::from_millis(1_500);
/// Longer than a look-up usually takes, so that a refusal does not tell whether there was one.
const REFUSED_AFTER: Duration = Duration::from_millis(500);
/// Wrong keys of one host in a minute. After so many the host is refused for a minute.
const WRONG_KEYS_MAX: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Open connections of one key.
const CONNECTIONS_MAX: usize = 64;

/// Why a client is refused. The client is not told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Its host sent too many wrong keys.
    Host,
    NoKey,
    /// The user is not the key's account.
    OtherAccount,
    /// Unknown, wrong, revoked or expired.
    UnknownKey,
    /// The role has nothing to do on NATS.
    Role,
    Connections,
    /// The database did not answer.
    Unavailable,
}

impl Refusal {
    fn reason(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::NoKey => "no_key",
            Self::OtherAccount => "other_account",
            Self::UnknownKey => "unknown_key",
            Self::Role => "role",
            Self::Connections => "connections",
            Self::Unavailable => "unavailable",
        }
    }

    fn is_wrong_key(self) -> bool {
        match self {
            Self::NoKey | Self::OtherAccount | Self::UnknownKey => true,
            Self::Host | Self::Role | Self::Connections | Self::Unavailable => false,
        }
    }
}

/// The issuer of the settings. `None`: API keys do not open NATS in this installation.
pub fn issuer(settings: &OrchestratorSettings) -> Result<Option<Issuer>, CalloutError> {
    let seed = |seed: &Option<secrecy::SecretString>| seed.as_ref().map(|seed| seed.expose_secret().to_owned());
    match (seed(&settings.callout_issuer_seed), seed(&settings.callout_xkey_seed)) {
        (None, None) => Ok(None),
        (issuer, xkey) => Issuer::from_seeds(&issuer.unwrap_or_default(), &xkey.unwrap_or_default()).map(Some),
    }
}

/// Answers the server's questions until `stop`.
pub async fn answer(app: App, bus: Bus, issuer: Issuer, stop: CancellationToken) {
    let questions = match Issuer::questions(&bus).await {
        Ok(questions) => questions,
        // The client is closing.
        Err(error) => return tracing::warn!(error = error_chain(&error), "API keys do not open NATS"),
    };
    let doorkeeper = Arc::new(Doorkeeper {
        app,
        bus,
        issuer,
        look_ups: Semaphore::new(LOOK_UPS_MAX),
        wrong_keys: Mutex::new(Recent::new(WRONG_KEYS_MAX, MINUTE)),
        admitted: Mutex::new(Recent::new(CONNECTIONS_MAX, ADMITTED_FOR)),
    });
    questions
        .take_until(stop.cancelled())
        .for_each_concurrent(IN_PROGRESS_MAX, |message| {
            let doorkeeper = Arc::clone(&doorkeeper);
            async move {
                match doorkeeper.issuer.open(&message) {
                    Ok(question) => doorkeeper.answer(&question).await,
                    Err(error) => tracing::error!(error = error_chain(&error), "could not answer the NATS server"),
                }
            }
        })
        .await;
}

struct Doorkeeper {
    app: App,
    bus: Bus,
    issuer: Issuer,
    look_ups: Semaphore,
    /// By host, in this replica.
    wrong_keys: Mutex<Recent>,
    /// By key, in this replica.
    admitted: Mutex<Recent>,
}

impl Doorkeeper {
    async fn answer(&self, question: &Question) {
        let asked = Instant::now();
        let decided = self.decide(question, asked).await;
        if let Err(refusal) = decided {
            self.note(question, refusal);
            if refusal != Refusal::Host {
                sleep_until(asked + REFUSED_AFTER).await;
            }
        }
        let now = OffsetDateTime::now_utc().unix_timestamp();
        let account = outside_account(&self.app.root);
        let admitted = decided.as_ref().ok().map(|(name, permissions)| Admitted {
            name,
            account: &account,
            permissions,
            until: now + ADMITTED_FOR.as_secs().cast_signed(),
        });
        let answered = self.issuer.answer(self.bus.client(), question, admitted.as_ref(), now);
        if let Err(error) = answered.await {
            tracing::warn!(%error, "could not answer the NATS server");
        }
    }

    /// The name and the permissions of a client that is let in.
    async fn decide(&self, question: &Question, now: Instant) -> Result<(String, Permissions), Refusal> {
        self.has_not_guessed(&question.host)?;
        let password = question.password.as_ref().ok_or(Refusal::NoKey)?;
        let key = ApiKey::parse(&password.0).map_err(|_| Refusal::NoKey)?;
        if key.account().as_str() != question.user {
            return Err(Refusal::OtherAccount);
        }
        let looked_up = timeout(LOOK_UP_MAX, async {
            let _turn = self.look_ups.acquire().await;
            // Others of the same host were refused meanwhile.
            self.has_not_guessed(&question.host)?;
            self.look_up(&key).await.map_err(|error| {
                tracing::warn!(error = error_chain(&error), "could not look up a key of a NATS client");
                Refusal::Unavailable
            })
        });
        let found = looked_up.await.map_err(|_| Refusal::Unavailable)??;
        let (holder, consumers) = found.ok_or(Refusal::UnknownKey)?;
        let permissions = of_key(&self.app.root, &holder.account, (&holder.id, holder.role), &consumers);
        let permissions = permissions.ok_or(Refusal::Role)?;
        let name = connection_name(&holder.account, holder.id.as_str());
        self.has_room(&name, now).await?;
        Ok((name, permissions))
    }

    fn has_not_guessed(&self, host: &str) -> Result<(), Refusal> {
        if self.wrong_keys.lock().was_full(host, Instant::now()) {
            return Err(Refusal::Host);
        }
        Ok(())
    }

    /// Dropped at the time-out, it leaves no transaction open (`storage::Database`).
    async fn look_up(&self, key: &ApiKey) -> Result<Option<(KeyHolder, Vec<String>)>, StorageError> {
        let tx = self.app.callers.begin(&Accounts::one(key.account())).await?;
        let holder = api_key_holder(&tx, key).await?;
        let consumers = event_consumers(&tx, key.account()).await?;
        tx.commit().await?;
        Ok(holder.map(|holder| (holder, consumers)))
    }

    /// Every open connection was let in within [`ADMITTED_FOR`]. So the servers are asked only about a key that this
    /// replica has let in as often as it may be connected. Where they do not answer, the limit does not hold.
    async fn has_room(&self, name: &str, now: Instant) -> Result<(), Refusal> {
        let ask = self.admitted.lock().is_full(name, now);
        if ask
            && connections_count(&self.bus, name)
                .await
                .is_some_and(|open| open >= CONNECTIONS_MAX)
        {
            return Err(Refusal::Connections);
        }
        self.admitted.lock().add(name, now);
        Ok(())
    }

    fn note(&self, question: &Question, refusal: Refusal) {
        let reason = refusal.reason();
        self.app.meters.nats_refused(reason);
        // What claims to be an account may be anything.
        let account = AccountId::parse(&question.user).ok();
        let account = account.as_ref().map_or("-", AccountId::as_str);
        let host = question.host.as_str();
        if refusal == Refusal::Host {
            return tracing::debug!(account, host, reason, "refused a NATS client");
        }
        tracing::warn!(account, host, reason, "refused a NATS client");
        // A client without a password tried no key; services look in this way whether anybody gets in.
        if refusal.is_wrong_key() && question.password.is_some() {
            self.wrong_keys.lock().add(&question.host, Instant::now());
        }
    }
}

/// What the connections of a key are called on the server.
pub fn connection_name(account: &AccountId, key: &str) -> String {
    format!("{account}/{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_guess_counts_as_a_wrong_key() {
        use Refusal::*;
        let all = [Host, NoKey, OtherAccount, UnknownKey, Role, Connections, Unavailable];
        let wrong: Vec<_> = all.into_iter().filter(|refusal| refusal.is_wrong_key()).collect();
        assert_eq!(wrong, [NoKey, OtherAccount, UnknownKey]);
    }
}
