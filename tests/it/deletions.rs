//! A deleted stream or consumer is counted and logged. A message without a valid signature is counted, too.

use std::sync::{Arc, Mutex};

use async_nats::jetstream;
use axum::{Router, body::Bytes, extract::State, http::Uri};
use storage::Role;
use testkit::{World, eventually};

const DELETIONS: &str = "signalbox_messaging_deletions_total";

/// The log as a collector receives it.
type Log = Arc<Mutex<Vec<u8>>>;

async fn collector() -> (String, Log) {
    let log = Log::default();
    let keep = async |State(log): State<Log>, uri: Uri, body: Bytes| {
        if uri.path() == "/v1/logs" {
            log.lock().unwrap().extend(&body);
        }
    };
    let router = Router::new().fallback(keep).with_state(Arc::clone(&log));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (endpoint, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_deletes_from_the_broker_is_counted_and_told() {
    runtime::telemetry::install_tls_provider();
    let (endpoint, log) = collector().await;
    let settings = runtime::Settings::load_from("", [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]).unwrap();
    let guard = runtime::telemetry::init("system-test", &settings.telemetry).unwrap();
    let world = World::start().await;
    let running = world.run(Role::Orchestrator, orchestrator::start).await;
    let jetstream = jetstream::new(world.operator().await);
    let unsigned = jetstream
        .publish("signalbox.event.acme.-.turn.finished", "{}".into())
        .await;
    unsigned.unwrap().await.unwrap();
    let consumer = "consumer=\"orchestrator_turn_finished\"";
    counted("signalbox_messaging_unauthenticated_total", consumer).await;
    let tools = jetstream.get_stream("SIGNALBOX_TOOL").await.unwrap();
    tools.delete_consumer("tool_gateway_tool_requested").await.unwrap();
    counted(DELETIONS, "what=\"consumer\"").await;
    jetstream.delete_stream("SIGNALBOX_DEAD").await.unwrap();
    counted(DELETIONS, "what=\"stream\"").await;
    guard.flush().await;
    let log = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    for told in [
        "a consumer was deleted from the NATS server",
        "tool_gateway_tool_requested",
        "a stream was deleted from the NATS server",
        "SIGNALBOX_DEAD",
    ] {
        assert!(log.contains(told), "{told}");
    }
    running.stop().await;
}

/// Waits until one of these counters has grown.
async fn counted(metric: &str, label: &str) {
    eventually("it is counted", async || {
        let shown = runtime::telemetry::metrics_text();
        let mut counts = shown
            .lines()
            .filter(|line| line.starts_with(metric) && line.contains(label));
        counts.any(|line| line.ends_with(" 1")).then_some(())
    })
    .await;
}
