//! A step that no table of states knows.

/// Stored state and code disagree: what was to be written is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("impossible step: a {noun} in state {state}, step {step}")]
pub struct ImpossibleStep {
    pub noun: &'static str,
    pub state: &'static str,
    pub step: &'static str,
}

impl ImpossibleStep {
    pub(crate) fn new(noun: &'static str, state: &'static str, step: &'static str) -> ImpossibleStep {
        ImpossibleStep { noun, state, step }
    }
}
