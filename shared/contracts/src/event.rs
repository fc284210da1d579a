//! Events: facts for any listener, on `{root}.event.{account}.{task}.{noun}.{fact}`. Facts are past participles. Fields
//! and facts may be added and never changed.

use domain::{
    AccountId, Actor, AgentId, ArtifactId, ArtifactSource, BranchContext, BranchId, BranchState, BreakerState,
    CloseReason, Fence, Gate, Generation, HoldId, HoldRunning, HoldScope, KeyId, MailId, MemoryId, MessageId,
    MessageType, NotificationId, PersonaId, PolicyScope, PolicyVerdict, QuestionId, QuestionKind, QueueOp,
    RecoveryCause, RecoveryId, RecoveryState, ReplayId, SessionId, SessionKind, TaskId, TaskStatus, TimerId, TimerKind,
    TimerState, ToolPolicyId, TurnId, TurnState, UserId, Verdict,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Root, Timestamp,
    message::{Addressed, Hop, Message, Stream, User},
};

/// A longer reply is truncated in the event; the turn has the whole text.
pub const EVENT_REPLY_BYTES_MAX: usize = 64 * 1024;

/// The envelope of every event; `type` and `data` come from [`Event`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventMessage {
    /// None, written as `-`: the event is of the installation.
    #[serde(with = "owner")]
    #[schemars(schema_with = "owner::schema")]
    pub account: Option<AccountId>,
    pub task: Option<TaskId>,
    pub at: Timestamp,
    #[serde(flatten)]
    pub event: Event,
}

/// The account of an event, as one text.
mod owner {
    use std::borrow::Cow;

    use domain::AccountId;
    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::subject::NO_ACCOUNT;

    pub(super) fn serialize<S: Serializer>(account: &Option<AccountId>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(account.as_ref().map_or(NO_ACCOUNT, AccountId::as_str))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AccountId>, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        match &*text {
            NO_ACCOUNT => Ok(None),
            account => AccountId::parse(account).map(Some).map_err(D::Error::custom),
        }
    }

    pub(super) fn schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [generator.subschema_for::<AccountId>(), {"const": NO_ACCOUNT}]})
    }
}

/// An event a line: its fact, its payload, its publishers, and the service that acts on it, if one does. An event that
/// a service acts on is awaited.
macro_rules! events {
    ($($(#[$doc:meta])* $kind:literal $variant:ident($data:ident) from [$($publisher:ident),+] $(to $consumer:ident)?;)+) => {
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "type", content = "data")]
        pub enum Event {
            $($(#[$doc])* #[serde(rename = $kind)] $variant($data),)+
        }

        impl Event {
            /// `noun.fact`: the end of the subject.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $kind,)+
                }
            }
        }

        pub const EVENTS: &[Hop] = &[
            $(event($kind, &[$(User::$publisher),+], &[$(User::$consumer)?]),)+
        ];
    };
}

const fn event(kind: &'static str, publishers: &'static [User], consumers: &'static [User]) -> Hop {
    Hop {
        kind,
        stream: Some(Stream::Event),
        is_event: true,
        publishers,
        consumers,
        is_awaited: !consumers.is_empty(),
    }
}

