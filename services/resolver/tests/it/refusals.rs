//! Every refusal and its traces: a dead letter, an event, and a row where the id can be queried.

use contracts::header;
use serde_json::{Value, json};

use crate::scene::{Message, message, raw, scene, to_coder};

#[tokio::test]
async fn every_refusal_explains_itself() {
    let scene = scene().await;
    let elsewhere = scene.fixture().task(&scene.account, "ELSE", &[]).await;
    scene.fixture().task(&scene.account, "HQ", &[scene.reviewer]).await;
    scene
        .fixture()
        .account_set(&scene.account, "coordinator_task", "HQ")
        .await;
    let foreign = scene.fixture().message(&scene.account, &elsewhere, "hello").await;
    let mut reader = scene.reader().await;
    let on = |task: &str, payload: Value| message("acme", task, &payload);
    let cases: Vec<(&str, Message)> = vec![
        (
            "malformed",
            raw("acme", "PROJ-7", "nonsense").with(header::MESSAGE_ID, "malformed"),
        ),
        ("invalid_field", on("PROJ-7", json!({"id": "invalid_field", "body": 7}))),
        (
            "too_large",
            on(
                "PROJ-7",
                json!({"id": "too_large", "agent": "coder", "body": "x".repeat(256 * 1024 + 1)}),
            ),
        ),
        (
            "invalid_subject",
            on("_bad", json!({"body": "b"})).with(header::MESSAGE_ID, "invalid_subject"),
        ),
        (
            "unknown_agent",
            on("PROJ-7", json!({"id": "unknown_agent", "agent": "ghost", "body": "b"})),
        ),
        ("no_agent", on("ELSE", json!({"id": "no_agent", "body": "b"}))),
        (
            "message_mismatch",
            on(
                "PROJ-7",
                json!({"id": "message_mismatch", "agent": "coder", "body": "b", "message_id": foreign}),
            ),
        ),
        (
            "not_coordinator",
            on("hq", json!({"id": "not_coordinator", "agent": "coder", "body": "b"})),
        ),
        (
            "hop_limit",
            to_coder("hop_limit", "b")
                .with(header::HOPS, "4")
                .with(header::CAUSE, "turn-9"),
        ),
    ];
    let messages: Vec<Message> = cases.iter().map(|(_, message)| message.clone()).collect();
    let committed = reader.take(&messages).await;
    assert_eq!(
        (committed.refusals.len(), committed.resolutions.len()),
        (cases.len(), 0)
    );

    let outgoing = scene.outgoing().await;
    for (reason, sent) in &cases {
        // The row holds the reason for queries of the id.
        let stored = scene
            .stored(reason)
            .await
            .unwrap_or_else(|| panic!("no row of {reason}"));
        assert_eq!(
            (stored.state.as_str(), stored.key, stored.position),
            ("refused", None, None),
            "{reason}"
        );
        let sentence = stored.reason.unwrap();
        assert!(
            sentence.starts_with(&format!("{reason}: ")) && sentence.len() > reason.len() + 10,
            "{sentence}"
        );
        // The dead letter holds the message as received.
        let letters: Vec<(String, String)> =
            sqlx::query_as("select subject, payload from dead_letter where account_id = 'acme' and reason = $1")
                .bind(reason)
                .fetch_all(&scene.test.owner)
                .await
                .unwrap();
        let subject = sent.subject.replace("partition.0", "notification");
        assert_eq!(letters, [(subject, sent.payload.clone())], "{reason}");
        // The event and the dead letter on the bus.
        let told = |kind: &str, field: &dyn Fn(&Value) -> bool| {
            outgoing
                .iter()
                .filter(|(subject, payload)| subject.contains(kind) && field(payload))
                .count()
        };
        assert_eq!(
            told(".notification.refused", &|event| event["data"]["reason"] == *reason),
            1,
            "{reason}"
        );
        assert_eq!(
            told("signalbox.dead.acme.", &|letter| letter["reason"] == *reason),
            1,
            "{reason}"
        );
    }
    let hop_limit = scene.stored("hop_limit").await.unwrap().reason.unwrap();
    assert!(hop_limit.contains("turn-9"), "{hop_limit}");
    scene.check().await;
}

