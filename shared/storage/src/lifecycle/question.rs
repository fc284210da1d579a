//! Questions: opens and ends them. A question ends once, by one guarded update; the item that tells the asker is entered in the
//! same transaction, and so is what else the kind brings.
//!
//! | ended by | the asker is told | of kind `plan` |
//! |---|---|---|
//! | an answer | an item of type `answer`; for kinds `tool` and `review` the caller's effect | approved: `in_progress`; else the status before |
//! | a withdrawal by somebody else, its time | an item of type `answer` that says so | the status before |
//! | a withdrawal by the asker, a new plan | nothing | the status before, or the next plan |
//! | the end of its task, its agent or its turn ([`questions_end_of`]) | nothing: the session has ended, or goes on | the closer's status |
//!
//! An agent that is asked gets a notification of type `question` or `review`.
//!
//! Lock order: task, the asker's session, the question.

use std::slice;

use contracts::{
    Timestamp,
    event::{Event, QuestionChanged},
    notification::{NotificationMessage, Refusal},
    tool::ToolApproved,
};
use domain::{
    AccountId, Actor, ActorKind, AgentId, Audience, Conversation, Gate, Generation, NotificationId, QuestionId,
    QuestionKind, QuestionState, QueueLimits, SessionId, SessionKind, TaskId, TimerKind, TurnId, Verdict,
};
use sea_orm::{FromQueryResult, TryGetableFromJson, Value};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    plan::{plan_end, task_lock},
    stage::{REVIEW, stage_end},
};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        item_enter::{Entered, NewEntry, item_enter},
        sessions_lock::conversations_lock,
        sessions_park::sessions_look,
    },
    setting::fresh_id,
    timer::{self, NewTimer, timer_set, timers_clear},
};

/// The type of the item that tells the asker.
pub const ANSWER: &str = "answer";

/// An option of a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Choice {
    pub id: String,
    pub label: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Choices(pub Vec<Choice>);

impl TryGetableFromJson for Choices {}

/// What was answered besides the verdict.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Ids of the chosen options.
    pub options: Vec<String>,
    pub text: Option<String>,
}

impl TryGetableFromJson for Answer {}

/// The session and the turn that ask.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub session: SessionId,
    pub kind: SessionKind,
    pub generation: Generation,
    pub agent: AgentId,
    pub turn: Option<TurnId>,
    /// Id of the record of the tool call.
    pub tool_call: Option<Uuid>,
}

/// What is asked about, by kind.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    Question,
    Plan {
        revision: i32,
    },
    Review {
        stage: &'a str,
        /// Work until then is reviewed.
        work_until: OffsetDateTime,
    },
    Tool {
        name: &'a str,
        arguments: &'a str,
        arguments_hash: [u8; 32],
        schema_hash: Option<[u8; 32]>,
    },
}

impl About<'_> {
    pub fn kind(&self) -> QuestionKind {
        match self {
            About::Question => QuestionKind::Question,
            About::Plan { .. } => QuestionKind::Plan,
            About::Review { .. } => QuestionKind::Review,
            About::Tool { .. } => QuestionKind::Tool,
        }
    }
}

/// A question to open.
#[derive(Clone, Debug)]
pub struct NewQuestion<'a> {
    pub account: &'a AccountId,
    pub about: About<'a>,
    /// As its client spelled it.
    pub task: Option<&'a TaskId>,
    /// None: Signalbox asks, for a review.
    pub asker: Option<Asker>,
    /// In whose name agents are asked.
    pub from: &'a Actor,
    pub title: &'a str,
    pub body: &'a str,
    pub options: Choices,
    pub multiple: bool,
    pub free_text: bool,
    pub audience: Vec<Audience>,
    pub lapse_at: Option<OffsetDateTime>,
    /// Timers in a row that led to the turn that asks.
    pub chain: i32,
}

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

