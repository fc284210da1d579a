//! The requests of the drivers.

use std::collections::BTreeSet;

use delivery::providers::{CallInput, FunctionCall, InputItem, ToolOutput};
use serde_json::{Value, json};

use super::recording::{self, Recording};
use super::stub::{Seen, Stub, whole};
use super::{SESSION_KEY, TURN, called, driver, message, tool_results};

/// Recordings used only for the requests in them.
pub(super) const RECORDINGS: [&str; 4] = ["a07-instructions", "a08-items", "b07-key-and-user", "c01-tools-offered"];

const DONE: &str = r#"{"id":"resp_1","status":"completed","output":[]}"#;

async fn sent(kind: &str, call: &delivery::providers::ProviderCall) -> Seen {
    let stub = Stub::start([vec![whole("200 OK", "application/json", "", DONE)]]).await;
    called(&driver(kind, &stub, json!({})), call).await.0.unwrap();
    stub.seen().remove(0)
}

#[tokio::test]
async fn sends_a_first_call_by_the_specification() {
    let seen = sent("openresponses", &message("Tests fail on main")).await;
    assert_eq!(seen.line, "POST /v1/responses HTTP/1.1");
    for (name, value) in [
        ("x-openclaw-session-key", SESSION_KEY),
        ("idempotency-key", &format!("{TURN}:1")),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("authorization", "Bearer secret-t0ken"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(
        seen.header("accept-encoding"),
        None,
        "a compressed answer could grow beyond the limits"
    );
    let expected = json!({
        "model": "openclaw/alpha",
        "instructions": "Act on this notification only.",
        "input": "Tests fail on main",
        "tools": [{"type": "function", "name": "task_history", "description": "Load the task",
            "parameters": {"type": "object", "properties": {"task_id": {"type": "string"}}}}],
        "stream": true,
        "user": SESSION_KEY,
    });
    assert_eq!(seen.json(), expected);
}

#[tokio::test]
async fn sends_tool_results_and_whole_conversations() {
    let results = tool_results(
        &[("c1", "task_history", "{}", "out 1"), ("c2", "task_status", "{}", "")],
        Some("hurry"),
    );
    let seen = sent("openresponses", &results).await;
    let outputs = json!([
        {"type": "function_call_output", "call_id": "c1", "output": "out 1"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"type": "message", "role": "user", "content": "hurry"},
    ]);
    assert_eq!(seen.json()["input"], outputs);
    assert_eq!(seen.header("idempotency-key"), Some(format!("{TURN}:2").as_str()));

    let mut conversation = message("");
    conversation.input = CallInput::Conversation(vec![
        InputItem::User("do it".into()),
        InputItem::Assistant("looking".into()),
        InputItem::Call(FunctionCall {
            call_id: "c1".into(),
            name: "f".into(),
            arguments: "{}".into(),
        }),
        InputItem::Result(ToolOutput {
            call_id: "c1".into(),
            name: "f".into(),
            arguments: "{}".into(),
            output: "done".into(),
        }),
    ]);
    let expected = json!([
        {"type": "message", "role": "user", "content": "do it"},
        {"type": "message", "role": "assistant", "content": "looking"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]);
    assert_eq!(sent("openresponses", &conversation).await.json()["input"], expected);
}

#[tokio::test]
async fn words_a_call_for_the_gateway() {
    let seen = sent("openclaw", &message("Tests fail on main")).await;
    let key = format!("agent:alpha:{SESSION_KEY}");
    assert_eq!(seen.header("x-openclaw-session-key"), Some(key.as_str()));
    let body = seen.json();
    assert_eq!(body["user"], key);
    assert_eq!(
        body["input"],
        format!("(Signalbox delivery {TURN}:1)\nTests fail on main")
    );
    assert_eq!(body["tools"][0]["name"], "signalbox_task_history");

    let results = tool_results(
        &[("c1", "task_history", r#"{"task_id":"t-1"}"#, "two messages")],
        Some("hurry"),
    );
    let expected = json!([
        {"type": "function_call_output", "call_id": "c1", "output": format!("(Signalbox delivery {TURN}:2)\nResult of \
            your call of \"signalbox_task_history\" with \"{{\\\"task_id\\\":\\\"t-1\\\"}}\":\ntwo messages")},
        {"type": "message", "role": "user", "content": "hurry"},
    ]);
    assert_eq!(sent("openclaw", &results).await.json()["input"], expected);
}

#[tokio::test]
async fn names_the_gateway_s_agent_to_it_wherever_the_operator_did() {
    let done = || vec![whole("200 OK", "application/json", "", DONE)];
    for settings in [
        json!({"model": "openclaw/alpha"}),
        json!({"model": "openclaw/Alpha"}),
        json!({"model": "openclaw", "gateway_agent": "alpha"}),
        json!({"model": "openclaw/default", "gateway_agent": "ALPHA"}),
    ] {
        let stub = Stub::start([done()]).await;
        called(&driver("openclaw", &stub, settings.clone()), &message("x"))
            .await
            .0
            .unwrap();
        assert_eq!(stub.seen().remove(0).json()["model"], "openclaw/alpha", "{settings}");
    }
}

#[tokio::test]
async fn sends_the_gateway_only_what_it_was_seen_to_accept() {
    let mut accepted = BTreeSet::new();
    for name in recording::names() {
        let recording = Recording::load(&name);
        if recording.was_accepted()
            && let Ok(body) = serde_json::from_str(&recording.request_body)
        {
            collect(&body, "", &mut accepted);
        }
    }
    assert!(
        accepted.contains("tools[].parameters") && accepted.contains("input[].output"),
        "{accepted:?}"
    );

    let calls = [
        message("hello"),
        tool_results(&[("c1", "task_history", "{}", "out")], Some("note")),
        delivery::providers::ProviderCall {
            instructions: None,
            tools: [].into(),
            ..message("bare")
        },
    ];
    for call in calls {
        let mut ours = BTreeSet::new();
        collect(&sent("openclaw", &call).await.json(), "", &mut ours);
        let unknown: Vec<&String> = ours.difference(&accepted).collect();
        assert!(unknown.is_empty(), "never accepted by a gateway: {unknown:?}");
    }
}

/// The paths of all keys in a body, without those inside a tool's JSON Schema.
fn collect(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
    assert!(!value.is_null(), "{path} is null");
    match value {
        Value::Object(fields) if path != "tools[].parameters" => {
            for (name, field) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect(field, &path, paths);
                paths.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, &format!("{path}[]"), paths)),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn gives_the_model_names_back_without_the_prefix() {
    let output = json!([
        {"type": "function_call", "call_id": "c1", "name": "signalbox_task_history", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "made_up", "arguments": "{}"},
    ]);
    let body = json!({"id": "resp_1", "status": "completed", "output": output}).to_string();
    let stub = Stub::start([vec![whole("200 OK", "application/json", "", &body)]]).await;
    let driver = driver("openclaw", &stub, json!({}));
    let answer = called(&driver, &message("x")).await.0.unwrap();
    let names: Vec<&str> = answer.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["task_history", "made_up"]);
    assert_eq!(driver.tool_name_on_wire("task_history"), "signalbox_task_history");
}

#[tokio::test]
async fn sends_nothing_that_would_be_understood_otherwise() {
    let stub = Stub::start([]).await;
    let gateway = driver("openclaw", &stub, json!({"request_bytes_max": 10_000}));
    let mut folded = message("x");
    folded.session_key = "task:T-1:agent:a:acme:v1".to_owned();
    for call in [folded, message(&"x".repeat(10_000))] {
        let error = called(&gateway, &call).await.0.unwrap_err();
        assert_eq!(
            (error.class.as_str(), error.sent),
            ("bad_request", delivery::providers::Sent::No),
            "{error}"
        );
    }
    assert_eq!(stub.counts().connections, 0);
}

#[tokio::test]
async fn never_shows_the_credential() {
    let stub = Stub::start([]).await;
    for kind in ["openclaw", "openresponses"] {
        assert!(!format!("{:?}", driver(kind, &stub, json!({}))).contains("secret-t0ken"));
    }
}
