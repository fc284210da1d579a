//! Why a call could not be brought to an end. What went wrong for the agent is not here: that is an end, and a result
//! ([`crate::call::ToolAnswer`]).

use storage::StorageError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nothing of the call is in the database; the same call may be tried again.
    #[error("the call could not be run")]
    Storage(#[from] StorageError),
    /// Without a session there is nothing to record the call under.
    #[error("there is no such session in the account")]
    UnknownSession,
    /// Somebody else is running it. Tools of this service commit only what is over, so today this means a bug.
    #[error("the call is recorded and not over")]
    Unfinished,
}

impl Error {
    /// Whether it is the call that the database finds too much.
    pub(crate) fn is_too_much(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_too_much())
    }

    /// Whether the same call may go through later.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_retryable(),
            Self::UnknownSession => false,
            Self::Unfinished => true,
        }
    }
}
