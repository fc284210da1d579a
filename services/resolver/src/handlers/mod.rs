//! Messages that the resolver consumes.
//!
//! | subject | file |
//! |---|---|
//! | `{root}.notification.{account}.{task}`, stored as `{root}.partition.{p}.{account}.{task}` | `notification.rs` |

pub mod notification;
