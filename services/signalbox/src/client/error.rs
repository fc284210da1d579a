//! Errors of API calls, in words for the person at the terminal.

use reqwest::StatusCode;

use crate::text::one_line;

const DETAIL_CHARS_MAX: usize = 300;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("Signalbox at {origin} does not answer: is `signalbox up` running, or is --url wrong?")]
    NoAnswer { origin: String, source: reqwest::Error },
    #[error("{what}: the connection closed before the answer was complete")]
    Broken { what: String, source: reqwest::Error },
    #[error("{what}: the answer does not match the API")]
    Unreadable { what: String, source: serde_json::Error },
    #[error("{}", refusal(what, *status, code, detail))]
    Refused {
        what: String,
        status: StatusCode,
        code: String,
        detail: String,
    },
}

impl ApiError {
    /// 404 means "missing" or "no access". Where absence is a valid answer, it is not an error.
    pub(crate) fn not_found_as_none<T>(result: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(ApiError::Refused { status, .. }) if status == StatusCode::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The code of a refusal.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            ApiError::Refused { code, .. } => Some(code),
            ApiError::NoAnswer { .. } | ApiError::Broken { .. } | ApiError::Unreadable { .. } => None,
        }
    }

    /// Whether a retry may help: no answer came, or the server reported its own failure.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            ApiError::NoAnswer { .. } | ApiError::Broken { .. } => true,
            ApiError::Unreadable { .. } => false,
            ApiError::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

fn refusal(what: &str, status: StatusCode, code: &str, detail: &str) -> String {
    let mut message = format!("{what} was refused: {status}");
    if !code.is_empty() {
        message += &format!(" ({})", one_line(code, DETAIL_CHARS_MAX));
    }
    if !detail.is_empty() {
        message += &format!(": {}", one_line(detail, DETAIL_CHARS_MAX));
    }
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; is the token right (--token, SIGNALBOX_TOKEN)?",
        StatusCode::NOT_FOUND if detail.is_empty() => "; not found, or the token has no access",
        _ => "",
    };
    message + hint
}
