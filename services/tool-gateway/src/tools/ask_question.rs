//! `ask_question`: opens a question in the name of the turn's agent. It is refused while a message from a person waits that the
//! agent has not seen: the message may be the answer.

use contracts::tools::check_later::CHAIN_MAX;
use domain::Audience;
use serde_json::{Map, Value, json};
use storage::lifecycle::question::{About, Asker, Choice, Choices, NewQuestion, question_open, questions_count};
use time::Duration;

use super::{Running, ToolError, ToolOutcome, body, response_request::agents_named, task_open};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    store,
};

/// Open questions of one session, and of one task.
const OF_SESSION_MAX: i64 = 10;
const OF_TASK_MAX: i64 = 20;
/// Characters of a title that is made of the question.
const TITLE_CHARACTERS_MAX: usize = 120;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let question = body(&arguments, "question")?;
    let title = match arguments.get("title").and_then(Value::as_str) {
        Some(title) if !title.trim().is_empty() => title.trim().to_owned(),
        _ => first_line(question),
    };
    let options = options(&arguments)?;
    let free_text = arguments.get("free_text").and_then(Value::as_bool).unwrap_or(true);
    if options.0.is_empty() && !free_text {
        return Err(invalid_field("free_text", "a question without options is answered by text").into());
    }
    let audience = audience(running, &arguments).await?;
    task_open(running).await?;
    may_ask(running).await?;
    let hours = arguments.get("lapse_hours").and_then(Value::as_i64);
    let chain = match hours {
        Some(_) => chain(running).await?,
        None => 0,
    };
    let by = running.facts.actor();
    let new = NewQuestion {
        account: running.account,
        about: About::Question,
        task: running.facts.task(),
        asker: Some(asker(running)),
        from: &by,
        title: &title,
        body: question,
        options,
        multiple: arguments.get("multiple").and_then(Value::as_bool).unwrap_or(false),
        free_text,
        audience,
        lapse_at: hours.map(|hours| running.setting.now + Duration::hours(hours)),
        chain,
    };
    let (id, messages) = question_open(running.questions.tx, &new, running.setting).await?;
    let note = "The answer is not this result: it comes as a notification. Finish your turn, or go on with what does not depend \
                on it.";
    Ok(Effect::new(json!({"question_id": id, "note": note}), messages))
}

/// The session and the turn that ask.
pub(super) fn asker(running: Running<'_>) -> Asker {
    let facts = running.facts;
    Asker {
        session: running.session,
        kind: facts.session_kind,
        generation: facts.generation,
        agent: facts.agent,
        turn: facts.turn.as_ref().map(|turn| turn.id),
        tool_call: Some(running.call),
    }
}

/// Refuses while the agent has not seen all, and over the limits.
async fn may_ask(running: Running<'_>) -> Result<(), ToolError> {
    let (tx, account) = (running.questions.tx, running.account);
    if let Some(turn) = &running.facts.turn
        && store::is_unread(tx, account, running.session, turn.id).await?
    {
        let answer = ToolAnswer::refused(
            "unread_message",
            "A newer message waits for you.",
            "Nobody was asked. Finish this turn; you receive it next.",
        );
        return Err(answer.into());
    }
    let open = questions_count(tx, account, running.session, running.facts.task()).await?;
    let (count, of, max) = match open {
        open if open.of_session >= OF_SESSION_MAX => (open.of_session, "this session", OF_SESSION_MAX),
        open if open.of_task >= OF_TASK_MAX => (open.of_task, "this task", OF_TASK_MAX),
        _ => return Ok(()),
    };
    let answer = ToolAnswer::refused(
        "too_many_questions",
        format!("{count} questions of {of} are open; at most {max} may be."),
        "Nobody was asked. Take back a question that no longer matters, or wait for an answer.",
    );
    Err(answer.into())
}

/// Timers in a row that led to this turn. A question that lapses wakes its agent as a timer does.
async fn chain(running: Running<'_>) -> Result<i32, ToolError> {
    let Some(turn) = &running.facts.turn else { return Ok(0) };
    let later = store::later(running.questions.tx, running.account, (running.session, turn.id)).await?;
    if later.chain <= CHAIN_MAX {
        return Ok(later.chain);
    }
    let answer = ToolAnswer::refused(
        "timer_chain",
        format!("{CHAIN_MAX} timers in a row have woken you, each set in a turn that the one before began."),
        "Nobody was asked. Ask without lapse_hours: then the answer wakes you, and nothing else.",
    );
    Err(answer.into())
}

fn first_line(question: &str) -> String {
    let line = question.trim().lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(TITLE_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

fn options(arguments: &Map<String, Value>) -> Result<Choices, ToolError> {
    let mut choices: Vec<Choice> = Vec::new();
    for option in arguments.get("options").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| option[field].as_str().unwrap_or_default().trim().to_owned();
        let choice = Choice {
            id: text("id"),
            label: text("label"),
        };
        if choice.id.is_empty() || choice.label.is_empty() {
            return Err(invalid_field("options", "an id and a label must not be blank").into());
        }
        if choices.iter().any(|other| other.id == choice.id) {
            return Err(invalid_field("options", "two options have the same id").into());
        }
        choices.push(choice);
    }
    Ok(Choices(choices))
}

/// The named audience, each once; agents by slug or id.
async fn audience(running: Running<'_>, arguments: &Map<String, Value>) -> Result<Vec<Audience>, ToolError> {
    let named = arguments.get("ask").and_then(Value::as_array);
    let named: Vec<&str> = named.into_iter().flatten().filter_map(Value::as_str).collect();
    if named.is_empty() {
        return Ok(vec![Audience::DEFAULT]);
    }
    audience_named(running, "ask", named).await
}

/// Who is named in the field: agents by slug or id, and others as an audience is.
pub(super) async fn audience_named(
    running: Running<'_>,
    field: &str,
    named: Vec<&str>,
) -> Result<Vec<Audience>, ToolError> {
    let (mut audience, mut agents): (Vec<Audience>, Vec<&str>) = (Vec::new(), Vec::new());
    for name in named {
        let name = name.trim();
        match name.split_once(':') {
            None => agents.push(name),
            Some(("agent", agent)) => agents.push(agent),
            Some(_) => match name.parse() {
                Ok(one) => audience.push(one),
                Err(_) => {
                    return Err(
                        invalid_field(field, "expected agents, role:member, role:admin, or user: and an id").into(),
                    );
                }
            },
        }
    }
    let agents = agents_named(running, &agents).await?;
    audience.extend(agents.iter().map(|agent| Audience::Agent(agent.id)));
    audience.sort_unstable();
    audience.dedup();
    Ok(audience)
}
