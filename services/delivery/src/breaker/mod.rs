//! The breakers of provider accounts, as this service keeps them: what the end of a call says of its provider, and what a claim
//! may send. The rule is [`domain::breaker`]; the rows are shared by all replicas ([`storage::breaker`]).
//!
//! Unused it costs no statement: a claim reads the state with its items and turns, and a success is written only where this
//! process knows that it changes something.

pub mod sweep;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use contracts::{Root, outgoing::Origin};
use domain::{
    BreakerState, TurnId,
    breaker::{Admits, Breaker, BreakerLimits, Fault, SentCall, Sign, Standing, WAIT_OPENS},
};
use storage::{
    Setting, StorageError, Tx,
    breaker::{Because, LockedBreaker, Seen, breaker_write, breakers_lock},
    outbox::Owned,
};
use time::OffsetDateTime;

use crate::{
    SOURCE,
    providers::{FailureClass, ProviderError, ProviderSettings},
    settings::DeliverySettings,
    store::TurnName,
};

/// The state of the breaker under which a call is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    pub epoch: i64,
    /// It is not closed: the outcome decides whether it closes.
    pub probes: bool,
}

impl Pass {
    /// Under a closed breaker.
    pub fn closed(seen: Option<Seen>) -> Pass {
        Pass {
            epoch: standing(seen).epoch,
            probes: false,
        }
    }
}

pub fn standing(seen: Option<Seen>) -> Standing {
    seen.map_or(Standing::NEW, |Seen(standing)| standing)
}

/// A failure of a call that says something of its provider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProviderFault {
    pub fault: Fault,
    pub because: Because,
}

/// None: it is about the call, and not about the provider.
pub fn fault_of(error: &ProviderError) -> Option<ProviderFault> {
    let reset = error.retry_after;
    let fault = match error.class {
        FailureClass::Quota | FailureClass::Unauthorized | FailureClass::AgentUnauthorized => {
            Fault::Exhausted { reset }
        }
        FailureClass::RateLimited if reset.is_some_and(|wait| wait >= WAIT_OPENS) => Fault::Exhausted { reset },
        FailureClass::RateLimited | FailureClass::Refused | FailureClass::ServerError | FailureClass::Timeout => {
            Fault::Trouble
        }
        FailureClass::Truncated
        | FailureClass::Malformed
        | FailureClass::TooLarge
        | FailureClass::BadRequest
        | FailureClass::Failed
        | FailureClass::ThreadLost => return None,
    };
    let because = Because {
        class: error.class.as_str(),
        detail: error.detail.replace('\0', "\u{fffd}"),
    };
    Some(ProviderFault { fault, because })
}

/// What the end of a call says of its provider.
#[derive(Clone, Debug)]
pub struct Said<'a> {
    pub turn: TurnName,
    pub provider: &'a str,
    pub pass: Pass,
    pub sign: Sign,
    /// Of a bad sign.
    pub because: Option<&'a Because>,
}

/// The breakers of the providers in the settings.
#[derive(Debug)]
pub struct Breakers {
    root: Root,
    /// The provider accounts by the names of providers.
    keys: HashMap<String, String>,
    /// The same, as statements take it.
    keys_json: String,
    limits: BreakerLimits,
    /// Provider accounts of which a success changes something, as last known. A hint: every replica has its own.
    troubled: Mutex<HashSet<String>>,
}

/// What became of the breakers in a transaction.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The turns that wait for a breaker, and how long until they look.
    pub waits: HashMap<TurnName, Duration>,
    pub events: Vec<Owned>,
    /// Whether a success changes something from now on.
    troubled: HashMap<String, bool>,
}

/// Whether a turn may send its call.
pub type Taken = Result<Pass, Duration>;

impl Breakers {
    pub fn new(root: Root, providers: &HashMap<String, ProviderSettings>, settings: &DeliverySettings) -> Breakers {
        let key = |(name, provider): (&String, &ProviderSettings)| {
            let key = provider.quota_account.as_ref().unwrap_or(name);
            (name.clone(), key.clone())
        };
        let keys: HashMap<String, String> = providers.iter().map(key).collect();
        Breakers {
            root,
            keys_json: serde_json::to_string(&keys).expect("names are texts"),
            keys,
            limits: settings.breaker_limits(),
            troubled: Mutex::default(),
        }
    }

    pub fn keys_json(&self) -> &str {
        &self.keys_json
    }

    /// The provider account; none: the settings do not have the provider.
    pub fn key(&self, provider: &str) -> Option<&str> {
        self.keys.get(provider).map(String::as_str)
    }

    /// When a turn looks again whose own call has failed: those that have not tried try first.
    pub fn after_others(&self, look: Duration) -> Duration {
        look + self.limits.open / 10
    }

    fn providers(&self, key: &str) -> Vec<String> {
        let sharing = self.keys.iter().filter(|(_, of)| *of == key);
        let names: BTreeSet<String> = sharing.map(|(name, _)| name.clone()).collect();
        names.into_iter().collect()
    }

