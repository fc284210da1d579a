//! Requests to end a turn before its agent has finished, and what follows.

use crate::{branch::BRANCH_ENDED, string_enum::string_enum};

string_enum! {
    /// Why a turn was asked to stop: also the error class of the stopped turn.
    StopKind else Stopped {
        /// A person stopped it.
        Stopped = "stopped",
        /// An item with queue mode `steer` takes its place.
        Steered = "steered",
        /// A hold ends the turns that it covers.
        Paused = "paused",
        /// Its task was cancelled.
        Cancelled = "cancelled",
        /// Another agent has its task.
        HandedOver = "handed_over",
        /// A person resets its session.
        Reset = "reset",
        /// The branch that it works for has ended.
        BranchEnded = "branch_ended",
    }
}

/// The reason on items that were cancelled because their task closed.
pub const TASK_CLOSED: &str = "task closed";
/// The reason on items that were cancelled because another agent has their task.
pub const HANDED_OVER: &str = "handed over";
/// The reason on items that were cancelled because a person reset their session.
pub const SESSION_RESET: &str = "session reset";

string_enum! {
    /// What happens to the items that wait behind a stopped turn.
    StopThen else Hold {
        /// They wait until a person resumes the session, or sends something new.
        Hold = "hold",
        /// They go on at once.
        Continue = "continue",
    }
}

impl StopKind {
    /// The error of a stopped turn, and the reason of its cancelled items. `by` is the name of who asked.
    pub fn because(self, by: &str) -> String {
        match self {
            StopKind::Stopped | StopKind::Steered | StopKind::Paused => format!("{self}: by {by}"),
            StopKind::Cancelled => TASK_CLOSED.to_owned(),
            StopKind::HandedOver => HANDED_OVER.to_owned(),
            StopKind::Reset => SESSION_RESET.to_owned(),
            StopKind::BranchEnded => BRANCH_ENDED.to_owned(),
        }
    }
}
