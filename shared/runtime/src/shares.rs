//! No account takes more than its share of what waits: of the stream of notifications, which refuses everybody when it is
//! full, and of the outbox before it. One of a service that writes notifications; each lets an account have its share.
//!
//! What a service writes into its outbox it charges to the account first, recipient by recipient, in memory, so that it costs
//! no request to the database. What of it still waits is looked at now and then, for the accounts that have been charged: what
//! other replicas wrote is seen there, a look later. Notifications that are published over NATS are not counted: who may do
//! that is trusted with every account (`SECURITY.md`). Nor are messages of no account: the operator's redrives.

use crate::sweep::Ticks;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use contracts::{Stream, message::awaited};
use domain::{AccountId, Bytes, error_chain};
use storage::{
    Database, StorageError,
    outbox::{Owned, SHARE_ROWS_MAX, outbox_shares},
};
use tokio_util::sync::CancellationToken;

/// Of what the stream of notifications may hold.
const SHARE: i64 = 4;
const LOOK: Duration = Duration::from_secs(1);
/// For each so many rows that an account was found with, one look passes it over: counting them takes time.
const ROWS_OF_A_LOOK: i64 = 10_000;

/// What the accounts have waiting that were charged for something. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shares {
    bytes_max: Arc<AtomicI64>,
    accounts: Arc<Mutex<BTreeMap<AccountId, Account>>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Waits {
    bytes: i64,
    rows: i64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Account {
    /// At the last look.
    found: Waits,
    /// Since then.
    charged: Waits,
    /// Looks that pass it over.
    passes: i64,
    was_refused: bool,
}

/// The account has its share waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this account has a quarter of what may wait for the resolver waiting already")]
pub struct NoRoom;

impl Default for Shares {
    fn default() -> Self {
        Shares {
            bytes_max: Arc::new(AtomicI64::new(i64::MAX)),
            accounts: Arc::default(),
        }
    }
}

impl Waits {
    fn and(self, more: Waits) -> Waits {
        Waits {
            bytes: self.bytes.saturating_add(more.bytes),
            rows: self.rows.saturating_add(more.rows),
        }
    }
}

impl Shares {
    /// What the stream may hold.
    pub fn limit(&self, stream: Bytes) {
        self.bytes_max.store(stream.i64() / SHARE, Ordering::Relaxed);
    }

    /// Whether anything more could be charged: asked before any work is done.
    pub fn check(&self, account: &AccountId) -> Result<(), NoRoom> {
        let least = Waits { bytes: 1, rows: 1 };
        match self.accounts().get_mut(account) {
            Some(known) => self.fits(account, known, least).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Charges the notifications among these messages, all or none. What is not written after all is forgotten at the next look.
    pub fn charge(&self, messages: &[Owned]) -> Result<(), NoRoom> {
        let mut asked: BTreeMap<&AccountId, Waits> = BTreeMap::new();
        for (account, outgoing) in messages {
            if let Some(account) = account
                && awaited(&outgoing.subject) == Some(Stream::Notification)
            {
                let one = Waits {
                    bytes: i64::try_from(outgoing.payload.len()).unwrap_or(i64::MAX),
                    rows: 1,
                };
                let all = asked.entry(account).or_default();
                *all = all.and(one);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let mut accounts = self.accounts();
        for (account, more) in &asked {
            self.fits(account, accounts.entry((*account).clone()).or_default(), *more)?;
        }
        for (account, more) in asked {
            if let Some(known) = accounts.get_mut(account) {
                known.charged = known.charged.and(more);
            }
        }
        Ok(())
    }

    /// The first always fits, however large.
    fn fits(&self, account: &AccountId, known: &mut Account, more: Waits) -> Result<(), NoRoom> {
        let waits = known.found.and(known.charged);
        let then = waits.and(more);
        if waits.rows == 0 || (then.bytes <= self.bytes_max.load(Ordering::Relaxed) && then.rows <= SHARE_ROWS_MAX) {
            return Ok(());
        }
        if !std::mem::replace(&mut known.was_refused, true) {
            tracing::warn!(%account, "account has more unread notifications than its share; its new ones are refused");
        }
        Err(NoRoom)
    }

    /// Looks what still waits of what was charged.
    pub async fn look(&self, database: &Database) -> Result<(), StorageError> {
        let asked: BTreeMap<AccountId, Account> = {
            let mut accounts = self.accounts();
            let due = accounts.iter_mut().filter_map(|(account, known)| {
                known.passes -= 1;
                (known.passes < 0).then(|| (account.clone(), *known))
            });
            due.collect()
        };
        if asked.is_empty() {
            return Ok(());
        }
        let names = asked.keys().map(AccountId::to_string).collect();
        let found: BTreeMap<String, Waits> = outbox_shares(database, names)
            .await?
            .into_iter()
            .map(|share| {
                (
                    share.account_id,
                    Waits {
                        bytes: share.bytes,
                        rows: share.rows,
                    },
                )
            })
            .collect();
        let mut accounts = self.accounts();
        for (account, before) in asked {
            let Some(known) = accounts.get_mut(&account) else {
                continue;
            };
            known.found = found.get(account.as_str()).copied().unwrap_or_default();
            known.passes = known.found.rows / ROWS_OF_A_LOOK;
            // What was charged since the look began may not be in it.
            known.charged.bytes -= before.charged.bytes;
            known.charged.rows -= before.charged.rows;
            if known.charged == Waits::default() && known.found == Waits::default() {
                if known.was_refused {
                    tracing::info!(%account, "account has no unread notifications any more");
                }
                accounts.remove(&account);
            }
        }
        Ok(())
    }

    /// Looks until told to stop.
    pub async fn watch(self, database: Database, stop: CancellationToken) {
        let mut ticks = Ticks::every(LOOK, stop);
        while ticks.next().await {
            if let Err(error) = self.look(&database).await {
                let error = error_chain(&error);
                tracing::warn!(error, "could not read the accounts' shares of the outbox; will retry");
            }
        }
    }

    fn accounts(&self) -> MutexGuard<'_, BTreeMap<AccountId, Account>> {
        self.accounts.lock().expect("nobody panics while holding this lock")
    }
}

#[cfg(test)]
mod tests {
    use contracts::{Headers, Outgoing};

    use super::*;

    fn message(account: &str, subject: &str, bytes: usize) -> Owned {
        let outgoing = Outgoing {
            subject: format!("signalbox.{subject}.{account}.-"),
            headers: Headers::default(),
            payload: vec![0; bytes],
        };
        (Some(AccountId::parse(account).unwrap()), outgoing)
    }

    #[test]
    fn each_recipient_is_charged_and_all_of_a_request_or_none() {
        let shares = Shares::default();
        shares.limit(Bytes::new(4 * 1_000));
        let send = |account, count| shares.charge(&vec![message(account, "notification", 100); count]);
        assert_eq!(send("acme", 8), Ok(()));
        assert_eq!(send("acme", 3), Err(NoRoom), "1,100 are more than its share");
        assert_eq!(send("acme", 2), Ok(()), "nothing of what was refused was charged");
        let acme = AccountId::parse("acme").unwrap();
        assert_eq!(shares.check(&acme), Err(NoRoom));
        assert_eq!(
            shares.charge(&[message("acme", "session.closed", 100)]),
            Ok(()),
            "no notification"
        );
        assert_eq!(send("other", 64), Ok(()), "the first always fits");
        assert_eq!(send("other", 1), Err(NoRoom));
        let (_, operators) = message("acme", "notification", 100);
        assert_eq!(shares.charge(&[(None, operators)]), Ok(()));
    }

    #[test]
    fn without_a_limit_only_the_number_counts() {
        let shares = Shares::default();
        let most = usize::try_from(SHARE_ROWS_MAX).unwrap();
        assert_eq!(
            shares.charge(&vec![message("acme", "notification", 1_000); most]),
            Ok(())
        );
        assert_eq!(shares.charge(&[message("acme", "notification", 1)]), Err(NoRoom));
    }
}
