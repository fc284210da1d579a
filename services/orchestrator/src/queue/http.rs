//! `/api/orgs/{account}/sessions/{session}/queue`.

use api::queue::{IntoTurn, Item, ItemChange, Order, Promotion, Queue, Running};
use axum::{Json, extract::State, http::StatusCode};
use contracts::notification::BODY_BYTES_MAX;
use domain::{Actor, NotificationId, SessionId, queue::Editor};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Tx,
    outbox::Owned,
    session::queue_edit::{Edit, Refused, queue_edit},
};
use time::OffsetDateTime;

use super::{problem, store};
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query, Within},
    error::ApiError,
    idempotency::{Answer, Done, Once, Post},
    paging::{List, ListQuery, Page},
    route::routes,
};

routes! {
    "queue": "Notifications that wait in a session, and edits";
    /// The notifications that wait in a session, in their order, each with the reason; and those of its turn in progress.
    GET "/api/orgs/{account}/sessions/{session}/queue" Read => list;
    /// Change the text, title or mode of a waiting notification: its author, or an admin. 409 when it is not the revision that
    /// was read, or does not wait any more.
    PATCH "/api/orgs/{account}/sessions/{session}/queue/{notification}" Notify => replace or 409 or 422;
    /// Withdraw a waiting notification: its author, or an admin. It ends as `cancelled`. `revision`: only that one.
    DELETE "/api/orgs/{account}/sessions/{session}/queue/{notification}" Notify => withdraw or 409;
    /// Put a waiting notification next, behind the steers that wait at the head. A session that a person stopped goes on.
    POST "/api/orgs/{account}/sessions/{session}/queue/{notification}/promote" Control => promote;
    /// Put all that wait into this order. 409 when the queue has changed since it was read.
    PUT "/api/orgs/{account}/sessions/{session}/queue/order" Control => order or 409;
    /// Make a waiting notification a steer: it ends the turn in progress, and goes before all others but earlier steers.
    POST "/api/orgs/{account}/sessions/{session}/queue/{notification}/steer" Control => steer;
    /// Give a waiting notification to the turn in progress, with the next results of its tools. If none come, it keeps its place.
    POST "/api/orgs/{account}/sessions/{session}/queue/{notification}/inject" Control => inject;
}

type Names = Within<SessionId, NotificationId>;