/// A question's row.
#[derive(Clone, Debug, FromQueryResult)]
pub struct QuestionRow {
    pub id: QuestionId,
    pub kind: QuestionKind,
    pub state: QuestionState,
    /// As its client spelled it.
    #[sea_orm(from_alias = "display_id")]
    pub task: Option<TaskId>,
    pub session_id: Option<SessionId>,
    pub session_kind: Option<SessionKind>,
    pub agent_id: Option<AgentId>,
    pub turn_id: Option<TurnId>,
    pub tool_call: Option<Uuid>,
    pub title: String,
    pub options: Choices,
    pub multiple: bool,
    pub free_text: bool,
    pub audience: Vec<String>,
    pub lapse_at: Option<OffsetDateTime>,
    pub tool: Option<String>,
    pub arguments_hash: Option<Vec<u8>>,
    pub schema_hash: Option<Vec<u8>>,
    pub plan_revision: Option<i32>,
    pub stage: Option<String>,
    pub work_until: Option<OffsetDateTime>,
    pub verdict: Option<Verdict>,
    pub ended_by_kind: Option<ActorKind>,
    pub ended_by_id: Option<String>,
    pub ended_by_name: Option<String>,
    pub ended_by_via: Option<String>,
    pub ended_at: Option<OffsetDateTime>,
    pub reason: Option<String>,
}

impl QuestionRow {
    /// Those who are asked; a word of a later version asks nobody here.
    pub fn asked(&self) -> Vec<Audience> {
        self.audience.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Who answered or withdrew it.
    pub fn ended_by(&self) -> Option<Actor> {
        Some(Actor {
            kind: self.ended_by_kind?,
            id: self.ended_by_id.clone()?,
            name: self.ended_by_name.clone()?,
            via: self.ended_by_via.clone(),
        })
    }

    /// How it has ended, for whoever came second: a code, and a sentence that says who, when and what.
    pub fn told(&self) -> (&'static str, String) {
        let at = self
            .ended_at
            .map_or_else(String::new, |at| format!(" at {}", Timestamp::from(at)));
        let by = self
            .ended_by_name
            .as_deref()
            .map_or_else(String::new, |name| format!(" by {name}"));
        let verdict = self.verdict.map_or_else(String::new, |verdict| format!(": {verdict}"));
        let reason = self
            .reason
            .as_deref()
            .map_or_else(String::new, |reason| format!(" ({reason})"));
        match self.state {
            QuestionState::Open => ("open", "the question is open".to_owned()),
            QuestionState::Answered => (
                "already_answered",
                format!("the question was answered{by}{at}{verdict}"),
            ),
            QuestionState::Withdrawn => ("withdrawn", format!("the question was withdrawn{by}{at}{reason}")),
            QuestionState::Lapsed => ("lapsed", format!("nobody answered in time: the question closed{at}")),
            QuestionState::Cancelled => ("cancelled", format!("the question was cancelled{at}{reason}")),
        }
    }

    fn conversation(&self, account: &AccountId) -> Option<Conversation> {
        Some(Conversation {
            account: account.clone(),
            task: match self.session_kind? {
                SessionKind::Task => self.task.as_ref().map(TaskId::key),
                SessionKind::System | SessionKind::Orchestrator => None,
            },
            agent: self.agent_id?,
        })
    }
}

macro_rules! columns {
    () => {
        "q.id, q.kind, q.state, k.display_id, q.session_id, q.session_kind, q.agent_id, q.turn_id, q.tool_call, q.title, q.options,
         q.multiple, q.free_text, q.audience, q.lapse_at, q.tool, q.arguments_hash, q.schema_hash, q.plan_revision, q.stage, q.work_until, q.verdict,
         q.ended_by_kind, q.ended_by_id, q.ended_by_name, q.ended_by_via, q.ended_at, q.reason"
    };
}

/// Relies on the primary keys.
pub const QUESTION_FIND: &str = concat!(
    "select ",
    columns!(),
    " from question q left join task k on k.account_id = any (array[q.account_id]) and k.id = q.task_id
      where q.account_id = $1 and q.id = $2"
);

pub async fn question_find(
    tx: &Tx,
    account: &AccountId,
    question: QuestionId,
) -> Result<Option<QuestionRow>, StorageError> {
    tx.one("find question", QUESTION_FIND, [account.into(), question.into()])
        .await
}

/// Relies on question_of_session and question_of_task.
pub const QUESTIONS_COUNT: &str = "
    select (select count(*) from question q where q.account_id = $1 and q.session_id = $2 and q.state = 'open') as of_session,
           (select count(*) from question q where q.account_id = $1 and q.task_id = $3 and q.state = 'open') as of_task";

/// Open questions of a session and of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct OpenCount {
    pub of_session: i64,
    pub of_task: i64,
}

