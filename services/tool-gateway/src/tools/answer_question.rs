//! `answer_question`: the agent answers a question that it was asked, by the same function as everybody else.

use domain::{
    QuestionId, QuestionKind, Verdict,
    question::{AnswerForm, Answerer, AskedOf, GivenAnswer, NotAnswerer},
};
use serde_json::{Map, Value, json};
use storage::{
    Setting,
    lifecycle::stage::review_is_stale,
    question::{Answer, Ending, NotEnded, QuestionRow, question_end, question_find},
};

use super::{Running, ToolError, ToolOutcome, body};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    store,
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let text = match arguments.get("text") {
        Some(_) => Some(body(&arguments, "text")?),
        None => None,
    };
    let options: Vec<String> = arguments
        .get("options")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let verdict = arguments
        .get("verdict")
        .and_then(Value::as_str)
        .and_then(Verdict::parse);
    let row = question_named(running, &arguments).await?;
    may_answer(running, &row).await?;
    if !row.state.is_open() {
        return Err(ended(&row).into());
    }
    let ids: Vec<&str> = row.options.0.iter().map(|choice| choice.id.as_str()).collect();
    let form = AnswerForm {
        kind: row.kind,
        options: &ids,
        multiple: row.multiple,
        free_text: row.free_text,
    };
    let given = GivenAnswer {
        verdict,
        options: &options,
        text,
    };
    form.check(given)
        .map_err(|error| invalid_field(error.field, &error.what))?;
    if row.kind == QuestionKind::Review && review_is_stale(running.questions.tx, running.account, &row).await? {
        return Err(ToolAnswer::failed(
            "work_changed",
            "The work has gone on since this review was opened.",
            "Nothing was changed. Finish your turn; a person decides, or the work is called done again.",
        )
        .into());
    }
    let by = running.facts.actor();
    let ending = Ending::Answered {
        by: &by,
        verdict,
        answer: Answer {
            options,
            text: text.map(str::to_owned),
        },
    };
    // The asker is woken by an agent.
    let setting = Setting {
        origin: contracts::outgoing::Origin {
            hops: running.setting.origin.hops.saturating_add(1),
            ..running.setting.origin.clone()
        },
        ..running.setting.clone()
    };
    end(running, row.id, &ending, &setting).await
}

/// The question in the arguments. One that another account has is not there.
pub(super) async fn question_named(
    running: Running<'_>,
    arguments: &Map<String, Value>,
) -> Result<QuestionRow, ToolError> {
    let id = arguments["question_id"]
        .as_str()
        .and_then(|text| QuestionId::parse(text).ok());
    let found = match id {
        Some(id) => question_find(running.questions.tx, running.account, id).await?,
        None => None,
    };
    found.ok_or_else(|| not_found().into())
}

/// Ends the question; the answer for the agent says how it is now.
pub(super) async fn end(
    running: Running<'_>,
    question: QuestionId,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> ToolOutcome {
    match question_end(running.questions.tx, running.account, question, ending, setting).await? {
        Ok((_, _, messages)) => Ok(Effect::new(json!({"state": ending.state()}), messages)),
        Err(NotEnded::Missing) => Err(not_found().into()),
        Err(NotEnded::Already(row)) => Err(ended(&row).into()),
        Err(NotEnded::Refused(refusal)) => Err(ToolAnswer::failed(
            "not_delivered",
            format!("The answer cannot be given to whoever asked: {}.", refusal.detail),
            "Nothing was changed. Say your answer in your reply.",
        )
        .into()),
    }
}

pub(super) fn not_found() -> ToolAnswer {
    ToolAnswer::failed(
        "question_not_found",
        "There is no such question.",
        "Nothing was changed. Use the id as it was given to you.",
    )
}

/// How a question has ended, for whoever came second.
fn ended(row: &QuestionRow) -> ToolAnswer {
    let (code, what) = row.told();
    ToolAnswer::failed(code, what, "Nothing was changed. Finish your turn.")
}

async fn may_answer(running: Running<'_>, row: &QuestionRow) -> Result<(), ToolError> {
    let agent = running.facts.agent;
    let executes = match &row.task {
        Some(task) if row.kind.excludes_executors() => {
            store::executes(running.questions.tx, running.account, task, agent).await?
        }
        Some(_) | None => false,
    };
    let asked = AskedOf {
        audience: &row.asked(),
        asker: row.agent_id,
        executors: if executes { &[agent] } else { &[] },
    };
    let answer = match asked.may_answer(Answerer::Agent(agent)) {
        Ok(()) => return Ok(()),
        Err(NotAnswerer::NotAsked) => not_found(),
        Err(NotAnswerer::ExecutorExcluded) => ToolAnswer::refused(
            "executor_excluded",
            "You asked this question, or the work that it decides on is yours: somebody else has to answer.",
            "Nothing was changed. Finish your turn.",
        ),
    };
    Err(answer.into())
}
