//! `/api/orgs/{account}/sessions`.

use api::sessions::{Release, Resume, Session, Stop, StopState, Stopping};
use axum::{Json, extract::State};
use contracts::{
    event::{Event, SessionGated},
    session::{SessionResolved, SessionStopRequested},
};
use domain::{AccountId, AgentRef, Gate, SessionId, StopKind, StopThen, TaskId, TurnId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Accounts, Setting, Tx,
    outbox::Owned,
    session::{
        session_release::session_release,
        sessions_lock::{LockedSession, SESSIONS_LOCK, sessions_lock},
        sessions_park::sessions_unpark,
        turn_stop::{StopRequest, stops_continue, turn_stop},
    },
};

use super::store::{self, AboutSession, Filter};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "sessions": "One agent's continuous work, in generations";
    /// Sessions, newest first.
    GET "/api/orgs/{account}/sessions" Read => list;
    /// A generation of a session.
    GET "/api/orgs/{account}/sessions/{session}" Read => read;
    /// Stop the turn in progress. Accepted means that it will end, unless its reply has come already. Notifications that
    /// wait behind it are kept: with `then: hold` until the session is resumed or a person sends a new one.
    POST "/api/orgs/{account}/sessions/{session}/stop" Control => stop;
    /// Resume a session whose turn was stopped, or that went round without progress: the notifications that waited behind it are processed in their order.
    POST "/api/orgs/{account}/sessions/{session}/resume" Control => resume;
    /// Take the lease of a turn in progress from the replica that holds it and gets no further. Another one carries the turn
    /// on at once; what the holder still writes has no effect.
    POST "/api/orgs/{account}/sessions/{session}/release" Administer => release;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<AgentRef>,
    /// `true`: only those that are open. `false`: only those that are closed.
    active: Option<bool>,
    /// Only those of the branches that this session has made.
    parent: Option<SessionId>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Session>, ApiError> {
    let filter = Filter {
        task: query.task.map(|task| task.key()),
        agent: query.agent,
        active: query.active,
        parent: query.parent,
    };
    let list = List::of(&store::LIST, "sessions", &access.account, format_args!("{filter:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = page.read(&tx, &store::LIST, filter.values(), "list sessions").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
) -> Result<Json<Session>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let session = session_read(&tx, &access.account, session).await?;
    tx.commit().await?;
    Ok(Json(session))
}

async fn stop(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Post { body, once }: Post<Stop>,
) -> Result<Answer<202, Stopping, 200>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let locked = session_lock(&work.tx, account, session).await?;
        let turn = match turn_to_stop(locked.active_turn, body.turn_id) {
            Ok(turn) => turn,
            Err(unchanged) => return Ok(Done::unchanged(unchanged)),
        };
        let request = StopRequest {
            session: locked.name(),
            turn: Some(turn),
            kind: StopKind::Stopped,
            by: &access.caller.actor().name,
            then: body.then.unwrap_or(StopThen::Hold),
            task: None,
        };
        let requested = turn_stop(&work.tx, &[request]).await?;
        let AboutSession { task, .. } = store::session_about(&work.tx, account, session).await?;
        let setting = app.setting(None, work.now);
        let messages = requested.into_iter().map(|requested| {
            let task = task.clone();
            let requested = SessionStopRequested { task, ..requested };
            setting.message(&requested.message_id(), &requested)
        });
        let messages = messages.collect();
        tracing::info!(%account, session_id = %session, turn_id = %turn, "requested a stop");
        let stopping = Stopping {
            state: StopState::Stopping,
            turn_id: Some(turn),
        };
        Ok(Done::new(stopping).with(messages))
    })
    .await
}

async fn resume(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Post { once, .. }: Post<Resume>,
) -> Result<Answer<200, Session>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let locked = session_lock(&work.tx, account, session).await?;
        let mut messages = Vec::new();
        if locked.stop().is_some_and(|stop| stop.then == StopThen::Hold) {
            stops_continue(&work.tx, &[locked.name()]).await?;
        }
        let opened = locked
            .gate
            .filter(|gate| matches!(gate, Gate::Stopped | Gate::NoProgress));
        if let Some(gate) = opened.filter(|_| !locked.facts.closed) {
            sessions_unpark(&work.tx, &[locked.name()]).await?;
            let about = store::session_about(&work.tx, account, session).await?;
            messages = resumed(&locked, gate, about, &app.setting(None, work.now));
            tracing::info!(%account, session_id = %session, queued = locked.facts.queued, "resumed session");
        }
        let session = session_read(&work.tx, account, session).await?;
        Ok(Done::new(session).with(messages))
    })
    .await
}

