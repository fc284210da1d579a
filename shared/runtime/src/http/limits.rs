//! Limits of one server: the request rate of an address, concurrent requests, the duration of a request, the size and
//! pace of its body.

use std::{error::Error, io, iter::successors, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use opentelemetry::context::FutureExt;
use tokio::{sync::Semaphore, time::timeout};
use tower_http::limit::RequestBodyLimitLayer;
use tracing::Instrument;

use super::{
    AccountLimits, Problem,
    address::{Pace, in_pace},
    pace::{self, paced},
};
use crate::settings::HttpSettings;

pub(super) fn layer(routes: Router, settings: &HttpSettings) -> Router {
    let room = Arc::new(Semaphore::new(settings.requests_max.usize()));
    routes
        // axum's own limit is a constant; the layer below is the setting.
        .layer(DefaultBodyLimit::disable())
        .layer(RequestBodyLimitLayer::new(settings.body_bytes_max.usize()))
        .layer(from_fn_with_state(pace::Pace::of(settings), paced))
        .layer(from_fn_with_state(
            (room, settings.request_timeout_ms.duration()),
            if_room,
        ))
        .layer(from_fn_with_state(Arc::new(Pace::new(settings)), in_pace))
        .layer(Extension(AccountLimits::new(settings)))
}

/// Reads the whole body of a request, after the service has authenticated it and reserved room. The size limits are
/// applied before.
pub async fn body(body: Body) -> Result<Bytes, Problem> {
    let read = Bytes::from_request(Request::new(body), &()).await;
    read.map_err(|rejection| {
        let is_late = successors(rejection.source(), |error| (*error).source())
            .filter_map(|error| error.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::TimedOut);
        let (status, code) = match rejection.status() {
            _ if is_late => (StatusCode::REQUEST_TIMEOUT, "timeout"),
            StatusCode::PAYLOAD_TOO_LARGE => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            status => (status, "malformed"),
        };
        Problem::new(status, code).detail(rejection.body_text())
    })
}

/// Refuses at once rather than queueing: a queued client would have less time left when its turn comes.
///
/// The request runs in a task of its own, up to the time limit, also when its client disconnects: its statement goes on
/// in Postgres, so its places among the limits must stay taken. At the time limit the handler is dropped, and storage's
/// pool rolls back its transaction.
async fn if_room(State((room, limit)): State<(Arc<Semaphore>, Duration)>, request: Request, next: Next) -> Response {
    let Ok(place) = room.try_acquire_owned() else {
        super::refused("requests");
        let refusal = Problem::unavailable().detail("too many requests at one time");
        return refusal.into_response();
    };
    let handled = async move {
        let _place = place;
        timeout(limit, next.run(request)).await
    };
    match tokio::spawn(handled.in_current_span().with_current_context()).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout")
            .detail("the request took too long; whether it had an effect is unknown")
            .retry_after_s(1)
            .into_response(),
        // The layer outside answers for a handler that panics.
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The process is stopping.
            Err(_) => Problem::unavailable().into_response(),
        },
    }
}