pub async fn questions_count(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    task: Option<&TaskId>,
) -> Result<OpenCount, StorageError> {
    const ATTEMPT: &str = "count questions";
    let values = [account.into(), session.into(), task.map(TaskId::key).into()];
    let count = tx.one(ATTEMPT, QUESTIONS_COUNT, values).await?;
    count.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

const QUESTION_OPEN: &str = "
    insert into question (account_id, id, kind, task_id, session_id, session_kind, generation, agent_id, turn_id, tool_call, title, body,
                          options, multiple, free_text, audience, created_at, lapse_at, tool, arguments, arguments_hash, schema_hash,
                          plan_revision, stage, work_until)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)";

/// Opens a question under a new id. The caller holds the lock of the asker's session, and has counted.
pub async fn question_open(
    tx: &Tx,
    new: &NewQuestion<'_>,
    setting: &Setting<'_>,
) -> Result<(QuestionId, Vec<Owned>), StorageError> {
    let id = QuestionId(fresh_id());
    let (mut tool, mut arguments, mut arguments_hash, mut schema_hash) = (None, None, None, None);
    let (mut revision, mut stage, mut until) = (None, None, None);
    match new.about {
        About::Question => {}
        About::Plan { revision: of } => revision = Some(of),
        About::Review { stage: of, work_until } => (stage, until) = (Some(of.to_owned()), Some(work_until)),
        About::Tool {
            name,
            arguments: given,
            arguments_hash: hash,
            schema_hash: schema,
        } => {
            (tool, arguments) = (Some(name.to_owned()), Some(given.to_owned()));
            (arguments_hash, schema_hash) = (Some(hash.to_vec()), schema.map(|hash| hash.to_vec()));
        }
    }
    let asker = new.asker;
    let audience: Vec<String> = new.audience.iter().map(Audience::to_string).collect();
    let options = serde_json::to_value(&new.options).expect("texts serialise");
    let values: [Value; 25] = [
        new.account.into(),
        id.into(),
        new.about.kind().into(),
        new.task.map(TaskId::key).into(),
        asker.map(|asker| asker.session).into(),
        asker.map(|asker| asker.kind).into(),
        asker.map(|asker| asker.generation).into(),
        asker.map(|asker| asker.agent).into(),
        asker.and_then(|asker| asker.turn).into(),
        asker.and_then(|asker| asker.tool_call).into(),
        new.title.into(),
        new.body.into(),
        options.into(),
        new.multiple.into(),
        new.free_text.into(),
        audience.clone().into(),
        setting.now.into(),
        new.lapse_at.into(),
        tool.into(),
        arguments.into(),
        arguments_hash.into(),
        schema_hash.into(),
        revision.into(),
        stage.into(),
        until.into(),
    ];
    tx.execute("open question", QUESTION_OPEN, values).await?;
    let opened = QuestionChanged {
        question_id: id,
        kind: new.about.kind(),
        agent_id: asker.map(|asker| asker.agent),
        session_id: asker.map(|asker| asker.session),
        turn_id: asker.and_then(|asker| asker.turn),
        title: new.title.to_owned(),
        audience,
        verdict: None,
        by: None,
        reason: None,
        lapse_at: new.lapse_at.map(Timestamp::from),
    };
    let event = setting.event(new.account, new.task, &id.to_string(), Event::QuestionOpened(opened));
    let agents = new.audience.iter().filter_map(|asked| match asked {
        Audience::Agent(agent) => Some(*agent),
        Audience::User(_) | Audience::Orchestrator(_) | Audience::Rule(_) | Audience::Members | Audience::Admins => {
            None
        }
    });
    let asked = agents.map(|agent| asked_item(new, id, agent, setting));
    if let Some(due_at) = new.lapse_at {
        lapse_set(tx, (new, id), due_at, setting).await?;
    }
    Ok((id, std::iter::once(event).chain(asked).collect()))
}

