//! The messages that this service consumes.
//!
//! | subject | handler |
//! |---|---|
//! | `{root}.tool.requested.{account}.{task}` | [`tool_requested`] |
//! | `{root}.tool.approved.{account}.{task}` | [`tool_approved`] |

mod tool_approved;
mod tool_requested;

pub(crate) use tool_approved::ToolApprovedHandler;
pub(crate) use tool_requested::ToolRequestedHandler;
pub use tool_requested::{asked, order_delay};
