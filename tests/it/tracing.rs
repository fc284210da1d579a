//! One trace, from the publisher's `traceparent` through resolver, delivery, the provider call, the tool-gateway and
//! back.

use std::collections::HashSet;

use opentelemetry::trace::TraceId;
use opentelemetry_sdk::trace::InMemorySpanExporter;
use serde_json::json;
use testkit::{Reply, eventually};

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_from_the_publisher_to_the_reply() {
    let exporter = InMemorySpanExporter::default();
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, exporter.clone()).unwrap();
    let house = House::open(|seen| {
        if seen.nth_of_key == 0 {
            Reply::call("c-1", "task_history", json!({"task_id": "T-1"}))
        } else {
            Reply::text("ok")
        }
    })
    .await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    let client = house.world.client().await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    client
        .publish_with_headers(
            "signalbox.notification.acme.T-1",
            headers,
            json!({"id": "n-1", "agent": "coder", "body": "x"}).to_string().into(),
        )
        .await
        .unwrap();
    house.until("acme", "n-1", "delivered").await;

    let trace = TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
    let names = eventually("every hop has its span in the trace", || async {
        guard.flush().await;
        let spans = exporter.get_finished_spans().unwrap();
        let names: HashSet<String> = spans
            .iter()
            .filter(|span| span.span_context.trace_id() == trace)
            .map(|span| span.name.to_string())
            .collect();
        let calls = spans
            .iter()
            .filter(|span| span.span_context.trace_id() == trace && span.name == "provider_call")
            .count();
        (names.contains("turn") && calls == 2 && names.len() >= 4).then_some(names)
    })
    .await;
    assert!(names.contains("provider_call"), "{names:?}");
    for seen in house.provider.seen() {
        assert!(
            seen.traceparent.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"),
            "{}",
            seen.traceparent
        );
    }
    house.close().await;
}
