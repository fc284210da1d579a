//! `/api/orgs/{account}/tasks/{task}/branches`, `/api/orgs/{account}/branches` and `/api/orgs/{account}/tasks/{task}/graph`.

use api::branches::{Branch, Cancellation, Graph};
use axum::{Json, extract::State};
use domain::{AccountId, BranchId, BranchState, TaskId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Tx,
    session::branch_end::{Ending, Ends, branch_end, branches_lock},
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    graph::node,
    store::{self, GraphPlace, GraphRow, LANES_MAX},
};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    holds::store::is_task,
    idempotency::{Answer, Done, Post},
    paging::{Column, Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "branches": "Parts of a turn's work that other sessions do at the same time";
    /// The branches of a task, newest first.
    GET "/api/orgs/{account}/tasks/{task}/branches" Read => list;
    /// A branch, with its result.
    GET "/api/orgs/{account}/branches/{branch}" Read => read;
    /// End a branch, with all below it. Its turn in progress is stopped, and its parent is told. One that has ended stays as it is.
    POST "/api/orgs/{account}/branches/{branch}/cancel" Control => cancel;
    /// Turns of a task's own sessions and of its branches, with what each knew: 500 a page.
    GET "/api/orgs/{account}/tasks/{task}/graph" Read => graph;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    state: Option<BranchState>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Branch>, ApiError> {
    let filters = format!("{} {:?}", task.key(), query.state);
    let list = List::of(&store::LIST, "branches", &access.account, filters);
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    if !is_task(&tx, &access.account, &task).await? {
        return Err(Problem::not_found().into());
    }
    let values = [task.key().into(), query.state.into()];
    let rows = page.read(&tx, &store::LIST, values, "list branches").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(branch): Named<BranchId>,
) -> Result<Json<Branch>, ApiError> {
    let tx = access.begin(&app).await?;
    let branch = branch_read(&tx, &access.account, branch).await?;
    tx.commit().await?;
    Ok(Json(branch))
}

async fn cancel(
    State(app): State<App>,
    access: Access,
    Named(branch): Named<BranchId>,
    Post { body, once }: Post<Cancellation>,
) -> Result<Answer<200, Branch>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        branch_read(&work.tx, account, branch).await?;
        branches_lock(&work.tx, account, |live| live.id == branch).await?;
        let by = access.caller.actor();
        let reason = body.reason.as_ref().map(|reason| reason.trim());
        let ending = Ending::Cancelled {
            by: &by.name,
            reason: reason.filter(|reason| !reason.is_empty()),
        };
        let ends = Ends {
            ends: vec![(branch, ending)],
            closing: &[],
            tells: true,
        };
        let ended = branch_end(&work.tx, account, &ends, &app.setting(None, work.now)).await?;
        if !ended.branches.is_empty() {
            tracing::info!(%account, branch_id = %branch, "cancelled a branch");
        }
        let branch = branch_read(&work.tx, account, branch).await?;
        Ok(Done::new(branch).with(ended.messages))
    })
    .await
}

async fn branch_read(tx: &Tx, account: &AccountId, branch: BranchId) -> Result<Branch, ApiError> {
    let branch = store::branch_find(tx, account, branch).await?;
    branch.ok_or_else(|| Problem::not_found().into())
}

/// Nodes of a page.
const NODES_MAX: usize = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GraphQuery {
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn graph(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<GraphQuery>,
) -> Result<Json<Graph>, ApiError> {
    let list = List {
        name: "graph",
        account: access.account.as_str(),
        filters: task.key().to_string(),
        order: &[
            ("rank", Column::Integer),
            ("begun_at", Column::Time),
            ("lane", Column::Uuid),
            ("number", Column::BigInt),
        ],
    };
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let page = match query.limit {
        Some(_) => page.at_most(NODES_MAX),
        None => page.of(NODES_MAX),
    };
    let tx = app.begin_list(&access.accounts()).await?;
    if !is_task(&tx, &access.account, &task).await? {
        return Err(Problem::not_found().into());
    }
    let after = page.after.as_deref().map_or(GraphPlace::START, place);
    let limit = i64::try_from(page.rows()).unwrap_or(i64::MAX);
    let rows = store::graph_read(&tx, &access.account, &task, after, limit).await?;
    tx.commit().await?;
    let is_more = rows.last().is_some_and(|row| row.place == LANES_MAX);
    let rows = rows.into_iter().map(|row| (row.turn_id.is_some(), place_of(&row), row));
    let (rows, places) = page.cut_to(rows.collect(), is_more).apart();
    let (nodes, edges): (Vec<_>, Vec<_>) = rows.iter().filter_map(node).unzip();
    Ok(Json(Graph {
        nodes,
        edges: edges.into_iter().flatten().collect(),
        next_cursor: places.next_cursor().map(str::to_owned),
    }))
}

/// The place of a cursor after this row.
fn place_of(row: &GraphRow) -> String {
    let micros = row.begun_at.unix_timestamp_nanos() / 1000;
    format!("{} {micros} {} {}", row.rank, row.lane.simple(), row.number)
}

/// A cursor's place: the list has checked it.
fn place(text: &str) -> GraphPlace {
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap_or_default();
    GraphPlace {
        rank: word().parse().unwrap_or_default(),
        begun_at: moment(word()),
        lane: Uuid::try_parse(word()).unwrap_or_default(),
        number: word().parse().unwrap_or_default(),
    }
}

/// Of microseconds.
fn moment(text: &str) -> OffsetDateTime {
    let micros: i128 = text.parse().unwrap_or_default();
    OffsetDateTime::from_unix_timestamp_nanos(micros.saturating_mul(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
