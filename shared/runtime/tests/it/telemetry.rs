//! Exports to a collector, and a process with an unresponsive collector, which is unaffected. Each test is a process.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::Uri};
use runtime::{Settings, settings::TelemetrySettings, telemetry};
use tracing::{info, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;

type Got = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Stores posted bodies, by path.
async fn collector() -> (SocketAddr, Got) {
    let got = Got::default();
    let keep = async |State(got): State<Got>, uri: Uri, body: Bytes| {
        got.lock()
            .unwrap()
            .entry(uri.path().to_owned())
            .or_default()
            .extend(&body);
    };
    let router = Router::new().fallback(keep).with_state(Arc::clone(&got));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, got)
}

fn settings(address: SocketAddr, more: &[(&str, &str)]) -> TelemetrySettings {
    telemetry::install_tls_provider();
    let endpoint = format!("http://{address}");
    let mut variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    variables.extend(more);
    Settings::load_from("", variables).unwrap().telemetry
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Returns the trace's id.
fn work() -> [u8; 16] {
    use opentelemetry::trace::TraceContextExt;
    let span = info_span!("some work");
    let entered = span.enter();
    warn!(turn_id = "t-1", "something to see");
    drop(entered);
    opentelemetry::global::meter("test")
        .u64_counter("signalbox.test")
        .build()
        .add(1, &[]);
    let id = span.context().span().span_context().trace_id();
    id.to_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_traces_metrics_and_the_lines_of_the_log() {
    let (address, got) = collector().await;
    let guard = telemetry::init("test", &settings(address, &[])).unwrap();
    let trace = work();
    // A line of the exporter itself, which would cause further exports for ever.
    info!(target: "hyper_util::client", "connected");
    warn!(target: "opentelemetry_sdk", "export failed");
    guard.flush().await;
    let got = got.lock().unwrap().clone();
    assert_eq!(
        got.keys().collect::<Vec<_>>(),
        ["/v1/logs", "/v1/metrics", "/v1/traces"]
    );
    assert!(contains(&got["/v1/traces"], b"some work") && contains(&got["/v1/traces"], &trace));
    assert!(contains(&got["/v1/metrics"], b"signalbox.test"));
    let logs = &got["/v1/logs"];
    assert!(contains(logs, b"something to see") && contains(logs, b"turn_id"));
    assert!(contains(logs, &trace), "a line is found from its trace");
    assert!(!contains(logs, b"connected") && !contains(logs, b"export failed"));
    for body in got.values() {
        assert!(contains(body, b"service.name") && contains(body, b"service.instance.id"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_may_be_left_out_or_go_elsewhere() {
    let (address, got) = collector().await;
    let (other, others) = collector().await;
    let elsewhere = format!("http://{other}/api/traces");
    let variables = [
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", elsewhere.as_str()),
    ];
    let guard = telemetry::init("test", &settings(address, &variables)).unwrap();
    work();
    guard.flush().await;
    assert_eq!(got.lock().unwrap().keys().collect::<Vec<_>>(), ["/v1/logs"]);
    assert_eq!(others.lock().unwrap().keys().collect::<Vec<_>>(), ["/api/traces"]);
}

/// Spans for traces only are not created without tracing; lines of the log are.
fn spans_are_begun(more: &[(&str, &str)], traced: bool) {
    let settings = Settings::load_from("", more.iter().copied()).unwrap().telemetry;
    telemetry::install_tls_provider();
    telemetry::init("test", &settings).unwrap();
    assert_eq!(
        info_span!(target: messaging::trace::TARGET, "hot").is_disabled(),
        !traced
    );
    assert!(!info_span!("seen in the log").is_disabled());
}

#[test]
fn off_costs_no_span() {
    spans_are_begun(&[], false);
}

#[test]
fn off_costs_no_span_at_the_log_level_trace() {
    spans_are_begun(&[("RUST_LOG", "trace")], false);
}

#[test]
fn on_every_span_is_begun() {
    // The exporter's thread needs no executor of ours, and sends nothing here.
    spans_are_begun(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")], true);
}

/// Accepts connections and never answers, like a hanging collector; or accepts none.
fn a_dead_collector_delays_no_caller(hangs: bool) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _kept = hangs.then_some(listener);
    let executor = tokio::runtime::Runtime::new().unwrap();
    let ended = executor.block_on(async {
        let guard = telemetry::init(
            "test",
            &settings(address, &[("SIGNALBOX__TELEMETRY__FLUSH_TIMEOUT_MS", "300")]),
        );
        let guard = guard.unwrap();
        // More than any queue holds; a caller that waited for room would wait for ever.
        for _ in 0..10_000 {
            work();
        }
        let ended = Instant::now();
        guard.flush().await;
        ended
    });
    drop(executor);
    let took = ended.elapsed();
    // Less than the exporter's own timeout (10 s), which would apply if the caller waited for it; far more than 300 ms.
    assert!(took < Duration::from_secs(8), "the process could not end for {took:?}");
}

#[test]
fn a_hanging_collector_delays_no_caller() {
    a_dead_collector_delays_no_caller(true);
}

#[test]
fn an_unreachable_collector_delays_no_caller() {
    a_dead_collector_delays_no_caller(false);
}

/// The metrics that alerts are made of.
#[tokio::test]
async fn a_sweep_that_fails_is_counted() {
    let (address, _) = collector().await;
    let _guard = telemetry::init("test", &settings(address, &[])).unwrap();
    let sweep = runtime::sweep::Sweep::new("resolver", "closed_sessions");
    sweep.once(async { Err::<u64, _>(anyhow::anyhow!("no")) }).await;
    let text = telemetry::metrics_text();
    let failures = text
        .lines()
        .find(|line| line.starts_with("signalbox_sweep_failures_total{"));
    let failures = failures.unwrap_or_else(|| panic!("no failure was counted: {text}"));
    assert!(
        failures.contains("sweep=\"closed_sessions\"") && failures.ends_with(" 1"),
        "{failures}"
    );
}
