//! `/api/orgs/{account}/holds`.

use api::holds::{Affected, Hold, NewHold, Placed, Scope, ScopeId};
use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use domain::{AccountId, AgentRef, HoldId, HoldRunning, HoldScope, SessionId, TaskId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Tx,
    hold::{self, HOLDS_MAX, NotSet, hold_release, hold_set},
    outbox::Owned,
};
use time::OffsetDateTime;

use super::store;
use crate::{
    agents,
    app::{App, database_now},
    auth::Access,
    body::{Named, Query},
    dry_run::alone,
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
    sessions::{SESSION_CLOSED, generation_is_closed, not_the_open_one, store::session_find},
};

routes! {
    "holds": "What people have paused";
    /// Holds, newest first.
    GET "/api/orgs/{account}/holds" Read => list;
    /// Pause a session, an agent, a task or the account: no turn starts there, and notifications wait, a person's too. Turns in
    /// progress go on to their end, or are ended with `running: stop`: their notifications are cancelled.
    POST "/api/orgs/{account}/holds" Control => place or 404;
    /// Release a hold. What waits goes on in its order, unless another hold or another gate keeps it.
    DELETE "/api/orgs/{account}/holds/{hold}" Control => release;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// `true`: only active ones. `false`: only those that have ended.
    active: Option<bool>,
    /// Only those of this kind of scope.
    scope: Option<HoldScope>,
    /// Only those of this scope, by its id as the hold shows it.
    scope_id: Option<ScopeId>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown<Hold>, ApiError> {
    let list = List::of(
        &store::LIST,
        "holds",
        &access.account,
        format_args!("{:?} {:?} {:?}", query.active, query.scope, query.scope_id),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [
        query.active.into(),
        query.scope.into(),
        query.scope_id.map(String::from).into(),
    ];
    let rows = page.read(&tx, &store::LIST, values, "list holds").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn place(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewHold>,
) -> Result<Answer<201, Placed, 200>, ApiError> {
    if body.dry_run == Some(true) {
        let tx = access.begin(&app).await?;
        alone(&tx, &access.account).await?;
        let now = database_now(&tx).await?;
        let (_, affected, _) = set(&app, &tx, &access, &body, now).await?;
        tx.rollback().await?;
        let placed = Placed { id: None, affected };
        return Ok((StatusCode::OK, Json(placed)).into_response().into());
    }
    once.run(&app, access.party(), async |work| {
        let (id, affected, messages) = set(&app, &work.tx, &access, &body, work.now).await?;
        let account = &access.account;
        tracing::info!(%account, hold = %id, scope = %body.scope.kind, scope_id = %body.scope.id, "set a hold");
        let id = Some(id);
        Ok(Done::new(Placed { id, affected }).with(messages))
    })
    .await
}

/// Sets the hold, unless it is refused; a dry run rolls it back.
async fn set(
    app: &App,
    tx: &Tx,
    access: &Access,
    body: &NewHold,
    now: OffsetDateTime,
) -> Result<(HoldId, Affected, Vec<Owned>), ApiError> {
    let account = &access.account;
    let until = body.until.map(|until| until.0);
    is_to_come(until, now)?;
    let (scope_id, affected) = counted(tx, account, &body.scope).await?;
    let new = hold::NewHold {
        account,
        scope: body.scope.kind,
        scope_id: &scope_id,
        reason: body.reason.as_deref().unwrap_or_default(),
        by: &access.caller.actor(),
        running: body.running.unwrap_or(HoldRunning::Finish),
        until,
    };
    match hold_set(tx, &new, &app.setting(None, now)).await? {
        Ok((row, messages)) => Ok((row.id, affected, messages)),
        Err(NotSet::TooMany { oldest }) => Err(too_many(&oldest).into()),
        Err(NotSet::NoAccount) => Err(Problem::not_found().into()),
        Err(NotSet::Closed(session, generation)) => {
            let why = (SESSION_CLOSED, &*generation_is_closed(generation));
            Err(not_the_open_one(tx, account, session, why).await?.into())
        }
    }
}

async fn release(State(app): State<App>, access: Access, Named(hold): Named<HoldId>) -> Result<Json<Hold>, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    store::hold_find(&tx, account, hold)
        .await?
        .ok_or_else(Problem::not_found)?;
    let setting = app.setting(None, database_now(&tx).await?);
    let by = access.caller.actor();
    let (was_active, messages) = hold_release(&tx, account, hold, &by.name, &setting).await?;
    let released = store::hold_find(&tx, account, hold).await?;
    let released = released.ok_or_else(Problem::not_found)?;
    app.commit(tx, messages).await?;
    if was_active {
        tracing::info!(%account, %hold, "released a hold");
    }
    Ok(Json(released))
}

/// The id of a scope as it is compared, and what a hold on it covers now. A scope that is not there is a 404.
async fn counted(tx: &Tx, account: &AccountId, scope: &Scope) -> Result<(String, Affected), ApiError> {
    let found = match scope.kind {
        HoldScope::Account => Some(account.to_string()).filter(|id| **id == *scope.id),
        HoldScope::Task => match TaskId::parse(&scope.id) {
            Ok(task) if store::is_task(tx, account, &task).await? => Some(task.key().to_string()),
            Ok(_) | Err(_) => None,
        },
        HoldScope::Agent => match AgentRef::parse(&scope.id) {
            Ok(agent) => {
                let found = agents::store::agent_find(tx, account, &agent).await?;
                found.map(|agent| agent.id.to_string())
            }
            Err(_) => None,
        },
        HoldScope::Session => match SessionId::parse(&scope.id) {
            Ok(session) if session_find(tx, account, session).await?.is_some() => Some(session.to_string()),
            Ok(_) | Err(_) => None,
        },
    };
    let scope_id = found.ok_or_else(Problem::not_found)?;
    let affected = store::affected(tx, account, scope.kind, &scope_id).await?;
    Ok((scope_id, affected))
}

fn is_to_come(until: Option<OffsetDateTime>, now: OffsetDateTime) -> Result<(), Problem> {
    match until {
        Some(until) if until <= now => {
            let what = "until is in the past: name a time to come, or leave it out";
            Err(Problem::unprocessable("invalid", what))
        }
        Some(_) | None => Ok(()),
    }
}

fn too_many(oldest: &str) -> Problem {
    let what = format!(
        "the account has {HOLDS_MAX} active holds, as many as it may have; the oldest is {oldest}: release one"
    );
    Problem::conflict("too_many_holds", what)
}
