//! A step that no state table allows.

/// The stored state and the code disagree; the change is not written.
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
