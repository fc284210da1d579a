//! `/api/orgs/{account}/notifications`.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use domain::{AgentRef, NotificationId, NotificationState, TaskId};
use runtime::http::Problem;
use serde::Deserialize;
use storage::Accounts;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    Accepted, NewNotification, Notification, incoming,
    store::{self, Filter},
};
use crate::{
    app::App,
    auth::Access,
    body::{self, Path, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Begun, PostBytes, Work},
    paging::{Items, List, Page, Shown},
    wire::notification_state,
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(publish, list))
        .routes(routes!(read))
}

/// Publish a notification: what NATS takes, plus `task`. Accepted means that it will reach the resolver, which may
/// still refuse it; its state tells. The same `id` with the same content is one notification, however often it is sent.
#[utoipa::path(post, path = "/api/orgs/{account}/notifications", tag = "notifications",
    request_body(content_type = "application/json", content = NewNotification),
    responses((status = 202, body = Accepted)))]
async fn publish(
    State(app): State<App>,
    access: Access,
    PostBytes { body, request }: PostBytes,
) -> Result<Response, ApiError> {
    let account = &access.account;
    app.has_room(account)?;
    let posted = incoming::read(body::fields(&body)?, &access.caller, Uuid::now_v7())?;
    let work = match Work::begin(&app, &access, request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    let caller = &access.caller;
    let publisher = caller.sees_own_alone().then(|| caller.principal());
    if !store::notification_accept(&work.tx, account, &posted, publisher, work.now).await? {
        return Err(Problem::conflict(
            "id_conflict",
            format!("there is another notification with the id {}", posted.id),
        )
        .into());
    }
    // Published again when it was accepted before: the resolver counts it once, and a broker may have lost it.
    let origin = app.setting(None, work.now).origin;
    let outgoing = posted.outgoing(&app.root, account, &origin, work.now.into());
    app.meters.published("api", 1);
    let answer = Accepted {
        id: posted.id.to_string(),
    };
    work.finish(Answer::new(StatusCode::ACCEPTED, &answer), vec![outgoing])
        .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    #[param(schema_with = notification_state)]
    state: Option<NotificationState>,
    #[param(value_type = Option<String>)]
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Notifications that the resolver has written down, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/notifications", tag = "notifications", params(ListQuery),
    responses((status = 200, body = Items<Notification>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    let filter = Filter {
        state: query.state,
        task: query.task.map(|task| task.key()),
        agent: query.agent.as_deref().map(agent_read).transpose()?,
    };
    let list = List::of("notifications", &access.account, format_args!("{filter:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = store::notification_list(&tx, &access.account, &filter, &page).await?;
    tx.commit().await?;
    Ok(rows.show(|notification| notification))
}

/// How a filter names an agent.
pub fn agent_read(text: &str) -> Result<AgentRef, Problem> {
    AgentRef::parse(text).map_err(|error| invalid_field("agent", error))
}

#[derive(Deserialize)]
struct NotificationPath {
    notification: NotificationId,
}

/// What became of a notification. One for several agents is told by its parts. A key with the role `publisher` is told of
/// those that it published, for as long as an acceptance is known, and without what they say.
#[utoipa::path(get, path = "/api/orgs/{account}/notifications/{notification}", tag = "notifications",
    responses((status = 200, body = Notification)))]
async fn read(
    State(app): State<App>,
    access: Access,
    Path(path): Path<NotificationPath>,
) -> Result<Json<Notification>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let (account, id) = (&access.account, &path.notification);
    let own_alone = access.caller.sees_own_alone();
    if own_alone && !store::notification_is_of(&tx, account, id, access.caller.principal()).await? {
        return Err(Problem::not_found().into());
    }
    let notification = store::notification_find(&tx, account, id).await?;
    tx.commit().await?;
    let notification = notification.ok_or_else(Problem::not_found)?;
    Ok(Json(if own_alone {
        notification.outcome()
    } else {
        notification
    }))
}
