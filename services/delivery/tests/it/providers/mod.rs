//! The provider drivers with a scripted server on loopback: recordings of a real gateway, and scripted faults.
#![allow(clippy::needless_pass_by_value, reason = "`json!` reads best where it is used")]
#![allow(
    clippy::unwrap_used,
    reason = "clippy's exemption for tests does not reach the helpers of an integration test"
)]

mod faults;
mod history;
mod recording;
mod replay;
mod requests;
mod servers;
mod stopping;
mod stub;
mod threads;
mod vetted;
use std::time::Duration;

use delivery::providers::{CallInput, Driver, ProviderAnswer, ProviderCall, ProviderError, ToolDefinition, ToolOutput};
use serde_json::{Value, json, value::to_raw_value};
use uuid::Uuid;

use self::stub::Stub;

const TURN: Uuid = Uuid::from_u128(0x0190_aaaa_bbbb_7ccc_8ddd_eeee_ffff_0001);
const SESSION_KEY: &str = "task:t-1:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v2";
/// Longer than any of these tests takes; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(20);

/// A driver for the stub: of kind `openclaw` (agent alpha) or `openresponses`, with `extra` settings.
fn driver(kind: &str, stub: &Stub, extra: Value) -> Driver {
    let url = format!("http://{}/v1/responses", stub.address());
    let mut settings = json!({"kind": kind, "url": url, "model": "openclaw/alpha", "api_key": "secret-t0ken"});
    settings
        .as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    new_driver(settings)
}

fn new_driver(settings: Value) -> Driver {
    let _ = rustls::crypto::ring::default_provider().install_default(); // an error means that it is installed already
    Driver::new(&serde_json::from_value(settings).unwrap()).unwrap()
}

fn message(text: &str) -> ProviderCall {
    ProviderCall {
        turn_id: TURN,
        attempt: 1,
        session_key: SESSION_KEY.to_owned(),
        after: None,
        instructions: Some("Act on this notification only.".into()),
        input: CallInput::Message(text.to_owned()),
        tools: [ToolDefinition {
            name: "task_history".to_owned(),
            description: "Load the task".to_owned(),
            parameters: to_raw_value(&json!({"type": "object", "properties": {"task_id": {"type": "string"}}}))
                .unwrap(),
        }]
        .into(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    }
}

fn tool_results(results: &[(&str, &str, &str, &str)], note: Option<&str>) -> ProviderCall {
    let result = |&(call_id, name, arguments, output): &(&str, &str, &str, &str)| ToolOutput {
        call_id: call_id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        output: output.to_owned(),
    };
    let input = CallInput::ToolResults {
        results: results.iter().map(result).collect(),
        note: note.map(str::to_owned),
    };
    ProviderCall {
        attempt: 2,
        input,
        ..message("")
    }
}

/// Makes one call; returns its result and the streamed text.
async fn called(driver: &Driver, call: &ProviderCall) -> (Result<ProviderAnswer, ProviderError>, String) {
    let mut told = String::new();
    let answer = tokio::time::timeout(LIMIT, driver.call(call, |text| told.push_str(text)));
    let answer = answer.await.expect("the call should end");
    (answer, told)
}
