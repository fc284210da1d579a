//! `/api/orgs/{account}/turns/{turn}/replays` and `/api/orgs/{account}/replays`.

use api::replays::{NewReplay, Replay};
use axum::{Json, extract::State};
use domain::{ReplayId, ReplaySpec, TurnId};
use runtime::http::Problem;
use storage::session::replay_begin::{self, replay_begin, replays_count};

use super::{
    misspecified, refused,
    store::{self, ReplayRow},
    too_many,
};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{List, ListQuery, Shown},
    route::routes,
    turns::store::turn_exists,
};

routes! {
    "replays": "Turns that are run again without effects";
    /// Run a turn again, as it was or with another provider, role or text of instructions. Nothing is posted and no tool runs: its calls
    /// are answered from the record. 409 `replays_of_turn`: the turn has as many as are kept. 422: it cannot be run again without
    /// effects. 429: the account has as many in progress as it may.
    POST "/api/orgs/{account}/turns/{turn}/replays" ChangeTasks => begin or 404 or 429;
    /// The replays of a turn, newest first.
    GET "/api/orgs/{account}/turns/{turn}/replays" Read => list;
    /// A replay: how far it is, how its calls were answered, and its reply.
    GET "/api/orgs/{account}/replays/{replay}" Read => read;
}

async fn begin(
    State(app): State<App>,
    access: Access,
    Named(turn): Named<TurnId>,
    Post { body: spec, once }: Post<ReplaySpec>,
) -> Result<Answer<202, NewReplay>, ApiError> {
    let account = &access.account;
    if let Some(problem) = misspecified(&spec) {
        return Err(problem.into());
    }
    once.run(&app, access.party(), async |work| {
        let source = store::source_find(&work.tx, account, turn).await?;
        let source = source.ok_or_else(Problem::not_found)?;
        if let Some(problem) = refused(&source, &spec, &app.providers) {
            return Err(problem.into());
        }
        let count = replays_count(&work.tx, account, turn).await?;
        if let Some(problem) = too_many(count, &app.settings) {
            return Err(problem.into());
        }
        let new = replay_begin::NewReplay {
            account,
            source: turn,
            task: source.task.as_ref(),
            agent: source.agent_id,
            spec: &spec,
            by: &access.caller.actor(),
        };
        let (id, session, messages) = replay_begin(&work.tx, &new, &app.setting(None, work.now)).await?;
        tracing::info!(%account, replay_id = %id, turn_id = %turn, session_id = %session, "began a replay");
        Ok(Done::new(NewReplay { id }).with(messages))
    })
    .await
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(turn): Named<TurnId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Replay>, ApiError> {
    let page = query.page(&app, List::of(&store::LIST, "replays", &access.account, turn))?;
    let tx = app.begin_list(&access.accounts()).await?;
    if !turn_exists(&tx, &access.account, turn).await? {
        return Err(Problem::not_found().into());
    }
    let rows = page.read(&tx, &store::LIST, [turn.into()], "list replays").await?;
    tx.commit().await?;
    Ok(rows.show_as(ReplayRow::shown))
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(replay): Named<ReplayId>,
) -> Result<Json<Replay>, ApiError> {
    let tx = access.begin(&app).await?;
    let row = store::replay_find(&tx, &access.account, replay).await?;
    tx.commit().await?;
    Ok(Json(row.ok_or_else(Problem::not_found)?.shown()))
}