/// The notification that asks an agent.
fn asked_item(new: &NewQuestion<'_>, id: QuestionId, agent: AgentId, setting: &Setting<'_>) -> Owned {
    let kind = match new.about {
        About::Review { .. } => REVIEW,
        About::Question | About::Plan { .. } | About::Tool { .. } => "question",
    };
    let message = NotificationMessage::new(kind, new.from.clone(), new.title.to_owned(), asked_text(new, id));
    let about = (new.account, new.task);
    setting.agent_told(about, (agent, &asked_id(id, agent)), of_question(message, id))
}

/// The id of the notification that asks an agent.
pub fn asked_id(question: QuestionId, agent: AgentId) -> NotificationId {
    Uuid::new_v5(&question.uuid(), agent.uuid().as_bytes()).into()
}

/// What an asked agent reads.
fn asked_text(new: &NewQuestion<'_>, id: QuestionId) -> String {
    let mut text = format!("Question {id}, of kind {}.\n\n{}\n", new.about.kind(), new.body);
    let verdicts = new.about.kind().verdicts();
    if !verdicts.is_empty() {
        let words: Vec<&str> = verdicts.iter().map(|verdict| verdict.as_str()).collect();
        text.push_str(&format!("\nVerdicts: {}\n", words.join(", ")));
    }
    if !new.options.0.is_empty() {
        text.push_str(if new.multiple {
            "\nOptions, one or more:\n"
        } else {
            "\nOptions:\n"
        });
        for choice in &new.options.0 {
            text.push_str(&format!("- {}: {}\n", choice.id, choice.label));
        }
        if !new.free_text {
            text.push_str("No other answer is taken.\n");
        }
    }
    text
}

/// Items about questions open no task that has ended.
fn of_question(message: NotificationMessage, id: QuestionId) -> NotificationMessage {
    message.with("reopen", false).with("question_id", id.to_string())
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
/// The approvals that a turn waits for. Relies on question_of_session.
pub const QUESTIONS_END_OF_TURN: &str = end_of!("q.session_id = $2::uuid and q.turn_id = $12 and q.kind = 'tool'");

/// It lapses by a timer.
async fn lapse_set(
    tx: &Tx,
    (new, id): (&NewQuestion<'_>, QuestionId),
    due_at: OffsetDateTime,
    setting: &Setting<'_>,
) -> Result<(), StorageError> {
    let timer = NewTimer {
        account: new.account,
        kind: TimerKind::QuestionLapse,
        key: &id.to_string(),
        due_at,
        task: new.task,
        session: new.asker.map(|asker| asker.session),
        agent: new.asker.map(|asker| asker.agent),
        note: "",
        payload: serde_json::json!({}),
        chain: new.chain,
    };
    timer_set(tx, &timer, setting).await.map(|_| ())
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
    };
    let within = match scope {
        Scope::Turn(_, turn) => Some(turn.into()),
        Scope::AgentOn(_, task) => Some(task.key().into()),
        Scope::Task(_) | Scope::Session(_) | Scope::Agent(_) => None,
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
    let messages = told.flatten().collect();
    Ok((ended, messages))
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
    messages.extend(call_decided(account, &row, setting));
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

/// The event of an ended question.
fn changed(account: &AccountId, row: &QuestionRow, ending: &Ending<'_>, setting: &Setting<'_>) -> Owned {
    let data = QuestionChanged {
        question_id: row.id,
        kind: row.kind,
        agent_id: row.agent_id,
        session_id: row.session_id,
        turn_id: row.turn_id,
        title: row.title.clone(),
        audience: row.audience.clone(),
        verdict: ending.verdict(),
        by: ending.by().cloned(),
        reason: ending.reason().map(str::to_owned),
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
