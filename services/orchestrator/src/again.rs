//! The middleware that reads a request's body, takes a database connection and retries rolled-back requests.
//!
//! The body counts against the account's budget for bodies. The account's database connection is taken after the body was read, so
//! that a slow sender holds no connection. Both are released with the answer.
//!
//! A request whose transaction the database rolled back (deadlock, serialization failure) is run again as a whole, a few times.
//! That is safe here: a handler's only effects are in its transaction, and follow-ups are handed to the relay after its commit.
//! Other failures are left to the client: after a lost connection it is unknown whether the commit happened.

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
/// Doubled with every attempt, and shortened at random, so that two conflicting requests do not conflict again.
const PAUSE: Duration = Duration::from_millis(10);

/// Extension of the response to a request whose transaction was rolled back. Holds the error chain.
#[derive(Clone, Debug)]
pub struct RolledBack(pub String);

pub async fn again(State(app): State<App>, request: Request, next: Next) -> Response {
    // A safe method takes no row locks and has no body.
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
        // The operator has no share.
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
            // Rare occurrences need no action. If it is frequent, find the holder of long locks in pg_stat_activity.
            tracing::warn!(
                error,
                tries,
                "answered 503: the database rolled back every attempt of the request"
            );
            return response;
        }
        tracing::debug!(error, tries, "the database rolled back a request; retrying");
        tokio::time::sleep(pause(tries)).await;
        tries += 1;
    }
}

fn pause(tries: u32) -> Duration {
    let mut random = [0; 1];
    // Without randomness the pause is the longest one.
    let _ = getrandom::fill(&mut random);
    let longest = PAUSE.saturating_mul(1 << tries.min(8));
    longest - longest.mul_f64(f64::from(random[0]) / 512.0)
}
