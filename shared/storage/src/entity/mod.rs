//! Row types of the tables that the query builder reads or writes, one file each; all other statements are constants.
//! Relations are left out on purpose: a join must include the account, and is written where it is needed.

pub mod accepted_notification;
pub mod dead_letter;
pub mod idempotency;
pub mod instruction_text;
pub mod task;
