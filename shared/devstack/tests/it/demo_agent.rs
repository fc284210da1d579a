//! The demo agent over HTTP: the stream's shape, and a turn with tools.

use devstack::DemoAgent;
use reqwest::Client;
use serde_json::{Value, json};

const KEY: &str = "task:demo-1:agent:a:demo:v1";
const INPUT: &str = "Notification: n-1\nTask: DEMO-1\nTitle: Read the history, then mark it done.";

async fn agent() -> DemoAgent {
    DemoAgent::start("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

fn tools() -> Value {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "name": name, "description": "", "strict": false,
               "parameters": {"type": "object", "properties": properties}})
    };
    json!([
        tool("signalbox_task_history", json!({"task_id": {}, "message_limit": {}})),
        tool("signalbox_task_status", json!({"task_id": {}, "status": {}})),
    ])
}

async fn post(agent: &DemoAgent, body: &Value) -> reqwest::Response {
    // The client has no TLS provider of its own in this workspace. Plain HTTP needs none, but building the client does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let request = Client::new()
        .post(agent.url())
        .header("x-openclaw-session-key", KEY)
        .json(body);
    request.send().await.unwrap()
}

async fn answer(agent: &DemoAgent, input: Value) -> Value {
    let body = json!({"model": "demo", "input": input, "tools": tools()});
    post(agent, &body)
        .await
        .error_for_status()
        .unwrap()
        .json()
        .await
        .unwrap()
}

/// Events as (name, data), and whether the stream ended properly.
async fn stream(agent: &DemoAgent, input: Value) -> Vec<(String, Value)> {
    let body = json!({"model": "demo", "input": input, "tools": tools(), "stream": true});
    let text = post(agent, &body)
        .await
        .error_for_status()
        .unwrap()
        .text()
        .await
        .unwrap();
    let events = text
        .strip_suffix("data: [DONE]\n\n")
        .expect("the stream ends with [DONE]");
    let read = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    events.split_terminator("\n\n").map(read).collect()
}

fn result(call: &Value, output: &str) -> Value {
    json!([{"type": "function_call_output", "call_id": call["call_id"], "output": output}])
}

#[tokio::test]
async fn runs_a_turn_with_two_tools_on_one_key() {
    let agent = agent().await;
    let first = answer(&agent, json!(INPUT)).await;
    let call = &first["output"][0];
    assert_eq!(
        (call["type"].as_str(), call["name"].as_str()),
        (Some("function_call"), Some("signalbox_task_history"))
    );
    assert_eq!(call["arguments"], r#"{"message_limit":5,"task_id":"DEMO-1"}"#);
    // A request repeated after a lost response gets the same call.
    assert_eq!(
        answer(&agent, json!(INPUT)).await["output"][0]["call_id"],
        call["call_id"]
    );

    let second = answer(&agent, result(call, r#"{"messages":[{}],"activities":[{},{}]}"#)).await;
    let call = &second["output"][0];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (
            &json!("signalbox_task_status"),
            &json!(r#"{"status":"done","task_id":"DEMO-1"}"#)
        )
    );

    let last = answer(&agent, result(call, r#"{"status":"done"}"#)).await;
    let said =
        "On DEMO-1: I looked up the task: messages 1, activities 2. Its status is now done. (1st of this conversation)";
    assert_eq!(last["output"][0]["content"][0]["text"], said);
    assert_eq!(last["status"], "completed");
    let usage = &last["usage"];
    assert!(usage["output_tokens"].as_u64().unwrap() > 10);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap()
    );
    agent.stop().await;
}

#[tokio::test]
async fn streams_text_in_the_order_of_the_specification() {
    let agent = agent().await;
    let events = stream(&agent, json!("Notification: n-1\nTask: DEMO-1\nTitle: Hello")).await;
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let deltas: Vec<&str> = events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert!(deltas.len() >= 3, "{deltas:?}");
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(
            (&data["type"], &data["sequence_number"]),
            (&json!(name), &json!(number))
        );
    }
    let (_, completed) = events.last().unwrap();
    assert_eq!(
        completed["response"]["output"][0]["content"][0]["text"],
        deltas.concat()
    );
    assert_eq!(completed["response"]["id"], events[0].1["response"]["id"]);
}

#[tokio::test]
async fn streams_a_call_with_its_arguments() {
    let agent = agent().await;
    let events = stream(&agent, json!([{"type": "message", "role": "user", "content": INPUT}])).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let pieces: String = events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(events[5].1["arguments"], pieces);
    assert_eq!(events[6].1["item"]["arguments"], pieces);
    assert_eq!(events[2].1["item"]["call_id"], events[6].1["item"]["call_id"]);
}

#[tokio::test]
async fn refuses_a_request_without_input() {
    let agent = agent().await;
    let refused = post(&agent, &json!({"model": "demo"})).await;
    assert_eq!(refused.status(), 400);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["error"]["type"], "invalid_request_error");
}

/// Its conversation is gone once, between the rounds of the turn; the whole turn brings it back.
#[tokio::test]
async fn forgets_on_request() {
    let agent = agent().await;
    let text = "Notification: n-1\nTask: DEMO-1\nTitle: Look it up, and forget.";
    let first = answer(&agent, json!(text)).await;
    let call = first["output"][0].clone();
    let body = json!({"model": "demo", "input": result(&call, "{}"), "tools": tools()});
    assert_eq!(post(&agent, &body).await.status(), 503);
    let whole = json!([{"role": "user", "content": text}, call, result(&call, "{}")[0]]);
    let last = answer(&agent, whole).await;
    let said = "On DEMO-1: I looked up what came before. (1st of this conversation)";
    assert_eq!(last["output"][0]["content"][0]["text"], said);
}