#[tokio::test]
async fn tasks_are_refused_where_the_account_does_not_create_them() {
    let scene = scene().await;
    scene
        .fixture()
        .account_set(&scene.account, "auto_create_tasks", "false")
        .await;
    let mut reader = scene.reader().await;
    let payload = json!({"id": "n", "agent": "coder", "body": "b"});
    reader.take(&[message("acme", "NEW", &payload)]).await;
    assert!(
        scene
            .stored("n")
            .await
            .unwrap()
            .reason
            .unwrap()
            .starts_with("unknown_task: ")
    );
    assert_eq!(scene.test.count("select count(*) from task").await, 1);
    // The dead letter keeps the task of the subject, and is redriven there.
    let letters = scene.test.texts("select subject from dead_letter").await;
    assert_eq!(letters, ["signalbox.notification.acme.NEW"]);
}

#[tokio::test]
async fn a_message_without_an_account_is_stored_under_the_operators_account() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let payload = json!({"id": "n", "agent": "coder", "body": "b"});
    let committed = reader
        .take(&[
            message("ghost", "T-1", &payload),
            message("NOT-ONE", "T-1", &payload),
            to_coder("good", "b"),
        ])
        .await;
    assert_eq!((committed.refusals.len(), committed.resolutions.len()), (2, 1));
    let letters = scene
        .test
        .texts("select account_id || ' ' || reason || ' ' || subject from dead_letter order by 1")
        .await;
    assert_eq!(
        letters,
        [
            "- invalid_subject signalbox.notification.NOT-ONE.T-1",
            "- unknown_account signalbox.notification.ghost.T-1"
        ]
    );
    let subjects: Vec<String> = scene.outgoing().await.into_iter().map(|(subject, _)| subject).collect();
    assert_eq!(
        subjects,
        [
            "signalbox.dead.-.-",
            "signalbox.dead.-.-",
            "signalbox.event.acme.PROJ-7.session.opened",
            // Where the subject names an account, its listeners get the event.
            "signalbox.event.ghost.T-1.notification.refused",
        ]
    );
    assert_eq!(scene.test.count("select count(*) from notification").await, 1);
    assert_eq!(
        scene
            .test
            .count("select count(*) from outbox o, string_to_table(o.subject, ' ') where account_id = '-'")
            .await,
        3
    );
}

#[tokio::test]
async fn another_accounts_rows_are_unknown() {
    let scene = scene().await;
    let other = scene.fixture().account("other").await;
    let spy = scene.fixture().agent(&other, "spy").await;
    let task = scene.fixture().task(&other, "SECRET", &[spy]).await;
    let secret = scene.fixture().message(&other, &task, "secret").await;
    let mut reader = scene.reader().await;
    // In one batch with the other account's own message, so that the transaction can see that account's rows.
    reader
        .take(&[
            message("other", "SECRET", &json!({"id": "theirs", "agent": "spy", "body": "b"})),
            message("acme", "PROJ-7", &json!({"id": "by-id", "agent": spy, "body": "b"})),
            message("acme", "PROJ-7", &json!({"id": "by-slug", "agent": "spy", "body": "b"})),
            message(
                "acme",
                "SECRET",
                &json!({"id": "by-message", "agent": "coder", "body": "b", "message_id": secret}),
            ),
            message("acme", "SECRET", &json!({"id": "by-task", "body": "b"})),
        ])
        .await;
    for (id, reason) in [
        ("by-id", "unknown_agent"),
        ("by-slug", "unknown_agent"),
        ("by-message", "message_mismatch"),
        ("by-task", "no_agent"),
    ] {
        let stored = scene.stored(id).await.unwrap();
        assert!(stored.reason.as_ref().unwrap().starts_with(reason), "{id}: {stored:?}");
    }
    assert_eq!(
        scene
            .test
            .count("select count(*) from notification where state = 'queued'")
            .await,
        1
    );
    assert_eq!(
        scene
            .test
            .count("select count(*) from task where account_id = 'acme'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_refused_notification_does_not_block_its_batch() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader
        .take(&[
            to_coder("n-1", "b"),
            raw("acme", "PROJ-7", "nonsense"),
            to_coder("n-2", "b"),
            message("ghost", "-", &json!({"body": "b"})),
            to_coder("n-3", "b"),
        ])
        .await;
    for (id, position) in [("n-1", 1), ("n-2", 2), ("n-3", 3)] {
        assert_eq!(scene.stored(id).await.unwrap().position, Some(position));
    }
    scene.check().await;
}