async fn list(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Queue>, ApiError> {
    let list = List::of(&store::LIST, "queue", &access.account, session);
    let page = query.page(&app, list)?;
    let tx = app.begin_list(&access.accounts()).await?;
    let queue = queue_read(&tx, &access, session, &page).await?;
    tx.commit().await?;
    Ok(Json(queue))
}

async fn replace(
    State(app): State<App>,
    access: Access,
    Within(session, item): Names,
    JsonBody(change): JsonBody<ItemChange>,
) -> Result<Json<Item>, ApiError> {
    let body = change.body.as_deref();
    if body.is_none() && change.title.is_none() && change.queue_mode.is_none() {
        return Err(Problem::unprocessable("invalid", "nothing to change: give body, title or queue_mode").into());
    }
    if body.is_some_and(|body| body.trim().is_empty()) {
        let what = "body: empty: withdraw the notification, if it is to say nothing";
        return Err(Problem::unprocessable("invalid", what).into());
    }
    if let Some(bytes) = body.map(str::len).filter(|bytes| *bytes > BODY_BYTES_MAX) {
        let what = format!("body has {bytes} bytes; at most {BODY_BYTES_MAX} are taken");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large")
            .detail(what)
            .into());
    }
    let edit = Edit::Replace {
        revision: change.revision.into(),
        title: change.title.as_deref(),
        body,
        mode: change.queue_mode,
    };
    item_edit(&app, &access, (session, &item), edit).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WithdrawQuery {
    /// The notification's, as last read.
    #[schemars(with = "Option<i32>")]
    revision: Option<String>,
}

async fn withdraw(
    State(app): State<App>,
    access: Access,
    Within(session, item): Names,
    Query(query): Query<WithdrawQuery>,
) -> Result<Json<Item>, ApiError> {
    // What is no revision is not the present one.
    let revision = query.revision.map(|revision| revision.parse().unwrap_or(0));
    item_edit(&app, &access, (session, &item), Edit::Withdraw { revision }).await
}

async fn promote(
    State(app): State<App>,
    access: Access,
    Within(session, item): Names,
    Post { body, once }: Post<Promotion>,
) -> Result<Answer<200, Queue>, ApiError> {
    let page = first_page(&app, &access, session)?;
    once.run(&app, access.party(), async |work| {
        let revision = &body.revision;
        let messages = edit(
            &app,
            &access,
            (&work.tx, work.now),
            session,
            Some(&item),
            Edit::Promote { revision },
        )
        .await?;
        let queue = queue_read(&work.tx, &access, session, &page).await?;
        Ok(Done::new(queue).with(messages))
    })
    .await
}

async fn order(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    JsonBody(order): JsonBody<Order>,
) -> Result<Json<Queue>, ApiError> {
    let page = first_page(&app, &access, session)?;
    let tx = access.begin(&app).await?;
    let now = database_now(&tx).await?;
    let Order { revision, items } = &order;
    let messages = edit(
        &app,
        &access,
        (&tx, now),
        session,
        None,
        Edit::Order { revision, items },
    )
    .await?;
    let queue = queue_read(&tx, &access, session, &page).await?;
    app.commit(tx, messages).await?;
    Ok(Json(queue))
}

async fn steer(
    State(app): State<App>,
    access: Access,
    Within(session, item): Names,
    Post { body, once }: Post<IntoTurn>,
) -> Result<Answer<202, Item>, ApiError> {
    let turn = body.turn_id;
    into_turn(&app, &access, (session, &item), Edit::Steer { turn }, once).await
}

async fn inject(
    State(app): State<App>,
    access: Access,
    Within(session, item): Names,
    Post { body, once }: Post<IntoTurn>,
) -> Result<Answer<202, Item>, ApiError> {
    let turn = body.turn_id;
    into_turn(&app, &access, (session, &item), Edit::Inject { turn }, once).await
}

async fn into_turn(
    app: &App,
    access: &Access,
    (session, item): (SessionId, &NotificationId),
    wanted: Edit<'_>,
    once: Once,
) -> Result<Answer<202, Item>, ApiError> {
    once.run(app, access.party(), async |work| {
        let messages = edit(app, access, (&work.tx, work.now), session, Some(item), wanted).await?;
        let item = item_read(&work.tx, access, session, item).await?;
        Ok(Done::new(item).with(messages))
    })
    .await
}

/// Edits one item; returns it as it is then.
async fn item_edit(
    app: &App,
    access: &Access,
    (session, item): (SessionId, &NotificationId),
    wanted: Edit<'_>,
) -> Result<Json<Item>, ApiError> {
    let tx = access.begin(app).await?;
    let now = database_now(&tx).await?;
    let messages = edit(app, access, (&tx, now), session, Some(item), wanted).await?;
    let item = item_read(&tx, access, session, item).await?;
    app.commit(tx, messages).await?;
    Ok(Json(item))
}

/// Makes the edit, or tells why not; returns the messages.
async fn edit(
    app: &App,
    access: &Access,
    (tx, now): (&Tx, OffsetDateTime),
    session: SessionId,
    item: Option<&NotificationId>,
    wanted: Edit<'_>,
) -> Result<Vec<Owned>, ApiError> {
    let (op, account) = (wanted.op(), &access.account);
    let actor = access.caller.actor();
    let editor = editor(access, &actor);
    let name = (account.clone(), session);
    let edited = queue_edit(tx, (&name, item), wanted, &editor, &app.setting(None, now)).await?;
    match edited {
        Ok(messages) => {
            let item = item.map(NotificationId::as_str);
            tracing::info!(%account, session_id = %session, item, %op, "edited a queue");
            Ok(messages)
        }
        // It does not learn of others' notifications.
        Err(Refused::NotAuthor { .. }) if access.caller.sees_own_alone() => Err(Problem::not_found().into()),
        Err(refused) => Err(problem(refused, item).into()),
    }
}

/// The caller, who is this actor.
fn editor<'a>(access: &Access, actor: &'a Actor) -> Editor<'a> {
    let is_admin = access.caller.is_admin();
    Editor { actor, is_admin }
}

fn first_page<'a>(app: &App, access: &'a Access, session: SessionId) -> Result<Page<'a>, Problem> {
    let list = List::of(&store::LIST, "queue", &access.account, session);
    Page::new(list, &app.settings, None, None)
}

async fn queue_read(tx: &Tx, access: &Access, session: SessionId, page: &Page<'_>) -> Result<Queue, ApiError> {
    let account = &access.account;
    // First: what changes until the items are read makes an edit of this revision fail.
    let queue = store::queue_find(tx, account, session)
        .await?
        .ok_or_else(Problem::not_found)?;
    let actor = access.caller.actor();
    let caller = editor(access, &actor);
    let show = |row: store::ItemRow, before| row.shown(before, &queue.now, &caller);
    let running = match queue.now.active_turn {
        None => None,
        Some(turn) => {
            let rows = store::items_running(tx, account, turn).await?;
            Some(Running {
                turn_id: turn.uuid(),
                items: rows.into_iter().map(|row| show(row, 0)).collect(),
            })
        }
    };
    let before = match page.after.as_ref().and_then(|after| after.parse().ok()) {
        None => 0,
        Some(position) => store::items_before(tx, account, session, position).await?,
    };
    let (rows, places) = page
        .read(tx, &store::LIST, [session.into()], "list a queue")
        .await?
        .apart();
    Ok(Queue {
        revision: queue.revision(),
        gate: queue.now.gate.map(|gate| gate.to_string()),
        stopping: queue.now.stopping,
        running,
        items: rows.into_iter().map(|row| show(row, before)).collect(),
        next_cursor: places.next_cursor().map(str::to_owned),
    })
}

async fn item_read(tx: &Tx, access: &Access, session: SessionId, item: &NotificationId) -> Result<Item, ApiError> {
    let account = &access.account;
    let queue = store::queue_find(tx, account, session)
        .await?
        .ok_or_else(Problem::not_found)?;
    let row = store::item_find(tx, account, session, item)
        .await?
        .ok_or_else(Problem::not_found)?;
    let actor = access.caller.actor();
    let caller = editor(access, &actor);
    Ok(row.shown(0, &queue.now, &caller))
}