events! {
    "task.created" TaskCreated(TaskCreated) from [Resolver, ToolGateway, Orchestrator];
    "task.status_changed" TaskStatusChanged(TaskStatusChanged) from [ToolGateway, Orchestrator];
    /// Something else of a task than its status: see `what`.
    "task.changed" TaskChanged(TaskChanged) from [ToolGateway, Orchestrator];
    /// What it waited for is done, or was taken away: it is `pending` from now on.
    "task.unblocked" TaskUnblocked(TaskUnblocked) from [ToolGateway, Orchestrator];
    "task_context.written" TaskContextWritten(TaskContextWritten) from [ToolGateway, Orchestrator];
    /// Nothing moves the task on.
    "task.stalled" TaskStalled(TaskRecovery) from [Orchestrator];
    /// Only a person can move the task on.
    "task.needs_person" TaskNeedsPerson(TaskRecovery) from [Delivery, Orchestrator];
    "message.posted" MessagePosted(MessagePosted) from [Delivery, ToolGateway, Orchestrator];
    "notification.refused" NotificationRefused(NotificationEnded) from [Resolver];
    "notification.cancelled" NotificationCancelled(NotificationEnded) from [Resolver, Delivery, ToolGateway, Orchestrator];
    "notification.failed" NotificationFailed(NotificationEnded) from [Delivery];
    "session.opened" SessionOpened(SessionOpened) from [Resolver, Delivery, ToolGateway, Orchestrator];
    "session.closed" SessionEnded(SessionEnded) from [Delivery, ToolGateway, Orchestrator];
    /// A person ended the generation: the next one knows nothing of it.
    "session.reset" SessionReset(SessionReset) from [Delivery, Orchestrator];
    /// A gate keeps the queue from starting: see `gate`.
    "session.parked" SessionParked(SessionGated) from [Delivery];
    /// The gate was opened.
    "session.released" SessionReleased(SessionGated) from [Resolver, Delivery, ToolGateway, Orchestrator];
    /// A person paused something, or a hold ended.
    "hold.changed" HoldChanged(HoldChanged) from [Orchestrator];
    /// A person took the lease of a turn in progress from its holder.
    "session.lease_released" SessionLeaseReleased(SessionLeaseReleased) from [Orchestrator];
    /// Waiting notifications of a session were edited.
    "queue.changed" QueueChanged(QueueChanged) from [Orchestrator];
    "question.opened" QuestionOpened(QuestionChanged) from [ToolGateway, Orchestrator];
    "question.answered" QuestionAnswered(QuestionChanged) from [ToolGateway, Orchestrator];
    "question.withdrawn" QuestionWithdrawn(QuestionChanged) from [Delivery, ToolGateway, Orchestrator];
    /// Nobody answered in time.
    "question.lapsed" QuestionLapsed(QuestionChanged) from [Orchestrator];
    /// Its task or its session has ended.
    "question.cancelled" QuestionCancelled(QuestionChanged) from [ToolGateway, Orchestrator];
    /// A turn has given a part of its work to another session.
    "branch.spawned" BranchSpawned(BranchSpawned) from [ToolGateway];
    /// It has a result, or has ended without one: see `state`.
    "branch.ended" BranchEnded(BranchEnded) from [Delivery, ToolGateway, Orchestrator];
    "timer.changed" TimerChanged(TimerChanged) from [ToolGateway, Orchestrator];
    "recovery.changed" RecoveryChanged(RecoveryChanged) from [Delivery, ToolGateway, Orchestrator];
    "artifact.created" ArtifactCreated(ArtifactCreated) from [ToolGateway, Orchestrator];
    "artifact.removed" ArtifactRemoved(ArtifactRemoved) from [Orchestrator];
    "tool_policy.changed" ToolPolicyChanged(ToolPolicyChanged) from [Orchestrator];
    "turn.started" TurnStarted(TurnStarted) from [Delivery];
    "turn.finished" TurnFinished(TurnFinished) from [Delivery] to Orchestrator;
    /// A turn of a replay has ended: it had no effects.
    "turn.replayed" TurnReplayed(TurnReplayed) from [Delivery];
    "agent.removed" AgentRemoved(AgentRemoved) from [Orchestrator];
    /// An agent was made or changed.
    "agent.changed" AgentChanged(AgentChanged) from [Orchestrator];
    "account.changed" AccountChanged(AccountChanged) from [Orchestrator];
    "key.changed" KeyChanged(KeyChanged) from [Orchestrator];
    /// A person was added, changed or removed, or signed in.
    "member.changed" MemberChanged(MemberChanged) from [Orchestrator];
    "persona.changed" PersonaChanged(PersonaChanged) from [Orchestrator];
    /// An orchestrator has another name, handle or way of speaking, or other people may ask it.
    "identity.changed" IdentityChanged(IdentityChanged) from [Orchestrator];
    /// Mail was accepted, or its person has read it, archived it or put it off, or it has its final receipt.
    "mail.changed" MailChanged(MailChanged) from [Delivery, ToolGateway, Orchestrator];
    /// An orchestrator remembers something, or does no more.
    "memory.changed" MemoryChanged(MemoryChanged) from [ToolGateway, Orchestrator];
    /// A person hears of mail in another way.
    "preference.changed" PreferenceChanged(PreferenceChanged) from [Orchestrator];
    /// No turn calls the provider until it is tried again.
    "provider.opened" ProviderOpened(ProviderChanged) from [Delivery];
    /// One turn tries whether the provider answers again.
    "provider.probing" ProviderProbing(ProviderChanged) from [Delivery];
    /// The provider answers again.
    "provider.closed" ProviderClosed(ProviderChanged) from [Delivery];
    /// A gateway ran another session than the one of the key.
    "provider.session_mismatched" ProviderSessionMismatched(ProviderSessionMismatched) from [Delivery];
    /// The provider has lost what it kept of a session: the turn goes on in a new thread, assembled from the record.
    "provider.thread_lost" ProviderThreadLost(ProviderThread) from [Delivery];
    /// An answer named another response than the one that it was to go on from.
    "provider.thread_unconfirmed" ProviderThreadUnconfirmed(ProviderThread) from [Delivery];
    /// A message could not be processed by a service.
    "message.died" MessageDied(MessageDied) from [Resolver, Delivery, ToolGateway, Orchestrator];
}

