//! Fuzzes a gateway's session history against the reader that decides a call's outcome from it.

use std::time::Duration;

use testkit::fuzz::Fuzz;
use uuid::Uuid;

use super::*;
use crate::providers::fuzz::recorded;
use crate::providers::openclaw::key::GatewayAgent;

const TURN: Uuid = Uuid::from_u128(0x0190_aaaa_bbbb_7ccc_8ddd_eeee_ffff_0001);

#[test]
fn history() {
    let agent = GatewayAgent::from_settings("openclaw/alpha", None).unwrap();
    let key = agent.key_of("task:hist:1795167601").unwrap();
    let limits = HistoryLookup {
        enabled: true,
        settle: Duration::from_secs(10),
        unanswered_max: Duration::from_secs(120),
    };
    let lost = LostCall {
        delivery_id: format!("{TURN}:1"),
        session_key: "task:hist:1795167601".to_owned(),
        response_id: Some("resp_1".to_owned()),
        lost_for: Duration::from_secs(600),
    };
    let marker = wording::marker(&lost.delivery_id);
    let marked = format!("\"content\":\"{marker}");
    let recordings = recorded("\"sessionKey\"");
    // The recorded client put no delivery id into its texts.
    let ours = recordings
        .iter()
        .map(|body| body.replacen("\"content\":\"", &marked, 1));
    let small = format!(
        r#"{{"sessionKey":"{}","items":[{{"role":"user","content":"{marker}"}},{{"role":"assistant","content":"done",
            "stopReason":"stop","__openclaw":{{"runId":"resp_1"}}}}],"hasMore":false}}"#,
        key.as_str()
    );
    let failed = small.replace("\"stop\"", "\"error\"");
    let elsewhere = small.replacen("alpha", "beta", 1);
    let empty = r#"{"items":[],"hasMore":false}"#.to_owned();
    Fuzz::new("history", env!("CARGO_MANIFEST_DIR"))
        .seeds(
            recordings
                .iter()
                .cloned()
                .chain(ours)
                .chain([small, failed, elsewhere, empty]),
        )
        .words(&[
            "items",
            "messages",
            "role",
            "user",
            "assistant",
            "content",
            "text",
            "stopReason",
            "stop",
            "length",
        ])
        .words(&[
            "error",
            "provenance",
            "internal_system",
            "__openclaw",
            "runId",
            "hasMore",
            "nextCursor",
            "name",
        ])
        .words(&["idempotencyKey", "x:terminal-error", "usage", "sessionKey", "resp_1"])
        .flood(1024 * 1024)
        .must_meet(&["ran", "failed", "did not run", "unknown", "unreadable"])
        .run(|input| {
            let _ = says_no_session(input);
            let Ok(page) = page(input, &Credential::default()) else {
                return "unreadable";
            };
            assert!(page.older.is_none_or(|cursor| cursor.chars().count() <= 256));
            let record = Record {
                session_key: page.session_key,
                rows: page.rows,
                is_whole: page.is_last,
            };
            let _ = check_session(&record, &key, &marker);
            match decide(&record, &key, &lost, limits) {
                Reconciled::Ran(_) => "ran",
                Reconciled::Failed(_) => "failed",
                Reconciled::DidNotRun => "did not run",
                Reconciled::StillRunning => "still running",
                Reconciled::Unknown { .. } => "unknown",
                Reconciled::Unreachable(_) => "unreachable",
            }
        });
}
