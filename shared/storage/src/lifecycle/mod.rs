//! The few writes that span two owners in one transaction, each a single function. Everything else is written by the
//! one service that owns the table (ARCHITECTURE.md, "Who owns what").
//!
//! | function | spans | because |
//! |---|---|---|
//! | [`task_status_set`] | task, its sessions, their queues | `done` closes in the same transaction, by any service (S3) |
//! | [`question`] | questions, the queue of whoever asked | an answer enters its queue in the transaction that counts it |
//! | [`plan`] | task, its question, its sessions | an agent's plan and its answer move the task |
//! | [`task_create`], [`tasks_create`] | task, activity | the resolver creates unknown tasks, the API creates the rest |
//! | [`task_context_write`] | task's context, activity | people write it by API, agents by tool |
//! | [`messages_post`], [`replies_post`] | thread, activity | people post by API, agents by tool, delivery's replies by event |
//! | [`handover`](fn@handover) | task, its assignees, two agents' sessions and queues, timers | what waits goes with the task |
//! | [`task_block`] | task, an agent's session and queue | who has to move a blocked task on is told at once |
//! | [`timers_fire`] | timers, queues, questions | a timer is marked in the transaction of what it is for |
//! | [`artifact_store`](mod@artifact_store) | a task's file, its content, the account's room | people upload, agents upload and have files made |
//! | [`child_mail`](mod@child_mail) | a task's status, mail to its board's orchestrator | whoever gave work away hears what becomes of it, once a move |
//! | [`mail_send`] | mail, by any service | people write by API, agents by tool, delivery's replies answer |
//! | [`mail_read`](mod@mail_read) | mail that waits, its item, its session | a person reads in the agent's place: the item ends, and the mail is read |
//! | [`announce`](mod@announce) | what people are told by e-mail | it is written with the mail, by whoever writes that |
//! | `people_told` | a question or a stuck task, mail to people | who may answer hears of it, and that it has ended |
//! | [`mail_settle`](mod@mail_settle) | mail whose item has ended, mail to its sender | what was not taken goes back once |
//! | [`memory`] | what orchestrators remember | people read and write it by API, orchestrators by tool |
//! | [`child_open`](fn@child_open) | a task, its agent, the agent's session | an orchestrator gives work away in one call |
//! | [`orchestrator_close`] | a person's orchestrator, its queue | nobody is left whom it works for |
//! | [`dependencies`](mod@dependencies) | a task, those that wait for it, their agents' queues | a blocker that is done frees in the transaction of its move |
//! | [`board_add`](fn@board_add) | a task, its place on a board, its worker's queue | people add by API, orchestrators by tool |
//! | [`agent_remove`] | agent, its sessions, their queues | removing an agent closes its sessions (S11) |

mod agent_remove;
pub mod announce;
pub mod artifact_store;
mod blocked;
mod board_add;
pub mod child_mail;
mod child_open;
pub mod dependencies;
mod handover;
pub mod mail_read;
pub mod mail_send;
pub mod mail_settle;
pub mod memory;
mod messages_post;
mod orchestrator_close;
mod people_told;
pub mod plan;
pub mod question;
pub mod recovery;
mod replies_post;
pub mod stage;
pub mod task_context;
mod task_create;
mod task_status;
pub mod timers_fire;

pub use crate::activity::activity_insert;
pub use agent_remove::{AgentRemoval, PLANS_OF_AGENT, agent_remove};
pub use blocked::{BLOCK_COVERED, BlockedOn, NotBlocked, block_covered, task_block};
pub use board_add::{BOARD_COUNT, NewOnBoard, board_add};
pub use child_open::{
    CHILD_FACTS, ChildFacts, ChildPersona, ChildSession, NewChild, OpenedChild, child_facts, child_open,
};
pub use handover::{HandedOver, Handover, NotHandedOver, handover};
pub use messages_post::{MESSAGES_INSERT, NewMessage, message_posted, messages_post};
pub use orchestrator_close::{guests_close, orchestrator_close};
pub use people_told::{HEARERS, QUESTIONS_READ};
pub use replies_post::{Reply, replies_post, reply_message_id};
pub use task_context::{
    ContextOfTask, TaskContext, task_context_find, task_context_lock, task_context_version, task_context_write,
};
pub use task_create::{NewTask, task_create, tasks_create};
pub use task_status::{TASKS_LOCK, TaskMove, TaskMoved, TaskNotMoved, Written, close_reason, task_status_set};
