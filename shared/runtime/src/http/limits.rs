//! Limits of one server: the request rate of an address, concurrent requests, the duration of a request, the size and
//! pace of its body.

use std::{
    collections::HashMap,
    error::Error,
    io,
    iter::successors,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{
    BoxError, Extension, Router,
    body::{Body, Bytes, to_bytes},
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    http::{StatusCode, header::CONTENT_LENGTH},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use domain::error_chain;
use futures::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use opentelemetry::context::FutureExt as _;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};
use tracing::Instrument;

use super::{
    AccountLimits, Problem,
    address::{Pace, in_pace},
    pace::{self, paced},
};
use crate::{Shutdown, settings::HttpSettings};

/// The size that a body may have, and the setting that says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub bytes_max: usize,
    pub setting: &'static str,
}

/// The sizes of bodies at paths with a size of their own, by their patterns.
#[derive(Clone, Debug, Default)]
pub(super) struct LargeBodies(pub HashMap<&'static str, Size>);

#[derive(Debug, thiserror::Error)]
#[error("the body is too long; at most {} bytes are taken ({})", .0.bytes_max, .0.setting)]
struct TooLong(Size);

impl Size {
    /// The error of reading a body that is limited to this size.
    fn named(self, error: BoxError) -> BoxError {
        match error.is::<LengthLimitError>() {
            true => TooLong(self).into(),
            false => error,
        }
    }
}

impl TooLong {
    fn problem(&self) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large").detail(self.to_string())
    }
}

pub(super) fn layer(routes: Router, large: LargeBodies, settings: &HttpSettings, shutdown: Shutdown) -> Router {
    let room = Arc::new(Semaphore::new(settings.requests_max.usize()));
    let size = Size {
        bytes_max: settings.body_bytes_max.usize(),
        setting: "http.body_bytes_max",
    };
    routes
        // axum's own limit is a constant; the layer below is the setting.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::new((size, large)), sized))
        .layer(from_fn_with_state(pace::Pace::of(settings), paced))
        .layer(from_fn_with_state(
            (room, settings.request_timeout_ms.duration(), shutdown),
            if_room,
        ))
        .layer(from_fn_with_state(Arc::new(Pace::new(settings)), in_pace))
        .layer(Extension(AccountLimits::new(settings)))
}

/// Reads the whole body of a request, after the service has authenticated it and reserved room. The size limits are
/// applied before: the body ends with an error where it is too long.
pub async fn body(body: Body) -> Result<Bytes, Problem> {
    let read = to_bytes(body, usize::MAX).await;
    read.map_err(|error| {
        let causes = || successors(Some(&error as &(dyn Error + 'static)), |error| (*error).source());
        if let Some(too_long) = causes().find_map(|error| error.downcast_ref::<TooLong>()) {
            return too_long.problem();
        }
        let is_late = causes()
            .filter_map(|error| error.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::TimedOut);
        let (status, code) = match is_late {
            true => (StatusCode::REQUEST_TIMEOUT, "timeout"),
            false => (StatusCode::BAD_REQUEST, "malformed"),
        };
        Problem::new(status, code).detail(format!("could not read the request's body: {}", error_chain(&error)))
    })
}

/// A body that says its length is refused before any of it is read.
async fn sized(State(limits): State<Arc<(Size, LargeBodies)>>, request: Request, next: Next) -> Response {
    let (size, large) = &*limits;
    let path = request.extensions().get::<MatchedPath>();
    let size = *path.and_then(|path| large.0.get(path.as_str())).unwrap_or(size);
    let said = request.headers().get(CONTENT_LENGTH);
    let said: Option<usize> = said.and_then(|said| said.to_str().ok()?.parse().ok());
    if said.is_some_and(|said| said > size.bytes_max) {
        return TooLong(size).problem().into_response();
    }
    let limited = |body| Limited::new(body, size.bytes_max).map_err(move |error| size.named(error));
    next.run(request.map(|body| Body::new(limited(body)))).await
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
