//! The types of one call: the request, the caller and the result. No I/O. The text of a result is made only here, since
//! models read it.

use std::{sync::Arc, time::Duration};

use contracts::{
    Root, TraceContext,
    outgoing::Origin as Cause,
    quote,
    tool::{RESULT_BYTES_MAX, ToolFinished},
    tools::OfferContext,
};

use domain::{
    AccountId, Actor, ActorKind, AgentId, ArtifactId, BranchId, CallId, Fence, Generation, ModelKinds, Owner,
    Reachable, SessionId, SessionKey, SessionKind, SessionOf, TaskId, ToolCallState, TurnId, TurnState, UserId,
    tool_policy::ToolPolicy,
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use storage::{Setting, outbox::Owned};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::SOURCE;

/// A call as requested.
#[derive(Clone, Debug)]
pub struct CallRequest {
    pub account: AccountId,
    pub session: SessionId,
    /// Id of the call's record. It is derived from session, turn, place and call id, so that a second delivery has the
    /// same id.
    pub id: Uuid,
    pub call_id: CallId,
    /// Place among the turn's calls, from 1; 0 over HTTP, where calls have no place.
    pub ordinal: i32,
    pub name: String,
    /// JSON text, unchecked.
    pub arguments: String,
    pub origin: Origin,
    /// The trace context of the request.
    pub trace: TraceContext,
}

/// The source of a call.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Delivery, for a turn. The claims about the session must match the session's row.
    Turn(Claims),
    /// The agent itself, over `/agent/*`: it holds the session's key and a gateway token of the account.
    Http,
}

/// The claims of a `tool.requested` about its session.
#[derive(Clone, Debug)]
pub struct Claims {
    pub turn: TurnId,
    pub task: Option<TaskId>,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub agent: AgentId,
}

/// The rows of the session and its turn, read under lock.
#[derive(Clone, Debug, FromQueryResult)]
pub struct CallFacts {
    #[sea_orm(from_alias = "key")]
    pub session_key: String,
    pub session_kind: SessionKind,
    /// What a guest may ask, if the session is one's.
    pub reachable: Option<Reachable>,
    pub generation: Generation,
    pub fence: Fence,
    pub is_closed: bool,
    /// A text: a newer version may write more than [`domain::CloseReason`] has.
    pub close_reason: Option<String>,
    /// Its last turn was stopped, and no other has begun.
    pub turn_stopped: bool,
    #[sea_orm(from_alias = "agent_id")]
    pub agent: AgentId,
    pub agent_slug: String,
    pub agent_name: String,
    pub session_task: Option<TaskId>,
    /// The account's coordinator task, if it has one.
    pub coordinator_task: Option<TaskId>,
    /// Its task requires a plan, or one was submitted; and none is approved.
    pub needs_plan: bool,
    /// The agent is assigned to the coordinator task, or that task has no assignee.
    pub coordinates: bool,
    #[sea_orm(nested(prefix = "turn_"))]
    pub turn: Option<CallTurn>,
    /// The branch that its session runs.
    #[sea_orm(nested(prefix = "branch_"))]
    pub branch: Option<CallBranch>,
    /// Branches may have branches down to this depth.
    #[sea_orm(skip)]
    pub branch_depth_max: i32,
    /// Hops of the session's newest turn, ended or not: an agent's act after the turn counts as caused by it.
    pub newest_hops: Option<i32>,
    /// The database's time.
    pub now: OffsetDateTime,
    /// The account's tool policies, counted.
    pub tool_policies: i32,
    #[sea_orm(skip)]
    pub policies: Arc<[ToolPolicy]>,
    /// The account has members, to whom agents may write.
    #[sea_orm(from_alias = "mail_enabled")]
    pub has_mail: bool,
    /// The kinds of models that the account may use.
    #[sea_orm(skip)]
    pub models: ModelKinds,
}

