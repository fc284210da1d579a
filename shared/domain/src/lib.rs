//! The nouns of Signalbox as types: ids, session keys, statuses, and the state machines that more than one service
//! needs. Nothing here does I/O, waits, or reads a clock; time and randomness are parameters.
//!
//! Reading order: [`id`] (typed ids), [`session_key`] (the name of a generation), [`task`], [`session`],
//! [`notification`], [`branch`] (parallel parts of a turn's work), [`gate`] (what keeps a queue waiting), [`hold`] (what is paused), [`brake`] (ending turns), [`reset`] (ending generations), [`queue`]
//! (edits of what waits), [`next`] (what a thing waits for), [`question`] (what a person or an agent is asked), [`timer`],
//! [`tool_policy`] (which tools may be called), [`artifact`] (files of tasks), [`model`] (what agents may ask), [`liveness`] (what is
//! done about work that does not move on), [`breaker`] (providers that take no calls), [`progress`] (turns that change nothing),
//! [`turn`], [`context`] (where a turn's context comes from), [`tool`], [`actor`] (authors and senders), [`fence`] (leases), [`api_key`]
//! (authentication), [`member`] (the people of an account), [`owner`] (whose an orchestrator is), [`board`] (what waits for what), [`identity`] (how it is called), [`sign_in`] (their one-time links), [`persona`] (how an agent is to be), [`decay`] (what they remember), [`limit`] (the operator's limits), [`task_context`] (what is said of a task to whoever joins), [`Timestamp`] (a time
//! as it is written).

pub mod account;
pub mod actor;
pub mod api_key;
pub mod artifact;
mod backoff;
pub mod board;
pub mod brake;
pub mod branch;
pub mod breaker;
mod columns;
pub mod context;
pub mod conversation;
pub mod decay;
mod error_chain;
pub mod fence;
pub mod gate;
pub mod hold;
pub mod id;
pub mod identity;
pub mod limit;
pub mod liveness;
pub mod mail;
pub mod member;
pub mod model;
pub mod next;
pub mod notification;
pub mod owner;
pub mod persona;
pub mod progress;
pub mod question;
pub mod queue;
pub mod replay;
pub mod reset;
pub mod session;
pub mod session_key;
pub mod sign_in;
pub mod step;
mod string_enum;
pub mod task;
pub mod task_context;
pub mod timer;
mod timestamp;
pub mod tool;
pub mod tool_policy;
pub mod turn;

pub use account::{InstructionLayout, KeyRole, SessionScope};
pub use actor::{Actor, ActorKind, NotTheirs, is_reserved};
pub use api_key::{ApiKey, ApiKeyError};
pub use artifact::{ArtifactSource, FileName, MediaType};
pub use backoff::Backoff;
pub use brake::{HANDED_OVER, SESSION_RESET, StopKind, StopThen, TASK_CLOSED};
pub use branch::{BRANCH_ENDED, BranchContext, BranchEvent, BranchState, JoinMode};
pub use breaker::{BreakerEvent, BreakerState};
pub use context::{ContextMode, ContextPolicy, ContextReason, Rotation, RotationRule, TaskContextLayer, TurnContext};
pub use conversation::{Conversation, ConversationOf};
pub use decay::{MemoryCategory, Relevance};
pub use error_chain::error_chain;
pub use fence::{Fence, Generation};
pub use gate::{Arrival, Gate};
pub use hold::{HoldRunning, HoldScope};
pub use id::{
    AccountId, AgentId, AgentRef, AgentSlug, ArtifactId, BranchId, EventConsumerName, Handle, HoldId, IdError, KeyId,
    MailId, MemoryId, MessageId, NotificationId, PersonaId, PersonaRef, PersonaSlug, PersonaVersionId, QuestionId,
    RecoveryId, ReplayId, SessionId, TaskId, TimerId, ToolPolicyId, TurnId, UserId,
};
pub use identity::{Reachable, Style};
pub use limit::{ArtifactBytes, Bytes, Count, CountOrNone, Days, Depth, Hours, LongMillis, Millis, Seconds};
pub use liveness::{Liveness, RecoveryCause, RecoveryState};
pub use mail::{DeliveryState, Digest, MailTo, MailWhy, MessageType, Party, ReceiptState};
pub use member::{Email, MemberRole, NotAnEmail};
pub use model::{ModelInput, ModelKind, ModelKinds};
pub use next::{Next, NextCode, WaitsOn};
pub use notification::{Deliver, NotificationState, QueueMode};
pub use owner::Owner;
pub use persona::{PersonaFile, PersonaFiles, PersonaText, PersonaVisibility};
pub use question::{Audience, QuestionKind, QuestionState, Verdict};
pub use queue::QueueOp;
pub use replay::{Matched, ReplayHistory, ReplayProfile, ReplaySpec, ReplayState};
pub use reset::{ResetInFlight, ResetQueue, ResetRequest};
pub use session::{CloseReason, Inadmissible, QueueLimits, SessionEvent, SessionKind, SessionPhase, SessionState};
pub use session_key::{SessionAddress, SessionKey, SessionOf, SessionRef, ThreadName};
pub use sign_in::{NotASignInToken, SignInToken};
pub use step::ImpossibleStep;
pub use task::{TITLE_CHARACTERS_MAX, TaskStatus, title_of};
pub use task_context::{ContextNeed, ContextSize, KeptContext};
pub use timer::{TimerKind, TimerState};
pub use timestamp::Timestamp;
pub use tool::{CallId, ToolCallState};
pub use tool_policy::{PolicyScope, PolicyVerdict};
pub use turn::{TurnRef, TurnState, TurnStep};
