//! `/api/orgs/{account}/agents`.

use api::agents::{Agent, AgentChange, Listed, NewAgent, NewSlug};
use axum::{Json, extract::State, response::NoContent};
use contracts::event::{AgentChanged, Change, Event};
use domain::{AccountId, AgentId, AgentRef};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{StorageError, Tx, accounts::account_lock, identity::is_handle, lifecycle::agent_remove};

use super::store;
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    permission::Need,
    route::routes,
};

routes! {
    "agents": "Named workers of an account";
    /// Create an agent.
    POST "/api/orgs/{account}/agents" Administer => create;
    /// The account's agents, and the orchestrators that one may write to, in the order of their handles.
    GET "/api/orgs/{account}/agents" Read => list;
    /// An agent, by id or slug.
    GET "/api/orgs/{account}/agents/{agent}" Read => read;
    /// Change an agent. A new slug breaks no session: session keys hold the id.
    PATCH "/api/orgs/{account}/agents/{agent}" Administer => change or 409;
    /// Remove an agent. The same transaction closes its sessions and cancels its waiting items. Its slug becomes free.
    DELETE "/api/orgs/{account}/agents/{agent}" Administer => remove;
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewAgent>,
) -> Result<Answer<201, Agent>, ApiError> {
    once.run(&app, access.party(), async |work| {
        name_free(&work.tx, &access.account, Some(&body.slug)).await?;
        let agent = store::agent_insert(&work.tx, &access.account, body, work.now).await;
        let agent = agent.map_err(slug_taken)?;
        let changed = app.event(&access.account, work.now, changed(&access, &agent, Change::Created));
        Ok(Done::new(agent).with(vec![changed]))
    })
    .await
}

fn changed(access: &Access, agent: &Agent, change: Change) -> Event {
    Event::AgentChanged(AgentChanged {
        agent_id: AgentId(agent.id),
        slug: agent.slug.clone(),
        change,
        by: access.caller.actor(),
    })
}

/// An orchestrator's handle is no agent's slug: either is written after an `@`.
async fn name_free(tx: &Tx, account: &AccountId, slug: Option<&NewSlug>) -> Result<(), ApiError> {
    let Some(slug) = slug.cloned().map(String::from) else {
        return Ok(());
    };
    account_lock(tx, account).await?;
    match is_handle(tx, account, &slug).await? {
        true => Err(Problem::conflict("slug_taken", "an orchestrator of the account has this handle").into()),
        false => Ok(()),
    }
}

/// Ids are fresh, so only the slug can violate a unique index.
fn slug_taken(error: StorageError) -> ApiError {
    if error.is_unique_violation() {
        Problem::conflict("slug_taken", "another agent of the account has this slug").into()
    } else {
        error.into()
    }
}

/// Of what is listed.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Worker,
    Orchestrator,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Worker => "worker",
            Kind::Orchestrator => "orchestrator",
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AgentsQuery {
    /// Only these.
    kind: Option<Kind>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<AgentsQuery>,
) -> Result<Shown<Listed>, ApiError> {
    let person = access.caller.person().map(|person| person.id.clone());
    let list = List::of(
        &store::LIST,
        "agents",
        &access.account,
        format_args!("{:?} {person:?}", query.kind),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [
        query.kind.map(Kind::word).into(),
        person.into(),
        access.caller.may(Need::ReadMembers).into(),
    ];
    let rows = page.read(&tx, &store::LIST, values, "list agents").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn read(State(app): State<App>, access: Access, Named(agent): Named<AgentRef>) -> Result<Json<Agent>, ApiError> {
    let tx = access.begin(&app).await?;
    let agent = store::agent_find(&tx, &access.account, &agent).await?;
    tx.commit().await?;
    Ok(Json(agent.ok_or_else(Problem::not_found)?))
}

async fn change(
    State(app): State<App>,
    access: Access,
    Named(agent): Named<AgentRef>,
    JsonBody(change): JsonBody<AgentChange>,
) -> Result<Json<Agent>, ApiError> {
    let tx = access.begin(&app).await?;
    let agent = store::agent_find(&tx, &access.account, &agent)
        .await?
        .ok_or_else(Problem::not_found)?;
    name_free(&tx, &access.account, change.slug.as_ref()).await?;
    let agent = store::agent_change(&tx, &access.account, AgentId(agent.id), change).await;
    let agent = agent.map_err(slug_taken)?.ok_or_else(Problem::not_found)?;
    let now = database_now(&tx).await?;
    let changed = app.event(&access.account, now, changed(&access, &agent, Change::Changed));
    app.commit(tx, vec![changed]).await?;
    Ok(Json(agent))
}

async fn remove(State(app): State<App>, access: Access, Named(agent): Named<AgentRef>) -> Result<NoContent, ApiError> {
    let tx = access.begin(&app).await?;
    let agent = store::agent_find(&tx, &access.account, &agent)
        .await?
        .ok_or_else(Problem::not_found)?;
    let setting = app.setting(None, database_now(&tx).await?);
    let removal = agent_remove(&tx, &access.account, AgentId(agent.id), &setting)
        .await?
        .ok_or_else(Problem::not_found)?;
    app.commit(tx, removal.messages).await?;
    tracing::info!(
        account = %access.account,
        agent = %agent.id,
        closed = removal.closed.len(),
        cancelled = removal.cancelled.len(),
        "removed an agent"
    );
    Ok(NoContent)
}
