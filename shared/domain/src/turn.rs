//! A turn's states and transitions: [`TurnState::after`]. Delivery writes the states of the table; the simulation and
//! `schemas/machines/turn.md` use the same table.

use crate::{
    fence::{Fence, Generation},
    id::{AccountId, SessionId, TaskId, TurnId},
    step::ImpossibleStep,
    string_enum::string_enum,
};

/// A turn with the ids that messages and rows carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TurnRef {
    pub account: AccountId,
    /// As its client spelled it.
    pub task: Option<TaskId>,
    pub session: SessionId,
    /// The session's key.
    pub key: String,
    pub generation: Generation,
    pub id: TurnId,
    /// The fence of the claim under which it runs.
    pub fence: Fence,
}

string_enum! {
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

string_enum! {
    /// What happens to a turn.
    TurnStep {
        /// A call is about to be sent: written before the first byte leaves.
        Send = "send",
        /// Whether the call ran is checked again after a while.
        LookAgain = "look_again",
        /// The provider asked for tools.
        AskTools = "ask_tools",
        /// The provider answered without asking for anything.
        Reply = "reply",
        /// A tool's result ends it: no provider call follows.
        EndByTool = "end_by_tool",
        /// The call failed and another attempt is due.
        Retry = "retry",
        /// The call failed for good.
        GiveUp = "give_up",
        /// It was stopped.
        Abort = "abort",
        /// Sent, and its result is unknown.
        Lose = "lose",
    }
}

impl TurnState {
    pub fn is_over(self) -> bool {
        match self {
            Self::Started | Self::Calling | Self::AwaitingTools => false,
            Self::Finished | Self::Failed | Self::Aborted | Self::Unknown => true,
        }
    }

    /// The transition table.
    pub fn after(self, step: TurnStep) -> Result<TurnState, ImpossibleStep> {
        use TurnState::{Aborted, AwaitingTools, Calling, Failed, Finished, Started, Unknown};
        use TurnStep::{Abort, AskTools, EndByTool, GiveUp, LookAgain, Lose, Reply, Retry, Send};
        match (self, step) {
            // From calling: a new attempt after a lost one.
            (Started | AwaitingTools | Calling, Send) => Ok(Calling),
            (Calling, LookAgain) => Ok(Calling),
            (Calling, AskTools) => Ok(AwaitingTools),
            (Calling, Reply) => Ok(Finished),
            (AwaitingTools, EndByTool) => Ok(Finished),
            (Calling, Retry) => Ok(Started),
            (Calling, Lose) => Ok(Unknown),
            (Started | Calling | AwaitingTools, GiveUp) => Ok(Failed),
            (Started | Calling | AwaitingTools, Abort) => Ok(Aborted),
            (Started | AwaitingTools, LookAgain | AskTools | Reply | Retry | Lose)
            | (Started | Calling, EndByTool)
            | (
                Finished | Failed | Aborted | Unknown,
                Send | LookAgain | AskTools | Reply | EndByTool | Retry | GiveUp | Abort | Lose,
            ) => Err(ImpossibleStep::new("turn", self.as_str(), step.as_str())),
        }
    }
}

impl TurnStep {
    /// The states in which this step is possible.
    pub fn sources(self) -> Vec<TurnState> {
        let states = TurnState::ALL.iter().copied();
        states.filter(|state| state.after(self).is_ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_an_end() {
        for state in TurnState::ALL.iter().filter(|state| state.is_over()) {
            for &step in TurnStep::ALL {
                assert!(state.after(step).is_err(), "{state} {step}");
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

    #[test]
    fn a_step_names_the_states_in_which_it_is_possible() {
        assert_eq!(TurnStep::Reply.sources(), [TurnState::Calling]);
        assert_eq!(TurnStep::EndByTool.sources(), [TurnState::AwaitingTools]);
        assert_eq!(
            TurnStep::Abort.sources(),
            [TurnState::Started, TurnState::Calling, TurnState::AwaitingTools]
        );
    }
}
