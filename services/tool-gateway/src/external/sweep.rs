//! What runners left: calls of replicas that are gone, and calls of this one that no worker has. Found by an index over running calls,
//! a limited number at a time; there are never more than all replicas together may run.
//!
//! A runner that is gone may come back: after an outage of the database, the replicas register again one by one. So a process keeps
//! its own calls, and a call that is not made again waits for its runner before its outcome is called unknown.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::TraceContext;
use domain::{AccountId, ToolCallState};
use runtime::{
    Peers,
    sweep::{Parts, Sweep, Ticks},
};
use storage::{Accounts, Role, StorageError};
use uuid::Uuid;

use super::{
    External,
    outcome::{Kind, runs_again},
};
use crate::{call::ToolAnswer, store};

/// How often calls are looked for; a replica that ends is noticed at once.
const INTERVAL: Duration = Duration::from_secs(2);
const ROWS_MAX: i32 = 500;
/// How many leases a runner has to come back, 30 s by default. After an outage it registers again within two leases; then its sweep
/// keeps its calls, or its worker records an outcome, as soon as an attempt that hangs in the pool has failed.
const GRACE_LEASES: u32 = 10;

/// Runs until the process stops.
pub(crate) async fn sweep(external: Arc<External>, mut peers: Peers) {
    let sweep = Sweep::new(Role::ToolGateway.service(), "external_calls");
    let stop = external.context.shutdown.token();
    let mut ticks = Ticks::every(INTERVAL, stop);
    let mut orphans = Orphans::default();
    loop {
        sweep.once(once(&external, &mut orphans)).await;
        // Either may be dropped: a tick comes again, and a replica that has ended is found by the next one.
        tokio::select! {
            running = ticks.next() => if !running { return },
            () = peers.one_ended() => {}
        }
    }
}

/// Gives each call that was left a runner, or its outcome; returns how many.
async fn once(external: &Arc<External>, orphans: &mut Orphans) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let Some(runner) = external.runner() else {
        return Ok(0);
    };
    let calls = store::calls_running(&external.context.database, runner, ROWS_MAX).await?;
    let found = calls.iter().filter(|call| call.is_orphan).map(|call| call.id);
    orphans.note(Instant::now(), found);
    let grace = external.context.settings.replica.lease_ms.duration() * GRACE_LEASES;
    for left in calls {
        if external.context.shutdown.is_stopping() {
            break;
        }
        let taken = match (left.is_orphan, external.has(left.id)) {
            // This process has lost its registration since, and runs the call still.
            (true, true) => external.keep(&left.account, left.id).await,
            (true, false) => {
                let is_grace_over = orphans.age(left.id) >= grace;
                external.take(&left.account, left.id, is_grace_over).await
            }
            (false, _) => Ok(external.resume(&left.account, left.id)),
        };
        parts.note(left.id, taken.map(u64::from));
    }
    parts.end()
}

/// How long this process has found each call without a runner.
#[derive(Default)]
struct Orphans {
    noted_at: Option<Instant>,
    ages: HashMap<Uuid, Duration>,
}

impl Orphans {
    /// Notes what a sweep found. Between two sweeps at most one interval counts: while the database is away no sweep finds anything,
    /// and no runner can come back.
    fn note(&mut self, now: Instant, found: impl Iterator<Item = Uuid>) {
        let passed = self.noted_at.map_or(Duration::ZERO, |at| INTERVAL.min(now - at));
        let ages = found.map(|call| (call, self.ages.get(&call).map_or(Duration::ZERO, |age| *age + passed)));
        self.ages = ages.collect();
        self.noted_at = Some(now);
    }

    fn age(&self, call: Uuid) -> Duration {
        self.ages.get(&call).copied().unwrap_or_default()
    }
}

impl External {
    /// A call of this process whose start was committed, although the commit seemed to fail.
    fn resume(self: &Arc<Self>, account: &AccountId, call: Uuid) -> bool {
        if self.has(call) {
            return false;
        }
        let place = self.place(account, call);
        let is_resumed = place.is_some();
        if let Some(place) = place {
            self.run(account.clone(), call, place, &TraceContext::default());
        }
        is_resumed
    }

    /// Gives a call of this process its present name, unless another runner has taken the call.
    async fn keep(&self, account: &AccountId, call: Uuid) -> Result<bool, StorageError> {
        let Some(runner) = self.runner() else {
            return Ok(false);
        };
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let kept = store::call_keep(&tx, account, call, (runner, self.names())).await;
        tx.commit_or_rollback(kept).await
    }

    /// Runs a call again whose runner is gone, or, after the grace, says that nobody knows its outcome.
    async fn take(
        self: &Arc<Self>,
        account: &AccountId,
        call: Uuid,
        is_grace_over: bool,
    ) -> Result<bool, StorageError> {
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let Some(row) = store::call_take(&tx, account, call).await? else {
            return tx.rollback().await.map(|()| false);
        };
        if runs_again(Kind::of(&row.name), row.tries, row.has_time) {
            let Some(place) = self.place(account, call) else {
                return tx.rollback().await.map(|()| false);
            };
            store::call_runner(&tx, account, call, (place.runner, row.tries + 1)).await?;
            tx.commit().await?;
            tracing::warn!(%account, tool_call_id = %call, tool = row.name, "took over an external call of a runner that is gone");
            self.run(account.clone(), call, place, &TraceContext::default());
            return Ok(true);
        }
        if !is_grace_over {
            return tx.rollback().await.map(|()| false);
        }
        let Some(locked) = store::call_lock(&tx, account, call).await? else {
            return tx.rollback().await.map(|()| false);
        };
        let (unknown, trace) = (Err(outcome_unknown(&row.name)), TraceContext::default());
        let ended = self.end_outside(tx, account, call, locked, (ToolCallState::Unknown, &unknown), &trace);
        ended.await.map(|_| true)
    }
}

fn outcome_unknown(tool: &str) -> ToolAnswer {
    ToolAnswer::failed(
        "outcome_unknown",
        format!("The call of {tool} was interrupted. It may or may not have been carried out."),
        "Nothing was kept. Do not call it again without a reason: it may be done, and paid for, twice.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_makes_no_orphan_older() {
        let (call, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut orphans = Orphans::default();
        let mut check = |at: u32, found: &[Uuid], expected: [u32; 2]| {
            orphans.note(start + second * at, found.iter().copied());
            assert_eq!(
                [call, other].map(|id| orphans.age(id)),
                expected.map(|age| second * age),
                "at {at}"
            );
        };
        check(0, &[call], [0, 0]);
        check(1, &[call], [1, 0]);
        check(3, &[call, other], [3, 0]);
        // The database was away: no sweep found anything.
        check(100, &[call, other], [5, 2]);
        // Its runner came back, and went again.
        check(102, &[other], [0, 4]);
        check(104, &[call, other], [0, 6]);
    }
}
