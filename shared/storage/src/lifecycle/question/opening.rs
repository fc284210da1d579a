//! Opens questions, and asks the agents that they are for.

use contracts::{
    Timestamp,
    event::{Event, QuestionChanged},
    notification::NotificationMessage,
};
use domain::{
    AccountId, Actor, AgentId, Audience, Generation, MailWhy, MessageType, NotificationId, QuestionId, QuestionKind,
    SessionId, SessionKind, TaskId, TimerKind, TurnId,
};
use sea_orm::{FromQueryResult, Value};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    super::{
        people_told::{Told, people_told},
        stage::REVIEW,
    },
    Choices,
    ending::is_own,
    of_question,
};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    setting::fresh_id,
    timer::{NewTimer, timer_set},
};

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

const QUESTION_OPEN: &str = concat!(
    "
    insert into question (account_id, id, kind, task_id, session_id, session_kind, generation, agent_id, turn_id, tool_call, title, body,
                          options, multiple, free_text, audience, created_at, lapse_at, tool, arguments, arguments_hash, schema_hash,
                          plan_revision, stage, work_until, orchestrator)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, ",
    crate::orchestrator_of!("$1", "$5"),
    ")"
);

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
        title: if is_own(asker.map(|asker| asker.kind)) {
            String::new()
        } else {
            new.title.to_owned()
        },
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
    let mut messages: Vec<Owned> = std::iter::once(event).chain(asked).collect();
    if let Some(due_at) = new.lapse_at {
        lapse_set(tx, (new, id), due_at, setting).await?;
    }
    let told = Told {
        account: new.account,
        task: new.task,
        audience: &new.audience,
        from: asker.map(|asker| (asker.session, &*new.from.name)),
        content: &format!("{}\n\n{}", new.title, asked_text(new, id)),
        kind: MessageType::Question,
        why: MailWhy::Question,
        question: Some(id),
        seed: id.uuid(),
    };
    messages.extend(people_told(tx, &told, setting).await?);
    Ok((id, messages))
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

/// The payload of the timer by which a question lapses.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Lapse {
    /// Of the turn that asks: a lapse wakes its agent, which is no news from outside.
    pub hops: u16,
}

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
        payload: serde_json::to_value(Lapse {
            hops: setting.origin.hops,
        })
        .expect("numbers serialise"),
        chain: new.chain,
    };
    timer_set(tx, &timer, setting).await.map(|_| ())
}
