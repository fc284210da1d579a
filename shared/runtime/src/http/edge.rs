//! The edge of one request: continues the caller's trace, assigns a request id, turns panics and errors into problems,
//! and measures the response. Bodies, queries and header values are not logged.

use std::{panic::AssertUnwindSafe, sync::LazyLock, time::Instant};

use axum::{
    Router,
    body::to_bytes,
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use contracts::{
    TraceContext,
    header::{TRACEPARENT, TRACESTATE},
};
use futures::FutureExt;
use messaging::trace;
use opentelemetry::{Context, KeyValue, context::FutureExt as _, global, metrics::Histogram};
use tracing::{Instrument, Span, field::Empty, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;

use super::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 64;
/// Longer refusals of axum are truncated before they become a detail.
const REFUSAL_BYTES_MAX: usize = 1024;

static DURATION: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    global::meter("runtime")
        .f64_histogram("http.server.request.duration")
        .with_unit("s")
        .with_description("From the end of a request's headers to the beginning of its answer")
        .with_boundaries(vec![
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
        ])
        .build()
});

pub(super) fn layer(routes: Router) -> Router {
    routes.layer(from_fn(edge))
}

async fn edge(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    // The route's pattern: a path holds ids, and a metric must not have one series for each id.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let caller = caller(request.headers());
    let span = request_span(&request, &route, &id, &caller);

    // State that a handler shares is in the database, and a panic's transaction is rolled back. The caller's context
    // wraps the span's: if this process records no spans, the caller's context is propagated.
    let answering = next.run(request).instrument(span.clone()).with_context(caller);
    let answer = AssertUnwindSafe(answering).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| Problem::internal().into_response());
    let mut response = as_problem(answer, &id, uri.path()).await;

    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
        span.in_scope(|| warn!(method = method_label(&method), route, status = status.as_u16(), request_id = %id, "request failed"));
    }
    DURATION.record(
        begun.elapsed().as_secs_f64(),
        &[
            KeyValue::new("http.request.method", method_label(&method)),
            KeyValue::new("http.route", route),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        ],
    );
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// A client may invent methods; each would be a series of its own.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        _ => "_OTHER",
    }
}

/// The trace context of the request; empty when its headers have none or an invalid one.
fn caller(headers: &HeaderMap) -> Context {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    trace::context_of(&TraceContext {
        traceparent: text(TRACEPARENT),
        tracestate: text(TRACESTATE),
    })
}

fn request_span(request: &Request, route: &str, id: &str, caller: &Context) -> Span {
    let span = info_span!(
        "http",
        otel.name = format!("{} {route}", method_label(request.method())),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method_label(request.method()),
        http.route = route,
        http.response.status_code = Empty,
        request_id = id,
    );
    // `set_parent` fails only when traces are off, and then there is no span to attach.
    let _ = span.set_parent(caller.clone());
    span
}

/// The caller's id, if it is safe in a log line; else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let plain = |id: &&str| {
        !id.is_empty()
            && id.len() <= REQUEST_ID_BYTES_MAX
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    headers
        .get(REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(plain)
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// Adds the request id to every problem, and turns the plain-text refusals of axum and tower into problems.
async fn as_problem(mut response: Response, id: &str, path: &str) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let instance = format!("urn:signalbox:request:{id}");
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let problem = problem.names(path).instance(instance);
        return with_headers_of(response.headers(), problem.into_response());
    }
    let plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !plain {
        return response;
    }
    let (parts, body) = response.into_parts();
    let mut problem = Problem::of_status(status).instance(instance);
    // The text of a refusal is for the client. The text of a server error is not.
    if status.is_client_error()
        && status != StatusCode::UNAUTHORIZED
        && let Ok(text) = to_bytes(body, REFUSAL_BYTES_MAX).await
        && let Ok(text) = std::str::from_utf8(&text)
        && !text.is_empty()
    {
        problem = problem.detail(text);
    }
    with_headers_of(&parts.headers, problem.names(path).into_response())
}

/// Keeps the headers of a handler or of axum, such as `Allow`, except those that described the old body.
fn with_headers_of(old: &HeaderMap, mut response: Response) -> Response {
    for (name, value) in old {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    response
}
