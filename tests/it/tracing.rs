//! One trace, from the publisher's `traceparent` through resolver, delivery, the provider call, the tool-gateway and the
//! orchestrator; the attributes of its spans; /metrics afterwards. A trace also continues where nothing is recorded.

use std::collections::{BTreeMap, HashSet};

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use reqwest::Method;
use serde_json::json;
use testkit::{OPERATOR_TOKEN, Reply, eventually};

use crate::{house::House, telemetry_files::documented};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

async fn house() -> House {
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
    house
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_from_the_publisher_to_the_reply() {
    let exporter = InMemorySpanExporter::default();
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, exporter.clone()).unwrap();
    let house = house().await;
    let client = house.world.client().await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", traceparent().as_str());
    client
        .publish_with_headers(
            "signalbox.notification.acme.T-1",
            headers,
            json!({"id": "n-1", "agent": "coder", "body": "x"}).to_string().into(),
        )
        .await
        .unwrap();
    house.until("acme", "n-1", "delivered").await;

    // One span for each hop; the second call has the tool's result.
    let expected = [
        ("chat stub", 2),
        ("execute_tool task_history", 1),
        ("invoke_agent coder", 1),
        ("process notification", 1),
    ];
    let trace = TraceId::from_hex(TRACE).unwrap();
    let spans = eventually("every hop has its span in the trace", || async {
        guard.flush().await;
        let spans = exporter.get_finished_spans().unwrap();
        let ours: Vec<SpanData> = spans
            .into_iter()
            .filter(|span| span.span_context.trace_id() == trace)
            .collect();
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for span in &ours {
            *names.entry(span.name.to_string()).or_default() += 1;
        }
        let all = expected.map(|(name, count)| (name.to_owned(), count));
        (names == BTreeMap::from(all)).then_some(ours)
    })
    .await;
    let ids: HashSet<SpanId> = spans.iter().map(|span| span.span_context.span_id()).collect();
    for span in &spans {
        let is_first = span.parent_span_id == SpanId::from_hex(PARENT).unwrap();
        assert!(
            is_first || ids.contains(&span.parent_span_id),
            "{} hangs on nothing",
            span.name
        );
        assert_eq!(is_first, span.name == "process notification", "{}", span.name);
    }
    check_attributes(&spans);
    for seen in house.provider.seen() {
        assert!(
            seen.traceparent.starts_with(&format!("00-{TRACE}-")),
            "{}",
            seen.traceparent
        );
    }
    check_metrics();
    house.close().await;
}

/// By OpenTelemetry's conventions, as docs/telemetry.md lists them.
fn check_attributes(spans: &[SpanData]) {
    let of = |name: &str, attribute: &str| {
        let span = spans.iter().find(|span| span.name == name).unwrap();
        let found = span.attributes.iter().find(|one| one.key.as_str() == attribute);
        let value = found.map(|one| one.value.to_string());
        value.unwrap_or_else(|| panic!("{name} has no {attribute}: {:?}", span.attributes))
    };
    let check =
        |name: &str, attribute: &str, value: &str| assert_eq!(of(name, attribute), value, "{name}, {attribute}");
    for (name, destination) in [
        ("process notification", "notification"),
        ("execute_tool task_history", "tool.requested"),
    ] {
        check(name, "messaging.system", "nats");
        check(name, "messaging.operation.type", "process");
        check(name, "messaging.destination.name", destination);
    }
    check("process notification", "messaging.message.id", "n-1");
    check("invoke_agent coder", "gen_ai.operation.name", "invoke_agent");
    check("invoke_agent coder", "gen_ai.agent.name", "coder");
    check("chat stub", "gen_ai.operation.name", "chat");
    check("chat stub", "gen_ai.provider.name", "openresponses");
    check("chat stub", "gen_ai.request.model", "stub");
    check("chat stub", "account", "acme");
    assert!(!of("chat stub", "gen_ai.response.id").is_empty());
    assert!(of("chat stub", "gen_ai.usage.input_tokens").parse::<u64>().is_ok());
    check("execute_tool task_history", "gen_ai.tool.name", "task_history");
    check("execute_tool task_history", "gen_ai.tool.call.id", "c-1");
    let conversation = of("invoke_agent coder", "gen_ai.conversation.id");
    check("chat stub", "gen_ai.conversation.id", &conversation);
}

/// The metrics of the four services are those of the document, by name and kind.
fn check_metrics() {
    let shown: BTreeMap<String, String> = runtime::telemetry::metrics_text()
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .filter(|(name, _)| *name != "target_info")
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let documented = documented();
    for (name, kind) in &shown {
        assert_eq!(
            documented.get(name),
            Some(kind),
            "{name} is not in docs/telemetry.md as it is"
        );
    }
    for name in [
        "signalbox_queue_age_seconds",
        "signalbox_outbox_age_seconds",
        "signalbox_resolver_unread_age_seconds",
        "signalbox_messaging_consumer_pending",
        "signalbox_messaging_stream_size_bytes",
        "signalbox_dependency_up",
        "signalbox_dependency_answer_seconds",
        "db_client_connection_count",
        "gen_ai_client_operation_duration_seconds",
    ] {
        assert!(shown.contains_key(name), "{name} is not shown: {shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_is_recorded_the_callers_trace_goes_on_as_it_came() {
    let house = house().await;
    let (status, answer) = house
        .call(
            Method::POST,
            format!("{}/api/orgs/acme/notifications", house.api()),
            OPERATOR_TOKEN,
            &[("traceparent", &traceparent())],
            Some(json!({"id": "n-1", "task": "T-1", "agent": "coder", "body": "x"})),
        )
        .await;
    assert!(status.is_success(), "{answer}");
    house.until("acme", "n-1", "delivered").await;
    let seen = house.provider.seen();
    assert_eq!(seen.len(), 2);
    for call in seen {
        assert_eq!(call.traceparent, traceparent());
    }
    house.close().await;
}
