//! `/api/orgs/{account}/sessions`, and what is read of the current account's as `/api/sessions`.

use api::sessions::{Release, Reset, Resetting, Resume, Session, SessionState, Stop, StopState, Stopping};
use axum::{Json, extract::State};
use contracts::{
    event::{Event, SessionGated},
    session::{SessionResolved, SessionStopRequested},
};
use domain::{
    AccountId, AgentRef, Gate, Owner, PersonaSlug, ResetInFlight, ResetQueue, ResetRequest, SessionId, SessionKind,
    SessionRef, StopKind, StopThen, TaskId, TurnId,
};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Setting, Tx,
    outbox::Owned,
    session::{
        session_release::session_release,
        session_reset::{Asked, session_reset},
        sessions_lock::{LockedSession, SESSIONS_LOCK, sessions_lock},
        sessions_park::sessions_unpark,
        turn_stop::{StopRequest, stops_continue, turn_stop},
    },
};

use super::{
    SESSION_CLOSED, generation_is_closed, not_the_open_one,
    prompt::session_of,
    store::{self, AboutSession, Filter},
};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "sessions": "One agent's continuous work, in generations";
    /// Sessions, newest first.
    GET "/api/orgs/{account}/sessions" Read => list;
    /// Sessions of the key's account, newest first.
    GET "/api/sessions" Read => list_current;
    /// A generation of a session, by its id or its key; of an orchestrator by any address, which is its open generation.
    GET "/api/orgs/{account}/sessions/{session}" Read => read;
    /// A generation of a session of the key's account.
    GET "/api/sessions/{session}" Read => read_current;
    /// Stop the turn in progress. Accepted means that it will end, unless its reply has come already. Notifications that
    /// wait behind it are kept: with `then: hold` until the session is resumed or a person sends a new one.
    POST "/api/orgs/{account}/sessions/{session}/stop" Control => stop;
    /// Resume a session whose turn was stopped, or that went round without progress: the notifications that waited behind it are processed in their order.
    POST "/api/orgs/{account}/sessions/{session}/resume" Control => resume;
    /// Take the lease of a turn in progress from the replica that holds it and gets no further. Another one carries the turn
    /// on at once; what the holder still writes has no effect.
    POST "/api/orgs/{account}/sessions/{session}/release" Administer => release;
    /// Reset a session: its generation ends, and the next one knows nothing of it. Accepted means that a turn in progress is stopped
    /// first; the generation ends with it. 409 for a generation that is closed, with the id of the open one.
    POST "/api/orgs/{account}/sessions/{session}/reset" Control => reset;
}

// An operation has a name of its own, by its handler.
use self::{list as list_current, read as read_current};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<AgentRef>,
    /// `true`: only those that are open. `false`: only those that are closed.
    active: Option<bool>,
    /// As `state` in the answer: the same as `active`.
    status: Option<SessionState>,
    /// Only those that this session has made: those of its branches, and those that an orchestrator has created.
    parent: Option<SessionId>,
    /// Only those whose task is on the board of this one's orchestrator: `user:{user}`, or `account`.
    #[serde(alias = "creatorId", alias = "creator_id")]
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^(account|user:[a-z0-9][a-z0-9_.-]{0,127})$")
    )]
    owner: Option<Owner>,
    /// Slug, as it was when the persona's version was written.
    #[serde(alias = "personaSlug")]
    persona: Option<PersonaSlug>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Session>, ApiError> {
    let by_status = query.status.map(|status| status == SessionState::Active);
    if query
        .active
        .is_some_and(|active| by_status.is_some_and(|status| status != active))
    {
        return Err(invalid_field("status", "`active` says the opposite").into());
    }
    let filter = Filter {
        task: query.task.map(|task| task.key()),
        agent: query.agent,
        active: query.active.or(by_status),
        parent: query.parent,
        owner: query.owner,
        persona: query.persona,
    };
    let listing = filter.listing();
    let list = List::of(listing, "sessions", &access.account, format_args!("{filter:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page.read(&tx, listing, filter.values(), "list sessions").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
) -> Result<Json<Session>, ApiError> {
    let tx = access.begin(&app).await?;
    let session = session_of(&tx, &access.account, &session).await?;
    tx.commit().await?;
    Ok(Json(session.ok_or_else(Problem::not_found)?))
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
            Err(unchanged) => return Ok(Done::over(unchanged)),
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

async fn reset(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Post { body, once }: Post<Reset>,
) -> Result<Answer<202, Resetting, 200>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let locked = session_lock(&work.tx, account, session).await?;
        if let Some((code, why)) = not_reset(&locked) {
            return Err(not_the_open_one(&work.tx, account, session, (code, &why)).await?.into());
        }
        let request = ResetRequest {
            reason: body.reason.to_string(),
            by: access.caller.actor(),
            queue: body.queue.unwrap_or(ResetQueue::Keep),
            in_flight: body.in_flight.unwrap_or(ResetInFlight::Cancel),
            at: work.now.into(),
        };
        let task = store::session_about(&work.tx, account, session).await?.task;
        let setting = app.setting(None, work.now);
        let (asked, messages) = session_reset(&work.tx, (&locked, task.as_ref()), &request, &setting).await?;
        tracing::info!(%account, session_id = %session, ?asked, "asked for a reset");
        let done = match asked {
            Asked::Done(next) => Done::over(Resetting::done(next)),
            Asked::Stopping(turn) => Done::new(Resetting::stopping(turn)),
        };
        Ok(done.with(messages))
    })
    .await
}

/// Why a session cannot be reset: a code, and the reason in words.
fn not_reset(session: &LockedSession) -> Option<(&'static str, String)> {
    let generation = session.generation;
    match session.kind {
        _ if session.facts.closed => Some((SESSION_CLOSED, generation_is_closed(generation))),
        SessionKind::Task | SessionKind::System | SessionKind::Orchestrator | SessionKind::Guest => None,
        kind @ (SessionKind::Branch | SessionKind::Replay) => Some((
            "not_resettable",
            format!("a {kind} is one piece of work and has no next generation"),
        )),
    }
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
