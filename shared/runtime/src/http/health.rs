//! `/healthz` (the process is alive), `/readyz` (it can do its work), `/metrics` (Prometheus' text format).
//!
//! `/healthz` checks neither Postgres nor NATS on purpose: restarting a service does not repair its database.

use std::{pin::Pin, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::future::join_all;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tracing::warn;

use crate::{settings::HttpSettings, shutdown::Shutdown, telemetry};

type CheckResult = Result<(), String>;
type Check = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = CheckResult> + Send>> + Send + Sync>;

/// The pages and the checks behind `/readyz`.
#[derive(Clone)]
pub struct Health {
    checks: Vec<(&'static str, Check)>,
    shutdown: Shutdown,
    check_timeout: Duration,
}

impl Health {
    pub fn new(settings: &HttpSettings, shutdown: &Shutdown) -> Health {
        Health {
            checks: Vec::new(),
            shutdown: shutdown.clone(),
            check_timeout: settings.check_timeout_ms.duration(),
        }
    }

    /// Adds a readiness check. Its error is shown on the page, so it must name no address and no secret.
    pub fn check<F, W, E>(mut self, name: &'static str, check: F) -> Health
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
        E: ToString,
    {
        let check: Check = Arc::new(move || {
            let answer = check();
            Box::pin(async move { answer.await.map_err(|error| error.to_string()) })
        });
        self.checks.push((name, check));
        self
    }

    /// The three pages.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(Arc::new(self))
    }

    /// Runs every check concurrently, each with its limit.
    async fn run(&self) -> Vec<(&'static str, CheckResult)> {
        join_all(self.checks.iter().map(|(name, check)| async move {
            let answer = timeout(self.check_timeout, check()).await;
            (*name, answer.unwrap_or_else(|_| Err("no answer in time".to_owned())))
        }))
        .await
    }
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    if health.shutdown.is_stopping() {
        let body = json!({"status": "stopping"});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let outcomes = health.run().await;
    let ready = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
    let mut checks = Map::new();
    for (name, outcome) in outcomes {
        let said = outcome.err().unwrap_or_else(|| "ok".to_owned());
        checks.insert(name.to_owned(), Value::String(said));
    }
    if !ready {
        let failed = Value::Object(checks.clone()).to_string();
        warn!(checks = failed, "not ready");
    }
    let (status, word) = if ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    };
    (status, Json(json!({"status": word, "checks": checks}))).into_response()
}

async fn metrics() -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], telemetry::metrics_text()).into_response()
}
