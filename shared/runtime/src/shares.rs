//! Limits an account's share of the backlog: of the stream of notifications, which refuses every account when it is
//! full, and of the outbox. One `Shares` for each service that writes notifications.
//!
//! A service charges its notifications to the account before it writes them, recipient by recipient, in memory, so that
//! a charge costs no database request. A periodic refresh reads the unread bytes and rows of the accounts that were
//! charged; it includes the writes of other replicas. Notifications that are published over NATS are not counted: their
//! publishers are trusted with every account (`SECURITY.md`). Messages without an account (the operator's redrives) are
//! not counted either.

use crate::sweep::Ticks;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use contracts::{Stream, message::awaited};
use domain::{AccountId, Bytes, error_chain};
use parking_lot::Mutex;
use storage::{
    Database, StorageError,
    outbox::{Owned, SHARE_ROWS_MAX, outbox_shares},
};
use tokio_util::sync::CancellationToken;

/// The divisor of the notification stream's capacity.
const SHARE: i64 = 4;
const LOOK: Duration = Duration::from_secs(1);
/// For each so many rows of an account, one refresh skips it: counting rows takes time.
const ROWS_OF_A_LOOK: i64 = 10_000;

/// The backlog of the accounts that were charged. Cheap to clone.
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
    /// Found by the last refresh.
    found: Waits,
    /// Charged since then.
    charged: Waits,
    /// Refreshes that skip the account.
    passes: i64,
    was_refused: bool,
}

/// The account's backlog has reached its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this account's share of unread notifications is full")]
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
    /// Sets the capacity of the stream.
    pub fn limit(&self, stream: Bytes) {
        self.bytes_max.store(stream.i64() / SHARE, Ordering::Relaxed);
    }

    /// Whether the account may be charged for anything: called before any work is done.
    pub fn check(&self, account: &AccountId) -> Result<(), NoRoom> {
        let least = Waits { bytes: 1, rows: 1 };
        let mut accounts = self.accounts.lock();
        let known = accounts.get_mut(account);
        known.map_or(Ok(()), |known| self.fits(account, known, least))
    }

    /// Charges the notifications among these messages, all or none. Charges for messages that are not written are
    /// dropped by the next refresh.
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
        let mut accounts = self.accounts.lock();
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

    /// The first message always fits, whatever its size.
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

    /// Refreshes the backlog of the accounts that were charged.
    pub async fn look(&self, database: &Database) -> Result<(), StorageError> {
        let asked: BTreeMap<AccountId, Account> = {
            let mut accounts = self.accounts.lock();
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
        let mut accounts = self.accounts.lock();
        for (account, before) in asked {
            let Some(known) = accounts.get_mut(&account) else {
                continue;
            };
            known.found = found.get(account.as_str()).copied().unwrap_or_default();
            known.passes = known.found.rows / ROWS_OF_A_LOOK;
            // Charges made during the refresh may be missing in its result.
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

    /// Refreshes until told to stop.
    pub async fn watch(self, database: Database, stop: CancellationToken) {
        let mut ticks = Ticks::every(LOOK, stop);
        while ticks.next().await {
            if let Err(error) = self.look(&database).await {
                let error = error_chain(&error);
                tracing::warn!(error, "could not read the accounts' shares of the outbox; will retry");
            }
        }
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
        assert_eq!(send("acme", 2), Ok(()), "a refused request is not charged");
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
