//! The words of one call: what is asked, by whom, and what it came to. No I/O; the text of a result is made here, and
//! nowhere else, since models read it.

use contracts::{TraceContext, quote, tools::OfferContext};
use domain::{
    AccountId, Actor, ActorKind, AgentId, CallId, CloseReason, Fence, Generation, SessionId, TaskId, TaskStatus,
    ToolCallState, TurnId, TurnState,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use storage::outbox::Owned;
use time::OffsetDateTime;
use uuid::Uuid;

/// What somebody says they want.
#[derive(Clone, Debug)]
pub struct CallRequest {
    pub account: AccountId,
    pub session: SessionId,
    /// Of the call's record: follows from session, turn, place and call id, so that a second arrival is the same call.
    pub id: Uuid,
    pub call_id: CallId,
    /// Place among the turn's calls, from 1; 0 over HTTP, where calls have no place.
    pub ordinal: i32,
    pub name: String,
    /// JSON text, unchecked.
    pub arguments: String,
    pub origin: Origin,
    /// As it came with the call.
    pub trace: TraceContext,
}

/// Where a call comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Delivery, for a turn. What it says of the session must agree with the session.
    Turn(Claims),
    /// The agent itself, over `/agent/*`: it holds the session's key and a gateway token of the account.
    Http,
}

/// What a `tool.requested` says of its session.
#[derive(Clone, Debug)]
pub struct Claims {
    pub turn: TurnId,
    pub task: Option<TaskId>,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub agent: AgentId,
}

/// What the database says of the session and its turn, under lock.
#[derive(Clone, Debug)]
pub struct Facts {
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub closed: Option<Closed>,
    pub agent: AgentId,
    pub agent_slug: String,
    pub agent_name: String,
    pub session_task: Option<TaskId>,
    /// The account's coordinator task, if it has one.
    pub coordinator_task: Option<TaskId>,
    /// The agent is among those it is assigned to, or it is assigned to nobody.
    pub coordinates: bool,
    pub turn: Option<Turn>,
    /// Hops of the session's newest turn, over or not: what an agent does after it follows from it.
    pub newest_hops: u16,
}

/// Why the session is closed; nothing in it when this version does not know the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed(pub Option<CloseReason>);

#[derive(Clone, Debug)]
pub struct Turn {
    pub id: TurnId,
    pub session: SessionId,
    pub state: TurnState,
    /// Of the claim that wrote the turn last.
    pub fence: Fence,
    pub task: Option<TaskId>,
    pub hops: u16,
    /// Names of the tools that it was offered; absent when an older version began it.
    pub tools: Option<Vec<String>>,
    /// Until when it waits for its calls.
    pub until: Option<OffsetDateTime>,
    /// The call that it waits for at the place in question, as the agent asked for it.
    pub call: Option<RecordedCall>,
    /// The places of calls of the same answer that come before it and are not over.
    pub earlier: Vec<i32>,
}

/// A call in the record of its turn.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RecordedCall {
    pub call_id: CallId,
    pub name: String,
    pub arguments: String,
}

impl Facts {
    /// The task that the caller works on: its turn's, since an agent-wide session works on many (S14).
    pub fn task(&self) -> Option<&TaskId> {
        self.turn
            .as_ref()
            .and_then(|turn| turn.task.as_ref())
            .or(self.session_task.as_ref())
    }

    pub fn is_coordinator(&self) -> bool {
        self.coordinates && self.task().is_some_and(|task| self.is_chat(task))
    }

    /// Whether the task is the coordinator's chat.
    pub fn is_chat(&self, task: &TaskId) -> bool {
        self.coordinator_task
            .as_ref()
            .is_some_and(|chat| chat.key() == task.key())
    }

    pub fn offer(&self) -> OfferContext {
        OfferContext {
            has_task: self.task().is_some(),
            is_coordinator: self.is_coordinator(),
        }
    }

    pub fn hops(&self) -> u16 {
        self.turn.as_ref().map_or(self.newest_hops, |turn| turn.hops)
    }

    /// The agent, as the author of what its call does.
    pub fn actor(&self) -> Actor {
        Actor {
            kind: ActorKind::Agent,
            id: self.agent.to_string(),
            name: self.agent_name.clone(),
            via: None,
        }
    }
}

/// What a tool did: what the agent reads, and what the rest of the system is told in the same transaction.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub result: Map<String, Value>,
    pub messages: Vec<Owned>,
}

impl Effect {
    pub(crate) fn new(result: Value, messages: Vec<Owned>) -> Effect {
        let Value::Object(result) = result else {
            unreachable!("handlers build their results as objects");
        };
        Effect { result, messages }
    }
}

/// Why the agent does not get what it asked for, in words that it can act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolAnswer {
    /// `Failed` or `Refused`.
    pub state: ToolCallState,
    /// The session or turn was over: recorded, changes nothing.
    pub late: bool,
    /// One word for programs.
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

/// A call that is over, as recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub name: String,
    pub arguments: String,
    pub state: ToolCallState,
    pub late: bool,
    /// JSON text: `{"ok": true, …}` or `{"error": {"code", "message", "hint"}}`.
    pub result: String,
    pub finished_at: OffsetDateTime,
}

/// The text of a result that went well. What others wrote stands in it as JSON texts, made inert.
pub(crate) fn ok_text(mut result: Map<String, Value>) -> String {
    result.insert("ok".to_owned(), Value::Bool(true));
    let mut result = Value::Object(result);
    quote::inert_json(&mut result);
    result.to_string()
}

/// Statuses as a list for a sentence.
pub(crate) fn words(statuses: &[TaskStatus]) -> String {
    let words: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
    words.join(", ")
}

/// At most this many bytes of a text, cut between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_is_told_is_inert() {
        for &hostile in testkit::hostile::TEXTS {
            let told = ToolAnswer::failed("c", hostile, hostile).text();
            assert_eq!(quote::inert(&told), told, "{hostile:?}");
        }
    }
}
