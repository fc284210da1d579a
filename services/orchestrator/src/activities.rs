//! Activities of a task: created, moved, assigned, message posted. Each is written in the transaction of its change, except that of a
//! message, which is the message; read here at `/api/orgs/{account}/tasks/{task}/activities`.

use api::activities::Activity;
use axum::extract::State;
use domain::TaskId;
use runtime::http::Problem;

use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{Column, List, ListQuery, Listing, Order, Shown},
    route::routes,
    tasks::store::task_find,
};

routes! {
    "activities": "What happened to a task";
    /// What happened to the task, newest first.
    GET "/api/orgs/{account}/tasks/{task}/activities" Read => list;
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Activity>, ApiError> {
    let page = query.page(&app, List::of(&LIST, "activities", &access.account, task.key()))?;
    let tx = app.begin_list(&access.accounts()).await?;
    task_find(&tx, &access.account, &task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = page.read(&tx, &LIST, [task.key().into()], "list activities").await?;
    tx.commit().await?;
    Ok(rows.show())
}

pub const LIST: Listing = Listing {
    rows: concat!(
        "select account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at",
        storage::activities!(),
        " and account_id = $1 and task_id = $2"
    ),
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(detail::text)",
    names: ("", ""),
};
