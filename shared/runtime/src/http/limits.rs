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
use tokio::sync::Semaphore;
use tower_http::limit::RequestBodyLimitLayer;

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
        .layer(from_fn_with_state(settings.request_timeout_ms.duration(), in_time))
        .layer(from_fn_with_state(room, if_room))
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
async fn if_room(State(room): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match room.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => {
            super::refused("requests");
            Problem::unavailable()
                .detail("too many requests at one time")
                .into_response()
        }
    }
}

/// A handler may be dropped here, as when its client disconnects; storage's pool rolls back its transaction.
async fn in_time(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout")
            .detail("the request took too long; whether it had an effect is unknown")
            .retry_after_s(1)
            .into_response(),
    }
}
