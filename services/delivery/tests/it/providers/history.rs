//! How the OpenClaw driver decides a lost call's outcome from the session's history.

use std::time::Duration;

use delivery::providers::{LostCall, Reconciled, SessionCheck};
use serde_json::{Value, json};

use super::recording::Recording;
use super::stub::{Script, Stub, whole};
use super::{TURN, driver, message};

/// Recordings used here.
pub(super) const RECORDINGS: [&str; 10] = [
    "k01-unknown",
    "k03-history",
    "k04-history-running",
    "k05-history-cancelled",
    "k10-history-final",
    "k11-history-failed",
    "l03-sigkill-plain-history",
    "l03-sigkill-stream-history",
    "l03-sigterm-plain-history",
    "l03-sigterm-stream-history",
];

const HIST: &str = "task:hist:1795167601";
const SOON: Duration = Duration::from_secs(1);
/// Longer than a call may take to appear, shorter than a call may stay unanswered.
const LATER: Duration = Duration::from_secs(60);
const LONG_AFTER: Duration = Duration::from_secs(600);

/// A recorded history with a delivery id before the user text `text`. The recorded client sent no delivery ids.
fn marked(name: &str, text: &str) -> Recording {
    Recording::load(name).with(
        &format!("\"content\":\"{text}"),
        &format!("\"content\":\"(Signalbox delivery {TURN}:1)\\n{text}"),
    )
}

fn lost(session_key: &str, response_id: Option<&str>, lost_for: Duration) -> LostCall {
    LostCall {
        delivery_id: format!("{TURN}:1"),
        session_key: session_key.to_owned(),
        response_id: response_id.map(str::to_owned),
        lost_for,
    }
}

async fn reconciled(pages: Vec<Script>, lost: &LostCall) -> Reconciled {
    let stub = Stub::start(pages).await;
    driver("openclaw", &stub, json!({})).reconcile(lost).await
}

/// One line for a table: the decision and its text.
fn told(outcome: &Reconciled) -> String {
    match outcome {
        Reconciled::Ran(answer) => format!("ran: {}", answer.text),
        Reconciled::Failed(error) => format!("failed: {}", error.detail),
        Reconciled::DidNotRun => "did not run".to_owned(),
        Reconciled::StillRunning => "still running".to_owned(),
        Reconciled::Unreachable(error) => format!("unreachable: {}", error.class),
        Reconciled::Unknown { reason } => format!("unknown: {reason}"),
    }
}

async fn check(recording: Recording, lost: LostCall, expected: &str) {
    let outcome = reconciled(vec![recording.script()], &lost).await;
    assert_eq!(told(&outcome), expected, "{lost:?}");
}

#[tokio::test]
async fn finds_a_call_by_its_response_id() {
    let first = Some("resp_8932e1dd-aa5e-4929-ad65-fe3abbd29f7b");
    let two = Some("resp_55c05b90-ef87-485c-a8a3-9c51d3906c5d");
    let failed = Some("resp_e0a81c3a-0292-41ab-ad33-53ae9e34595f");
    let sigterm = Some("resp_ebb0f44b-903a-4ea4-84b7-170e11c161bc");
    check(Recording::load("k03-history"), lost(HIST, first, SOON), "ran: first").await;
    check(
        Recording::load("k05-history-cancelled"),
        lost(HIST, first, SOON),
        "ran: first",
    )
    .await;
    check(
        Recording::load("k10-history-final"),
        lost(HIST, two, LONG_AFTER),
        "ran: SLOW: 3",
    )
    .await;
    let text = "failed: ⚠️ LLM request failed (request format rejected, HTTP 400).";
    check(Recording::load("k11-history-failed"), lost(HIST, failed, SOON), text).await;
    let session = "task:sigterm:stream";
    check(
        Recording::load("l03-sigterm-stream-history"),
        lost(session, sigterm, SOON),
        "ran: SLOW: 6",
    )
    .await;
}

#[tokio::test]
async fn finds_a_call_by_its_delivery_id() {
    check(marked("k03-history", "one MOCK"), lost(HIST, None, SOON), "ran: first").await;
    check(
        marked("l03-sigterm-plain-history", "interrupted"),
        lost("task:sigterm:plain", None, SOON),
        "ran: SLOW: 6",
    )
    .await;
    check(
        marked("k11-history-failed", "failing MOCK"),
        lost(HIST, None, SOON),
        "failed: ⚠️ LLM request failed (request format rejected, HTTP 400).",
    )
    .await;
}

