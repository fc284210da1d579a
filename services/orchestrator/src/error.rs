//! The error of a handler: a problem for the client, or an internal failure.

use axum::response::{IntoResponse, Response};
use domain::{TaskId, error_chain};
use runtime::http::Problem;
use storage::StorageError;

use crate::again::RolledBack;

/// A failure's chain is logged here, once. The client learns only whether a retry may help.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the request was refused: {}", .0.code())]
    Refused(Problem),
    #[error("the database request failed")]
    Storage(#[from] StorageError),
    #[error("could not generate a key")]
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
            // `again` retries the request, and logs it when every attempt was rolled back.
            Self::Storage(error) if error.is_rollback() => {
                let mut response = Problem::unavailable().into_response();
                let error = error_chain(&error);
                response.extensions_mut().insert(RolledBack(error));
                response
            }
            // The client caused it and is told so; the operator has nothing to do.
            Self::Storage(error) if error.is_statement_timeout() => {
                let error = error_chain(&error);
                tracing::info!(error, "answered 503: statement timeout");
                Problem::unavailable()
                    .detail("the statement took too long; request less, or try again")
                    .into_response()
            }
            Self::Storage(error) if error.is_retryable() => {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "answered 503: database unavailable; /readyz tells when it is back"
                );
                Problem::unavailable().into_response()
            }
            other => {
                let error = error_chain(&other);
                tracing::error!(error, "request failed");
                Problem::internal().into_response()
            }
        }
    }
}

/// The problem of an invalid field.
pub fn invalid_field(field: &str, what: impl std::fmt::Display) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "invalid_field").detail(format!("{field}: {what}"))
}

/// The problem of a request that names an unknown agent.
pub fn unknown_agent(agent: impl std::fmt::Display) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "unknown_agent").detail(format!("the account has no agent {agent}"))
}

/// The problem of a request that names an unknown persona other than in its path, or another person's private one.
pub fn unknown_persona(persona: impl std::fmt::Display) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "unknown_persona").detail(format!("persona {persona} is not there, or is not yours to use"))
}

/// The problem of a request that names an unknown task other than in its path.
pub fn unknown_task(task: &TaskId) -> Problem {
    let status = axum::http::StatusCode::BAD_REQUEST;
    Problem::new(status, "unknown_task").detail(format!("the account has no task {task}"))
}
