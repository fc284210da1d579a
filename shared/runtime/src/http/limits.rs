//! Limits of one server: the request rate of an address, concurrent requests, the duration of a request, the size and
//! pace of its body.

use std::{
    collections::HashMap,
    convert::Infallible,
    error::Error,
    io,
    iter::successors,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, MatchedPath, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use opentelemetry::context::FutureExt as _;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::limit::RequestBodyLimitLayer;
use tracing::Instrument;

use super::{
    AccountLimits, Problem,
    address::{Pace, in_pace},
    pace::{self, paced},
};
use crate::{Shutdown, settings::HttpSettings};

/// The sizes of bodies at paths with a size of their own, by their patterns.
#[derive(Clone, Debug, Default)]
pub(super) struct LargeBodies(pub HashMap<&'static str, usize>);

pub(super) fn layer(routes: Router, large: LargeBodies, settings: &HttpSettings, shutdown: Shutdown) -> Router {
    let room = Arc::new(Semaphore::new(settings.requests_max.usize()));
    routes
        // axum's own limit is a constant; the layer below is the setting.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(
            Arc::new((settings.body_bytes_max.usize(), large)),
            sized,
        ))
        .layer(from_fn_with_state(pace::Pace::of(settings), paced))
        .layer(from_fn_with_state(
            (room, settings.request_timeout_ms.duration(), shutdown),
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

async fn sized(State(limits): State<Arc<(usize, LargeBodies)>>, request: Request, next: Next) -> Response {
    let (body_bytes_max, large) = &*limits;
    let path = request.extensions().get::<MatchedPath>();
    let own = path.and_then(|path| large.0.get(path.as_str()));
    let limit = RequestBodyLimitLayer::new(*own.unwrap_or(body_bytes_max));
    let next = service_fn(move |request: axum::http::Request<_>| {
        let next = next.clone();
        async move { Ok::<_, Infallible>(next.run(request.map(Body::new)).await) }
    });
    match limit.layer(next).oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

/// Refuses at once rather than queueing: a queued client would have less time left when its turn comes.
///
/// The request runs in a task of its own, up to the time limit, also when its client disconnects: its statement goes on
/// in Postgres, so its places among the limits must stay taken. At the time limit the handler is dropped, and storage's
/// pool rolls back its transaction. The process stops after its requests.
async fn if_room(
    State((room, limit, shutdown)): State<(Arc<Semaphore>, Duration, Shutdown)>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(place) = room.try_acquire_owned() else {
        super::refused("requests");
        let refusal = Problem::unavailable().detail("too many requests at one time");
        return refusal.into_response();
    };
    let (answer, answered) = oneshot::channel();
    let handled = async move {
        let _place = place;
        let handled = AssertUnwindSafe(timeout(limit, next.run(request))).catch_unwind().await;
        // An error means that the client has disconnected.
        let _ = answer.send(handled);
    };
    shutdown.spawn_once("request", handled.in_current_span().with_current_context());
    match answered.await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(_))) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout")
            .detail("the request took too long; whether it had an effect is unknown")
            .retry_after_s(1)
            .into_response(),
        // The layer outside answers for a handler that panics.
        Ok(Err(panic)) => resume_unwind(panic),
        // The process is stopping.
        Err(_) => Problem::unavailable().into_response(),
    }
}
