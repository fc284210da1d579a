//! Questions: listed, answered and withdrawn by people. `storage::lifecycle::question` opens and ends them; an agent's tools call the same
//! functions.

pub mod http;
pub mod store;

use api::questions::NewAnswer;
use axum::http::StatusCode;
use domain::{
    AccountId, Actor, Audience, KeyRole, PolicyScope, PolicyVerdict, QuestionId, QuestionKind, Verdict,
    question::{AnswerForm, Answerer, AskedOf, GivenAnswer, NotAnswerer},
    tool_policy::task_agent,
};
use runtime::http::Problem;
use storage::{
    Setting, Tx,
    lifecycle::stage::review_is_stale,
    outbox::Owned,
    question::{Answer, Ending, NotEnded, QuestionRow, question_end, question_find},
    tool_policy::{NewToolPolicy, PolicyTerms, policy_allow},
};

use crate::{
    auth::{Access, Caller},
    error::ApiError,
    policies,
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
                id: caller.author_id(),
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
    let call = (given.arguments_hash.as_deref(), given.remember == Some(true));
    let said = GivenAnswer {
        verdict,
        options: &options,
        text: text.as_deref(),
    };
    form.check(said)
        .map_err(|error| Problem::unprocessable("invalid_answer", error.to_string()))?;
    if row.kind == QuestionKind::Review
        && given.accept_stale != Some(true)
        && review_is_stale(tx, account, &row).await?
    {
        let what = "the agent went on working after the review was opened: look at the work again, and answer with accept_stale";
        return Err(Problem::conflict("work_changed", what).into());
    }
    let by = access.caller.actor();
    let mut messages = call_decided(tx, (account, &by), &row, (verdict, call), setting).await?;
    let ending = Ending::Answered {
        by: &by,
        verdict,
        answer: Answer { options, text },
    };
    let (row, more) = end(tx, account, question, &ending, setting).await?;
    messages.extend(more);
    Ok((row, messages))
}

/// Checks that what is approved is the call that was shown, and remembers the approval, if that is asked for.
async fn call_decided(
    tx: &Tx,
    (account, by): (&AccountId, &Actor),
    row: &QuestionRow,
    (verdict, (shown, remember)): (Option<Verdict>, (Option<&str>, bool)),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, ApiError> {
    let invalid = |what: &str| ApiError::from(Problem::unprocessable("invalid_answer", what));
    let is_approval = row.kind == QuestionKind::Tool && verdict == Some(Verdict::Approved);
    if !is_approval {
        return match (shown, remember) {
            (_, true) => Err(invalid("remember: only the approval of a tool call is remembered")),
            (Some(_), false) if row.kind != QuestionKind::Tool => {
                Err(invalid("arguments_hash: the question is not about a tool call"))
            }
            (_, false) => Ok(Vec::new()),
        };
    }
    let hash = row.arguments_hash.as_deref().unwrap_or_default();
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    match shown {
        Some(shown) if shown.eq_ignore_ascii_case(&hash) => {}
        Some(_) => {
            let what = "arguments_hash is not that of the call: read the question again, and approve what it shows now";
            return Err(Problem::conflict("arguments_changed", what).into());
        }
        None => {
            return Err(invalid(
                "arguments_hash: missing: send that of the question, as you read it",
            ));
        }
    }
    if !remember {
        return Ok(Vec::new());
    }
    let (Some(task), Some(agent), Some(tool)) = (&row.task, row.agent_id, &row.tool) else {
        return Err(invalid("remember: the call is on no task: make a tool policy instead"));
    };
    let new = NewToolPolicy {
        account,
        scope: PolicyScope::TaskAgent,
        scope_id: &task_agent(task, agent),
        tool,
        terms: PolicyTerms {
            verdict: Some(PolicyVerdict::Allow),
            // Whoever asks others is not answered by it.
            audience: Some(row.audience.clone()),
            schema_hash: row.schema_hash.clone(),
            ..PolicyTerms::default()
        },
        by,
    };
    Ok(policy_allow(tx, &new, setting).await?.map_err(policies::problem)?)
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
        Ok((row, _, messages)) => {
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

/// Whether the caller may take a decision away from those whom `audience` names: who decides may, and an admin.
pub fn may_loosen(audience: &[Audience], caller: &Caller, what: &str) -> Result<(), Problem> {
    let asked = AskedOf {
        audience,
        asker: None,
        executors: &[],
    };
    let names = || audience.iter().map(Audience::to_string).collect::<Vec<_>>().join(", ");
    asked.may_answer(answerer(caller)).map_err(|_| {
        let text = format!(
            "{what} is decided by {}: ask one of them, or an admin, to change it",
            names()
        );
        Problem::new(StatusCode::FORBIDDEN, "not_asked").detail(text)
    })
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
