//! The differences between the kinds of servers: the bytes that each is sent, the form in which each calls a function,
//! and the handling of a refusal.

use delivery::providers::{
    CallInput, Driver, FailureClass, FunctionCall, InputItem, LostCall, ProviderAnswer, ProviderCall, Reasoning,
    Reconciled, Sent, ToolOutput,
};
use serde_json::{Value, json};

use super::stub::{Script, Stub, stream, whole};
use super::{SESSION_KEY, TURN, called, driver, message, tool_results};

const DONE: &str = r#"{"id":"resp_2","status":"completed","output":[]}"#;
/// The cache key of [`SESSION_KEY`].
const CACHE_KEY: &str = "7a7c62a3dc92ac794116a33c59e8cefc";

fn done() -> Script {
    vec![whole("200 OK", "application/json", "", DONE)]
}

fn refused(status: &str, error: Value) -> Script {
    vec![whole(
        status,
        "application/json",
        "",
        &json!({ "error": error }).to_string(),
    )]
}

/// The second call of a turn, for a provider that gets the whole turn.
fn whole_turn() -> ProviderCall {
    let call = |call_id: &str, arguments: &str| {
        InputItem::Call(FunctionCall {
            call_id: call_id.to_owned(),
            name: "task_history".to_owned(),
            arguments: arguments.to_owned(),
        })
    };
    let result = |call_id: &str| {
        InputItem::Result(ToolOutput {
            call_id: call_id.to_owned(),
            name: "task_history".to_owned(),
            arguments: String::new(),
            output: "two messages".to_owned(),
        })
    };
    let sealed = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}"#;
    ProviderCall {
        attempt: 2,
        input: CallInput::Conversation(vec![
            InputItem::User("do it".to_owned()),
            InputItem::Reasoning(sealed.to_owned()),
            InputItem::Assistant("looking".to_owned()),
            call("c1", r#"{"task_id":"t-1"}"#),
            // The model's invalid arguments, and arguments that were too large to store: servers parse these.
            call("c2", "{\"task_id\":"),
            call("c3", ""),
            result("c1"),
            result("c2"),
            result("c3"),
        ]),
        ..message("")
    }
}

async fn sent(settings: Value, call: &ProviderCall) -> (Value, Option<String>) {
    let stub = Stub::start([done()]).await;
    let driver = driver("openresponses", &stub, settings);
    called(&driver, call).await.0.unwrap();
    let seen = stub.seen().remove(0);
    (seen.json(), seen.header("x-openclaw-session-key").map(str::to_owned))
}

