//! The home of sessions, their queues and their turns. Every statement that writes `session`, `notification` (after its
//! acceptance) or `turn` is here, a file a verb; `tests/it/architecture.rs` finds any elsewhere. The resolver alone decides to
//! which session an item goes (ADR 50).
//!
//! | verb | does | called by |
//! |---|---|---|
//! | [`sessions_lock`] | locks sessions, by id or by conversation | every other verb's caller |
//! | [`sessions_open`] | opens generations; the unique indexes let one of two win | resolver |
//! | [`session_ensure`](mod@session_ensure) | opens a conversation's session without an item | orchestrator |
//! | [`item_enter`] | appends one item to the open session of a conversation, or sends it to the resolver | callers that know the conversation |
//! | [`items_append`] | writes items, counts the queued ones, queues failed and refused ones again | resolver, [`item_enter`](mod@item_enter) |
//! | [`items_append_known`] | the same in one statement, for sessions that the caller knows from before | resolver |
//! | [`arrivals`] | what new items do besides waiting: steers stop turns, items open gates | resolver, [`item_enter`](mod@item_enter) |
//! | [`items_join`](mod@items_join) | gives waiting items to the turn in progress | delivery |
//! | [`mail_take`](mod@mail_take) | gives mail that waits to the turn in progress, or ends its items for a person who reads it | tool-gateway, orchestrator |
//! | [`items_expire`](mod@items_expire) | fails items that have waited too long | delivery |
//! | [`items_refuse`] | replaces and removes refused items | resolver |
//! | [`turns_begin`] | takes items, writes their turns, takes the lease | delivery |
//! | [`turns_resume`] | takes the lease of a turn that waits; prolongs the wait, for tools or for its provider | delivery |
//! | [`turns_record`] | outcome, items, lease | delivery |
//! | [`sessions_park`] | parks sessions behind a gate, and unparks them | delivery, [`arrivals`], orchestrator |
//! | [`turn_stop`] | asks the turn in progress to stop | [`arrivals`], orchestrator |
//! | [`queue_edit`](mod@queue_edit) | changes, withdraws and moves waiting items on request | orchestrator |
//! | [`session_handover`](mod@session_handover) | moves an agent's part of a task to another agent's session | `handover` |
//! | [`branch_spawn`](mod@branch_spawn) | makes branches: their rows, their sessions, their first items | tool-gateway |
//! | [`branch_end`](mod@branch_end) | ends branches, with all below them, and folds their results into their parents' queues | whoever ends a branch, or closes a session |
//! | [`replay_begin`](mod@replay_begin) | makes a replay with its session and its item; closes sessions of replays that have ended | orchestrator; delivery |
//! | [`session_succeed`](mod@session_succeed) | closes one generation and opens the next with its queue: rotation, reset | delivery, orchestrator |
//! | [`session_reset`](mod@session_reset) | ends a session's generation on request, or asks its turn to end first | orchestrator |
//! | [`session_release`](mod@session_release) | takes a lease from its holder | orchestrator |
//! | [`sessions_close`] | closes sessions and gives each waiting item its verdict | `task_status_set`, `agent_remove` |
//! | [`sessions_remove`] | retention (S12) | resolver |
//!
//! [`item_content`] is what an item says, as a message; [`items_alike`](mod@items_alike) tells which items share a turn.
//!
//! Lock order: tool call, then task or agent, then sessions by account and id, then questions, branches, timers, then items. A caller that holds one session and
//! needs another begins again with both.

pub mod arrivals;
pub mod branch_end;
pub mod branch_spawn;
pub mod item_content;
pub mod item_enter;
pub mod items_alike;
pub mod items_append;
pub mod items_append_known;
pub mod items_expire;
pub mod items_join;
pub mod items_refuse;
pub mod mail_take;
pub mod queue_edit;
pub mod replay_begin;
pub mod session_ensure;
pub mod session_handover;
pub mod session_release;
pub mod session_reset;
pub mod session_succeed;
pub mod sessions_close;
pub mod sessions_lock;
pub mod sessions_open;
pub mod sessions_park;
pub mod sessions_remove;
pub mod turn_stop;
pub mod turns_begin;
pub mod turns_record;
pub mod turns_resume;
mod verdict;

use domain::{AccountId, SessionId, TurnId};
pub use verdict::{Closing, Judged, Verdict, Waiting, judge, verdict};

/// A session, account first.
pub type SessionName = (AccountId, SessionId);

/// A turn, account first. Ids are unique within an account only.
pub type TurnName = (AccountId, TurnId);
