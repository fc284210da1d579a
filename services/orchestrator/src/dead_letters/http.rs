//! `/api/orgs/{account}/dead-letters`, and the operator's own at `/api/dead-letters`.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use contracts::{Outgoing, header::VOUCHED};
use domain::AccountId;
use runtime::http::Problem;
use serde::Deserialize;
use storage::{Accounts, StorageError, accounts::OPERATOR};
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{DeadLetter, redrive, store};
use crate::{
    app::App,
    auth::{Access, OperatorAccess},
    body::{Path, Query},
    error::ApiError,
    idempotency::{Answer, Begun, Post, Work},
    notifications::store::notification_find,
    paging::{Items, List, ListQuery, Shown},
    wire::Author,
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(read))
        .routes(routes!(send_again))
        .routes(routes!(operator_list))
        .routes(routes!(operator_read))
        .routes(routes!(operator_send_again))
}

#[derive(Deserialize)]
struct LetterPath {
    letter: Uuid,
}

/// A redrive takes no fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

/// Dead letters, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/dead-letters", tag = "dead letters", params(ListQuery),
    responses((status = 200, body = Items<DeadLetter>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    page_of(&app, Some(&access.account), &query).await
}

/// A dead letter.
#[utoipa::path(get, path = "/api/orgs/{account}/dead-letters/{letter}", tag = "dead letters",
    responses((status = 200, body = DeadLetter)))]
async fn read(
    State(app): State<App>,
    access: Access,
    Path(path): Path<LetterPath>,
) -> Result<Json<DeadLetter>, ApiError> {
    letter_of(&app, Some(&access.account), path.letter).await
}

/// Publish a dead letter's message again, where it was published. 409 when it was too long to be kept whole.
#[utoipa::path(post, path = "/api/orgs/{account}/dead-letters/{letter}/redrive", tag = "dead letters",
    responses((status = 202, body = DeadLetter)))]
async fn send_again(
    State(app): State<App>,
    access: Access,
    Path(path): Path<LetterPath>,
    Post { request, .. }: Post<NoFields>,
) -> Result<Response, ApiError> {
    let begun = Work::begin(&app, &access, request).await?;
    redrive_of(&app, Some(&access.account), path.letter, begun).await
}

/// Dead letters that belong to no account, newest first.
#[utoipa::path(get, path = "/api/dead-letters", tag = "dead letters", params(ListQuery),
    responses((status = 200, body = Items<DeadLetter>)))]
async fn operator_list(
    State(app): State<App>,
    _operator: OperatorAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown, ApiError> {
    page_of(&app, None, &query).await
}

/// A dead letter that belongs to no account.
#[utoipa::path(get, path = "/api/dead-letters/{letter}", tag = "dead letters",
    responses((status = 200, body = DeadLetter)))]
async fn operator_read(
    State(app): State<App>,
    _operator: OperatorAccess,
    Path(path): Path<LetterPath>,
) -> Result<Json<DeadLetter>, ApiError> {
    letter_of(&app, None, path.letter).await
}

/// Publish the message of a dead letter that belongs to no account again, once what it lacked is there.
#[utoipa::path(post, path = "/api/dead-letters/{letter}/redrive", tag = "dead letters",
    responses((status = 202, body = DeadLetter)))]
async fn operator_send_again(
    State(app): State<App>,
    _operator: OperatorAccess,
    Path(path): Path<LetterPath>,
    Post { request, .. }: Post<NoFields>,
) -> Result<Response, ApiError> {
    let begun = Work::begin_as_operator(&app, None, request).await?;
    redrive_of(&app, None, path.letter, begun).await
}

fn owner(account: Option<&AccountId>) -> (&str, Accounts) {
    match account {
        Some(account) => (account.as_str(), Accounts::one(account)),
        None => (OPERATOR, Accounts::operator()),
    }
}

async fn page_of(app: &App, account: Option<&AccountId>, query: &ListQuery) -> Result<Shown, ApiError> {
    let (owner, accounts) = owner(account);
    let list = List {
        name: "dead letters",
        account: owner,
        filters: String::new(),
    };
    let page = query.page(app, list)?;
    let tx = app.begin_list(&accounts).await?;
    let rows = store::letter_list(&tx, owner, &page).await?;
    tx.commit().await?;
    Ok(rows.show(DeadLetter::from))
}

async fn letter_of(app: &App, account: Option<&AccountId>, letter: Uuid) -> Result<Json<DeadLetter>, ApiError> {
    let (owner, accounts) = owner(account);
    let tx = app.database.begin(&accounts).await?;
    let row = store::letter_find(&tx, owner, letter).await?;
    tx.commit().await?;
    Ok(Json(row.ok_or_else(Problem::not_found)?.into()))
}

/// Whether there is a row of the notification that names the same sender.
async fn is_as_the_row_says(
    work: &Work,
    account: Option<&AccountId>,
    outgoing: &Outgoing,
) -> Result<bool, StorageError> {
    let (Some(account), Some((id, sender))) = (account, redrive::sender_named(outgoing)) else {
        return Ok(false);
    };
    let known = notification_find(&work.tx, account, &id).await?;
    Ok(known.and_then(|known| known.sender) == Some(Author::from(sender)))
}

async fn redrive_of(app: &App, account: Option<&AccountId>, letter: Uuid, begun: Begun) -> Result<Response, ApiError> {
    let work = match begun {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    let (owner, _) = owner(account);
    let row = store::letter_lock(&work.tx, owner, letter)
        .await?
        .ok_or_else(Problem::not_found)?;
    let mut outgoing = redrive::redrive(&app.root, account, &row)?;
    if redrive::is_of_a_row(&row) && !is_as_the_row_says(&work, account, &outgoing).await? {
        outgoing.headers.0.remove(VOUCHED);
    }
    let row = store::letter_redriven(&work.tx, row, work.now).await?;
    app.meters.redriven();
    tracing::info!(owner, %letter, redrives = row.redrives, "sent a dead letter again");
    let answer = Answer::new(StatusCode::ACCEPTED, &DeadLetter::from(row));
    work.finish(answer, vec![(account.cloned(), outgoing)]).await
}
