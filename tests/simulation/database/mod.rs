//! A model of Postgres: rows, guarded writes, and atomic transactions. Each guarded write names its statement and follows it
//! literally.
//!
//! Interference of two transactions is modelled where statements of one see different snapshots: the resolver's reads before its
//! locks ([`intake`]), an answer's look at its question ([`questions`]), and a sweep's look at due timers ([`timers`]). Everything under
//! the locks of its sessions is one step.

pub(crate) mod board;
pub(crate) mod brakes;
pub(crate) mod branches;
pub(crate) mod breakers;
pub(crate) mod calls;
pub(crate) mod claims;
pub(crate) mod edits;
pub(crate) mod holds;
pub(crate) mod intake;
pub(crate) mod lifecycle;
pub(crate) mod mail;
pub(crate) mod outbox;
pub(crate) mod outcomes;
pub(crate) mod questions;
pub(crate) mod replays;
pub(crate) mod succession;
pub(crate) mod timers;

use std::collections::BTreeMap;

use contracts::content::ContentHash;
use delivery::store::{SessionName, journal::Journal};
use domain::{
    AccountId, Actor, ActorKind, AgentId, BranchId, CallId, CloseReason, Conversation, ConversationOf, Fence, Gate,
    Generation, HoldId, MailId, MessageId, NotificationId, NotificationState, Owner, QuestionId, QueueMode, ReplayId,
    ResetRequest, SessionEvent, SessionId, SessionPhase, SessionScope, SessionState, StopKind, StopThen, TaskId,
    TaskStatus, TimerId, ToolCallState, TurnContext, TurnId, TurnState, UserId, breaker::Breaker, hold::Hold,
};
use storage::session::{items_join::Notes, sessions_lock::SessionThread};
use time::OffsetDateTime;
use uuid::Uuid;

use self::{
    board::Edge, branches::BranchRow, mail::MailRow, outbox::OutboxRow, questions::QuestionRow, replays::ReplayRow,
    timers::TimerRow,
};
use super::bugs::Bug;

pub(crate) type Millis = i64;

/// Simulated milliseconds as the timestamp that decisions get.
pub(crate) fn moment(at: Millis) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + time::Duration::milliseconds(1_800_000_000_000 + at)
}

pub(crate) fn millis(at: OffsetDateTime) -> Millis {
    let nanos = (at - OffsetDateTime::UNIX_EPOCH).whole_milliseconds() - 1_800_000_000_000;
    Millis::try_from(nanos).expect("a moment of the simulation")
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) scope: SessionScope,
    pub(crate) auto_create_tasks: bool,
    /// The hidden agent of its orchestrators.
    pub(crate) hidden: AgentId,
    /// The tool whose calls a policy of the account asks about.
    pub(crate) asks: Option<&'static str>,
    pub(crate) mail_enabled: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) slug: String,
    pub(crate) provider: String,
    pub(crate) removed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) status: TaskStatus,
    pub(crate) assignees: Vec<AgentId>,
    /// Of this orchestrator.
    pub(crate) board: Option<Owner>,
    /// The orchestrator made it, with a session.
    pub(crate) is_child: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    pub(crate) conversation: Conversation,
    pub(crate) generation: i32,
    pub(crate) key: String,
    pub(crate) closed: Option<(Millis, CloseReason)>,
    pub(crate) phase: SessionPhase,
    pub(crate) fence: Fence,
    pub(crate) lease_owner: Option<Uuid>,
    pub(crate) wake_at: Option<Millis>,
    pub(crate) asked: i32,
    pub(crate) active_turn: Option<TurnId>,
    pub(crate) queued: i32,
    pub(crate) queue_tail: i64,
    pub(crate) turn_count: i64,
    pub(crate) interrupted: bool,
    /// The newest request to stop a turn.
    pub(crate) stop: Option<StopRow>,
    /// A turn that was stopped, until the next one begins.
    pub(crate) stopped_turn: Option<TurnId>,
    pub(crate) gate: Option<Gate>,
    /// What keeps it; counts while it has a gate.
    pub(crate) gate_ref: Option<Uuid>,
    pub(crate) queue_edits: i64,
    pub(crate) thread: SessionThread,
    pub(crate) opened_at: Millis,
    pub(crate) continues: Option<SessionId>,
    /// `reset_request`.
    pub(crate) reset: Option<ResetRequest>,
    /// The session that spawned its branch.
    pub(crate) parent: Option<SessionId>,
    /// The replay that it runs.
    pub(crate) replay: Option<ReplayId>,
}

/// `stop_turn_id`, `stop_kind`, `stop_by`, `stop_at`, `stop_then`.
#[derive(Clone, Debug)]
pub(crate) struct StopRow {
    /// None: the turn has ended.
    pub(crate) turn: Option<TurnId>,
    pub(crate) kind: StopKind,
    pub(crate) by: String,
    pub(crate) at: Millis,
    pub(crate) then: StopThen,
}

