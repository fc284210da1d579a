//! What a handler ends with when it does not answer: a problem for the client, or a failure of ours.

use axum::response::{IntoResponse, Response};
use domain::{TaskId, error_chain};
use runtime::http::Problem;
use storage::StorageError;

use crate::again::RolledBack;

/// A failure's chain goes to the log, once, here; the client learns whether trying again may help and nothing else.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the request was refused: {}", .0.code())]
    Refused(Problem),
    #[error("the database did not do its part")]
    Storage(#[from] StorageError),
    #[error("no randomness for a key")]
    Random(#[source] getrandom::Error),
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(problem) => problem.into_response(),
            // Run again by `again`, which says so when that did not help.
            Self::Storage(error) if error.is_rollback() => {
                let mut response = Problem::unavailable().into_response();
                let error = error_chain(&error);
                response.extensions_mut().insert(RolledBack(error));
                response
            }
            // The client caused it and is told so: an operator has nothing to do.
            Self::Storage(error) if error.is_statement_timeout() => {
                let error = error_chain(&error);
                tracing::info!(error, "answered 503: a statement took longer than it may");
                Problem::unavailable()
                    .detail("the database took too long for this; ask for less, or try again")
                    .into_response()
            }
            Self::Storage(error) if error.is_retryable() => {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "answered 503: the database did not take the request; /readyz says whether it is back"
                );
                Problem::unavailable().into_response()
            }
            other => {
                let error = error_chain(&other);
                tracing::error!(error, "a request failed");
                Problem::internal().into_response()
            }
        }
    }
}

/// A field of the request is not what it must be.
pub fn invalid_field(field: &str, what: impl std::fmt::Display) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "invalid_field").detail(format!("{field}: {what}"))
}

/// The request names an agent that the account does not have.
pub fn unknown_agent(agent: impl std::fmt::Display) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "unknown_agent").detail(format!("the account has no agent {agent}"))
}

/// The request names a task, other than in its path, that the account does not have.
pub fn unknown_task(task: &TaskId) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "unknown_task").detail(format!("the account has no task {task}"))
}
