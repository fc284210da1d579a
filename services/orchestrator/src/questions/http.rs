//! `/api/orgs/{account}/questions`.

use api::questions::{NewAnswer, Question, Withdrawal};
use axum::{Json, extract::State};
use domain::{Audience, QuestionId, QuestionKind, QuestionState, TaskId, question::Answerer};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::question::Ending;

use super::{answer, answerer, end, store};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "questions": "What people and agents are asked: questions of agents, and plans that await approval";
    /// Questions, newest first.
    GET "/api/orgs/{account}/questions" Read => list;
    /// A question, with its answer.
    GET "/api/orgs/{account}/questions/{question}" Read => read;
    /// Answer a question. It is answered once: the first answer counts, and whoever asked gets it as a notification. An approved
    /// plan opens its task.
    POST "/api/orgs/{account}/questions/{question}/answer" Answer => reply or 404;
    /// Withdraw a question: whoever asked is told that there is no answer.
    POST "/api/orgs/{account}/questions/{question}/withdraw" Control => withdraw or 404;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    state: Option<QuestionState>,
    kind: Option<QuestionKind>,
    /// Only those of this task.
    task: Option<TaskId>,
    /// `true`: only open ones that the caller may answer.
    mine: Option<bool>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Question>, ApiError> {
    let caller = answerer(&access.caller);
    // None: whatever is asked.
    let asked = match (query.mine, caller) {
        (Some(true), Answerer::Person { id, is_admin: false }) => {
            Some(vec![Audience::Members.to_string(), format!("user:{id}")])
        }
        (Some(true), Answerer::Service | Answerer::Agent(_) | Answerer::Rule(_)) => Some(Vec::new()),
        (Some(true), Answerer::Person { is_admin: true, .. }) | (Some(false) | None, _) => None,
    };
    let state = match query.mine {
        Some(true) => Some(QuestionState::Open),
        Some(false) | None => query.state,
    };
    let task = query.task.map(|task| task.key());
    let list = List::of(
        &store::LIST,
        "questions",
        &access.account,
        format_args!("{state:?} {:?} {task:?} {asked:?}", query.kind),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [state.into(), query.kind.into(), task.into(), asked.into()];
    let rows = page.read(&tx, &store::LIST, values, "list questions").await?;
    tx.commit().await?;
    Ok(rows.show_as(|question| store::shown(question, caller)))
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(question): Named<QuestionId>,
) -> Result<Json<Question>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = store::find(&tx, &access.account, question).await?;
    tx.commit().await?;
    let found = found.ok_or_else(Problem::not_found)?;
    Ok(Json(store::shown(found, answerer(&access.caller))))
}

async fn reply(
    State(app): State<App>,
    access: Access,
    Named(question): Named<QuestionId>,
    Post { body, once }: Post<NewAnswer>,
) -> Result<Answer<200, Question>, ApiError> {
    once.run(&app, access.party(), async |work| {
        let setting = app.setting(Some(question.to_string()), work.now);
        let (_, messages) = answer(&work.tx, &access, question, body, &setting).await?;
        app.shutdown.crash_point("orchestrator.answer_written").await;
        let question = store::find(&work.tx, &access.account, question).await?;
        let question = question.ok_or_else(Problem::not_found)?;
        Ok(Done::new(store::shown(question, answerer(&access.caller))).with(messages))
    })
    .await
}

async fn withdraw(
    State(app): State<App>,
    access: Access,
    Named(question): Named<QuestionId>,
    Post { body, once }: Post<Withdrawal>,
) -> Result<Answer<200, Question>, ApiError> {
    once.run(&app, access.party(), async |work| {
        let by = access.caller.actor();
        let ending = Ending::Withdrawn {
            by: &by,
            reason: body.reason.as_deref().filter(|reason| !reason.trim().is_empty()),
            is_asker: false,
        };
        let setting = app.setting(Some(question.to_string()), work.now);
        let (_, messages) = end(&work.tx, &access.account, question, &ending, &setting).await?;
        let question = store::find(&work.tx, &access.account, question).await?;
        let question = question.ok_or_else(Problem::not_found)?;
        Ok(Done::new(store::shown(question, answerer(&access.caller))).with(messages))
    })
    .await
}