#[tokio::test]
async fn each_server_is_sent_the_fields_that_it_knows() {
    let check = async |settings: Value, call: ProviderCall, extra: Value, key: Option<&str>| {
        let mut tool = json!({"type": "function", "name": "task_history", "description": "Load the task",
            "parameters": {"type": "object", "properties": {"task_id": {"type": "string"}}}});
        if extra.get("store").is_some() {
            tool["strict"] = json!(false);
        }
        let mut expected = json!({"model": "openclaw/alpha", "instructions": "Act on this notification only.",
            "tools": [tool], "stream": true});
        expected
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let (mut body, header) = sent(settings.clone(), &call).await;
        let input = body.as_object_mut().unwrap().remove("input").unwrap();
        assert!(input.is_string() == (call.attempt == 1), "{input}");
        assert_eq!((body, header.as_deref()), (expected, key), "{settings}");
    };
    let keyed = json!({"user": SESSION_KEY});
    let mut continued = tool_results(&[("c1", "task_history", "{}", "two messages")], None);
    for settings in [json!({}), json!({"server": "generic"}), json!({"thread": "none"})] {
        check(settings, message("x"), keyed.clone(), Some(SESSION_KEY)).await;
    }
    check(json!({}), continued.clone(), keyed.clone(), Some(SESSION_KEY)).await;

    let whole = json!({"store": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": CACHE_KEY});
    for server in ["openai", "vllm", "ollama", "lmstudio"] {
        check(json!({"server": server}), message("x"), whole.clone(), None).await;
        check(json!({"server": server}), whole_turn(), whole.clone(), None).await;
    }
    continued.after = Some("resp_1".to_owned());
    let by_response = json!({"thread": "durable", "thread_by": "response"});
    let after = json!({"user": SESSION_KEY, "previous_response_id": "resp_1"});
    check(by_response, continued.clone(), after, Some(SESSION_KEY)).await;
    let durable = json!({"server": "openai", "thread": "durable"});
    let stored = json!({"store": true, "prompt_cache_key": CACHE_KEY});
    check(durable.clone(), message("x"), stored, None).await;
    let after = json!({"store": true, "prompt_cache_key": CACHE_KEY, "previous_response_id": "resp_1"});
    check(durable, continued, after, None).await;
}

#[tokio::test]
async fn a_whole_turn_goes_out_in_its_order_and_can_be_parsed() {
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": text});
    let call = |id: &str, arguments: &str| json!({"type": "function_call", "call_id": id, "name": "task_history", "arguments": arguments});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "two messages"});
    let expected = json!([
        message("user", "do it"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        message("assistant", "looking"),
        call("c1", r#"{"task_id":"t-1"}"#),
        call("c2", "{}"),
        call("c3", "{}"),
        output("c1"),
        output("c2"),
        output("c3"),
    ]);
    let (body, _) = sent(json!({"server": "openai"}), &whole_turn()).await;
    assert_eq!(body["input"], expected);
}

/// Each calls a function in its own form.
#[tokio::test]
async fn reads_the_call_of_each_server() {
    let arguments = r#"{"task_id":"t-1"}"#;
    let function = |id: &str, arguments: &str| {
        json!({"type": "function_call", "id": id, "call_id": "call_1", "name": "task_history", "arguments": arguments,
            "status": "completed"})
    };
    let item = |kind: &str, place: u64, item: &Value| json!({"type": kind, "output_index": place, "item": item});
    let completed = |output: Value| json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": output}});
    let created = json!({"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress", "output": []}});
    let piece = |kind: &str, id: &str, name: &str, text: &str| json!({"type": kind, "item_id": id, "output_index": 1, name: text});
    let delta = "response.function_call_arguments.delta";

    let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAB-done"});
    let mut sealed_at_first = sealed.clone();
    sealed_at_first["encrypted_content"] = json!("gAAAA");
    let openai = vec![
        created.clone(),
        item("response.output_item.added", 0, &sealed_at_first),
        item("response.output_item.done", 0, &sealed),
        item("response.output_item.added", 1, &function("fc_1", "")),
        piece(delta, "fc_1", "delta", &arguments[..5]),
        piece(delta, "fc_1", "delta", &arguments[5..]),
        piece("response.function_call_arguments.done", "fc_1", "arguments", arguments),
        item("response.output_item.done", 1, &function("fc_1", arguments)),
        completed(json!([sealed, function("fc_1", arguments)])),
    ];
    let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null, "status": null,
        "content": [{"type": "reasoning_text", "text": "Let me see."}]});
    let vllm = vec![
        created.clone(),
        item(
            "response.output_item.added",
            0,
            &json!({"type": "reasoning", "id": "rs_1", "summary": [], "status": "in_progress"}),
        ),
        json!({"type": "response.reasoning_text.delta", "item_id": "rs_1", "output_index": 0, "content_index": 0, "delta": "Let me see."}),
        item("response.output_item.done", 0, &thought),
        item("response.output_item.added", 1, &function("fc_1", "")),
        piece(delta, "fc_1", "delta", arguments),
        item("response.output_item.done", 1, &function("fc_1", arguments)),
        completed(json!([thought, function("fc_1", arguments)])),
    ];
    let thinking = json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "Let me see.",
        "summary": [{"type": "summary_text", "text": "Let me see."}]});
    let ollama = vec![
        created.clone(),
        item("response.output_item.done", 0, &thinking),
        item("response.output_item.added", 1, &function("fc_1", "")),
        piece("response.function_call_arguments.done", "fc_1", "arguments", arguments),
        item("response.output_item.done", 1, &function("fc_1", arguments)),
        completed(json!([thinking, function("fc_1", arguments)])),
    ];
    let lm_studio = vec![
        created,
        item("response.output_item.added", 0, &function("fc_1", "")),
        json!({"type": delta, "item_id": "fc_1", "output_index": 0, "delta": arguments}),
        item("response.output_item.done", 0, &function("fc_1", arguments)),
        completed(json!([function("fc_1", arguments)])),
    ];
    for (server, events, reasoning) in [
        ("openai", &openai, Some(&sealed)),
        ("vllm", &vllm, None),
        ("ollama", &ollama, Some(&thinking)),
        ("lmstudio", &lm_studio, None),
        // The server stores its reasoning itself.
        ("generic", &openai, None),
    ] {
        let stub = Stub::start([stream(events)]).await;
        let (answer, told) = called(
            &driver("openresponses", &stub, json!({"server": server})),
            &message("x"),
        )
        .await;
        let ProviderAnswer {
            response_id,
            text,
            calls,
            reasoning: kept,
            ..
        } = answer.unwrap();
        assert_eq!(
            (response_id.as_deref(), text.as_str(), told.as_str()),
            (Some("resp_1"), "", ""),
            "{server}"
        );
        let call = FunctionCall {
            call_id: "call_1".to_owned(),
            name: "task_history".to_owned(),
            arguments: arguments.to_owned(),
        };
        assert_eq!(calls, [call], "{server}");
        let items: Vec<(usize, Value)> = kept
            .iter()
            .map(|Reasoning { calls_before, item }| (*calls_before, serde_json::from_str(item).unwrap()))
            .collect();
        let expected: Vec<(usize, Value)> = reasoning.map(|item| (0, item.clone())).into_iter().collect();
        assert_eq!(items, expected, "{server}");
    }
}

