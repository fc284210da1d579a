//! Stops provider calls on request. The request is in the session's row; a hint of it, or the sweep, names the session, and
//! the call is dropped if the row names the turn that runs here. Without a hint and without a sweep the
//! turn's record would still find the request.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use domain::{AccountId, Fence, SessionId, TurnId, error_chain};
use runtime::{
    Replica,
    sweep::{Sweep, Ticks},
};
use sea_orm::FromQueryResult;
use storage::{Accounts, Database, StorageError, directory::session_stopping, statement::pairs};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::work::Work;
use crate::store::SessionName;

/// Hints that wait to be looked at; the sweep replaces further ones.
const HINTS_WAITING_MAX: usize = 4_096;
const LOOK_BATCH_MAX: usize = 256;

/// A call that runs here.
#[derive(Clone, Debug)]
struct Call {
    turn: TurnId,
    fence: Fence,
    stop: CancellationToken,
}

/// The calls of this process, by session.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<HashMap<SessionName, Call>>>);

/// A call is registered for as long as this lives.
#[derive(Debug)]
pub struct Registered {
    calls: Calls,
    name: SessionName,
    turn: TurnId,
    fence: Fence,
}

impl Calls {
    /// Registers the call of a turn. Its token is the work's.
    pub(super) fn register(&self, work: &Work) -> Registered {
        let call = Call {
            turn: work.turn.id,
            fence: work.turn.fence,
            stop: work.stop.clone(),
        };
        self.held().insert(work.name(), call);
        Registered {
            calls: self.clone(),
            name: work.name(),
            turn: work.turn.id,
            fence: work.turn.fence,
        }
    }

    fn is_here(&self, name: &SessionName) -> bool {
        self.held().contains_key(name)
    }

    fn stop(&self, asked: &Asked) {
        let held = self.held();
        if let Some(call) = held.get(&(asked.account_id.clone(), asked.id))
            && call.turn == asked.stop_turn_id
            // Its lease may have been taken from it meanwhile.
            && call.fence <= asked.fence
        {
            call.stop.cancel();
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<SessionName, Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut held = self.calls.held();
        // The session's next turn may have begun with the record of this one, or this turn again after a lost lease.
        let is_own = |call: &Call| (call.turn, call.fence) == (self.turn, self.fence);
        if held.get(&self.name).is_some_and(is_own) {
            held.remove(&self.name);
        }
    }
}

/// Where hints go.
#[derive(Clone, Debug)]
pub struct Hints {
    names: mpsc::Sender<SessionName>,
    calls: Calls,
}

impl Hints {
    /// Never waits.
    pub fn give(&self, name: SessionName) {
        if self.calls.is_here(&name) {
            let _ = self.names.try_send(name);
        }
    }
}

pub fn hints(calls: &Calls) -> (Hints, mpsc::Receiver<SessionName>) {
    let (names, hinted) = mpsc::channel(HINTS_WAITING_MAX);
    let calls = calls.clone();
    (Hints { names, calls }, hinted)
}

/// Looks at the rows of hinted sessions, until `stop`.
pub async fn look(database: Database, calls: Calls, mut hinted: mpsc::Receiver<SessionName>, stop: CancellationToken) {
    let mut names = Vec::new();
    loop {
        tokio::select! {
            count = hinted.recv_many(&mut names, LOOK_BATCH_MAX) => if count == 0 { return },
            () = stop.cancelled() => return,
        }
        match asked(&database, &names).await {
            Ok(asked) => asked.iter().for_each(|asked| calls.stop(asked)),
            Err(error) => warn!(
                error = error_chain(&error),
                sessions = names.len(),
                "could not read stop requests; the sweep will"
            ),
        }
        names.clear();
    }
}

#[derive(FromQueryResult)]
struct Asked {
    account_id: AccountId,
    id: SessionId,
    stop_turn_id: TurnId,
    fence: Fence,
}

/// Relies on the primary key.
pub const STOPS_FIND: &str = "
    select s.account_id, s.id, s.stop_turn_id, s.fence from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from session s where s.account_id = w.account_id and s.id = w.id limit 1) s
    where s.stop_turn_id = s.active_turn_id";

async fn asked(database: &Database, names: &[SessionName]) -> Result<Vec<Asked>, StorageError> {
    let tx = database
        .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
        .await?;
    let (accounts, ids) = pairs(names);
    let found = tx
        .rows("read stop requests", STOPS_FIND, [accounts.into(), ids.into()])
        .await?;
    tx.commit().await?;
    Ok(found)
}

/// Finds requests whose hints were lost, among the turns under the leases of `replica`.
pub async fn sweep(
    database: Database,
    replica: Replica,
    interval: Duration,
    sessions_max: i32,
    hints: Hints,
    stop: CancellationToken,
) {
    let mut ticks = Ticks::every(interval, stop);
    let sweep = Sweep::new(database.role().service(), "stop_requests");
    while ticks.next().await {
        let Some(incarnation) = replica.current() else {
            continue;
        };
        let found = sweep
            .once(session_stopping(&database, incarnation.id, sessions_max))
            .await;
        found.unwrap_or_default().into_iter().for_each(|name| hints.give(name));
    }
}