#[derive(Clone, Debug, FromQueryResult)]
pub struct CallTurn {
    pub id: TurnId,
    pub session: SessionId,
    pub state: TurnState,
    /// The item that it began with.
    pub first_item: Option<String>,
    /// Fence of the last claim that wrote the turn.
    pub fence: Fence,
    pub task: Option<TaskId>,
    pub hops: i32,
    /// Names of the offered tools; none when an older version began the turn.
    pub tools: Option<Vec<String>>,
    /// When the turn stops waiting for its calls.
    pub until: Option<OffsetDateTime>,
    /// The recorded call at the claimed place, if the turn waits for it.
    pub call: Option<RecordedCall>,
    /// Places of the earlier calls of the same answer.
    pub earlier: Vec<i32>,
    /// The tools of those.
    pub earlier_tools: Vec<String>,
    /// Places of the turn's earlier calls that are finished.
    pub over: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct CallBranch {
    pub id: BranchId,
    /// 1: its parent is no branch.
    pub depth: i32,
}

/// A call in the turn's journal.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RecordedCall {
    pub call_id: CallId,
    pub name: String,
    pub arguments: String,
}

impl TryGetableFromJson for RecordedCall {}

impl CallRequest {
    /// The record is of this session and this turn: what a message would claim of them is so.
    pub(crate) fn claim(&mut self, facts: &CallFacts) {
        if let Origin::Turn(claims) = &mut self.origin {
            claims.session_key.clone_from(&facts.session_key);
            claims.task = facts.task().cloned();
        }
    }

    /// The message of the call's result; none: the call came over HTTP.
    pub(crate) fn finished(&self, record: &Record) -> Option<ToolFinished> {
        let Origin::Turn(claims) = &self.origin else {
            return None;
        };
        Some(ToolFinished {
            account: self.account.clone(),
            task: claims.task.clone(),
            session_id: self.session,
            generation: claims.generation,
            fence: claims.fence,
            turn_id: claims.turn,
            call_id: self.call_id.clone(),
            ordinal: self.ordinal,
            name: self.name.clone(),
            state: record.state,
            result: Some(record.result.clone()).filter(|result| result.len() <= RESULT_BYTES_MAX),
        })
    }
}

impl CallFacts {
    /// The caller's task. It is the turn's task, since an agent-wide session has many (S14).
    pub fn task(&self) -> Option<&TaskId> {
        self.turn
            .as_ref()
            .and_then(|turn| turn.task.as_ref())
            .or(self.session_task.as_ref())
    }

    /// Not in a branch, which sees its base and nothing else.
    pub fn is_coordinator(&self) -> bool {
        self.coordinates && self.branch.is_none() && self.task().is_some_and(|task| self.is_chat(task))
    }

    /// Whether the task is the coordinator's chat.
    pub fn is_chat(&self, task: &TaskId) -> bool {
        self.coordinator_task
            .as_ref()
            .is_some_and(|chat| chat.key() == task.key())
    }

    /// Whose orchestrator the caller is, also where it answers a guest.
    pub fn owner(&self) -> Option<Owner> {
        match SessionKey::parse(&self.session_key).ok()?.of {
            SessionOf::Orchestrator(owner) => Some(owner),
            SessionOf::Guest { owner, .. } => Some(Owner::User(owner)),
            SessionOf::Task { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => None,
        }
    }

    /// The person whose own the session is.
    pub fn person(&self) -> Option<UserId> {
        SessionKey::parse(&self.session_key).ok()?.of.person().cloned()
    }

    /// Of an orchestrator, or of one that answers a guest.
    pub fn is_orchestrator(&self) -> bool {
        matches!(self.session_kind, SessionKind::Orchestrator | SessionKind::Guest)
    }

    pub fn offer(&self) -> OfferContext {
        OfferContext {
            has_task: self.task().is_some(),
            is_coordinator: self.is_coordinator(),
            // The turn's own offer says so.
            is_asked: self.turn.as_ref().is_some_and(|turn| turn.tools.is_some()),
            is_orchestrator: self.is_orchestrator(),
            is_account: self.owner() == Some(Owner::Account),
            guest: (self.session_kind == SessionKind::Guest).then(|| self.reachable.unwrap_or(Reachable::Off)),
            has_mail: self.has_mail,
            is_branch: self.branch.is_some(),
            may_branch: self.task().is_some() && self.depth() < self.branch_depth_max,
            models: self.models,
        }
    }

    /// Of its branch; 0: its session is no branch.
    pub fn depth(&self) -> i32 {
        self.branch.map_or(0, |branch| branch.depth)
    }

    pub fn hops(&self) -> u16 {
        let hops = self.turn.as_ref().map(|turn| turn.hops).or(self.newest_hops);
        u16::try_from(hops.unwrap_or_default()).unwrap_or(u16::MAX)
    }

    /// The setting of what a turn does, or a request outside of any.
    pub(crate) fn setting<'r>(
        &self,
        root: &'r Root,
        (turn, request): (Option<TurnId>, Uuid),
        trace: TraceContext,
    ) -> Setting<'r> {
        Setting {
            root,
            source: SOURCE,
            origin: Cause {
                // The turn, which leads to all other ids.
                cause: Some(turn.map_or(request, TurnId::uuid).to_string()),
                hops: self.hops(),
                trace,
            },
            now: self.now,
        }
    }

    /// The agent, as the author of the call's effects.
    pub fn actor(&self) -> Actor {
        Actor {
            kind: ActorKind::Agent,
            id: self.agent.to_string(),
            name: self.agent_name.clone(),
            via: None,
        }
    }
}

