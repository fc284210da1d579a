//! HTTP for every service: a server with limits, errors as RFC 9457 problems, and the three pages that operators'
//! tools ask for. What is served is the services' own business.
//!
//! ```text
//! server   connections, header and read limits, graceful end
//!   └ edge     one request: trace, request id, panic, problem
//!       └ limits   how many, how long, how large
//!           └ the service's routes
//!   └ health   /healthz /readyz /metrics, outside of the limits: they must answer when the rest does not
//! ```

mod edge;
mod health;
mod limits;
mod problem;
mod server;

use axum::Router;

pub use health::Health;
pub use problem::Problem;
pub use server::{HttpError, listen, serve};

use crate::settings::HttpSettings;

/// A service's whole router: its routes behind limits and problems, and the health pages beside them.
pub fn router(routes: Router, health: Health, settings: &HttpSettings) -> Router {
    let routes = routes.fallback(|| async { Problem::not_found() });
    edge::layer(limits::layer(routes, settings)).merge(health.router())
}

#[cfg(test)]
mod tests;
