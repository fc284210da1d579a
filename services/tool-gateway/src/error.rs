//! Errors that leave a call unfinished. An error for the agent is not here: it is a result
//! ([`crate::call::ToolAnswer`]).

use storage::StorageError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nothing of the call is stored; the same call may be retried.
    #[error("running the call")]
    Storage(#[from] StorageError),
    /// Without a session the call cannot be recorded.
    #[error("the account has no such session")]
    UnknownSession,
    /// The record is not finished. Tools of this service commit only finished calls, so today this is a bug.
    #[error("the recorded call is not finished")]
    Unfinished,
}

impl Error {
    /// Whether the call exceeds a limit of the database.
    pub(crate) fn is_too_much(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_too_much())
    }

    /// Whether a retry of the same call may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_retryable(),
            Self::UnknownSession => false,
            Self::Unfinished => true,
        }
    }
}