/// The effect of a tool: the result for the agent, and the messages that the same transaction stores.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// An object.
    pub result: Value,
    pub messages: Vec<Owned>,
    /// The call of somebody outside, which begins with the commit; then there is no result yet.
    pub outside: Option<Outside>,
}

impl Effect {
    pub(crate) fn new(result: Value, messages: Vec<Owned>) -> Effect {
        Effect {
            result,
            messages,
            outside: None,
        }
    }

    pub(crate) fn outside(outside: Outside) -> Effect {
        Effect {
            outside: Some(outside),
            ..Effect::default()
        }
    }
}

/// What a tool asks of somebody outside of Signalbox, decided under the checks of its call.
#[derive(Debug)]
pub(crate) struct Outside {
    pub model: String,
    pub request: ModelRequest,
    pub timeout: Duration,
}

/// What a call asks of a model, as it is kept with its record: enough to ask it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ModelRequest {
    pub task: TaskId,
    /// The version of the task's context; none: the task has none, and needs none.
    pub context_version: Option<i32>,
    pub artifacts: Vec<ArtifactId>,
    /// SHA-256 of the whole text that is sent, as hexadecimal digits.
    pub text_sha256: String,
    /// How often it was sent, or begun to be.
    pub tries: i32,
}

/// An error for the agent, with a hint for what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolAnswer {
    /// `Failed` or `Refused`.
    pub state: ToolCallState,
    /// The session or turn had ended: the call is recorded and changes nothing.
    pub late: bool,
    /// The error code.
    pub code: &'static str,
    pub message: String,
    /// What to do instead.
    pub hint: String,
}

impl ToolAnswer {
    pub fn failed(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> ToolAnswer {
        ToolAnswer {
            state: ToolCallState::Failed,
            late: false,
            code,
            message: quote::inert(&message.into()).into_owned(),
            hint: quote::inert(&hint.into()).into_owned(),
        }
    }

    pub fn refused(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> ToolAnswer {
        ToolAnswer {
            state: ToolCallState::Refused,
            ..ToolAnswer::failed(code, message, hint)
        }
    }

    pub fn text(&self) -> String {
        json!({"error": {"code": self.code, "message": self.message, "hint": self.hint}}).to_string()
    }
}

/// The record of a call.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Record {
    pub name: String,
    pub arguments: String,
    pub state: ToolCallState,
    pub late: bool,
    /// Empty while somebody is asked. JSON text: `{"ok": true, …}` or `{"error": {"code", "message", "hint"}}`.
    pub result: String,
    pub finished_at: OffsetDateTime,
}

/// The text of a successful result. Text of other authors is escaped and stands in JSON strings.
pub(crate) fn ok_text(mut result: Value) -> String {
    result["ok"] = Value::Bool(true);
    quote::inert_json(&mut result);
    result.to_string()
}

/// Cuts a text to at most this many bytes, between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_for_agents_are_inert() {
        for &hostile in testkit::hostile::TEXTS {
            let text = ToolAnswer::failed("c", hostile, hostile).text();
            assert_eq!(quote::inert(&text), text, "{hostile:?}");
        }
    }
}
