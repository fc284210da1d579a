//! A turn's states and what may follow what. Delivery acts on the table; the closing of a task reads it.

use crate::word::words;

words! {
    TurnState {
        /// Written down with its input; nothing sent yet, or waiting for another attempt.
        Started = "started",
        /// A provider call may be in flight.
        Calling = "calling",
        /// The provider asked for tools; no call in flight.
        AwaitingTools = "awaiting_tools",
        Finished = "finished",
        Failed = "failed",
        Aborted = "aborted",
        /// Whether the agent ran cannot be known from here.
        Unknown = "unknown",
    }
}

/// What happens to a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnStep {
    /// A call is about to be sent: written before the first byte leaves.
    Send,
    /// The provider asked for tools.
    AskTools,
    /// The provider answered without asking for anything.
    Reply,
    /// The call failed and another attempt is due.
    Retry,
    /// The call failed for good.
    GiveUp,
    /// Somebody stopped it.
    Abort,
    /// Sent, and nobody can say whether it ran.
    Lose,
}

impl TurnStep {
    pub const ALL: [TurnStep; 7] = [
        TurnStep::Send,
        TurnStep::AskTools,
        TurnStep::Reply,
        TurnStep::Retry,
        TurnStep::GiveUp,
        TurnStep::Abort,
        TurnStep::Lose,
    ];
}

impl TurnState {
    pub fn is_over(self) -> bool {
        match self {
            Self::Started | Self::Calling | Self::AwaitingTools => false,
            Self::Finished | Self::Failed | Self::Aborted | Self::Unknown => true,
        }
    }

    /// The transition table. `None` is a step that a stale worker tries, and is refused by the guarded write.
    pub fn after(self, step: TurnStep) -> Option<TurnState> {
        use TurnState::*;
        match (self, step) {
            (Started | AwaitingTools, TurnStep::Send) => Some(Calling),
            (Calling, TurnStep::Send) => Some(Calling), // a new attempt after a lost one
            (Calling, TurnStep::AskTools) => Some(AwaitingTools),
            (Calling, TurnStep::Reply) => Some(Finished),
            (Calling, TurnStep::Retry) => Some(Started),
            (Started | Calling | AwaitingTools, TurnStep::GiveUp) => Some(Failed),
            (Started | Calling | AwaitingTools, TurnStep::Abort) => Some(Aborted),
            (Calling, TurnStep::Lose) => Some(Unknown),
            (Started, TurnStep::AskTools | TurnStep::Reply | TurnStep::Retry | TurnStep::Lose)
            | (AwaitingTools, TurnStep::AskTools | TurnStep::Reply | TurnStep::Retry | TurnStep::Lose)
            | (Finished | Failed | Aborted | Unknown, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_an_end() {
        for state in TurnState::ALL.iter().filter(|state| state.is_over()) {
            for step in TurnStep::ALL {
                assert_eq!(state.after(step), None, "{state} {step:?}");
            }
        }
    }

    #[test]
    fn a_turn_with_tools_runs_to_its_reply() {
        let mut state = TurnState::Started;
        for step in [TurnStep::Send, TurnStep::AskTools, TurnStep::Send, TurnStep::Reply] {
            state = state.after(step).unwrap();
        }
        assert_eq!(state, TurnState::Finished);
    }
}