async fn release(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Post { once, .. }: Post<Release>,
) -> Result<Answer<200, Session>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let locked = session_lock(&work.tx, account, session).await?;
        let (by, setting) = (access.caller.actor(), app.setting(None, work.now));
        let released = session_release(&work.tx, &locked, &by, &setting).await?;
        if released.is_some() {
            let holder = locked.lease_owner.map(tracing::field::display);
            tracing::info!(%account, session_id = %session, holder, "released a lease");
        }
        let session = session_read(&work.tx, account, session).await?;
        Ok(Done::new(session).with(released.unwrap_or_default()))
    })
    .await
}

/// The session, locked until the end of the transaction.
async fn session_lock(tx: &Tx, account: &AccountId, session: SessionId) -> Result<LockedSession, ApiError> {
    let mut locked = sessions_lock(tx, SESSIONS_LOCK, &[(account.clone(), session)]).await?;
    locked.pop().ok_or_else(|| Problem::not_found().into())
}

async fn session_read(tx: &Tx, account: &AccountId, session: SessionId) -> Result<Session, ApiError> {
    let session = store::session_find(tx, account, session).await?;
    session.ok_or_else(|| Problem::not_found().into())
}

/// The turn in progress, if it is the one that may be stopped; else the answer. `named`: this turn only.
fn turn_to_stop(active: Option<TurnId>, named: Option<TurnId>) -> Result<TurnId, Stopping> {
    match (active, named) {
        (None, _) => Err(Stopping {
            state: StopState::Nothing,
            turn_id: None,
        }),
        (Some(active), Some(named)) if active != named => Err(Stopping {
            state: StopState::Over,
            turn_id: Some(named),
        }),
        (Some(active), _) => Ok(active),
    }
}

/// The event of a resumed session, and the wake-up for delivery.
///
/// A session is parked by these gates once after each turn, so the number of turns makes the ids unique. Without it, the broker would
/// take this wake-up for a duplicate of the one that announced the same item.
fn resumed(parked: &LockedSession, gate: Gate, about: AboutSession, setting: &Setting<'_>) -> Vec<Owned> {
    let released = SessionGated {
        session_id: parked.id,
        session_key: parked.key.clone(),
        generation: parked.generation,
        agent_id: parked.agent_id,
        gate,
        queued: parked.facts.queued.unsigned_abs(),
    };
    let id = format!("{}:turn:{}", parked.id, parked.turn_count);
    let event = setting.event(
        &parked.account,
        about.task.as_ref(),
        &id,
        Event::SessionReleased(released),
    );
    let wake_up = SessionResolved {
        account: parked.account.clone(),
        task: about.task,
        session_id: parked.id,
        session_key: parked.key.clone(),
        generation: parked.generation,
        agent_id: parked.agent_id,
        position: about.queue_tail,
    };
    let id = format!("{}:turn:{}", wake_up.message_id(), parked.turn_count);
    vec![event, setting.message(&id, &wake_up)]
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_stop_ends_the_named_turn_and_no_other() {
        const ONE: TurnId = TurnId(Uuid::from_u128(1));
        const TWO: TurnId = TurnId(Uuid::from_u128(2));
        const NIL: TurnId = TurnId(Uuid::nil());
        let check = |active, named, expected: Result<TurnId, (StopState, Option<TurnId>)>| {
            let found = turn_to_stop(active, named).map_err(|answer| (answer.state, answer.turn_id));
            assert_eq!(found, expected, "{active:?} {named:?}");
        };
        check(Some(ONE), None, Ok(ONE));
        check(Some(ONE), Some(ONE), Ok(ONE));
        check(Some(ONE), Some(TWO), Err((StopState::Over, Some(TWO))));
        check(Some(ONE), Some(NIL), Err((StopState::Over, Some(NIL))));
        check(None, None, Err((StopState::Nothing, None)));
        check(None, Some(ONE), Err((StopState::Nothing, None)));
    }
}
