//! Secrets stand in no log line, span, answer, row or request to an agent, even with every log level on, libraries included. Every
//! fault campaign checks the same (`tests/chaos/checker/secrets.rs`).

use std::fs;

use messaging::users::User;
use opentelemetry_sdk::trace::InMemorySpanExporter;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{ENVELOPE, OPERATOR_TOKEN, Reply, eventually};

use crate::house::House;

const PROVIDER_KEY: &str = "provider-key-5f1e09b3c7d2";
/// Every log target, also those that are quiet by default.
const EVERYTHING: &str = "trace,sqlx=trace,sea_orm=trace,async_nats=trace,hyper=trace,hyper_util=trace,h2=trace,\
    reqwest=trace,rustls=trace,tower=trace,opentelemetry=trace,opentelemetry_sdk=trace";

fn password_of(url: &str) -> Option<String> {
    let (credentials, _) = url.split_once("://")?.1.rsplit_once('@')?;
    Some(credentials.split_once(':')?.1.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_shown_though_everything_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("everything.log");
    let toml = format!(
        "[telemetry]\nlog = \"{EVERYTHING}\"\nlog_file = \"{}\"\n",
        log.display()
    );
    let settings = runtime::Settings::load_from(&toml, Vec::<(String, String)>::new()).unwrap();
    let spans = InMemorySpanExporter::default();
    let guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, spans.clone()).unwrap();
    // A panic of this test is printed and not logged.
    drop(std::panic::take_hook());

    let script = |seen: &testkit::Seen| match seen.nth_of_key {
        // Refused, although the key is valid: its log line must not hold the key.
        0 => Reply::Status(401, "{\"error\": {\"message\": \"no\"}}".to_owned(), Vec::new()),
        1 => Reply::call("c-1", "task_history", json!({"task_id": "T-1"})),
        _ => Reply::text("ok"),
    };
    let quick = [
        ("providers.default.api_key", PROVIDER_KEY),
        ("delivery.pause_delay_ms", "10"),
    ];
    let mut house = House::open_with(script, &quick).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    let mut secrets = vec![
        ("operator token".to_owned(), OPERATOR_TOKEN.to_owned()),
        ("provider key".to_owned(), PROVIDER_KEY.to_owned()),
        ("envelope key".to_owned(), ENVELOPE.1.to_owned()),
    ];
    for user in User::ALL {
        let password = password_of(&house.world.nats.url_of(user.name())).unwrap();
        secrets.push((format!("password of {}", user.name()), password));
    }
    if let Some(password) = password_of(&house.world.database.url) {
        secrets.push(("password of Postgres".to_owned(), password));
    }
    let mut keys = Vec::new();
    for role in ["admin", "member", "service", "gateway", "publisher"] {
        let key = house.key("acme", role).await;
        secrets.push((format!("{role} key"), key.clone()));
        keys.push(key);
    }

    let mut answers = Vec::new();
    let mut ask = async |method: Method, url: String, token: &str, body: Option<Value>| {
        let (status, answer) = house.call(method, url, token, &[], body).await;
        answers.push(answer.to_string());
        status
    };
    let tasks = format!("{}/api/orgs/acme/tasks", house.api());
    for key in &keys[..3] {
        assert_eq!(ask(Method::GET, tasks.clone(), key, None).await, StatusCode::OK);
    }
    // Nearly valid, in the wrong place, and inside an invalid value.
    let wrong = [
        format!("{OPERATOR_TOKEN}x"),
        format!("{}x", keys[0]),
        keys[0].to_uppercase(),
        PROVIDER_KEY.to_owned(),
    ];
    for token in &wrong {
        let status = ask(Method::GET, tasks.clone(), token, None).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let tools = format!("{}/agent/tools", house.agent_api());
    for token in [&keys[0], &keys[3], &wrong[0]] {
        assert!(ask(Method::GET, tools.clone(), token, None).await.is_client_error());
    }
    // Not over NATS: the test's own client leaves its password in its URL, which the library logs.
    let notify = async |house: &House, id: &str| {
        let body = json!({"id": id, "task": "T-1", "agents": ["coder"], "body": "x"});
        house.post("/api/orgs/acme/notifications", body).await;
        house.until("acme", id, "delivered").await;
    };
    notify(&house, "n-1").await;
    // Every connection is made once more.
    for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
        house.kill(role);
    }
    house.up().await;
    notify(&house, "n-2").await;

    eventually("spans and lines are written", || async {
        guard.flush().await;
        let spans = spans.get_finished_spans().unwrap();
        spans.iter().any(|span| span.name.starts_with("chat ")).then_some(())
    })
    .await;
    let lines = fs::read_to_string(&log).unwrap();
    // An empty text would trivially hold no secret.
    for said in ["sqlx", "async_nats", "hyper_util", "delivery", "turn"] {
        assert!(lines.contains(said), "nothing of {said} was logged");
    }
    let spans = format!("{:?}", spans.get_finished_spans().unwrap());
    let requests: String = house.provider.seen().iter().map(|seen| seen.body.to_string()).collect();
    let rows = house
        .world
        .database
        .texts(
            "select concat(to_jsonb(r)) from turn r union all select concat(to_jsonb(r)) from activity r
             union all select concat(to_jsonb(r)) from api_key r union all select concat(to_jsonb(r)) from idempotency r
             union all select concat(to_jsonb(r)) from dead_letter r
             union all select concat(headers, encode(payload, 'escape')) from outbox",
        )
        .await;
    for (name, secret) in &secrets {
        let line = lines.lines().find(|line| line.contains(secret));
        assert!(
            line.is_none(),
            "the {name} is logged: {}",
            line.unwrap_or_default().replace(secret, "…")
        );
        assert!(!spans.contains(secret), "the {name} is in a span");
        assert!(!requests.contains(secret), "the {name} is in a request to an agent");
        assert!(
            !answers.iter().any(|answer| answer.contains(secret)),
            "the {name} is in an answer"
        );
        assert!(!rows.iter().any(|row| row.contains(secret)), "the {name} is in a row");
    }
    house.close().await;
}
