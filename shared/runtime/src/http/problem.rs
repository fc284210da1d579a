//! Errors as RFC 9457 problems. Programs read `code`, people read `detail`; neither ever holds an inner error's text.

use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};

const CONTENT_TYPE: &str = "application/problem+json";

/// A longer path is not repeated in a detail.
const PATH_BYTES_MAX: usize = 256;

/// One problem, made by a handler; [`super::edge`] adds the request's id.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    /// One word for programs: `unknown_agent`.
    code: &'static str,
    /// Boxed: `Result`s carry problems, and most requests have none.
    more: Box<More>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct More {
    detail: Option<String>,
    instance: Option<String>,
    retry_after_s: Option<u32>,
    extensions: Map<String, Value>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str) -> Problem {
        Problem {
            status,
            code,
            more: Box::default(),
        }
    }

    /// The error of this request and its remedy. Shown to the client as it is.
    pub fn detail(mut self, detail: impl Into<String>) -> Problem {
        self.more.detail = Some(detail.into());
        self
    }

    /// A further member of the answer, beside `code`.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.extensions.insert(name.to_owned(), value.into());
        self
    }

    pub fn retry_after_s(mut self, seconds: u32) -> Problem {
        self.more.retry_after_s = Some(seconds);
        self
    }

    pub(super) fn instance(mut self, instance: String) -> Problem {
        self.more.instance = Some(instance);
        self
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid").detail(detail)
    }

    pub fn unauthorized() -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized").detail("send Authorization: Bearer with a valid key")
    }

    pub fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden").detail(detail)
    }

    /// For a missing object and for another account's object alike, so that a client cannot tell them apart.
    pub fn not_found() -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found")
    }

    /// Says what was not found, where the handler does not. A path says nothing that its client does not know.
    pub(super) fn names(self, path: &str) -> Problem {
        if self.code != "not_found" || self.more.detail.is_some() {
            return self;
        }
        let path = if path.len() > PATH_BYTES_MAX { "this path" } else { path };
        self.detail(format!("nothing is at {path}, or this token may not read it"))
    }

    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code).detail(detail)
    }

    /// The request is valid and cannot be carried out.
    pub fn unprocessable(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code).detail(detail)
    }

    /// Try again later: a dependency is unavailable, or the service is overloaded.
    pub fn unavailable() -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable").retry_after_s(1)
    }

    /// Too many requests of one client. It may retry after `wait`, which is sent in whole seconds, at least one.
    pub fn too_many_requests(wait: Duration) -> Problem {
        let seconds = wait.as_millis().div_ceil(1_000).max(1);
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests")
            .retry_after_s(u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    /// A server error. The log has its cause under the request's id; the client does not see it.
    pub fn internal() -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal")
    }

    /// The problem for a status that came without one.
    pub(super) fn of_status(status: StatusCode) -> Problem {
        let code = match status {
            StatusCode::BAD_REQUEST => "invalid",
            StatusCode::UNAUTHORIZED => return Problem::unauthorized(),
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
            StatusCode::UNPROCESSABLE_ENTITY => "unprocessable",
            StatusCode::TOO_MANY_REQUESTS => "too_many_requests",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            other if other.is_client_error() => "invalid",
            _ => "internal",
        };
        Problem::new(status, code)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    problem: api::Problem,
    #[serde(flatten)]
    more: &'a Map<String, Value>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            problem: api::Problem {
                r#type: format!("urn:signalbox:problem:{}", self.code),
                title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
                status: self.status.as_u16(),
                code: self.code.to_owned(),
                detail: self.more.detail.clone(),
                instance: self.more.instance.clone(),
            },
            more: &self.more.extensions,
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.more.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}
