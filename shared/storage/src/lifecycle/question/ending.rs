//! Ends questions, and tells the askers.

use std::slice;

use contracts::{
    Timestamp,
    event::{Event, QuestionChanged},
    notification::{NotificationMessage, Refusal},
    tool::ToolApproved,
};
use domain::{
    AccountId, Actor, AgentId, Gate, NotificationId, Owner, QuestionId, QuestionKind, QuestionState, QueueLimits,
    SessionId, SessionKind, TaskId, TimerKind, TurnId, Verdict,
};
use sea_orm::Value;

use super::{
    super::{
        people_told::questions_read,
        plan::{plan_end, task_lock},
        stage::stage_end,
    },
    Answer, QuestionRow, of_question, question_find,
};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        item_enter::{Entered, NewEntry, item_enter},
        sessions_lock::conversations_lock,
        sessions_park::{call_awaits, sessions_look},
    },
    setting::fresh_id,
    timer::{self, timers_clear},
};

/// The type of the item that tells the asker.
pub const ANSWER: &str = "answer";

/// How a question ends.
#[derive(Clone, Debug)]
pub enum Ending<'a> {
    /// The caller has checked who answers and that the answer fits.
    Answered {
        by: &'a Actor,
        verdict: Option<Verdict>,
        answer: Answer,
    },
    Withdrawn {
        by: &'a Actor,
        reason: Option<&'a str>,
        /// The asker does it itself, and need not be told.
        is_asker: bool,
    },
    Lapsed,
    Cancelled {
        reason: &'a str,
    },
}

impl Ending<'_> {
    pub fn state(&self) -> QuestionState {
        match self {
            Ending::Answered { .. } => QuestionState::Answered,
            Ending::Withdrawn { .. } => QuestionState::Withdrawn,
            Ending::Lapsed => QuestionState::Lapsed,
            Ending::Cancelled { .. } => QuestionState::Cancelled,
        }
    }

    fn by(&self) -> Option<&Actor> {
        match self {
            Ending::Answered { by, .. } | Ending::Withdrawn { by, .. } => Some(by),
            Ending::Lapsed | Ending::Cancelled { .. } => None,
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Ending::Withdrawn { reason, .. } => *reason,
            Ending::Cancelled { reason } => Some(reason),
            Ending::Answered { .. } | Ending::Lapsed => None,
        }
    }

    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Ending::Answered { verdict, .. } => *verdict,
            Ending::Withdrawn { .. } | Ending::Lapsed | Ending::Cancelled { .. } => None,
        }
    }

    /// For whoever else was asked.
    fn said(&self) -> String {
        match self {
            Ending::Answered { by, verdict: None, .. } => format!("answered by {}", by.called()),
            Ending::Answered {
                by,
                verdict: Some(verdict),
                ..
            } => format!("{verdict}: {}", by.called()),
            Ending::Withdrawn { by, .. } => format!("withdrawn by {}", by.called()),
            Ending::Lapsed => "lapsed: nobody answered in time".to_owned(),
            Ending::Cancelled { reason } => format!("cancelled: {reason}"),
        }
    }

    fn answer(&self) -> Option<&Answer> {
        match self {
            Ending::Answered { answer, .. } => Some(answer),
            Ending::Withdrawn { .. } | Ending::Lapsed | Ending::Cancelled { .. } => None,
        }
    }

    /// Whether an item tells the asker. The kinds whose answer the asker gets in another way are told of nothing here.
    pub fn is_told(&self, kind: QuestionKind) -> bool {
        let by_item = match kind {
            QuestionKind::Question | QuestionKind::Plan => true,
            QuestionKind::Review | QuestionKind::Tool => false,
        };
        by_item
            && match self {
                Ending::Answered { .. } | Ending::Lapsed => true,
                Ending::Withdrawn { is_asker, .. } => !is_asker,
                Ending::Cancelled { .. } => false,
            }
    }
}

macro_rules! end {
    () => {
        "update question q set state = $3, verdict = $4, answer = $5, ended_by_kind = $6, ended_by_id = $7, ended_by_name = $8,
            ended_by_via = $9, ended_at = $10, reason = $11"
    };
}

/// The one guarded update. Relies on the primary key.
pub const QUESTION_END: &str = concat!(
    end!(),
    ", notification_id = $12 where q.account_id = $1 and q.id = $2 and q.state = 'open'"
);

