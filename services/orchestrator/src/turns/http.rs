//! `/api/orgs/{account}/turns` and a session's turns.

use axum::{Json, extract::State};
use domain::TurnId;
use runtime::http::Problem;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Turn, store};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    paging::{Items, List, Page},
    sessions::{http::SessionPath, store::session_find},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(read))
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
) -> Result<Json<Items<Turn>>, ApiError> {
    let list = List::of("turns", &access.account, path.session);
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?
        .at_most(app.settings.list_turns_max.usize());
    let tx = app.begin(&access.account).await?;
    session_find(&tx, &access.account, path.session)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = store::turn_list(&tx, &access.account, path.session, &page).await?;
    let items = store::whole(&tx, &access.account, rows.rows).await?;
    tx.commit().await?;
    Ok(Json(Items {
        items,
        next_cursor: rows.next_cursor,
    }))
}

#[derive(Deserialize)]
struct TurnPath {
    turn: TurnId,
}

/// All that is known of a turn.
#[utoipa::path(get, path = "/api/orgs/{account}/turns/{turn}", tag = "turns", responses((status = 200, body = Turn)))]
async fn read(State(app): State<App>, access: Access, Path(path): Path<TurnPath>) -> Result<Json<Turn>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let turn = store::turn_find(&tx, &access.account, path.turn).await?;
    tx.commit().await?;
    Ok(Json(turn.ok_or_else(Problem::not_found)?))
}
