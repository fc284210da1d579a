//! `/api/orgs/{account}/keys`.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use domain::{AccountId, AgentId, AgentRef, ApiKey, KeyId, KeyRole, NotTheirs, is_reserved};
use runtime::http::Problem;
use serde::Deserialize;
use storage::{Accounts, Tx};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{CreatedKey, Key, NewKey, store};
use crate::{
    accounts::NAME_BYTES_MAX,
    agents,
    app::{App, database_now},
    auth::Access,
    body::{Path, Query, text_check},
    error::{ApiError, invalid_field, unknown_agent},
    idempotency::{Answer, Begun, Post, Work},
    paging::{Items, List, ListQuery, Shown},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(revoke))
}

/// Make a key. The answer holds it, this once: only its digest is kept.
#[utoipa::path(post, path = "/api/orgs/{account}/keys", tag = "keys", request_body = NewKey,
    responses((status = 201, body = CreatedKey)))]
async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, request }: Post<NewKey>,
) -> Result<Response, ApiError> {
    text_check("name", &body.name, NAME_BYTES_MAX)?;
    // It stands as the sender of what is sent with the key.
    if is_reserved(&body.name) {
        return Err(invalid_field("name", NotTheirs::Reserved).into());
    }
    let work = match Work::begin(&app, &access, request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    if body.expires_at.is_some_and(|expires_at| expires_at.0 <= work.now) {
        return Err(invalid_field("expires_at", "a moment that is still to come").into());
    }
    let agent = match &body.agent {
        Some(agent) => Some(agent_find(&work.tx, &access.account, &body.role, agent).await?),
        None => None,
    };
    let mut random = [0; 40];
    getrandom::fill(&mut random).map_err(ApiError::Random)?;
    let key = ApiKey::from_random(&access.account, random);
    store::key_insert(&work.tx, &key, &body, agent, work.now).await?;
    tracing::info!(account = %access.account, key = %key.id(), role = %body.role, "made an API key");
    let made = |shown: Option<String>| CreatedKey {
        public: Key {
            id: key.id().to_string(),
            name: body.name.clone(),
            role: body.role.to_string(),
            created_at: work.now,
            expires_at: body.expires_at.map(|expires_at| expires_at.0),
            agent_id: agent.map(AgentId::uuid),
        },
        key: shown,
    };
    let answer = Answer::new(StatusCode::CREATED, &made(Some(key.expose().to_owned()))).kept_as(&made(None));
    work.finish(answer, Vec::new()).await
}

async fn agent_find(tx: &Tx, account: &AccountId, role: &KeyRole, agent: &str) -> Result<AgentId, ApiError> {
    if *role != KeyRole::Gateway {
        return Err(invalid_field("agent", "a key with the role gateway may be for one agent").into());
    }
    let named = AgentRef::parse(agent).map_err(|error| invalid_field("agent", error))?;
    let row = agents::store::agent_find(tx, account, &named).await?;
    Ok(AgentId(row.ok_or_else(|| unknown_agent(&named))?.id))
}

/// Keys that are not revoked, oldest first; without what opens them.
#[utoipa::path(get, path = "/api/orgs/{account}/keys", tag = "keys", params(ListQuery),
    responses((status = 200, body = Items<Key>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    let page = query.page(&app, List::of("keys", &access.account, ""))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = store::key_list(&tx, &access.account, &page).await?;
    tx.commit().await?;
    Ok(rows.show(|key| key))
}

#[derive(Deserialize)]
struct KeyPath {
    key: String,
}

/// Revoke a key: from the next request on it is worth nothing.
#[utoipa::path(delete, path = "/api/orgs/{account}/keys/{key}", tag = "keys", responses((status = 204)))]
async fn revoke(State(app): State<App>, access: Access, Path(path): Path<KeyPath>) -> Result<Response, ApiError> {
    let key = KeyId::parse(&path.key).map_err(|_| Problem::not_found())?;
    let tx = app.begin(&access.account).await?;
    let now = database_now(&tx).await?;
    if !store::key_revoke(&tx, &access.account, &key, now).await? {
        return Err(Problem::not_found().into());
    }
    tx.commit().await?;
    tracing::info!(account = %access.account, %key, "revoked an API key");
    Ok(StatusCode::NO_CONTENT.into_response())
}