macro_rules! end_of {
    ($where:literal) => {
        concat!(
            "with ended as (",
            end!(),
            " where q.account_id = $1 and q.state = 'open' and ",
            $where,
            " returning q.*) select ",
            columns!(),
            " from ended q left join task k on k.account_id = any (array[q.account_id]) and k.id = q.task_id order by q.id"
        )
    };
}

/// Relies on question_of_task.
pub const QUESTIONS_END_OF_TASK: &str = end_of!("q.task_id = $2");
/// Relies on question_of_session.
pub const QUESTIONS_END_OF_SESSION: &str = end_of!("q.session_id = $2::uuid");
/// Relies on question_of_agent.
pub const QUESTIONS_END_OF_AGENT: &str = end_of!("q.agent_id = $2::uuid");
/// Relies on question_of_task.
pub const QUESTIONS_END_OF_AGENT_ON: &str = end_of!("coalesce(q.agent_id = $2::uuid, false) and q.task_id = $12");
/// Relies on question_of_orchestrator.
pub const QUESTIONS_END_OF_ORCHESTRATOR: &str = end_of!("q.orchestrator = $2");
/// The approvals that a turn waits for. Relies on question_of_session.
pub const QUESTIONS_END_OF_TURN: &str = end_of!("q.session_id = $2::uuid and q.turn_id = $12 and q.kind = 'tool'");

