//! Checks the telemetry collector, if the settings name one, by sending an empty message.

use std::time::Duration;

use reqwest::{StatusCode, header::CONTENT_TYPE};
use runtime::{
    Settings,
    settings::{Signal, TelemetrySettings},
};

use super::{Check, Finding};

const TIMEOUT: Duration = Duration::from_secs(3);
const FIX: &str = "services work without it, unseen; OTLP over HTTP, port 4318 and not 4317";

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (signal, name) in [
        (Signal::Traces, "traces"),
        (Signal::Metrics, "metrics"),
        (Signal::Logs, "logs"),
    ] {
        if let Some(answer) = ask(&settings.telemetry, signal).await {
            findings.push(judge(name, answer));
        }
    }
    findings
}

/// None: the signal is not exported.
async fn ask(settings: &TelemetrySettings, signal: Signal) -> Option<Result<StatusCode, reqwest::Error>> {
    let address = settings.address(signal)?;
    let ask = async {
        let client = reqwest::Client::builder().timeout(TIMEOUT).build()?;
        // An empty protobuf message is valid: it has no spans, points or lines.
        let empty = client.post(address).header(CONTENT_TYPE, "application/x-protobuf");
        Ok(empty.send().await?.status())
    };
    Some(ask.await)
}

/// A hint, since services work without telemetry.
fn judge(signal: &str, answer: Result<StatusCode, reqwest::Error>) -> Finding {
    match answer {
        Ok(status) if status.is_success() => Finding::ok(Check::Telemetry, format!("the collector takes {signal}")),
        Ok(status) => Finding::hint(
            Check::Telemetry,
            format!("the collector answers {status} to {signal}"),
            "does it take them, and does it want a key?",
        ),
        Err(error) => {
            let error = anyhow::Error::new(error.without_url());
            Finding::hint(
                Check::Telemetry,
                format!("the collector does not take {signal}: {error:#}"),
                FIX,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::post};

    use super::*;

    #[tokio::test]
    async fn says_what_the_collector_takes() {
        testkit::install_tls_provider();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(async || ()));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let examined = async |variables: &[(&str, &str)]| {
            let settings = Settings::load_from("", variables.iter().copied()).unwrap();
            super::super::finding::render(&examine(&settings).await)
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str());
        let message = examined(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")]).await;
        assert!(
            message.contains("ok       telemetry  the collector takes traces"),
            "{message}"
        );
        assert!(
            message.contains("hint     telemetry  the collector answers 404 Not Found to logs"),
            "{message}"
        );
        assert!(
            message.contains("docs/runbooks/telemetry-missing.md") && !message.contains("metrics"),
            "{message}"
        );
        serving.abort();
        let _ = serving.await;
        let message = examined(&[endpoint]).await;
        assert_eq!(message.matches("the collector does not take").count(), 3, "{message}");
        assert!(!examined(&[]).await.contains("telemetry"));
    }
}