#[tokio::test]
async fn reasoning_keeps_its_place_and_never_costs_the_answer() {
    let reasoning = |id: &str, bytes: usize| json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "x".repeat(bytes)});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let answer = async |output: Value| {
        let body = json!({"id": "resp_1", "status": "completed", "output": output}).to_string();
        let stub = Stub::start([vec![whole("200 OK", "application/json", "", &body)]]).await;
        let driver = driver(
            "openresponses",
            &stub,
            json!({"server": "openai", "answer_bytes_max": 10_000}),
        );
        called(&driver, &message("x")).await.0.unwrap()
    };
    let kept = answer(json!([
        reasoning("r1", 9),
        call("a"),
        reasoning("r2", 9),
        call("b"),
        reasoning("r3", 9)
    ]))
    .await;
    let places: Vec<usize> = kept.reasoning.iter().map(|reasoning| reasoning.calls_before).collect();
    assert_eq!(places, [0, 1, 2]);
    // Unencrypted reasoning is of use only to the server itself.
    let unsealed =
        answer(json!([{"type": "reasoning", "id": "r1", "summary": []}, reasoning("r2", 0), call("a")])).await;
    assert_eq!(unsealed.reasoning, []);
    // More reasoning than an answer may hold: it is dropped, and the call stays.
    let large = answer(json!([reasoning("r1", 9_000), reasoning("r2", 9_000), call("a")])).await;
    assert_eq!((large.reasoning.len(), large.calls.len()), (0, 1));
}

#[tokio::test]
async fn reasoning_is_not_requested_again_after_a_refusal() {
    let error = json!({"message": "Encrypted content is not supported with this model.", "type": "invalid_request_error",
        "param": "include", "code": null});
    let stub = Stub::start([refused("400 Bad Request", error), done(), done()]).await;
    let driver = driver("openresponses", &stub, json!({"server": "openai"}));
    for _ in 0..2 {
        called(&driver, &message("x")).await.0.unwrap();
    }
    let seen = stub.seen();
    let asked: Vec<bool> = seen.iter().map(|seen| seen.json().get("include").is_some()).collect();
    assert_eq!(asked, [true, false, false]);
    let keys: Vec<&str> = seen.iter().filter_map(|seen| seen.header("idempotency-key")).collect();
    assert!(
        keys.iter().all(|key| *key == format!("{TURN}:1")),
        "a call that did not run keeps its name"
    );
}

