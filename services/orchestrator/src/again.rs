//! Where a request's body is read, in the room that its account has for bodies, and where it begins to use the database: it takes
//! its account's part of the connections once its body is there, so that a slow sender holds none, and gives both back with its
//! answer.
//!
//! A request whose transaction the database rolled back for the sake of another one is run again, as a whole, a few
//! times. That is safe here: a handler's only effects are in its transaction, and what follows from them is handed on
//! after its commit. Other failures are the client's to try again: of a lost connection nobody knows whether the commit
//! happened.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use runtime::http::AccountShare;

use crate::app::App;

const TRIES_MAX: u32 = 5;
/// Doubled with every try, and shortened at random, so that two who met do not meet again.
const PAUSE: Duration = Duration::from_millis(10);

/// Stands on the answer of a request whose transaction was rolled back; the error's chain.
#[derive(Clone, Debug)]
pub struct RolledBack(pub String);

pub async fn again(State(app): State<App>, request: Request, next: Next) -> Response {
    // A request that only reads waits for no lock, and has no body.
    let is_safe = request.method().is_safe();
    let share = request.extensions().get::<AccountShare>().cloned();
    let room = share.as_ref().map(|share| share.room(request.body())).transpose();
    let _room = match room {
        Ok(room) => room,
        Err(problem) => return problem.into_response(),
    };
    let (request, bytes) = if is_safe {
        (request, Bytes::new())
    } else {
        let (parts, body) = request.into_parts();
        match runtime::http::body(body).await {
            Ok(bytes) => (Request::from_parts(parts, Body::empty()), bytes),
            Err(problem) => return problem.into_response(),
        }
    };
    let _connection = match share {
        // The operator's.
        None => None,
        Some(share) => match share.take().await {
            Ok(permit) => Some(permit),
            Err(problem) => return problem.into_response(),
        },
    };
    if is_safe {
        return next.run(request).await;
    }
    let (parts, _) = request.into_parts();
    let mut tries = 1;
    loop {
        let request = Request::from_parts(parts.clone(), Body::from(bytes.clone()));
        let mut response = next.clone().run(request).await;
        let Some(RolledBack(error)) = response.extensions_mut().remove() else {
            return response;
        };
        app.meters.rolled_back();
        if tries == TRIES_MAX {
            // Nothing to mend when it is rare; when it is not, somebody holds locks for long (pg_stat_activity).
            tracing::warn!(
                error,
                tries,
                "answered 503: the database rolled the request back in every try"
            );
            return response;
        }
        tracing::debug!(error, tries, "the database rolled a request back; it is run again");
        tokio::time::sleep(pause(tries)).await;
        tries += 1;
    }
}

fn pause(tries: u32) -> Duration {
    let mut random = [0; 1];
    // Without randomness the pause is the longest: that is no reason to fail.
    let _ = getrandom::fill(&mut random);
    let longest = PAUSE.saturating_mul(1 << tries.min(8));
    longest - longest.mul_f64(f64::from(random[0]) / 512.0)
}
