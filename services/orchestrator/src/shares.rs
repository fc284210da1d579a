//! No account takes more than its share of what waits: of the stream of notifications, which refuses everybody when it is
//! full, and of the outbox before it.
//!
//! Counted by a look at the outbox now and then, and held in memory, so that a request costs nothing more. What an account
//! sends between two looks comes on top; how much that can be is the limit of its requests. Notifications that are
//! published over NATS are not counted: who may do that is trusted with every account (`SECURITY.md`).

use std::{
    collections::BTreeSet,
    sync::{Arc, RwLock},
    time::Duration,
};

use axum::http::StatusCode;
use domain::AccountId;
use runtime::http::Problem;
use storage::{Database, StorageError, outbox::outbox_shares};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Of what the stream of notifications may hold.
const SHARE: i64 = 4;
const LOOK: Duration = Duration::from_secs(1);
const AGAIN_S: u32 = 5;

/// Accounts that have more waiting than they may. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<RwLock<BTreeSet<AccountId>>>);

impl Shares {
    /// Refuses what would become another notification of the account.
    pub fn check(&self, account: &AccountId) -> Result<(), Problem> {
        if !self
            .0
            .read()
            .expect("nobody panics while holding this lock")
            .contains(account)
        {
            return Ok(());
        }
        let detail = "this account has a quarter of what may wait for the resolver waiting already: try again when \
                      some of it was read; notifications that were accepted are kept";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_much_unread");
        Err(problem.detail(detail).retry_after_s(AGAIN_S))
    }

    /// `stream_bytes_max`: what the stream may hold.
    pub async fn look(&self, database: &Database, stream_bytes_max: i64) -> Result<(), StorageError> {
        let over = outbox_shares(database, stream_bytes_max / SHARE).await?;
        let over: BTreeSet<AccountId> = over
            .iter()
            .filter_map(|share| AccountId::parse(&share.account_id).ok())
            .collect();
        let before = {
            let mut accounts = self.0.write().expect("nobody panics while holding this lock");
            std::mem::replace(&mut *accounts, over.clone())
        };
        for account in over.difference(&before) {
            tracing::warn!(%account, "account has more unread notifications than its share; its new ones are refused");
        }
        for account in before.difference(&over) {
            tracing::info!(%account, "account is within its share of unread notifications again");
        }
        Ok(())
    }

    /// Looks until told to stop. A limit that is not positive is none.
    pub async fn watch(self, database: Database, stream_bytes_max: i64, stop: CancellationToken) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if stream_bytes_max <= 0 {
                continue;
            }
            if let Err(error) = self.look(&database, stream_bytes_max).await {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::warn!(
                    error,
                    "could not look at the accounts' shares of the outbox; will retry"
                );
            }
        }
    }
}
