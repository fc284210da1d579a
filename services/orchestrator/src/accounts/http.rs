//! `/api/accounts` for the operator, `/api/orgs/{account}` for the account's admins.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use domain::AccountId;
use runtime::http::Problem;
use storage::directory::account_directory;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Account, AccountChange, AccountEntry, NAME_BYTES_MAX, NewAccount, store};
use crate::{
    app::App,
    auth::{Access, OperatorAccess},
    body::{JsonBody, Query, text_check},
    error::{ApiError, invalid_field, unknown_task},
    idempotency::{Answer, Begun, Post, Work},
    paging::{Items, List, ListQuery, Page, Shown},
    tasks,
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(read, change))
}

/// Make an account.
#[utoipa::path(post, path = "/api/accounts", tag = "accounts", request_body = NewAccount,
    responses((status = 201, body = Account)))]
async fn create(
    State(app): State<App>,
    _operator: OperatorAccess,
    Post { body, request }: Post<NewAccount>,
) -> Result<Response, ApiError> {
    let account = AccountId::parse(&body.id).map_err(|error| invalid_field("id", error))?;
    if account.is_reserved() {
        return Err(invalid_field("id", format!("`{account}` is reserved: choose another")).into());
    }
    text_check("name", &body.name, NAME_BYTES_MAX)?;
    let work = match Work::begin_as_operator(&app, Some(&account), request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    if !store::account_insert(&work.tx, &account, &body.name, work.now).await? {
        return Err(Problem::conflict("account_exists", format!("there is an account {account} already")).into());
    }
    let row = store::account_find(&work.tx, &account).await?;
    work.finish(Answer::new(StatusCode::CREATED, &Account::from(row)), Vec::new())
        .await
}

/// All accounts, by id.
#[utoipa::path(get, path = "/api/accounts", tag = "accounts", params(ListQuery),
    responses((status = 200, body = Items<AccountEntry>)))]
async fn list(
    State(app): State<App>,
    _operator: OperatorAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown, ApiError> {
    let list = List {
        name: "accounts",
        account: "",
        filters: String::new(),
    };
    let page: Page<'_, String> = query.page(&app, list)?;
    let rows = i32::try_from(page.rows()).unwrap_or(i32::MAX);
    let entries = account_directory(&app.database, page.after.as_deref(), rows).await?;
    let entries = page.cut(entries, |entry| entry.id.clone());
    Ok(entries.show(|entry| AccountEntry {
        id: entry.id,
        name: entry.name,
        created_at: entry.created_at.into(),
    }))
}

/// The account and its choices.
#[utoipa::path(get, path = "/api/orgs/{account}", tag = "accounts", responses((status = 200, body = Account)))]
async fn read(State(app): State<App>, access: Access) -> Result<Json<Account>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let row = store::account_find(&tx, &access.account).await?;
    tx.commit().await?;
    Ok(Json(row.into()))
}

/// Change the account's choices. What is running keeps those that it began with.
#[utoipa::path(patch, path = "/api/orgs/{account}", tag = "accounts", request_body = AccountChange,
    responses((status = 200, body = Account)))]
async fn change(
    State(app): State<App>,
    access: Access,
    JsonBody(change): JsonBody<AccountChange>,
) -> Result<Json<Account>, ApiError> {
    change.check()?;
    let tx = app.begin(&access.account).await?;
    if let Some(Some(task)) = &change.coordinator_task
        && tasks::store::task_find(&tx, &access.account, task).await?.is_none()
    {
        return Err(unknown_task(task).into());
    }
    store::account_change(&tx, &access.account, change).await?;
    let row = store::account_find(&tx, &access.account).await?;
    tx.commit().await?;
    Ok(Json(row.into()))
}
