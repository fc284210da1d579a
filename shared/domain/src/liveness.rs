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

impl RecoveryCause {
    /// For a person.
    pub fn told(self) -> &'static str {
        match self {
            Self::Stranded => "an agent has the task, and nothing moves it on",
            Self::ReviewUndecided => "a reviewer's turn ended without a verdict",
            Self::GivenUp => "a notification failed for good",
            Self::TurnLost => "the outcome of a turn stays unknown",
            Self::Expired => "a notification waited too long",
            Self::NoProgress => "an agent's turns went round without progress",
        }
    }

    /// Whether an item to the agent is tried before a person is asked.
    pub fn is_tried(self, liveness: Liveness) -> bool {
        match self {
            Self::Stranded => liveness == Liveness::Recover,
            Self::ReviewUndecided => true,
            Self::GivenUp | Self::TurnLost | Self::Expired | Self::NoProgress => false,
        }
    }
}

string_enum! {
    /// What an account wants done about work that does not move on.
    Liveness {
        /// A person is told.
        Watch = "watch",
        /// The agent is told once, then a person.
        Recover = "recover",
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
