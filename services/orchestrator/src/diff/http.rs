//! `/api/orgs/{account}/turns/{turn}/diff`.

use std::slice;

use api::{diff::Diff, turns::Turn};
use axum::{Json, extract::State, http::StatusCode};
use domain::{AccountId, TurnId};
use runtime::http::Problem;
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::Deserialize;
use serde_json::Value;
use storage::{StorageError, Tx};

use super::layers::{Layers, change, layers, tools};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    log::earlier::earlier_turns,
    route::routes,
    turns::{sent::manifest_of, store::turn_find},
};

routes! {
    "diff": "What differs between two turns";
    /// The difference between a turn and another one of the account: per layer of what the models got, and in context, tools, provider
    /// and usage.
    GET "/api/orgs/{account}/turns/{turn}/diff" Read => read;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiffQuery {
    /// The turn to compare with: it is the one after.
    #[schemars(required)]
    with: Option<TurnId>,
    /// `true`: with unified diffs of the texts, 5,000 lines at most.
    text: Option<bool>,
}

/// The tools that turns were offered. Relies on the primary key.
pub const TOOLS: &str = "
    select t.id, coalesce(t.tools, '{}') as tools
    from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
    cross join lateral (select * from turn t where t.account_id = w.account_id and t.id = w.id limit 1) t";

#[derive(FromQueryResult)]
struct ToolsRow {
    id: TurnId,
    tools: Vec<String>,
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(turn): Named<TurnId>,
    Query(query): Query<DiffQuery>,
) -> Result<Json<Diff>, ApiError> {
    let with = query.with.ok_or_else(|| {
        let detail = "with: missing; add ?with= and the turn to compare with";
        Problem::new(StatusCode::BAD_REQUEST, "invalid_field").detail(detail)
    })?;
    let (account, ids) = (&access.account, [turn, with]);
    let bytes_max = app.settings.list_bytes_max.usize();
    let tx = access.begin(&app).await?;
    let found = async |turn: TurnId| -> Result<Turn, ApiError> {
        let found = turn_find(&tx, account, turn, bytes_max).await?;
        found.ok_or_else(|| {
            Problem::not_found()
                .detail(format!("there is no turn {turn} here"))
                .into()
        })
    };
    let (before, after) = (found(turn).await?, found(with).await?);
    let values = [account.into(), ids.to_vec().into()];
    let offered: Vec<ToolsRow> = tx.rows("read offered tools", TOOLS, values).await?;
    let [layers_before, layers_after] = [
        layers_of(&tx, account, &before).await?,
        layers_of(&tx, account, &after).await?,
    ];
    tx.commit().await?;
    let shows = query.text == Some(true);
    // Comparing takes the processor for up to a second: no other request waits for it.
    let compared = tokio::task::spawn_blocking(move || layers(&layers_before, &layers_after, shows));
    let (layers, lines_left_out) = compared.await.map_err(|_| Problem::internal())?;
    let of = |turn: TurnId| {
        offered
            .iter()
            .find(|row| row.id == turn)
            .map_or(&[][..], |row| &row.tools)
    };
    let manifests = (manifest_of(&before), manifest_of(&after));
    let context = |turn: &Turn| serde_json::to_value(&turn.context).unwrap_or(Value::Null);
    Ok(Json(Diff {
        turn: before.id,
        with: after.id,
        layers,
        context: change(context(&before), context(&after)),
        tools: tools((of(ids[0]), of(ids[1])), (manifests.0.as_ref(), manifests.1.as_ref())),
        provider: change(before.provider.clone().into(), after.provider.clone().into()),
        usage: change(before.usage.unwrap_or_default(), after.usage.unwrap_or_default()),
        lines_left_out,
    }))
}

async fn layers_of(tx: &Tx, account: &AccountId, turn: &Turn) -> Result<Layers, StorageError> {
    let earlier = earlier_turns(tx, account, slice::from_ref(turn)).await?;
    Ok(Layers::of(turn, earlier.shown()))
}