impl NotificationRow {
    pub(crate) fn is_from_person(&self) -> bool {
        self.author.0 == ActorKind::User
    }

    pub(crate) fn sender(&self) -> Actor {
        Actor {
            kind: self.author.0,
            id: self.author.1.clone(),
            name: self.author_name.clone(),
            via: None,
        }
    }
}

impl SessionRow {
    /// Its turn in progress is to end, and what waits is to be held then.
    pub(crate) fn will_hold(&self) -> bool {
        let asked = self.stop.as_ref();
        asked.is_some_and(|stop| stop.turn.is_some() && stop.turn == self.active_turn && stop.then == StopThen::Hold)
    }

    /// As `SESSIONS_LOCK` reads it.
    pub(crate) fn is_stopping(&self, bug: Option<Bug>) -> bool {
        let asked = self.stop.as_ref().and_then(|stop| stop.turn);
        match bug {
            Some(Bug::StopKept) => asked.is_some() && self.active_turn.is_some(),
            _ => asked.is_some() && asked == self.active_turn,
        }
    }

    /// `CLOSE`.
    pub(crate) fn close(&mut self, now: Millis, reason: CloseReason, bug: Option<Bug>) {
        self.on(SessionEvent::Closed, bug);
        self.closed = Some((now, reason));
        self.gate = None;
        self.reset = None;
        self.thread.at = None;
        if self.phase == SessionPhase::Backoff {
            self.wake_at = Some(now);
        }
    }

    /// Applies a step of the state table. The caller sets the other columns.
    pub(crate) fn on(&mut self, event: SessionEvent, bug: Option<Bug>) {
        let state = SessionState {
            phase: self.phase,
            closed: self.closed.is_some(),
        };
        if let Some(after) = claims::possible(state.on(event), bug) {
            self.phase = after.phase;
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NotificationRow {
    pub(crate) task: Option<TaskId>,
    pub(crate) agent: Option<AgentId>,
    /// Its session and its position there.
    pub(crate) place: Option<(SessionId, i64)>,
    pub(crate) mode: QueueMode,
    pub(crate) joins: bool,
    pub(crate) kind: String,
    /// Kind and id.
    pub(crate) author: (ActorKind, String),
    pub(crate) author_name: String,
    /// A publisher has named the author.
    pub(crate) is_claimed: bool,
    pub(crate) body: String,
    /// `metadata.collect_debounce_ms`.
    pub(crate) debounce_ms: Option<serde_json::Value>,
    pub(crate) reopens: Option<bool>,
    /// The question, the timer, or the branches that an item of Signalbox's own tells of.
    pub(crate) source: Option<Uuid>,
    pub(crate) revision: i32,
    pub(crate) hash: ContentHash,
    pub(crate) state: NotificationState,
    pub(crate) reason: Option<String>,
    pub(crate) turn: Option<TurnId>,
    pub(crate) attempts: i32,
    pub(crate) hops: u16,
    pub(crate) created_at: Millis,
    /// The content of its dead letter.
    pub(crate) payload: bytes::Bytes,
    pub(crate) subject: String,
}

#[derive(Clone, Debug)]
pub(crate) struct TurnRow {
    pub(crate) session: SessionId,
    pub(crate) task: Option<TaskId>,
    pub(crate) agent: AgentId,
    pub(crate) number: i64,
    pub(crate) fence: Fence,
    pub(crate) state: TurnState,
    pub(crate) notifications: Vec<NotificationId>,
    pub(crate) notes: Notes,
    pub(crate) provider: String,
    pub(crate) journal: Journal,
    pub(crate) tools: Vec<String>,
    pub(crate) tools_wait_ms: Millis,
    pub(crate) attempt: i32,
    pub(crate) failures: i32,
    pub(crate) hops: i32,
    pub(crate) waiting_since: Option<Millis>,
    pub(crate) lost_at: Option<Millis>,
    pub(crate) failed_epoch: Option<i64>,
    pub(crate) sent_at: Millis,
    pub(crate) started_at: Millis,
    pub(crate) reply: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) no_reply: bool,
    pub(crate) late: bool,
    pub(crate) context: TurnContext,
}

#[derive(Clone, Debug)]
pub(crate) struct CallRow {
    pub(crate) session: SessionId,
    pub(crate) turn: Option<TurnId>,
    pub(crate) ordinal: i32,
    pub(crate) call_id: CallId,
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) generation: Generation,
    pub(crate) fence: Fence,
    pub(crate) state: ToolCallState,
    pub(crate) result: String,
    pub(crate) started_at: Millis,
    pub(crate) finished_at: Option<Millis>,
}

impl CallRow {
    /// From its record to its result: only a call that somebody is asked about is recorded before it runs.
    pub(crate) fn open_ms(&self, now: Millis) -> Millis {
        self.finished_at.unwrap_or(now) - self.started_at
    }
}

/// The resolver's offset in one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartitionRow {
    pub(crate) owner: Option<Uuid>,
    pub(crate) fence: i64,
    pub(crate) sequence: u64,
    pub(crate) published: Option<OffsetDateTime>,
    pub(crate) stream_created: Option<OffsetDateTime>,
    /// A batch is being written: claims of partitions skip it (`skip locked`).
    pub(crate) locked: bool,
}

