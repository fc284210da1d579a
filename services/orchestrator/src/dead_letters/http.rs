//! `/api/orgs/{account}/dead-letters`, and the operator's own at `/api/dead-letters`.

use api::dead_letters::{DeadLetter, Redrive};
use axum::{Json, extract::State};
use contracts::{Outgoing, header::VOUCHED};
use domain::{AccountId, mail};
use runtime::http::Problem;
use storage::{StorageError, lifecycle::mail_settle::mail_again};
use uuid::Uuid;

use super::{redrive, store};
use crate::{
    app::App,
    auth::{Access, OperatorAccess, Party},
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Once, Post, Work},
    notifications::store::notification_find,
    paging::{List, ListQuery, Shown},
    route::routes,
};

routes! {
    "dead letters": "Messages that could not be processed, and their redrive";
    /// Dead letters, newest first.
    GET "/api/orgs/{account}/dead-letters" Read => list;
    /// A dead letter.
    GET "/api/orgs/{account}/dead-letters/{letter}" Read => read;
    /// Publish a dead letter's message again, on its subject. 409 when the message was too long to be stored whole.
    POST "/api/orgs/{account}/dead-letters/{letter}/redrive" Administer => send_again;
    /// Dead letters without an account, newest first.
    GET "/api/dead-letters" Operate => operator_list;
    /// A dead letter without an account.
    GET "/api/dead-letters/{letter}" Operate => operator_read;
    /// Publish the message of a dead letter without an account again, once the cause is removed.
    POST "/api/dead-letters/{letter}/redrive" Operate => operator_send_again;
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<DeadLetter>, ApiError> {
    page_of(&app, &access.party(), &query).await
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(letter): Named<Uuid>,
) -> Result<Json<DeadLetter>, ApiError> {
    letter_of(&app, &access.party(), letter).await
}

async fn send_again(
    State(app): State<App>,
    access: Access,
    Named(letter): Named<Uuid>,
    Post { once, .. }: Post<Redrive>,
) -> Result<Answer<202, DeadLetter>, ApiError> {
    redrive_of(&app, (access.party(), Some(&access.account)), letter, once).await
}

async fn operator_list(
    State(app): State<App>,
    _operator: OperatorAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown<DeadLetter>, ApiError> {
    page_of(&app, &Party::operator(None), &query).await
}

async fn operator_read(
    State(app): State<App>,
    _operator: OperatorAccess,
    Named(letter): Named<Uuid>,
) -> Result<Json<DeadLetter>, ApiError> {
    letter_of(&app, &Party::operator(None), letter).await
}

async fn operator_send_again(
    State(app): State<App>,
    _operator: OperatorAccess,
    Named(letter): Named<Uuid>,
    Post { once, .. }: Post<Redrive>,
) -> Result<Answer<202, DeadLetter>, ApiError> {
    redrive_of(&app, (Party::operator(None), None), letter, once).await
}

async fn page_of(app: &App, party: &Party<'_>, query: &ListQuery) -> Result<Shown<DeadLetter>, ApiError> {
    let list = List {
        name: "dead letters",
        account: party.owner,
        filters: String::new(),
        order: store::LIST.order,
    };
    let page = query.page(app, list)?;
    let tx = app.begin_list(&party.accounts).await?;
    let rows = page.read(&tx, &store::LIST, [], "list dead letters").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn letter_of(app: &App, party: &Party<'_>, letter: Uuid) -> Result<Json<DeadLetter>, ApiError> {
    let tx = app.database.begin(&party.accounts).await?;
    let letter = store::letter_find(&tx, party.owner, letter).await?;
    tx.commit().await?;
    Ok(Json(letter.ok_or_else(Problem::not_found)?))
}

/// Whether the notification has a row that names the same sender.
async fn is_as_the_row_says(
    work: &Work,
    account: Option<&AccountId>,
    outgoing: &Outgoing,
) -> Result<bool, StorageError> {
    let (Some(account), Some((id, sender))) = (account, redrive::sender_named(outgoing)) else {
        return Ok(false);
    };
    let known = notification_find(&work.tx, account, &id).await?;
    Ok(known.and_then(|known| known.sender) == Some(sender))
}

async fn redrive_of(
    app: &App,
    (party, account): (Party<'_>, Option<&AccountId>),
    letter: Uuid,
    once: Once,
) -> Result<Answer<202, DeadLetter>, ApiError> {
    let owner = party.owner;
    once.run(app, party, async |work| {
        let row = store::letter_lock(&work.tx, owner, letter)
            .await?
            .ok_or_else(Problem::not_found)?;
        let mut outgoing = redrive::redrive(&app.root, account, &row)?;
        if redrive::is_of_a_row(&row) && !is_as_the_row_says(work, account, &outgoing).await? {
            outgoing.headers.0.remove(VOUCHED);
        }
        let sent = store::letter_redriven(&work.tx, owner, letter, work.now).await?;
        let sent = sent.ok_or_else(Problem::not_found)?;
        let item = redrive::sender_named(&outgoing).map(|(item, _)| item);
        if let (Some(account), Some(mail)) = (account, item.as_ref().and_then(|item| mail::of_item(item.as_str()))) {
            mail_again(&work.tx, account, mail).await?;
        }
        app.meters.redriven();
        tracing::info!(owner, %letter, redrives = sent.redrives, "redrove a dead letter");
        Ok(Done::new(sent).with(vec![(account.cloned(), outgoing)]))
    })
    .await
}
