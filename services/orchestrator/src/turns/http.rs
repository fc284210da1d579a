//! `/api/orgs/{account}/turns` and a session's turns.

use api::turns::{ToolCall, Turn};
use axum::{Json, extract::State};
use domain::{SessionId, TurnId};
use runtime::http::Problem;

use super::store;
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{List, ListQuery, Shown},
    route::routes,
    sessions::store::session_find,
};

routes! {
    "turns": "One run of an agent";
    /// A session's turns in their order. At most 50 at a time, since a turn holds its whole prompt.
    GET "/api/orgs/{account}/sessions/{session}/turns" Read => list;
    /// A turn with its tool calls. If the calls are very long, only the first ones.
    GET "/api/orgs/{account}/turns/{turn}" Read => read;
    /// A turn's tool calls, in the order of the provider's requests.
    GET "/api/orgs/{account}/turns/{turn}/tool-calls" Read => tool_calls;
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Turn>, ApiError> {
    let page = query.page(&app, List::of(&store::LIST, "turns", &access.account, session))?;
    let page = page.at_most(app.settings.list_turns_max.usize());
    let tx = app.begin_list(&access.accounts()).await?;
    session_find(&tx, &access.account, session)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = page.read(&tx, &store::LIST, [session.into()], "list turns").await?;
    let (rows, places) = rows.apart();
    let items = store::whole(&tx, &access.account, rows, page.bytes_max()).await?;
    tx.commit().await?;
    Ok(places.show(items))
}

async fn read(State(app): State<App>, access: Access, Named(turn): Named<TurnId>) -> Result<Json<Turn>, ApiError> {
    let bytes_max = app.settings.list_bytes_max.usize();
    let tx = access.begin(&app).await?;
    let turn = store::turn_find(&tx, &access.account, turn, bytes_max).await?;
    tx.commit().await?;
    Ok(Json(turn.ok_or_else(Problem::not_found)?))
}

async fn tool_calls(
    State(app): State<App>,
    access: Access,
    Named(turn): Named<TurnId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<ToolCall>, ApiError> {
    let page = query.page(&app, List::of(&store::CALL_LIST, "tool calls", &access.account, turn))?;
    let tx = app.begin_list(&access.accounts()).await?;
    if !store::turn_exists(&tx, &access.account, turn).await? {
        return Err(Problem::not_found().into());
    }
    let rows = page
        .read(&tx, &store::CALL_LIST, [turn.into()], "list tool calls")
        .await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: store::CallRow| ToolCall::from(row)))
}