#[tokio::test]
async fn takes_the_answer_that_the_gateway_made_after_its_crash() {
    for kind in ["plain", "stream"] {
        let session = format!("task:sigkill:{kind}");
        let name = format!("l03-sigkill-{kind}-history");
        // The response id of the interrupted stream (l01-sigkill-stream) is in no row: the recovery has its own.
        let before_the_crash = Some("resp_a8101a97-6afd-498f-861a-8f70450e8825");
        let history = marked(&name, "interrupted");
        check(history.clone(), lost(&session, before_the_crash, LATER), "ran: SLOW: 6").await;
        let Reconciled::Ran(answer) = reconciled(vec![history.script()], &lost(&session, None, LATER)).await else {
            panic!("it ran")
        };
        let usage = answer.usage.unwrap();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (1909, 1, 1910)
        );
        assert!(history.body.contains(&answer.response_id.unwrap()));

        // While the recovery runs, the history has no answer.
        let mut running: Value = serde_json::from_str(&history.body).unwrap();
        running["items"].as_array_mut().unwrap().pop();
        let page = || vec![page(&running)];
        assert_eq!(
            told(&reconciled(page(), &lost(&session, None, LATER)).await),
            "still running"
        );
        let unknown = "unknown: the turn began and has no answer";
        assert_eq!(
            told(&reconciled(page(), &lost(&session, None, LONG_AFTER)).await),
            unknown
        );
    }
}

#[tokio::test]
async fn waits_before_it_believes_that_a_call_did_not_run() {
    let not_found = || Recording::load("k01-unknown");
    check(not_found(), lost(HIST, None, SOON), "still running").await;
    check(not_found(), lost(HIST, None, LATER), "did not run").await;
    let without_us = || Recording::load("k05-history-cancelled");
    check(without_us(), lost(HIST, None, SOON), "still running").await;
    check(without_us(), lost(HIST, None, LATER), "did not run").await;
}

#[tokio::test]
async fn cannot_tell_a_running_call_from_a_cancelled_one_but_by_time() {
    for (name, text) in [
        ("k04-history-running", "two MOCK"),
        ("k05-history-cancelled", "three MOCK"),
    ] {
        check(marked(name, text), lost(HIST, None, LATER), "still running").await;
        check(
            marked(name, text),
            lost(HIST, None, LONG_AFTER),
            "unknown: the turn began and has no answer",
        )
        .await;
    }
}

fn page(body: &Value) -> Script {
    vec![whole(
        "200 OK",
        "application/json; charset=utf-8",
        "",
        &body.to_string(),
    )]
}

fn row(role: &str, text: &str) -> Value {
    json!({"role": role, "content": [{"type": "text", "text": text}], "stopReason": "stop"})
}

fn history(rows: &[Value]) -> Value {
    json!({"sessionKey": format!("agent:alpha:{HIST}"), "items": rows, "hasMore": false})
}

fn ours() -> Value {
    json!({"role": "user", "content": format!("(Signalbox delivery {TURN}:1)\ndo it")})
}

#[tokio::test]
async fn decides_from_the_rows_of_this_call_alone() {
    async fn check(rows: &[Value], expected: &str) {
        let outcome = reconciled(vec![page(&history(rows))], &lost(HIST, None, LATER)).await;
        assert_eq!(told(&outcome), expected, "{rows:?}");
    }
    let other = json!({"role": "user", "content": "somebody else"});
    let with_stop = |mut row: Value, reason: &str| {
        row["stopReason"] = reason.into();
        row
    };
    check(
        &[
            ours(),
            row("assistant", "mine"),
            other.clone(),
            row("assistant", "theirs"),
        ],
        "ran: mine",
    )
    .await;
    check(&[ours(), other.clone(), row("assistant", "theirs")], "still running").await;
    check(&[other, row("assistant", "theirs")], "did not run").await;
    let folded =
        format!("[Chat messages since your last reply - for context]\nTool:c1: (Signalbox delivery {TURN}:1)\nx");
    check(
        &[json!({"role": "user", "content": folded}), row("assistant", "mine")],
        "ran: mine",
    )
    .await;
    check(
        &[ours(), row("assistant", "first"), ours(), row("assistant", "second")],
        "ran: second",
    )
    .await;
    check(
        &[ours(), with_stop(row("assistant", "let me look"), "toolUse")],
        "still running",
    )
    .await;
    check(
        &[ours(), row("assistant", "x"), row("toolResult", "y")],
        "still running",
    )
    .await;
    check(
        &[ours(), with_stop(row("assistant", "gone"), "aborted")],
        "still running",
    )
    .await;
    check(&[ours(), row("assistant", "No response from OpenClaw.")], "ran: ").await;
    check(
        &[ours(), row("assistant", &format!("delivery {TURN}:1"))],
        &format!("ran: delivery {TURN}:1"),
    )
    .await;
    let calls_us = json!({"role": "assistant", "stopReason": "toolUse", "content":
        [{"type": "toolCall", "id": "x", "name": "signalbox_task_status", "arguments": {}}]});
    let reason = "unknown: the turn called Signalbox's tools, and the calls were lost";
    check(&[ours(), calls_us, row("assistant", "made without the result")], reason).await;

    let cut = row("assistant", "long text\n...(truncated)...");
    let Reconciled::Ran(answer) = reconciled(vec![page(&history(&[ours(), cut]))], &lost(HIST, None, LATER)).await
    else {
        panic!("it ran")
    };
    assert_eq!(
        (answer.text.as_str(), answer.incomplete_reason.as_deref()),
        ("long text", Some("cut by the history"))
    );
}