/// Whose questions end.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    Task(&'a TaskId),
    Session(SessionId),
    Agent(AgentId),
    /// Those of the agent on the task.
    AgentOn(AgentId, &'a TaskId),
    /// The tool approvals of a turn.
    Turn(SessionId, TurnId),
    /// In all of its generations.
    Orchestrator(&'a Owner),
}

fn ending_values(ending: &Ending<'_>, setting: &Setting<'_>) -> [Value; 9] {
    let by = ending.by();
    let answer = ending
        .answer()
        .map(|answer| serde_json::to_value(answer).expect("texts serialise"));
    [
        ending.state().into(),
        ending.verdict().into(),
        answer.into(),
        by.map(|by| by.kind).into(),
        by.map(|by| by.id.clone()).into(),
        by.map(|by| by.name.clone()).into(),
        by.and_then(|by| by.via.clone()).into(),
        setting.now.into(),
        ending.reason().map(str::to_owned).into(),
    ]
}

/// Ends what is open of a task, a session, an agent or a turn that ends. The asker is not told. The caller holds the locks of the
/// sessions.
pub async fn questions_end_of(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let (_, messages) = rows_end_of(tx, account, scope, ending, setting).await?;
    Ok(messages)
}

/// The same; also gives the rows, as they are now.
pub(crate) async fn rows_end_of(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<(Vec<QuestionRow>, Vec<Owned>), StorageError> {
    let (sql, of): (&'static str, Value) = match scope {
        Scope::Task(task) => (QUESTIONS_END_OF_TASK, task.key().into()),
        Scope::Session(session) => (QUESTIONS_END_OF_SESSION, session.to_string().into()),
        Scope::Agent(agent) => (QUESTIONS_END_OF_AGENT, agent.to_string().into()),
        Scope::AgentOn(agent, _) => (QUESTIONS_END_OF_AGENT_ON, agent.to_string().into()),
        Scope::Turn(session, _) => (QUESTIONS_END_OF_TURN, session.to_string().into()),
        Scope::Orchestrator(owner) => (QUESTIONS_END_OF_ORCHESTRATOR, owner.to_string().into()),
    };
    let within = match scope {
        Scope::Turn(_, turn) => Some(turn.into()),
        Scope::AgentOn(_, task) => Some(task.key().into()),
        Scope::Task(_) | Scope::Session(_) | Scope::Agent(_) | Scope::Orchestrator(_) => None,
    };
    let values = [account.into(), of]
        .into_iter()
        .chain(ending_values(ending, setting))
        .chain(within);
    let ended: Vec<QuestionRow> = tx.rows("end questions", sql, values).await?;
    lapses_clear(tx, account, &ended, ending, setting).await?;
    let told = ended.iter().flat_map(|row| {
        [
            Some(changed(account, row, ending, setting)),
            call_decided(account, row, setting),
        ]
    });
    let mut messages: Vec<Owned> = told.flatten().collect();
    let ids = ended.iter().map(|row| row.id).collect();
    messages.extend(questions_read(tx, account, ids, &ending.said(), setting).await?);
    Ok((ended, messages))
}

/// An ended question lapses no more. The timer that ends it is marked by its firing.
async fn lapses_clear(
    tx: &Tx,
    account: &AccountId,
    ended: &[QuestionRow],
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<(), StorageError> {
    let lapsing = ended.iter().filter(|row| row.lapse_at.is_some());
    let keys: Vec<String> = lapsing.map(|row| row.id.to_string()).collect();
    if keys.is_empty() || matches!(ending, Ending::Lapsed) {
        return Ok(());
    }
    let scope = timer::Scope::Keys(TimerKind::QuestionLapse, &keys);
    timers_clear(tx, account, scope, "the question has ended", setting)
        .await
        .map(|_| ())
}

/// Why a question was not ended.
#[derive(Debug)]
pub enum NotEnded {
    Missing,
    /// It ended before: see the row.
    Already(Box<QuestionRow>),
    /// The asker cannot be told. The caller rolls back.
    Refused(Refusal),
}

/// Ends a question, and does what its kind brings. Gives the question as it was, and the item that tells the asker. The caller has
/// checked that this may end it so.
pub async fn question_end(
    tx: &Tx,
    account: &AccountId,
    question: QuestionId,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<Result<(QuestionRow, Option<NotificationId>, Vec<Owned>), NotEnded>, StorageError> {
    let Some(row) = question_find(tx, account, question).await? else {
        return Ok(Err(NotEnded::Missing));
    };
    if !row.state.is_open() {
        return Ok(Err(NotEnded::Already(Box::new(row))));
    }
    if matches!(row.kind, QuestionKind::Plan | QuestionKind::Review)
        && let Some(task) = &row.task
    {
        task_lock(tx, account, task).await?;
    }
    let conversation = row.conversation(account);
    let session = match &conversation {
        Some(conversation) => conversations_lock(tx, &[conversation]).await?.remove(&0),
        None => None,
    };
    let told = conversation.filter(|_| ending.is_told(row.kind));
    // Drawn where it is written, so that no publisher can know it before.
    let item: Option<NotificationId> = told.as_ref().map(|_| fresh_id().into());
    let values = [account.into(), question.into()]
        .into_iter()
        .chain(ending_values(ending, setting))
        .chain([item.as_ref().map(NotificationId::to_string).into()]);
    if tx.execute("end question", QUESTION_END, values).await? == 0 {
        // Somebody else's transaction ended it while this one waited.
        return Ok(Err(match question_find(tx, account, question).await? {
            Some(row) => NotEnded::Already(Box::new(row)),
            None => NotEnded::Missing,
        }));
    }
    lapses_clear(tx, account, slice::from_ref(&row), ending, setting).await?;
    let mut messages = vec![changed(account, &row, ending, setting)];
    messages.extend(questions_read(tx, account, vec![row.id], &ending.said(), setting).await?);
    if let Some(decided) = call_decided(account, &row, setting) {
        messages.push(decided);
        if let Some(session) = row.session_id {
            call_awaits(tx, &(account.clone(), session)).await?;
        }
    }
    match row.kind {
        QuestionKind::Plan => messages.extend(plan_end(tx, account, &row, ending, setting).await?),
        QuestionKind::Review => messages.extend(stage_end(tx, account, &row, ending, setting).await?),
        // The tool-gateway runs or refuses the call.
        QuestionKind::Question | QuestionKind::Tool => {}
    }
    if let (Some(conversation), Some(id)) = (told, &item) {
        let entry = NewEntry {
            id,
            task: row.task.as_ref(),
            message: answer_item(&row, ending),
        };
        let (entered, more) = item_enter(tx, &conversation, entry, &QueueLimits::OWN, setting).await?;
        match entered {
            Entered::Placed { .. } | Entered::Known(_) | Entered::Sent => messages.extend(more),
            Entered::Refused(refusal) => return Ok(Err(NotEnded::Refused(refusal))),
        }
        // An answer starts while another plan awaits approval.
        if let Some(session) = session.filter(|session| session.gate == Some(Gate::Approval)) {
            sessions_look(tx, &[(account.clone(), session.id)]).await?;
        }
    }
    Ok(Ok((row, item, messages)))
}

/// Wakes the call that waits for the answer. It has the record and the question from the database.
fn call_decided(account: &AccountId, row: &QuestionRow, setting: &Setting<'_>) -> Option<Owned> {
    let decided = ToolApproved {
        account: account.clone(),
        task: row.task.clone(),
        session_id: row.session_id?,
        call: row.tool_call.filter(|_| row.kind == QuestionKind::Tool)?,
    };
    Some(setting.message(&decided.message_id(), &decided))
}

/// Whether an orchestrator asks: everybody who listens hears that there is a question, and not what it says.
pub(super) fn is_own(asker: Option<SessionKind>) -> bool {
    matches!(asker, Some(SessionKind::Orchestrator | SessionKind::Guest))
}

/// The event of an ended question.
fn changed(account: &AccountId, row: &QuestionRow, ending: &Ending<'_>, setting: &Setting<'_>) -> Owned {
    let is_own = is_own(row.session_kind);
    let data = QuestionChanged {
        question_id: row.id,
        kind: row.kind,
        agent_id: row.agent_id,
        session_id: row.session_id,
        turn_id: row.turn_id,
        title: if is_own { String::new() } else { row.title.clone() },
        audience: row.audience.clone(),
        verdict: ending.verdict(),
        by: ending.by().cloned(),
        reason: ending.reason().filter(|_| !is_own).map(str::to_owned),
        lapse_at: row.lapse_at.map(Timestamp::from),
    };
    let event = match ending {
        Ending::Answered { .. } => Event::QuestionAnswered(data),
        Ending::Withdrawn { .. } => Event::QuestionWithdrawn(data),
        Ending::Lapsed => Event::QuestionLapsed(data),
        Ending::Cancelled { .. } => Event::QuestionCancelled(data),
    };
    setting.event(account, row.task.as_ref(), &row.id.to_string(), event)
}

/// What the asker is told.
fn answer_item(row: &QuestionRow, ending: &Ending<'_>) -> NotificationMessage {
    let what = match row.kind {
        QuestionKind::Plan => "plan",
        QuestionKind::Question | QuestionKind::Review | QuestionKind::Tool => "question",
    };
    let title = match ending {
        Ending::Answered { .. } => format!("Answer to your {what}: {}", row.title),
        Ending::Withdrawn { .. } => format!("Your {what} was withdrawn: {}", row.title),
        Ending::Lapsed | Ending::Cancelled { .. } => format!("Nobody answered your {what}: {}", row.title),
    };
    let message = NotificationMessage::new(ANSWER, Actor::system(), title, told(row, ending));
    of_question(message, row.id)
}

/// The text of the item.
fn told(row: &QuestionRow, ending: &Ending<'_>) -> String {
    let mut text = match ending {
        Ending::Answered { by, verdict, .. } => match verdict {
            Some(verdict) => format!("{}: {verdict}.\n", by.called()),
            None => format!("{} answered.\n", by.called()),
        },
        Ending::Withdrawn { by, .. } => format!("{} withdrew it. There is no answer.\n", by.called()),
        Ending::Lapsed => "Its time is over and nobody answered. There is no answer.\n".to_owned(),
        Ending::Cancelled { .. } => "There is no answer.\n".to_owned(),
    };
    if let Some(answer) = ending.answer() {
        for id in &answer.options {
            let label = row.options.0.iter().find(|choice| choice.id == *id);
            let label = label.map_or("", |choice| choice.label.as_str());
            text.push_str(&format!("Chosen: {id} ({label})\n"));
        }
        if let Some(said) = answer.text.as_deref().filter(|said| !said.trim().is_empty()) {
            text.push_str(&format!("{said}\n"));
        }
    }
    if let Some(reason) = ending.reason() {
        text.push_str(&format!("Reason: {reason}\n"));
    }
    if row.kind == QuestionKind::Plan {
        text.push_str(match ending.verdict() {
            Some(Verdict::Approved) => "The plan is approved: carry it out.\n",
            Some(Verdict::Changes) => "The plan is not approved: change it and submit it again.\n",
            Some(Verdict::Denied) | None => "The plan is not approved.\n",
        });
    }
    text
}