#[tokio::test]
async fn other_refusals_are_not_resent() {
    let error = json!({"message": "Unknown parameter: 'include'.", "code": "unknown_parameter"});
    let stub = Stub::start([refused("400 Bad Request", error)]).await;
    let error = called(
        &driver("openresponses", &stub, json!({"server": "openai"})),
        &message("x"),
    )
    .await
    .0
    .unwrap_err();
    assert_eq!((error.class, error.sent), (FailureClass::BadRequest, Sent::No));
    assert_eq!(stub.counts().requests, 1);
}

/// A server that repeats the refused credential.
#[tokio::test]
async fn a_credential_that_is_repeated_does_not_get_into_an_error() {
    let error = json!({"message": "Incorrect API key provided: secret-t0ken.", "code": "invalid_api_key"});
    let stub = Stub::start([refused("401 Unauthorized", error)]).await;
    let error = called(&driver("openresponses", &stub, json!({})), &message("x"))
        .await
        .0
        .unwrap_err();
    assert_eq!(error.class, FailureClass::Unauthorized);
    assert!(
        error.detail.ends_with("Incorrect API key provided: (api_key)."),
        "{error}"
    );
}

/// A server that repeats the credential in other forms, at the cut, and where no error is expected.
#[tokio::test]
async fn a_credential_that_is_repeated_in_any_form_does_not_get_into_an_error() {
    let repeats = "(the text repeats the credential)";
    let check = async |body: &str, ends: &str| {
        let stub = Stub::start([vec![whole("500 Error", "application/json", "", body)]]).await;
        let called = called(&driver("openresponses", &stub, json!({})), &message("x")).await;
        let error = called.0.unwrap_err();
        assert!(error.detail.ends_with(ends), "{body}: {error}");
        let told = format!("{} {:?}", error.detail, error.response_id);
        assert!(!told.contains("secret"), "{body}: {told}");
    };
    check("no: secret-t0ken!", "no: (api_key)!").await;
    check("no: SECRET-T0ken!", "no: (api_key)!").await;
    // 256 characters of a body are told, 400 of an error.
    check(&format!("{}secret-t0ken", "x".repeat(248)), "xxx(api_key").await;
    let long = json!({"error": {"message": format!("{}secret-t0ken", "x".repeat(248)), "code": "c"}});
    check(&long.to_string(), "xxx(api_key)").await;
    check(r#"{"detail": "\u0073ecret-t0ken"}"#, repeats).await;
    check("data: {\"error\": {\"message\": \"\\u0073ecret-t0ken\"}}\n\n", repeats).await;
    check(r#"{"error": {"message": "\u0073ecret-t0ken"}}"#, "no code: (api_key)").await;
    check(
        r#"{"error": {"message": "up: {\"k\": \"\\u0073ecret-t0ken\"}"}}"#,
        repeats,
    )
    .await;
    check("no: %73ecret%2Dt0ken", repeats).await;
    check("no: c2VjcmV0LXQwa2Vu", repeats).await;
    check(
        r#"{"error": {"code": "c secret-t0ken", "message": "m"}}"#,
        "c (api_key): m",
    )
    .await;
    check(
        r#"{"id": "secret-t0ken", "status": "failed", "error": {"code": "c", "message": "m"}}"#,
        "c: m",
    )
    .await;
    let stub = Stub::start([vec![whole("200 OK", "text/secret-t0ken", "", "x")]]).await;
    let called = called(&driver("openresponses", &stub, json!({})), &message("x")).await;
    assert!(called.0.unwrap_err().detail.ends_with("text/(api_key)"));
}

#[tokio::test]
async fn refused_results_name_the_setting_to_check() {
    let results = tool_results(&[("c1", "task_history", "{}", "out")], None);
    let check = async |kind: &str, settings: Value, call: &ProviderCall, advised: bool| {
        let error =
            json!({"message": "No tool call found for function call output with call_id c1.", "param": "input"});
        let stub = Stub::start([refused("400 Bad Request", error)]).await;
        let driver = driver(kind, &stub, settings.clone());
        let error = called(&driver, call).await.0.unwrap_err();
        let error = driver.advised(error, call);
        assert_eq!(
            error.detail.contains("signalbox provider check"),
            advised,
            "{settings}: {error}"
        );
    };
    check("openresponses", json!({}), &results, true).await;
    check("openresponses", json!({}), &message("x"), false).await;
    check(
        "openresponses",
        json!({"server": "openai", "thread": "durable"}),
        &results,
        false,
    )
    .await;
    check("openclaw", json!({}), &results, false).await;
}

async fn looked_up(settings: Value, response_id: Option<&str>, script: Script) -> (Reconciled, Vec<String>) {
    let stub = Stub::start([script]).await;
    let driver: Driver = driver("openresponses", &stub, settings);
    let lost = LostCall {
        delivery_id: format!("{TURN}:1"),
        session_key: SESSION_KEY.to_owned(),
        response_id: response_id.map(str::to_owned),
        lost_for: std::time::Duration::ZERO,
    };
    let reconciled = driver.reconcile(&lost).await;
    (reconciled, stub.seen().into_iter().map(|seen| seen.line).collect())
}

#[tokio::test]
async fn a_lost_call_is_looked_up_where_responses_are_stored() {
    let stored = || json!({"server": "openai", "thread": "durable", "effects": "own"});
    let record = |status: &str, extra: Value| {
        let mut body = json!({"id": "resp_1", "object": "response", "status": status, "error": null,
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "Done."}]}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        vec![whole("200 OK", "application/json", "", &body.to_string())]
    };
    let (ran, asked) = looked_up(stored(), Some("resp_1"), record("completed", json!({}))).await;
    assert!(
        matches!(&ran, Reconciled::Ran(answer) if answer.text == "Done."),
        "{ran:?}"
    );
    assert_eq!(asked, ["GET /v1/responses/resp_1 HTTP/1.1"]);
    for status in ["queued", "in_progress"] {
        let (running, _) = looked_up(stored(), Some("resp_1"), record(status, json!({}))).await;
        assert!(matches!(running, Reconciled::StillRunning), "{running:?}");
    }
    let (cancelled, _) = looked_up(stored(), Some("resp_1"), record("cancelled", json!({}))).await;
    assert!(
        matches!(&cancelled, Reconciled::Failed(error) if error.class == FailureClass::Truncated && error.sent == Sent::Yes),
        "{cancelled:?}"
    );
    let failure = json!({"error": {"code": "server_error", "message": "m"}, "output": []});
    let (failed, _) = looked_up(stored(), Some("resp_1"), record("failed", failure)).await;
    assert!(
        matches!(&failed, Reconciled::Failed(error) if error.class == FailureClass::ServerError),
        "{failed:?}"
    );

    let gone = refused(
        "404 Not Found",
        json!({"message": "Response with id 'resp_1' not found."}),
    );
    let (gone, _) = looked_up(stored(), Some("resp_1"), gone).await;
    assert!(matches!(gone, Reconciled::Unknown { .. }), "{gone:?}");
    let broken = refused("503 Service Unavailable", json!({"message": "later"}));
    let (broken, _) = looked_up(stored(), Some("resp_1"), broken).await;
    assert!(matches!(broken, Reconciled::Unreachable(_)), "{broken:?}");
    let (page, _) = looked_up(
        stored(),
        Some("resp_1"),
        vec![whole("200 OK", "text/html", "", "<html>")],
    )
    .await;
    assert!(matches!(page, Reconciled::Unknown { .. }), "{page:?}");

    // Without a response id, and servers without records.
    let (unnamed, asked) = looked_up(stored(), None, done()).await;
    assert!(
        matches!(unnamed, Reconciled::Unknown { .. }) && asked.is_empty(),
        "{unnamed:?}"
    );
    for server in ["openai", "vllm", "generic"] {
        let (unasked, asked) = looked_up(json!({"server": server, "effects": "own"}), Some("resp_1"), done()).await;
        assert!(
            matches!(unasked, Reconciled::Unknown { .. }) && asked.is_empty(),
            "{server}: {unasked:?}"
        );
    }
}
