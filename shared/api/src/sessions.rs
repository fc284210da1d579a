//! Sessions: one agent's continuous work, in generations.

use domain::{
    AgentRef, Gate, PersonaRef, ResetInFlight, ResetQueue, ResetRequest, SessionId, SessionKind, StopThen, TaskId,
    Timestamp, TurnId,
};
use schemars::JsonSchema;
use sea_orm::{ColIdx, FromQueryResult, QueryResult, TryGetError, TryGetable};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{agents::AgentName, tasks::Title, text::Text};

/// One generation of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Session {
    pub id: Uuid,
    #[schemars(with = "SessionKind")]
    pub kind: String,
    pub task: Option<String>,
    /// The branch that it runs.
    #[serde(default)]
    pub branch_id: Option<Uuid>,
    /// The session that spawned the branch; of a session that was created for an orchestrator, the orchestrator's that did it.
    #[serde(default)]
    pub parent_session_id: Option<Uuid>,
    /// Null for an orchestrator's session.
    #[sea_orm(nested(prefix = "agent_"))]
    pub agent: Option<AgentName>,
    pub generation: i32,
    pub key: String,
    #[sea_orm(from_alias = "closed_at")]
    pub state: SessionState,
    /// Its phase: `idle`, `running`, `waiting` (for tools), `backoff` (until its next attempt).
    pub phase: String,
    pub opened_at: Timestamp,
    pub closed_at: Option<Timestamp>,
    pub close_reason: Option<String>,
    /// In words, where its reason does not say it: the rule of a rotation with its figures; who reset it, and why.
    #[serde(default)]
    pub close_detail: Option<String>,
    /// Queued notifications.
    pub queued: i32,
    /// Turns so far.
    #[sea_orm(from_alias = "turn_count")]
    pub turns: i64,
    pub active_turn_id: Option<Uuid>,
    /// Its turn in progress is to end.
    #[serde(default)]
    pub stopping: bool,
    /// The reset that is carried out when its turn in progress has ended.
    #[serde(default)]
    pub reset_request: Option<ResetRequest>,
    /// What keeps its queue from starting. Null if nothing does.
    #[serde(default)]
    #[schemars(with = "Option<Gate>")]
    pub gate: Option<String>,
    /// Since when its gate keeps it.
    #[serde(default)]
    pub gated_since: Option<Timestamp>,
    /// What a waiting notification can do to it now.
    #[serde(default)]
    #[sea_orm(nested(prefix = "can_"))]
    pub can: SessionCan,
    /// The other session that its provider ran instead of the key's. Null if none was seen.
    pub mismatch: Option<String>,
    /// The generation before, which was rotated.
    #[serde(default)]
    pub continues_id: Option<Uuid>,
    #[serde(default)]
    #[sea_orm(nested(prefix = "thread_"))]
    pub thread: SessionThread,
    /// Of its ended turns, as the provider counts.
    #[serde(default)]
    pub tokens_used: i64,
    /// What its agent is to be like.
    #[serde(default)]
    #[sea_orm(nested(prefix = "persona_"))]
    pub persona: Option<SessionPersona>,
    /// On whose orchestrator's board its task is: `user:{user}`, or `account`. Null: on none.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub owner: Option<String>,
}

/// The persona of a session, chosen when its generation was opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct SessionPersona {
    /// As it was when the version was written.
    pub slug: String,
    pub version: i32,
    /// `user`: a person named it for the task. `inferred`: an orchestrator chose it. `account`: it was the account's default.
    pub why: String,
}

/// Work for a session of its own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// The first request. At most 64 KiB.
    pub prompt: Text<1, 65_536>,
    /// The task that it is about. A new one is made unless it is named.
    #[serde(alias = "taskId", alias = "task_id")]
    pub task: Option<TaskId>,
    /// Of a new task; the first line of the request when absent.
    pub title: Option<Title>,
    /// Else the persona's, else the account's default one, else the only one.
    pub agent: Option<AgentRef>,
    /// For sessions that are opened for the task. One that the caller may use.
    #[serde(alias = "personaSlug")]
    pub persona: Option<PersonaRef>,
    /// A session of one's own orchestrator: its id, its key, or `orchestrator:{user}`.
    #[serde(alias = "parentSessionId")]
    #[schemars(length(max = 384))]
    pub parent_session_id: Option<String>,
}

/// What its provider keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct SessionThread {
    /// The newest, from 1; 0: it had no turn.
    pub number: i32,
    /// The next turn goes on in it, if its policy says nothing else.
    pub live: bool,
}

/// What a waiting notification can do to a session now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct SessionCan {
    /// Be given to the turn in progress.
    pub inject: bool,
    /// End the turn in progress, and go before all others.
    pub steer: bool,
}

/// Ends the turn in progress.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Only this turn. If absent, the turn that is in progress.
    pub turn_id: Option<TurnId>,
    /// What happens to the notifications that wait behind it: `hold` if absent.
    pub then: Option<StopThen>,
}

/// The effect of a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stopping {
    pub state: StopState,
    /// The turn that is to end, or the one that was named and is not in progress.
    pub turn_id: Option<TurnId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopState {
    /// The turn is to end.
    Stopping,
    /// No turn is in progress.
    Nothing,
    /// The named turn is not in progress.
    Over,
}

/// Ends a session's generation and opens the next one, which knows nothing of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// Why, for the session's log.
    pub reason: ResetReason,
    /// What happens to the notifications that wait: `keep` if absent.
    pub queue: Option<ResetQueue>,
    /// What happens to the notifications of a turn in progress that is stopped: `cancel` if absent.
    pub in_flight: Option<ResetInFlight>,
}

pub type ResetReason = Text<1, 1024>;

/// The effect of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Resetting {
    pub state: ResetState,
    /// The next generation, which is open now. Absent while a turn is to end first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// The turn that is to end first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
}

impl Resetting {
    pub fn done(next: SessionId) -> Resetting {
        Resetting {
            state: ResetState::Reset,
            session: Some(next.uuid()),
            turn: None,
        }
    }

    pub fn stopping(turn: TurnId) -> Resetting {
        Resetting {
            state: ResetState::Stopping,
            session: None,
            turn: Some(turn),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResetState {
    /// The generation has ended.
    Reset,
    /// It ends with its turn in progress.
    Stopping,
}

/// A resumption takes no fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {}

/// A release takes no fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {}

/// Whether turns may start in it, by the row's close reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Active,
    Closed,
}

impl SessionState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Closed => "closed",
        }
    }
}

impl TryGetable for SessionState {
    fn try_get_by<I: ColIdx>(row: &QueryResult, closed_at: I) -> Result<Self, TryGetError> {
        Ok(match Option::<Timestamp>::try_get_by(row, closed_at)? {
            None => SessionState::Active,
            Some(_) => SessionState::Closed,
        })
    }
}