/// Kept for a redrive by a person.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetter {
    pub(crate) id: Uuid,
    pub(crate) account: Option<AccountId>,
    pub(crate) subject: String,
    pub(crate) notification: Option<NotificationId>,
    pub(crate) payload: bytes::Bytes,
    pub(crate) redrives: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Database {
    pub(crate) now: Millis,
    /// Grows with every committed transaction that wrote a row.
    pub(crate) version: u64,
    pub(crate) accounts: BTreeMap<AccountId, Account>,
    pub(crate) agents: BTreeMap<(AccountId, AgentId), Agent>,
    /// Whether they were removed.
    pub(crate) members: BTreeMap<(AccountId, UserId), bool>,
    pub(crate) tasks: BTreeMap<(AccountId, TaskId), Task>,
    /// Who waits, and for what, by their keys.
    pub(crate) edges: BTreeMap<(AccountId, TaskId, TaskId), Edge>,
    pub(crate) mail: BTreeMap<(AccountId, MailId), MailRow>,
    pub(crate) sessions: BTreeMap<SessionName, SessionRow>,
    pub(crate) notifications: BTreeMap<(AccountId, NotificationId), NotificationRow>,
    pub(crate) turns: BTreeMap<(AccountId, TurnId), TurnRow>,
    pub(crate) calls: BTreeMap<(AccountId, Uuid), CallRow>,
    pub(crate) questions: BTreeMap<(AccountId, QuestionId), QuestionRow>,
    pub(crate) timers: BTreeMap<(AccountId, TimerId), TimerRow>,
    pub(crate) branches: BTreeMap<(AccountId, BranchId), BranchRow>,
    pub(crate) replays: BTreeMap<(AccountId, ReplayId), ReplayRow>,
    /// Replies in threads, by message id.
    pub(crate) messages: BTreeMap<(AccountId, MessageId), TurnId>,
    pub(crate) outbox: BTreeMap<Uuid, OutboxRow>,
    pub(crate) dead_letters: Vec<DeadLetter>,
    /// Alive until.
    pub(crate) replicas: BTreeMap<Uuid, Millis>,
    pub(crate) partitions: Vec<PartitionRow>,
    /// Those that are not released.
    pub(crate) holds: BTreeMap<(AccountId, HoldId), Hold>,
    /// By the name of the provider, which is its account.
    pub(crate) breakers: BTreeMap<String, Breaker>,
    ids: u64,
}

impl Database {
    /// Ids in time order, as version 7.
    pub(crate) fn fresh_id(&mut self) -> Uuid {
        self.ids += 1;
        Uuid::from_u128((0x0190_0000_0000_7000_8000 << 48) | u128::from(self.ids))
    }

    pub(crate) fn now(&self) -> OffsetDateTime {
        moment(self.now)
    }

    /// `REPLICAS_ALIVE`, and the same condition in `CENSUS`, `CLAIM` and `session_neglected`.
    pub(crate) fn is_alive(&self, replica: Uuid) -> bool {
        self.replicas.get(&replica).is_some_and(|until| *until > self.now)
    }

    /// Of a conversation, by `session_active_task`, `session_active_system` and `session_active_orchestrator`.
    pub(crate) fn active<'a>(&'a self, conversation: &'a Conversation) -> Option<&'a SessionName> {
        self.of_account(&conversation.account)
            .find(|(_, row)| row.closed.is_none() && row.conversation == *conversation)
            .map(|(name, _)| name)
    }

    /// Of a conversation, by `session_generation`.
    pub(crate) fn newest(&self, conversation: &Conversation) -> Option<i32> {
        self.of_account(&conversation.account)
            .filter(|(_, row)| row.conversation == *conversation)
            .map(|(_, row)| row.generation)
            .max()
    }

    /// Whether the agent of a conversation, or the person of an orchestrator, or its guest, was removed.
    pub(crate) fn was_removed(&self, conversation: &Conversation) -> bool {
        let account = &conversation.account;
        let is_gone = |user: &UserId| self.members[&(account.clone(), user.clone())];
        match &conversation.of {
            ConversationOf::Orchestrator(owner) => owner.user().is_some_and(is_gone),
            ConversationOf::Guest { owner, guest } => is_gone(owner) || is_gone(guest),
            ConversationOf::Task(_) | ConversationOf::Agent | ConversationOf::Branch(_) => {
                self.agents[&(account.clone(), conversation.agent)].removed
            }
        }
    }

    pub(crate) fn of_account<'a>(
        &'a self,
        account: &'a AccountId,
    ) -> impl Iterator<Item = (&'a SessionName, &'a SessionRow)> {
        self.sessions.iter().filter(move |((owner, _), _)| owner == account)
    }
}
