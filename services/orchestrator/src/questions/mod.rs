//! Questions: listed, answered and withdrawn by people. `storage::question` opens and ends them; an agent's tools call the same
//! functions.

pub mod http;
pub mod store;

use api::questions::NewAnswer;
use axum::http::StatusCode;
use domain::{
    AccountId, KeyRole, QuestionId,
    question::{AnswerForm, Answerer, AskedOf, GivenAnswer, NotAnswerer},
};
use runtime::http::Problem;
use storage::{
    Setting, Tx,
    outbox::Owned,
    question::{Answer, Ending, NotEnded, QuestionRow, question_end, question_find},
};

use crate::{
    auth::{Access, Caller},
    error::ApiError,
};

/// The caller, as far as it may answer.
pub fn answerer(caller: &Caller) -> Answerer<'_> {
    match caller {
        Caller::Operator => Answerer::Person {
            id: caller.principal(),
            is_admin: true,
        },
        Caller::Key(holder) => match holder.role {
            KeyRole::Admin | KeyRole::Member => Answerer::Person {
                id: caller.principal(),
                is_admin: caller.is_admin(),
            },
            KeyRole::Service | KeyRole::Publisher | KeyRole::Gateway => Answerer::Service,
        },
    }
}

/// Answers a question in the caller's name. Gives the row before the answer, and the messages.
pub async fn answer(
    tx: &Tx,
    access: &Access,
    question: QuestionId,
    given: NewAnswer,
    setting: &Setting<'_>,
) -> Result<(QuestionRow, Vec<Owned>), ApiError> {
    let account = &access.account;
    let row = question_find(tx, account, question)
        .await?
        .ok_or_else(Problem::not_found)?;
    may_answer(&row, &access.caller)?;
    if !row.state.is_open() {
        return Err(ended(&row).into());
    }
    let options = given.options.unwrap_or_default().0;
    let text = given.text.map(String::from).filter(|text| !text.trim().is_empty());
    let ids: Vec<&str> = row.options.0.iter().map(|choice| choice.id.as_str()).collect();
    let form = AnswerForm {
        kind: row.kind,
        options: &ids,
        multiple: row.multiple,
        free_text: row.free_text,
    };
    let verdict = given.verdict;
    let said = GivenAnswer {
        verdict,
        options: &options,
        text: text.as_deref(),
    };
    form.check(said)
        .map_err(|error| Problem::unprocessable("invalid_answer", error.to_string()))?;
    let by = access.caller.actor();
    let ending = Ending::Answered {
        by: &by,
        verdict,
        answer: Answer { options, text },
    };
    end(tx, account, question, &ending, setting).await
}

/// Ends a question, or tells how it has ended.
pub async fn end(
    tx: &Tx,
    account: &AccountId,
    question: QuestionId,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<(QuestionRow, Vec<Owned>), ApiError> {
    match question_end(tx, account, question, ending, setting).await? {
        Ok((row, messages)) => {
            tracing::info!(%account, %question, kind = %row.kind, state = %ending.state(), "a question ended");
            Ok((row, messages))
        }
        Err(NotEnded::Missing) => Err(Problem::not_found().into()),
        Err(NotEnded::Already(row)) => Err(ended(&row).into()),
        Err(NotEnded::Refused(refusal)) => {
            let what = format!("whoever asked cannot be told: {}", refusal.detail);
            Err(Problem::conflict("not_delivered", what).into())
        }
    }
}

fn may_answer(row: &QuestionRow, caller: &Caller) -> Result<(), Problem> {
    let asked = AskedOf {
        audience: &row.asked(),
        asker: row.agent_id,
        // Agents work on tasks.
        executors: &[],
    };
    let (code, what) = match asked.may_answer(answerer(caller)) {
        Ok(()) => return Ok(()),
        Err(NotAnswerer::NotAsked) => ("not_asked", "the question asks somebody else: see its `audience`"),
        Err(NotAnswerer::ExecutorExcluded) => ("executor_excluded", "whoever works on the task does not decide on it"),
    };
    Err(Problem::new(StatusCode::FORBIDDEN, code).detail(what))
}

/// How a question has ended, for whoever came second.
fn ended(row: &QuestionRow) -> Problem {
    let (code, what) = row.told();
    Problem::conflict(code, format!("{what}; read it to see what was said"))
}