    pub(crate) fn setting(&self) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: SOURCE,
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        }
    }

    /// The breaker that this may change.
    fn concerned(&self, said: &Said<'_>) -> Option<&str> {
        let key = self.key(said.provider)?;
        let may_change = match said.sign {
            Sign::Bad(_) => true,
            Sign::Good => said.pass.probes || self.troubled().contains(key),
            Sign::Neither => said.pass.probes,
        };
        may_change.then_some(key)
    }

    /// Counts what ended calls say of their providers, in the transaction of their record. The caller has the sessions' locks.
    pub async fn record<'a>(&self, tx: &Tx, said: impl Iterator<Item = Said<'a>>) -> Result<Recorded, StorageError> {
        let mut recorded = Recorded::default();
        let concerned: Vec<(&str, Said<'_>)> = said.filter_map(|said| Some((self.concerned(&said)?, said))).collect();
        let keys: BTreeSet<&str> = concerned.iter().map(|(key, _)| *key).collect();
        for before in breakers_lock(tx, keys.into_iter().map(str::to_owned).collect()).await? {
            let own = || {
                concerned
                    .iter()
                    .filter(|(key, _)| *key == before.key)
                    .map(|(_, said)| said)
            };
            let mut after = before.breaker;
            let mut because = None;
            for said in own() {
                let call = SentCall {
                    turn: said.turn.1.uuid(),
                    epoch: said.pass.epoch,
                };
                let ended = after.ended(call, said.sign, before.now, &self.limits);
                if ended != after {
                    because = said.because;
                }
                after = ended;
            }
            if after.state != BreakerState::Closed {
                let look = self.after_others(after.standing(before.now).look());
                let failed = own().filter(|said| matches!(said.sign, Sign::Bad(_)));
                recorded.waits.extend(failed.map(|said| (said.turn.clone(), look)));
            }
            if after != before.breaker {
                recorded.events.extend(self.write(tx, &before, &after, because).await?);
            }
            let is_troubled = after.failures > 0 || after.state != BreakerState::Closed;
            recorded.troubled.insert(before.key, is_troubled);
        }
        Ok(recorded)
    }

    /// To be called when the transaction has committed.
    pub fn committed(&self, recorded: Recorded) {
        let mut troubled = self.troubled();
        for (key, is_troubled) in recorded.troubled {
            match is_troubled {
                true => drop(troubled.insert(key)),
                false => drop(troubled.remove(&key)),
            }
        }
    }

    /// Takes the probes of breakers that may be tried, in the transaction that claims the turns. In the order of `asked`: provider
    /// and turn.
    pub async fn probe(
        &self,
        tx: &Tx,
        asked: &[(&str, TurnId)],
        events: &mut Vec<Owned>,
    ) -> Result<Vec<Taken>, StorageError> {
        let keys: BTreeSet<&str> = asked.iter().filter_map(|(provider, _)| self.key(provider)).collect();
        let locked = breakers_lock(tx, keys.into_iter().map(str::to_owned).collect()).await?;
        let mut locked: HashMap<String, LockedBreaker> = locked.into_iter().map(|row| (row.key.clone(), row)).collect();
        let mut taken = Vec::with_capacity(asked.len());
        for (provider, turn) in asked {
            let row = self.key(provider).and_then(|key| locked.get_mut(key));
            // Its gate was asked before.
            let Some(row) = row else { continue };
            let (standing, now) = (row.breaker.standing(row.now), row.now);
            taken.push(match standing.admits(Some(turn.uuid())) {
                Admits::Call => Ok(Pass {
                    epoch: standing.epoch,
                    probes: false,
                }),
                Admits::Wait(look) => Err(look),
                Admits::Probe => {
                    let after = row.breaker.probed(turn.uuid(), now, &self.limits);
                    let after = after.expect("it admits a probe");
                    if after != row.breaker {
                        events.extend(self.write(tx, row, &after, None).await?);
                    }
                    row.breaker = after;
                    Ok(Pass {
                        epoch: after.epoch,
                        probes: true,
                    })
                }
            });
        }
        Ok(taken)
    }

    async fn write(
        &self,
        tx: &Tx,
        before: &LockedBreaker,
        after: &Breaker,
        because: Option<&Because>,
    ) -> Result<Option<Owned>, StorageError> {
        if before.breaker.state != after.state {
            tracing::info!(
                key = before.key,
                class = because.map(|because| because.class),
                probe_at = after.probe_at.map(tracing::field::display),
                "breaker of a provider account is {}",
                after.state
            );
        }
        let providers = self.providers(&before.key);
        breaker_write(tx, before, after, because, providers, &self.setting()).await
    }

    fn troubled(&self) -> MutexGuard<'_, HashSet<String>> {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Sent;

    #[test]
    fn says_which_failures_are_the_provider_s() {
        use FailureClass as C;
        let check = |class, seconds: Option<u64>, expected| {
            let mut error = ProviderError::new(class, Sent::No, "x");
            error.retry_after = seconds.map(Duration::from_secs);
            assert_eq!(
                fault_of(&error).map(|fault| fault.fault),
                expected,
                "{class} {seconds:?}"
            );
        };
        let exhausted = |seconds: Option<u64>| {
            let reset = seconds.map(Duration::from_secs);
            Some(Fault::Exhausted { reset })
        };
        for class in [C::Quota, C::Unauthorized, C::AgentUnauthorized] {
            check(class, None, exhausted(None));
            check(class, Some(3), exhausted(Some(3)));
        }
        check(C::RateLimited, None, Some(Fault::Trouble));
        check(C::RateLimited, Some(9), Some(Fault::Trouble));
        check(C::RateLimited, Some(10), exhausted(Some(10)));
        for class in [C::Refused, C::ServerError, C::Timeout] {
            check(class, Some(60), Some(Fault::Trouble));
        }
        for class in [
            C::Truncated,
            C::Malformed,
            C::TooLarge,
            C::BadRequest,
            C::Failed,
            C::ThreadLost,
        ] {
            check(class, Some(60), None);
        }
    }
}