#[tokio::test]
async fn reads_back_page_by_page_and_stops() {
    let mut newest = history(&[row("assistant", "mine")]);
    newest["hasMore"] = true.into();
    newest["nextCursor"] = "41".into();
    let mut oldest = history(&[ours()]);
    oldest["hasMore"] = true.into();
    oldest["nextCursor"] = "7".into();
    let stub = Stub::start([page(&newest), page(&oldest)]).await;
    let outcome = driver("openclaw", &stub, json!({}))
        .reconcile(&lost(HIST, None, LATER))
        .await;
    assert_eq!(told(&outcome), "ran: mine");
    let lines: Vec<String> = stub.seen().iter().map(|seen| seen.line.clone()).collect();
    let path = Recording::load("k03-history").request_path;
    let expected = [
        format!("GET {path}?limit=50 HTTP/1.1"),
        format!("GET {path}?limit=50&cursor=41 HTTP/1.1"),
    ];
    assert_eq!(lines, expected, "as recorded, and no older page once the call is found");
    assert_eq!(stub.seen()[0].header("authorization"), Some("Bearer secret-t0ken"));

    let endless: Vec<Script> = (0..50)
        .map(|n| {
            let mut page_n = history(&[row("assistant", "more")]);
            page_n["hasMore"] = true.into();
            page_n["nextCursor"] = format!("{n}").into();
            page(&page_n)
        })
        .collect();
    let outcome = reconciled(endless, &lost(HIST, None, LATER)).await;
    assert_eq!(told(&outcome), "unknown: the session's history is too long");
}

#[tokio::test]
async fn says_when_the_history_cannot_be_read() {
    async fn check(script: Script, expected: &str) {
        assert_eq!(
            told(&reconciled(vec![script], &lost(HIST, None, LATER)).await),
            expected
        );
    }
    let answered = |status: &str, body: &str| vec![whole(status, "application/json", "", body)];
    check(Recording::load("d01-no-token").script(), "unreachable: unauthorized").await;
    check(Recording::load("d35-not-found").script(), "unreachable: bad_request").await;
    check(answered("503 Service Unavailable", "{}"), "unreachable: server_error").await;
    check(answered("200 OK", "not json"), "unreachable: malformed").await;
    check(answered("200 OK", "{}"), "unreachable: malformed").await;
    check(Vec::from([super::stub::Act::Close]), "unreachable: truncated").await;
    let foreign = json!({"sessionKey": "agent:alpha:openresponses:x", "items": [ours(), row("assistant", "x")]});
    check(
        page(&foreign),
        "unknown: the gateway answered with another session's history",
    )
    .await;

    let stub = Stub::start([]).await;
    let blind = driver("openclaw", &stub, json!({"history": false}));
    assert!(matches!(
        blind.reconcile(&lost(HIST, None, LATER)).await,
        Reconciled::Unknown { .. }
    ));
    let plain = driver("openresponses", &stub, json!({}));
    assert!(matches!(
        plain.reconcile(&lost(HIST, None, LATER)).await,
        Reconciled::Unknown { .. }
    ));
    assert_eq!(stub.counts().connections, 0);
}

#[tokio::test]
async fn notices_a_turn_that_ran_in_another_session() {
    async fn check(script: Script, expected: &str) {
        let stub = Stub::start([script]).await;
        let mut call = message("one");
        call.session_key = HIST.to_owned();
        let outcome = match driver("openclaw", &stub, json!({})).session_check(&call).await {
            SessionCheck::Confirmed => "confirmed".to_owned(),
            SessionCheck::RanElsewhere { observed, .. } => format!("elsewhere: {observed:?}"),
            SessionCheck::NotChecked { .. } => "not checked".to_owned(),
        };
        assert_eq!(outcome, expected);
    }
    check(marked("k03-history", "one MOCK").script(), "confirmed").await;
    check(marked("k04-history-running", "two MOCK").script(), "confirmed").await;
    check(Recording::load("k03-history").script(), "elsewhere: None").await;
    check(Recording::load("k01-unknown").script(), "elsewhere: None").await;
    let moved = marked("k03-history", "one MOCK").with("agent:alpha:task:hist", "agent:beta:task:hist");
    check(moved.script(), "elsewhere: Some(\"agent:beta:task:hist:1795167601\")").await;
    check(Recording::load("d01-no-token").script(), "not checked").await;
}
