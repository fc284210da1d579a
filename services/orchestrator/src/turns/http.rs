//! `/api/orgs/{account}/turns` and a session's turns.

use axum::{Json, extract::State};
use domain::TurnId;
use runtime::http::Problem;
use serde::Deserialize;
use storage::Accounts;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ToolCall, Turn, store};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    paging::{self, Items, List, Page, Shown},
    sessions::{http::SessionPath, store::session_find},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(read))
        .routes(routes!(tool_calls))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// At most 50: turns hold whole prompts.
    limit: Option<u32>,
    cursor: Option<String>,
}

/// A session's turns in their order.
#[utoipa::path(get, path = "/api/orgs/{account}/sessions/{session}/turns", tag = "turns", params(ListQuery),
    responses((status = 200, body = Items<Turn>)))]
async fn list(
    State(app): State<App>,
    access: Access,
    Path(path): Path<SessionPath>,
    Query(query): Query<ListQuery>,
) -> Result<Shown, ApiError> {
    let list = List::of("turns", &access.account, path.session);
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?
        .at_most(app.settings.list_turns_max.usize());
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    session_find(&tx, &access.account, path.session)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = store::turn_list(&tx, &access.account, path.session, &page).await?;
    let (rows, places) = rows.apart();
    let items = store::whole(&tx, &access.account, rows, page.bytes_max()).await?;
    tx.commit().await?;
    Ok(places.show(items, |turn| turn))
}

#[derive(Deserialize)]
struct TurnPath {
    turn: TurnId,
}

/// All that is known of a turn; of very long tool calls the first.
#[utoipa::path(get, path = "/api/orgs/{account}/turns/{turn}", tag = "turns", responses((status = 200, body = Turn)))]
async fn read(State(app): State<App>, access: Access, Path(path): Path<TurnPath>) -> Result<Json<Turn>, ApiError> {
    let bytes_max = app.settings.list_bytes_max.usize();
    let tx = app.begin(&access.account).await?;
    let turn = store::turn_find(&tx, &access.account, path.turn, bytes_max).await?;
    tx.commit().await?;
    Ok(Json(turn.ok_or_else(Problem::not_found)?))
}

/// A turn's tool calls, in the order in which they were asked for.
#[utoipa::path(get, path = "/api/orgs/{account}/turns/{turn}/tool-calls", tag = "turns", params(paging::ListQuery),
    responses((status = 200, body = Items<ToolCall>)))]
async fn tool_calls(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TurnPath>,
    Query(query): Query<paging::ListQuery>,
) -> Result<Shown, ApiError> {
    let page = query.page(&app, List::of("tool calls", &access.account, path.turn))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    if !store::turn_exists(&tx, &access.account, path.turn).await? {
        return Err(Problem::not_found().into());
    }
    let rows = store::call_list(&tx, &access.account, path.turn, &page).await?;
    tx.commit().await?;
    Ok(rows.show(ToolCall::from))
}
