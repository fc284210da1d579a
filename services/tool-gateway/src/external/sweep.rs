//! What runners left: calls of replicas that are gone, and calls of this one that no worker has. Found by an index over running calls,
//! a limited number at a time; there are never more than all replicas together may run.

use std::{sync::Arc, time::Duration};

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

/// Runs until the process stops.
pub(crate) async fn sweep(external: Arc<External>, mut peers: Peers) {
    let sweep = Sweep::new(Role::ToolGateway.service(), "external_calls");
    let stop = external.context.shutdown.token();
    let mut ticks = Ticks::every(INTERVAL, stop);
    loop {
        sweep.once(once(&external)).await;
        // Either may be dropped: a tick comes again, and a replica that has ended is found by the next one.
        tokio::select! {
            running = ticks.next() => if !running { return },
            () = peers.one_ended() => {}
        }
    }
}

/// Gives each call that was left a runner, or its outcome; returns how many.
async fn once(external: &Arc<External>) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let Some(runner) = external.runner() else {
        return Ok(0);
    };
    for left in store::calls_running(&external.context.database, runner, ROWS_MAX).await? {
        if external.context.shutdown.is_stopping() {
            break;
        }
        let taken = match left.is_orphan {
            // This process has lost its registration since, and runs the call still.
            true if external.has(left.id) => Ok(false),
            true => external.take(&left.account, left.id).await,
            false => Ok(external.resume(&left.account, left.id)),
        };
        parts.note(left.id, taken.map(u64::from));
    }
    parts.end()
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

    /// Runs a call again whose runner is gone, or says that nobody knows its outcome.
    async fn take(self: &Arc<Self>, account: &AccountId, call: Uuid) -> Result<bool, StorageError> {
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
