//! Row types, one file a table. For reads and rare writes; hot statements are constants in the services' stores.
//! Relations are left out on purpose: a join goes by the account too, and is written where it is needed.

pub mod accepted_notification;
pub mod account;
pub mod activity;
pub mod agent;
pub mod api_key;
pub mod dead_letter;
pub mod idempotency;
pub mod instruction_text;
pub mod message;
pub mod notification;
pub mod session;
pub mod task;
pub mod task_assignee;
pub mod tool_call;
pub mod turn;
