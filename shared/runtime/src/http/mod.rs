//! HTTP for every service: a server with limits, errors as RFC 9457 problems, and the three health pages. The routes
//! belong to the services.
//!
//! ```text
//! server   connections, limits of headers and of slow readers, graceful end
//!   └ edge     one request: trace, request id, panic, problem
//!       └ limits   how fast from one address, how many, how long, how large
//!           └ the service's routes, which ask [`AccountLimits`] once they know whose request it is
//!   └ health   /healthz /readyz /metrics, outside of the limits: they must answer when the rest does not
//! ```

mod account;
mod address;
mod answer;
mod buckets;
mod credentials;
mod edge;
mod health;
mod known;
mod limits;
pub mod openapi;
mod pace;
mod problem;
mod route;
mod server;
mod share;

use std::sync::LazyLock;

use axum::Router;
use opentelemetry::{KeyValue, global, metrics::Counter};

pub use account::{AccountLimits, AccountShare, UnderWay};
pub use credentials::{bearer, only};
pub use health::Health;
pub use limits::body;
use limits::{LargeBodies, Size};
pub use problem::Problem;
pub use route::Route;
pub use server::{HttpError, listen, local_url, serve};
pub use share::{Held, Shared};

use crate::{Shutdown, settings::HttpSettings};

/// A service's routes.
#[derive(Debug)]
pub struct Routes {
    router: Router,
    large: LargeBodies,
}

impl From<Router> for Routes {
    fn from(router: Router) -> Routes {
        let large = LargeBodies::default();
        Routes { router, large }
    }
}

impl Routes {
    /// The routes of which the one at this path takes bodies of another size than `http.body_bytes_max`, and the setting that says it.
    #[must_use]
    pub fn with_bodies_of(mut self, path: &'static str, bytes_max: usize, setting: &'static str) -> Routes {
        self.large.0.insert(path, Size { bytes_max, setting });
        self
    }
}

/// A service's whole router: its routes behind limits and problems, and the health pages beside them.
pub fn router(routes: impl Into<Routes>, health: Health, settings: &HttpSettings, shutdown: Shutdown) -> Router {
    let Routes { router, large } = routes.into();
    let router = router.fallback(|| async { Problem::not_found() });
    edge::layer(limits::layer(router, large, settings, shutdown)).merge(health.router())
}

static REFUSED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("runtime")
        .u64_counter("signalbox.http.refused")
        .with_description(
            "Connections and requests refused by a limit, and connections closed because the client was too slow",
        )
        .build()
});

/// `why` is one of a few words: a value from a client must not become a series of its own.
fn refused(why: &'static str) {
    REFUSED.add(1, &[KeyValue::new("why", why)]);
}

#[cfg(test)]
mod tests;
