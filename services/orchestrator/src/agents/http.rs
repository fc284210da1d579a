//! `/api/orgs/{account}/agents`.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use domain::{AgentId, AgentRef};
use runtime::http::Problem;
use serde::Deserialize;
use storage::{Accounts, StorageError, entity, lifecycle::agent_remove};
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{Agent, AgentChange, NewAgent, PROVIDER_DEFAULT, store};
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Path, Query},
    error::ApiError,
    idempotency::{Answer, Begun, Post, Work},
    paging::{Items, List, ListQuery, Shown},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(read, change, remove))
}

#[derive(Deserialize)]
struct AgentPath {
    agent: String,
}

impl AgentPath {
    fn agent(&self) -> Result<AgentRef, Problem> {
        AgentRef::parse(&self.agent).map_err(|_| Problem::not_found())
    }
}

/// Make an agent.
#[utoipa::path(post, path = "/api/orgs/{account}/agents", tag = "agents", request_body = NewAgent,
    responses((status = 201, body = Agent)))]
async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, request }: Post<NewAgent>,
) -> Result<Response, ApiError> {
    let slug = body.check()?;
    let work = match Work::begin(&app, &access, request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    let row = entity::agent::Model {
        account_id: access.account.to_string(),
        id: Uuid::now_v7(),
        slug: slug.into(),
        name: body.name,
        role: body.role.unwrap_or_default(),
        provider: body.provider.unwrap_or_else(|| PROVIDER_DEFAULT.to_owned()),
        created_at: work.now,
        removed_at: None,
    };
    let row = store::agent_insert(&work.tx, row).await.map_err(slug_taken)?;
    work.finish(Answer::new(StatusCode::CREATED, &Agent::from(row)), Vec::new())
        .await
}

/// Ids are fresh, so the slug is the only key that another can have.
fn slug_taken(error: StorageError) -> ApiError {
    if error.is_unique_violation() {
        Problem::conflict("slug_taken", "another agent of the account has this slug").into()
    } else {
        error.into()
    }
}

/// The account's agents, oldest first.
#[utoipa::path(get, path = "/api/orgs/{account}/agents", tag = "agents", params(ListQuery),
    responses((status = 200, body = Items<Agent>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    let page = query.page(&app, List::of("agents", &access.account, ""))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = store::agent_list(&tx, &access.account, &page).await?;
    tx.commit().await?;
    Ok(rows.show(Agent::from))
}

/// An agent, by id or slug.
#[utoipa::path(get, path = "/api/orgs/{account}/agents/{agent}", tag = "agents",
    responses((status = 200, body = Agent)))]
async fn read(State(app): State<App>, access: Access, Path(path): Path<AgentPath>) -> Result<Json<Agent>, ApiError> {
    let agent = path.agent()?;
    let tx = app.begin(&access.account).await?;
    let row = store::agent_find(&tx, &access.account, &agent).await?;
    tx.commit().await?;
    let row = row.ok_or_else(Problem::not_found)?;
    Ok(Json(row.into()))
}

/// Change an agent. Another slug breaks no session: keys hold the id.
#[utoipa::path(patch, path = "/api/orgs/{account}/agents/{agent}", tag = "agents", request_body = AgentChange,
    responses((status = 200, body = Agent)))]
async fn change(
    State(app): State<App>,
    access: Access,
    Path(path): Path<AgentPath>,
    JsonBody(change): JsonBody<AgentChange>,
) -> Result<Json<Agent>, ApiError> {
    let agent = path.agent()?;
    let slug = change.check()?;
    let tx = app.begin(&access.account).await?;
    let row = store::agent_find(&tx, &access.account, &agent)
        .await?
        .ok_or_else(Problem::not_found)?;
    let row = store::agent_change(&tx, row, slug, change).await.map_err(slug_taken)?;
    tx.commit().await?;
    Ok(Json(row.into()))
}

/// Remove an agent: its sessions close and what waits for it is cancelled, in the same transaction. Its slug is free.
#[utoipa::path(delete, path = "/api/orgs/{account}/agents/{agent}", tag = "agents", responses((status = 204)))]
async fn remove(State(app): State<App>, access: Access, Path(path): Path<AgentPath>) -> Result<Response, ApiError> {
    let agent = path.agent()?;
    let tx = app.begin(&access.account).await?;
    let row = store::agent_find(&tx, &access.account, &agent)
        .await?
        .ok_or_else(Problem::not_found)?;
    let setting = app.setting(None, database_now(&tx).await?);
    let removal = agent_remove(&tx, &access.account, AgentId(row.id), &setting)
        .await?
        .ok_or_else(Problem::not_found)?;
    app.commit(tx, removal.messages).await?;
    tracing::info!(
        account = %access.account,
        agent = %row.id,
        closed = removal.closed.len(),
        cancelled = removal.cancelled.len(),
        "removed an agent"
    );
    Ok(StatusCode::NO_CONTENT.into_response())
}
