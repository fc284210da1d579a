//! The messages that this service consumes.
//!
//! | subject | handler |
//! |---|---|
//! | `{root}.tool.requested.{account}.{task}` | [`tool_requested`] |

mod tool_requested;

pub(crate) use tool_requested::ToolRequestedHandler;
pub use tool_requested::{asked, order_delay};
