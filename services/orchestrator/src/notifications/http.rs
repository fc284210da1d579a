//! `/api/orgs/{account}/notifications`.

use api::notifications::{Accepted, NewNotification, Notification};
use axum::{Json, extract::State};
use domain::{AgentRef, NotificationId, NotificationState, TaskId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::accepted::{NewAccepted, notification_accept};
use uuid::Uuid;

use super::{
    incoming, outcome_of,
    store::{self, Filter, NotificationRow},
};
use crate::{
    app::App,
    auth::Access,
    body::{self, Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, PostBytes},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "notifications": "Reasons for an agent to act, and their states";
    /// Publish a notification: what NATS takes, plus `task`. Accepted means that it will reach the resolver, which may
    /// still refuse it; its state tells. The same `id` with the same content is one notification, however often it is sent.
    POST "/api/orgs/{account}/notifications" Notify => publish;
    /// Notifications that the resolver has written down, newest first.
    GET "/api/orgs/{account}/notifications" Read => list;
    /// What became of a notification. One for several agents is told by its parts. A key with the role `publisher` is told of
    /// those that it published, for as long as an acceptance is known, and without what they say.
    GET "/api/orgs/{account}/notifications/{notification}" FollowUp => read;
}

async fn publish(
    State(app): State<App>,
    access: Access,
    PostBytes { body, once, .. }: PostBytes<NewNotification>,
) -> Result<Answer<202, Accepted>, ApiError> {
    let (account, caller) = (&access.account, &access.caller);
    app.has_room(account)?;
    let posted = incoming::read(body::fields(&body)?, caller, Uuid::now_v7())?;
    once.run(&app, access.party(), async |work| {
        let publisher = caller.sees_own_alone().then(|| caller.principal());
        let new = NewAccepted {
            account,
            id: &posted.id,
            task: posted.task.as_ref(),
            agent: posted.message.agent.as_deref(),
            kind: posted.kind(),
            content_hash: posted.content_hash(),
            publisher,
            at: work.now,
        };
        if !notification_accept(&work.tx, &new).await? {
            let what = format!("there is another notification with the id {}", posted.id);
            return Err(Problem::conflict("id_conflict", what).into());
        }
        // Published again when it was accepted before: the resolver counts it once, and a broker may have lost it.
        let origin = app.setting(None, work.now).origin;
        let outgoing = posted.outgoing(&app.root, account, &origin, work.now.into());
        app.meters.published("api", 1);
        let id = posted.id.to_string();
        Ok(Done::new(Accepted { id }).with(vec![outgoing]))
    })
    .await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    state: Option<NotificationState>,
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<AgentRef>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Notification>, ApiError> {
    let filter = Filter {
        state: query.state,
        task: query.task.map(|task| task.key()),
        agent: query.agent,
    };
    let list = List::of(
        &store::LIST,
        "notifications",
        &access.account,
        format_args!("{filter:?}"),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page
        .read(&tx, &store::LIST, filter.values(), "list notifications")
        .await?;
    tx.commit().await?;
    Ok(rows.show_as(NotificationRow::told))
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(id): Named<NotificationId>,
) -> Result<Json<Notification>, ApiError> {
    let tx = access.begin(&app).await?;
    let account = &access.account;
    let own_alone = access.caller.sees_own_alone();
    if own_alone && !store::notification_is_of(&tx, account, &id, access.caller.principal()).await? {
        return Err(Problem::not_found().into());
    }
    let notification = store::notification_find(&tx, account, &id).await?;
    let is_own = own_alone || store::notification_is_of(&tx, account, &id, access.caller.principal()).await?;
    tx.commit().await?;
    let mut notification = notification.ok_or_else(Problem::not_found)?;
    // What has become of what one wrote to somebody's orchestrator, of which one sees nothing else.
    let is_hidden = is_own && notification.agent_id.is_none() && notification.parts.is_empty();
    if is_hidden {
        let tx = app.begin_sweep(account).await?;
        let found = store::notification_find(&tx, account, &id).await?;
        tx.commit().await?;
        notification = found.ok_or_else(Problem::not_found)?;
    }
    Ok(Json(if own_alone || is_hidden {
        outcome_of(notification)
    } else {
        notification
    }))
}
