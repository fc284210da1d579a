//! Liveness: what is done about work that does not move on.

use crate::string_enum::string_enum;

string_enum! {
    /// Why a recovery was begun.
    RecoveryCause {
        /// An agent has a task, and nothing moves it on.
        Stranded = "stranded",
        /// A reviewer's turn ended without a verdict.
        ReviewUndecided = "review_undecided",
        /// A notification failed for good.
        GivenUp = "given_up",
        /// The outcome of a turn stays unknown.
        TurnLost = "turn_lost",
        /// An item waited too long.
        Expired = "expired",
        /// Turns went round without progress.
        NoProgress = "no_progress",
    }
}

string_enum! {
    RecoveryState {
        /// Signalbox does something about it.
        Open = "open",
        /// A person is asked to.
        Person = "person",
        Closed = "closed",
    }
}
