//! Looks at the breakers each second: unparks what waited for one that has closed, wakes a few sessions for one that may be
//! tried, and remembers which are in trouble. What it misses looks again by itself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use domain::{AccountId, BreakerState};
use runtime::{
    Outbox,
    sweep::{Parts, Sweep, Ticks},
};
use storage::{
    Accounts, Database, StorageError,
    breaker::{BreakerRow, breaker_open, breaker_parked, breaker_settled, breaker_try, breakers_read},
    directory::PARKED_ACCOUNTS_MAX,
    outbox::outbox_insert,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Breakers;
use crate::{
    metrics::Metrics,
    queue::signal::{Signal, tell},
};

/// Sessions of one breaker, of all accounts, that are unparked at one look: other work keeps most of the installation.
const LOOK_MAX: i32 = 250;

/// The dependencies of the sweep.
#[derive(Clone, Debug)]
pub struct BreakerSweep {
    pub database: Database,
    pub breakers: Arc<Breakers>,
    pub outbox: Outbox,
    pub metrics: Metrics,
    pub signals: mpsc::Sender<Signal>,
    /// Where the last look at a breaker ended, if more accounts may follow.
    pub after: HashMap<String, AccountId>,
}

impl BreakerSweep {
    pub async fn run(mut self, interval: Duration, stop: CancellationToken) {
        let sweep = Sweep::new(self.database.role().service(), "provider_breakers");
        let mut ticks = Ticks::every(interval, stop);
        while ticks.next().await {
            sweep.once(self.once()).await;
        }
    }

    /// Gives the number of sessions. A breaker that fails does not stop the others.
    async fn once(&mut self) -> Result<u64, StorageError> {
        let mut parts = Parts::default();
        let breakers = breakers_read(&self.database).await?;
        self.breakers.remember(&breakers);
        for breaker in &breakers {
            self.metrics.breaker(&breaker.key, breaker.state);
            parts.note(&breaker.key, self.settle(breaker).await);
        }
        parts.end()
    }

    async fn settle(&mut self, breaker: &BreakerRow) -> Result<u64, StorageError> {
        if breaker.due {
            let names = breaker_try(&self.database, &breaker.key).await?;
            let woken = names.len();
            if !names.is_empty() {
                tell(&self.signals, Signal::Wake(names)).await;
            }
            return Ok(woken as u64);
        }
        // One that has opened again keeps what is left.
        if !breaker.unsettled || breaker.state != BreakerState::Closed {
            return Ok(0);
        }
        let after = self.after.remove(&breaker.key);
        let parked = breaker_parked(&self.database, &breaker.key, after.as_ref(), LOOK_MAX).await?;
        if parked.is_empty() && after.is_none() {
            breaker_settled(&self.database, &breaker.key).await?;
        }
        let accounts = parked.chunk_by(|one, other| one.0 == other.0).count();
        if let Some((last, _)) = parked.last().filter(|_| accounts >= PARKED_ACCOUNTS_MAX) {
            self.after.insert(breaker.key.clone(), last.clone());
        }
        let mut parts = Parts::default();
        for of_account in parked.chunk_by(|one, other| one.0 == other.0) {
            let account = &of_account[0].0;
            parts.note(account, self.open(account, of_account.len(), &breaker.key).await);
        }
        parts.end()
    }

    async fn open(&self, account: &AccountId, sessions: usize, key: &str) -> Result<u64, StorageError> {
        let tx = self.database.begin(&Accounts::one(account)).await?;
        let (sessions, messages) = breaker_open(&tx, account, sessions, key, &self.breakers.setting()).await?;
        let rows = outbox_insert(&tx, messages).await?;
        tx.commit().await?;
        self.outbox.publish_soon(rows);
        Ok(sessions as u64)
    }
}

impl Breakers {
    fn remember(&self, rows: &[BreakerRow]) {
        let is_troubled = |row: &&BreakerRow| row.failures > 0 || row.state != BreakerState::Closed;
        *self.troubled() = rows.iter().filter(is_troubled).map(|row| row.key.clone()).collect();
    }
}