impl Message for EventMessage {
    const KIND: &'static str = "event";

    fn fact(&self) -> &'static str {
        self.event.kind()
    }
}

impl Addressed for EventMessage {
    fn about(&self) -> (Option<&AccountId>, Option<&TaskId>) {
        (self.account.as_ref(), self.task.as_ref())
    }

    fn subject(&self, root: &Root) -> String {
        root.event(self.account.as_ref(), self.task.as_ref(), self.event.kind())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskCreated {
    pub title: String,
    pub status: TaskStatus,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatusChanged {
    pub from: TaskStatus,
    pub to: TaskStatus,
    pub by: Actor,
}

/// A part of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskPart {
    /// Its review stages.
    Stages,
    /// A review stage was passed, or sent the task back.
    Stage,
    /// Whether its work begins with a plan.
    PlanGate,
    /// Another agent has it, with what waited for the first.
    Handover,
    /// Who moves it on while it is blocked.
    BlockedOn,
    /// Which tasks it waits for.
    Dependencies,
    /// The task that it is below.
    Parent,
    /// The session that works on it.
    Worker,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskChanged {
    pub what: TaskPart,
    pub by: Actor,
    /// In a few words, for a person.
    pub detail: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskUnblocked {
    pub by: Actor,
    /// The task that was done; none: what it waited for was taken away.
    pub blocker: Option<TaskId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskContextWritten {
    /// From 1, within its task.
    pub version: i32,
    /// Of the text that is kept.
    pub characters: i32,
    /// Of its end, which was cut off.
    pub cut_characters: i32,
    pub by: Actor,
    /// The turn whose agent wrote it.
    pub turn_id: Option<TurnId>,
}

/// `task.stalled` and `task.needs_person`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskRecovery {
    pub recovery_id: RecoveryId,
    pub agent_id: Option<AgentId>,
    pub cause: RecoveryCause,
    pub since: Timestamp,
    /// In a few words, for a person.
    pub detail: String,
}

/// `question.opened`, `.answered`, `.withdrawn`, `.lapsed`, `.cancelled`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QuestionChanged {
    pub question_id: QuestionId,
    pub kind: QuestionKind,
    /// The agent that asks, or the agent whose work is asked about.
    pub agent_id: Option<AgentId>,
    pub session_id: Option<SessionId>,
    pub turn_id: Option<TurnId>,
    pub title: String,
    /// Who may answer.
    pub audience: Vec<String>,
    pub verdict: Option<Verdict>,
    /// Who answered or withdrew it.
    pub by: Option<Actor>,
    pub reason: Option<String>,
    pub lapse_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BranchSpawned {
    pub branch_id: BranchId,
    /// The branches of one call.
    pub group_id: uuid::Uuid,
    pub agent_id: AgentId,
    pub label: Option<String>,
    pub context: BranchContext,
    /// 1: the session that spawned it is no branch.
    pub depth: i32,
    pub session_id: SessionId,
    pub parent_session_id: SessionId,
    pub parent_turn_id: TurnId,
    /// SHA-256 of what its parent knew, in hexadecimal.
    pub base_sha256: String,
    pub deadline_at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BranchEnded {
    pub branch_id: BranchId,
    pub group_id: uuid::Uuid,
    pub agent_id: AgentId,
    pub label: Option<String>,
    pub state: BranchState,
    /// Why it was cancelled, or its error.
    pub detail: Option<String>,
    pub session_id: SessionId,
    pub parent_session_id: SessionId,
    /// The item of its parent that brings its result. Absent: others of its call are at work, or its parent has ended.
    pub joined_item: Option<NotificationId>,
}

/// Where the reply of a turn goes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyTo {
    /// Its task's thread.
    #[default]
    Thread,
    /// The session that spawned its branch.
    Parent,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TimerChanged {
    pub timer_id: TimerId,
    pub kind: TimerKind,
    pub state: TimerState,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<SessionId>,
    pub due_at: Timestamp,
    /// Why it was cleared.
    pub reason: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryChanged {
    pub recovery_id: RecoveryId,
    pub agent_id: Option<AgentId>,
    pub cause: RecoveryCause,
    pub state: RecoveryState,
    pub attempts: i32,
    pub reason: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactCreated {
    pub artifact_id: ArtifactId,
    pub name: String,
    /// As read from the content.
    pub media_type: String,
    pub bytes: i32,
    pub source: ArtifactSource,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactRemoved {
    pub artifact_id: ArtifactId,
    pub name: String,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolPolicyChanged {
    pub policy_id: ToolPolicyId,
    pub scope: PolicyScope,
    /// The id of what it holds for, as it is compared.
    pub scope_id: String,
    /// A tool, `*`, or the beginning of names and `*`.
    pub tool: String,
    pub visible: Option<bool>,
    pub verdict: Option<PolicyVerdict>,
    pub revision: i32,
    pub removed: bool,
    pub by: Actor,
}

/// `provider.opened`, `.probing`, `.closed`. Of no account.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProviderChanged {
    /// The provider account, as the settings name it.
    pub key: String,
    pub state: BreakerState,
    /// The class of failure that opened it.
    pub class: Option<String>,
    /// When it is tried again, or until when it is being tried.
    pub until: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MessagePosted {
    pub message_id: MessageId,
    pub author: Actor,
    /// The turn of this reply, or of the tool call that posted it.
    pub turn_id: Option<TurnId>,
}

/// `notification.refused`, `.cancelled`, `.failed`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NotificationEnded {
    /// Absent if the message was too malformed to have one.
    pub id: Option<NotificationId>,
    pub agent: Option<String>,
    pub reason: String,
    pub detail: String,
    pub dead_letter_id: Option<uuid::Uuid>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HoldChanged {
    pub hold_id: HoldId,
    /// What it covers.
    pub scope: HoldScope,
    /// The id of what it covers, as it is compared.
    pub scope_id: String,
    /// What becomes of turns in progress.
    pub running: HoldRunning,
    pub until: Option<Timestamp>,
    /// Who made it.
    pub by: Actor,
    pub released: bool,
    /// The name of who released it. Absent if its time was over.
    pub released_by: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionOpened {
    pub session_id: SessionId,
    pub session_key: String,
    pub kind: SessionKind,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionEnded {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub reason: CloseReason,
    /// In a few words, where the reason does not say it: the rule of a rotation with its figures; who reset it, and why.
    #[serde(default)]
    pub detail: Option<String>,
    /// The provider's name of its last thread, which nothing uses any more; null where the session key is the name.
    #[serde(default)]
    pub provider_thread: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionReset {
    /// The generation that ended.
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    /// The next generation.
    pub next_session_id: SessionId,
    pub by: Actor,
    pub reason: String,
}

/// `session.parked` and `session.released`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionGated {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub gate: Gate,
    /// Items that wait behind the gate.
    pub queued: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionLeaseReleased {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub turn_id: Option<TurnId>,
    /// The replica of delivery that held it: what it still writes has no effect.
    pub holder: Option<uuid::Uuid>,
    /// The fence from now on.
    pub fence: Fence,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QueueChanged {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub op: QueueOp,
    /// The notification. Absent for `order`, and where a person has read the mail that waited.
    pub item: Option<NotificationId>,
    /// The revision of the queue from now on.
    pub revision: String,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnStarted {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    /// The fence of the claim under which it was written (B1). Absent from messages of older versions.
    #[serde(default)]
    pub fence: Fence,
    pub number: i64,
    pub agent_id: AgentId,
    pub notifications: Vec<NotificationId>,
    pub profile_version: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnFinished {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    /// The fence of the claim under which it was written (B1). Absent from messages of older versions.
    #[serde(default)]
    pub fence: Fence,
    pub number: i64,
    pub agent_id: AgentId,
    pub notifications: Vec<NotificationId>,
    /// How it ended: finished, failed, aborted or unknown.
    pub state: TurnState,
    /// The reply, truncated to 64 KiB; the turn has the whole text.
    pub reply: Option<String>,
    pub reply_cut: bool,
    /// The agent called the tool `no_reply`: there was nothing to do. Recorded, not posted.
    pub no_reply: bool,
    /// Absent from messages of older versions, which know no branches.
    #[serde(default)]
    pub reply_to: ReplyTo,
    /// The session had closed meanwhile: recorded, changes nothing.
    pub late: bool,
    pub attempts: i32,
    pub error: Option<String>,
}

/// The turn has the reply, and the replay says how its tool calls were answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnReplayed {
    pub replay_id: ReplayId,
    /// The turn that was run again.
    pub source_turn_id: TurnId,
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub agent_id: AgentId,
    /// How it ended: finished, failed, aborted or unknown.
    pub state: TurnState,
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgentRemoved {
    pub agent_id: AgentId,
    pub slug: String,
}

/// What became of a thing of an account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Created,
    Changed,
    Removed,
}

impl Change {
    pub const ALL: [Change; 3] = [Change::Created, Change::Changed, Change::Removed];
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgentChanged {
    pub agent_id: AgentId,
    pub slug: String,
    pub change: Change,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AccountChanged {
    pub change: Change,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeyChanged {
    pub key_id: KeyId,
    /// Whose own key it is; none: the account's.
    pub user_id: Option<UserId>,
    pub change: Change,
    pub by: Actor,
}

/// Removed: the person's keys are revoked with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemberChanged {
    pub user_id: UserId,
    pub change: Change,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PersonaChanged {
    pub persona_id: PersonaId,
    pub change: Change,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IdentityChanged {
    /// Whose orchestrator it is; none: the account's.
    pub user_id: Option<UserId>,
    pub change: Change,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MailChanged {
    pub mail_id: MailId,
    /// The person whom it is for; none: a session.
    pub to_user: Option<UserId>,
    pub change: MailChange,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemoryChanged {
    /// Whose it is; none: the account's.
    pub user_id: Option<UserId>,
    pub memory_id: MemoryId,
    pub change: Change,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PreferenceChanged {
    pub user_id: UserId,
    pub message_type: MessageType,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailChange {
    Accepted,
    Read,
    Archived,
    Snoozed,
    Settled,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProviderSessionMismatched {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub detail: String,
}

/// `provider.thread_lost` and `.thread_unconfirmed`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProviderThread {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub agent_id: AgentId,
    pub provider: String,
    /// The number of the thread in its generation.
    pub thread: i32,
    /// What the provider said, in a few words.
    pub detail: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MessageDied {
    pub dead_letter_id: uuid::Uuid,
    pub subject: String,
    pub reason: String,
    pub detail: String,
}
