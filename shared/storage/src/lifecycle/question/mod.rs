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

use contracts::{Timestamp, notification::NotificationMessage};
use domain::{
    AccountId, Actor, ActorKind, AgentId, Audience, Conversation, ConversationOf, Owner, QuestionId, QuestionKind,
    QuestionState, SessionId, SessionKind, TaskId, TurnId, Verdict,
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{StorageError, Tx};

macro_rules! columns {
    () => {
        "q.id, q.kind, q.state, k.display_id, q.session_id, q.session_kind, q.orchestrator, q.agent_id, q.turn_id, q.tool_call, q.title, q.options,
         q.multiple, q.free_text, q.audience, q.lapse_at, q.tool, q.arguments_hash, q.schema_hash, q.plan_revision, q.stage, q.work_until, q.verdict,
         q.ended_by_kind, q.ended_by_id, q.ended_by_name, q.ended_by_via, q.ended_at, q.reason"
    };
}

mod ending;
mod opening;

pub(crate) use ending::rows_end_of;
pub use ending::{
    ANSWER, Ending, NotEnded, QUESTION_END, QUESTIONS_END_OF_AGENT, QUESTIONS_END_OF_AGENT_ON,
    QUESTIONS_END_OF_ORCHESTRATOR, QUESTIONS_END_OF_SESSION, QUESTIONS_END_OF_TASK, QUESTIONS_END_OF_TURN, Scope,
    question_end, questions_end_of,
};
pub(crate) use opening::Lapse;
pub use opening::{About, Asker, NewQuestion, OpenCount, QUESTIONS_COUNT, asked_id, question_open, questions_count};

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
    /// Whose orchestrator asks.
    pub orchestrator: Option<Owner>,
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
        let of = match self.session_kind? {
            SessionKind::Task => ConversationOf::Task(self.task.as_ref()?.key()),
            SessionKind::System => ConversationOf::Agent,
            SessionKind::Orchestrator => ConversationOf::Orchestrator(self.orchestrator.clone()?),
            // None of them asks.
            SessionKind::Guest | SessionKind::Branch | SessionKind::Replay => return None,
        };
        Some(Conversation {
            account: account.clone(),
            agent: self.agent_id?,
            of,
        })
    }
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

/// Items about questions open no task that has ended.
fn of_question(message: NotificationMessage, id: QuestionId) -> NotificationMessage {
    message.with("reopen", false).with("question_id", id.to_string())
}
