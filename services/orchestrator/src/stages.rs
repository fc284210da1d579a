//! `/api/orgs/{account}/tasks/{task}/stages`: the reviews that a task passes before it is done. `storage::lifecycle::stage` has the rule.

use api::{
    questions::Audience as AudienceNames,
    stages::{NewStages, Stage, Stages},
};
use axum::{Json, extract::State};
use domain::{AccountId, Audience, QuestionId, TaskId};
use runtime::http::Problem;
use storage::{
    Tx,
    lifecycle::{
        plan::task_lock,
        stage::{StagesNotSet, stages_of, stages_set},
    },
};

use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named},
    error::ApiError,
    holds::store::is_task,
    questions::may_loosen,
    route::routes,
};

routes! {
    "stages": "Reviews that a task passes before it is done";
    /// The review stages of a task, in their order.
    GET "/api/orgs/{account}/tasks/{task}/stages" Read => read;
    /// Give a task these stages; one is taken away or changed by those who review it, or an admin. A move to `done` opens the review of the first one that is not passed. 409 while a review is open.
    PUT "/api/orgs/{account}/tasks/{task}/stages" ChangeTasks => replace or 409;
}

async fn read(State(app): State<App>, access: Access, Named(task): Named<TaskId>) -> Result<Json<Stages>, ApiError> {
    let tx = access.begin(&app).await?;
    if !is_task(&tx, &access.account, &task).await? {
        return Err(Problem::not_found().into());
    }
    let stages = shown(&tx, &access.account, &task).await?;
    tx.commit().await?;
    Ok(Json(stages))
}

async fn replace(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    JsonBody(new): JsonBody<NewStages>,
) -> Result<Json<Stages>, ApiError> {
    let account = &access.account;
    let named = |audience: AudienceNames| audience.0.iter().filter_map(|one| one.parse().ok()).collect();
    let stages: Vec<(String, Vec<Audience>)> = new
        .stages
        .0
        .into_iter()
        .map(|stage| {
            let audience = stage.audience.map_or_else(|| vec![Audience::DEFAULT], named);
            (String::from(stage.name), audience)
        })
        .collect();
    let tx = access.begin(&app).await?;
    // Locked before they are judged: nobody else replaces them meanwhile.
    task_lock(&tx, account, &task).await?;
    for old in stages_of(&tx, account, &task).await? {
        let audience: Vec<Audience> = old.audience.iter().filter_map(|one| one.parse().ok()).collect();
        let stays = stages
            .iter()
            .any(|(name, asked)| *name == old.name && *asked == audience);
        if !stays {
            may_loosen(&audience, &access.caller, &format!("stage {}", old.name))?;
        }
    }
    let setting = app.setting(None, database_now(&tx).await?);
    let set = stages_set(&tx, (account, &task), &stages, &access.caller.actor(), &setting).await?;
    let messages = set.map_err(|why| match why {
        StagesNotSet::NotThere => Problem::not_found(),
        StagesNotSet::Open(open) => {
            let what = format!(
                "the review of stage {} is open: answer or withdraw question {} first",
                open.stage, open.question
            );
            Problem::conflict("stage_open", what)
        }
    })?;
    let stages = shown(&tx, account, &task).await?;
    app.commit(tx, messages).await?;
    tracing::info!(%account, %task, stages = stages.stages.len(), "set the stages of a task");
    Ok(Json(stages))
}

async fn shown(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Stages, ApiError> {
    let rows = stages_of(tx, account, task).await?.into_iter();
    let stages = rows.map(|row| Stage {
        name: row.name,
        audience: row.audience,
        passed_at: row.passed_at.map(Into::into),
        question_id: row.question.map(QuestionId),
    });
    Ok(Stages {
        stages: stages.collect(),
    })
}
