//! Ids: duplicates, conflicts, parts, redrives.

use resolver::intake::resolve::Finding;
use serde_json::json;

use crate::scene::{Message, Scene, message, raw, scene, to_coder};

async fn set_state(scene: &Scene, id: &'static str, state: &'static str) {
    sqlx::query("update notification set state = $2, attempts = 5, reason = 'because' where id = $1")
        .bind(id)
        .bind(state)
        .execute(&scene.test.owner)
        .await
        .unwrap();
    sqlx::raw_sql(
        "update session s set queued = (select count(*) from notification n where n.session_id = s.id and n.state = 'queued')",
    )
    .execute(&scene.test.owner)
    .await
    .unwrap();
}

#[tokio::test]
async fn the_same_again_changes_nothing() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let committed = reader.take(&[to_coder("n", "b"), to_coder("n", "b")]).await;
    assert_eq!(committed.duplicates, 1);
    let before = (scene.stored("n").await, scene.sessions().await, scene.outgoing().await);
    let committed = reader.take(&[to_coder("n", "b"), to_coder("n", "b")]).await;
    assert_eq!((committed.duplicates, committed.wakes.len()), (2, 0));
    assert_eq!(
        (scene.stored("n").await, scene.sessions().await, scene.outgoing().await),
        before
    );
    assert_eq!(scene.test.count("select count(*) from dead_letter").await, 0);
    scene.check().await;
}

#[tokio::test]
async fn an_id_used_for_something_else_is_refused_and_the_stored_one_stays() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n", "one"), to_coder("n", "two")]).await;
    reader
        .take(&[message(
            "acme",
            "PROJ-7",
            &json!({"id": "n", "agent": "reviewer", "body": "one"}),
        )])
        .await;
    let stored = scene.stored("n").await.unwrap();
    assert_eq!((stored.state.as_str(), stored.body.as_str()), ("queued", "one"));
    let letters = scene
        .test
        .texts("select reason || ' ' || subject from dead_letter")
        .await;
    assert_eq!(letters, ["id_conflict signalbox.notification.acme.PROJ-7"; 2]);
    let refused: Vec<_> = scene
        .outgoing()
        .await
        .into_iter()
        .filter(|(subject, _)| subject == "signalbox.event.acme.PROJ-7.notification.refused")
        .collect();
    assert_eq!(refused.len(), 2);
    assert_eq!(refused[0].1["data"]["reason"], "id_conflict");
    assert_eq!(refused[0].1["data"]["id"], "n");
    scene.check().await;
}

#[tokio::test]
async fn ids_are_an_account_s_own() {
    let scene = scene().await;
    let other = scene.fixture().account("other").await;
    scene.fixture().agent(&other, "coder").await;
    let mut reader = scene.reader().await;
    let committed = reader
        .take(&[
            to_coder("ci-1", "ours"),
            message(
                "other",
                "PROJ-7",
                &json!({"id": "ci-1", "agent": "coder", "body": "theirs"}),
            ),
        ])
        .await;
    assert_eq!((committed.resolutions.len(), committed.duplicates), (2, 0));
    let bodies = scene
        .test
        .texts("select account_id || ':' || body from notification order by 1")
        .await;
    assert_eq!(bodies, ["acme:ours", "other:theirs"]);
}

#[tokio::test]
async fn without_an_id_reading_again_finds_the_stored_row() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let nameless = || message("acme", "PROJ-7", &json!({"agent": "coder", "body": "b"}));
    let committed = reader.take(&[nameless(), nameless()]).await;
    assert_eq!(committed.duplicates, 0);
    reader.rewind();
    let committed = reader.take(&[nameless(), nameless(), nameless()]).await;
    assert_eq!(committed.duplicates, 2);
    assert_eq!(scene.test.count("select count(*) from notification").await, 3);
    scene.check().await;
}

#[tokio::test]
async fn a_notification_for_several_is_stored_as_its_parts() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let part = |agent| format!("all:{agent}");
    let all = message("acme", "PROJ-7", &json!({"id": "all", "body": "b"}));
    let committed = reader.take(std::slice::from_ref(&all)).await;
    assert_eq!(committed.wakes.len(), 2);
    for agent in [scene.coder, scene.reviewer] {
        assert_eq!(
            scene.stored(&part(agent)).await.unwrap().key.unwrap(),
            format!("task:proj-7:agent:{agent}:acme:v1")
        );
    }
    assert_eq!(scene.stored("all").await, None);
    assert_eq!(reader.take(std::slice::from_ref(&all)).await.duplicates, 1);

    // An agent joins: it gets its part, and no other agent gets anything.
    let tester = scene.fixture().agent(&scene.account, "tester").await;
    scene.fixture().assign(&scene.account, &scene.task, tester).await;
    let committed = reader.take(&[all]).await;
    assert_eq!((committed.resolutions.len(), committed.duplicates), (1, 2));
    assert!(scene.stored(&part(tester)).await.is_some());

    let named = json!({"id": "two", "agents": ["coder", scene.reviewer.to_string(), "coder"], "body": "b"});
    reader.take(&[message("acme", "-", &named)]).await;
    assert_eq!(
        scene
            .test
            .count("select count(*) from notification where id like 'two:%'")
            .await,
        2
    );
    scene.check().await;
}

#[tokio::test]
async fn a_redrive_queues_a_failed_one_again_at_the_end() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n", "b"), to_coder("later", "b")]).await;
    set_state(&scene, "n", "failed").await;
    // As delivery rebuilds it: with the agent's id, and every field explicit.
    let id = scene.coder.to_string();
    let spelt = json!({"id": "n", "type": "notification", "agent": id, "body": "b", "queue_mode": "followup",
        "sender": {"kind": "service", "id": "publisher", "name": "publisher"}, "metadata": {}});
    let committed = reader.take(&[message("acme", "PROJ-7", &spelt).again()]).await;
    // The other notification is still queued, so delivery was woken already.
    assert_eq!((committed.requeued, committed.wakes.len()), (1, 0));
    let stored = scene.stored("n").await.unwrap();
    assert_eq!(
        (stored.state.as_str(), stored.position, stored.attempts),
        ("queued", Some(3), 0)
    );
    assert_eq!(stored.reason, None);
    // It is queued now: a second redrive is a duplicate.
    assert_eq!(
        reader
            .take(&[message("acme", "PROJ-7", &spelt).again()])
            .await
            .duplicates,
        1
    );
    for state in ["running", "delivered", "cancelled"] {
        set_state(&scene, "n", state).await;
        assert_eq!(
            reader.take(&[to_coder("n", "b").again()]).await.duplicates,
            1,
            "{state}"
        );
    }
    scene.check().await;
}

/// Every publisher can write the header; only a service of ours can redrive.
#[tokio::test]
async fn an_unsigned_redrive_is_an_ordinary_message() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n", "b")]).await;
    set_state(&scene, "n", "failed").await;
    let unsigned = Message {
        is_signed: false,
        ..to_coder("n", "b").again()
    };
    assert_eq!(reader.take(&[unsigned]).await.duplicates, 1);
    let too_far = to_coder("far", "b").with(contracts::header::HOPS, "99");
    let unsigned = Message {
        is_signed: false,
        ..too_far.again()
    };
    assert_eq!(reader.take(&[unsigned]).await.refusals.len(), 1);
    scene.check().await;
}

#[tokio::test]
async fn a_redrive_of_a_refused_notification_succeeds_after_the_fix() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let to_tester = message("acme", "PROJ-7", &json!({"id": "n", "agent": "tester", "body": "b"}));
    let unassigned = message("acme", "EMPTY", &json!({"id": "all", "body": "b"}));
    let too_far = to_coder("far", "b").with(contracts::header::HOPS, "99");
    reader
        .take(&[to_tester.clone(), unassigned.clone(), too_far.clone()])
        .await;
    assert_eq!(scene.stored("n").await.unwrap().state, "refused");
    assert_eq!(scene.stored("all").await.unwrap().state, "refused");
    // Published again without a redrive, it keeps its state.
    assert_eq!(reader.take(std::slice::from_ref(&to_tester)).await.duplicates, 1);

    let tester = scene.fixture().agent(&scene.account, "tester").await;
    scene.fixture().task(&scene.account, "EMPTY", &[tester]).await;
    let committed = reader
        .take(&[to_tester.again(), unassigned.again(), too_far.again()])
        .await;
    assert_eq!((committed.requeued, committed.refusals.len()), (2, 0));
    let stored = scene.stored("n").await.unwrap();
    assert_eq!((stored.state.as_str(), stored.reason), ("queued", None));
    assert_eq!(stored.key.unwrap(), format!("task:proj-7:agent:{tester}:acme:v1"));
    assert_eq!(scene.stored("far").await.unwrap().hops, 0);
    // The parts replace the refused whole.
    assert_eq!(scene.stored("all").await, None);
    assert!(scene.stored(&format!("all:{tester}")).await.is_some());
    scene.check().await;
}

#[tokio::test]
async fn a_redrive_that_is_still_wrong_is_another_dead_letter() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let ghost = message("acme", "PROJ-7", &json!({"id": "n", "agent": "ghost", "body": "b"}));
    reader.take(std::slice::from_ref(&ghost)).await;
    reader.take(&[ghost.clone().again()]).await;
    assert_eq!(scene.test.count("select count(*) from dead_letter").await, 2);
    assert_eq!(scene.stored("n").await.unwrap().state, "refused");
    // Read again after a crash, a refusal is the same dead letter.
    reader.rewind();
    reader.take(&[raw("acme", "PROJ-7", "nonsense")]).await;
    reader.rewind();
    reader.take(&[raw("acme", "PROJ-7", "nonsense")]).await;
    assert_eq!(scene.test.count("select count(*) from dead_letter").await, 3);
}

#[tokio::test]
async fn cause_hops_and_trace_go_on() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let committed = reader
        .take(&[
            to_coder("n", "b")
                .with(contracts::header::CAUSE, "turn-1")
                .with(contracts::header::HOPS, "2")
                .with(contracts::header::TRACEPARENT, PARENT)
                .with(contracts::header::TRACESTATE, "v=1"),
            to_coder("m", "b").with(contracts::header::MESSAGE_ID, "msg-1"),
        ])
        .await;
    let stored = scene.stored("n").await.unwrap();
    assert_eq!((stored.cause.as_deref(), stored.hops), (Some("turn-1"), 2));
    assert_eq!(stored.trace.traceparent.as_deref(), Some(PARENT));
    assert_eq!(stored.trace.tracestate.as_deref(), Some("v=1"));
    assert_eq!(scene.stored("m").await.unwrap().cause.as_deref(), Some("msg-1"));
    assert_eq!(committed.resolutions[0].finding, Finding::Created);
    // The wake-up is caused by the newest item.
    assert_eq!(committed.wakes[0].headers.get(contracts::header::CAUSE), Some("m"));
    let opened = scene
        .test
        .texts("select headers ->> 'Signalbox-Cause' from outbox")
        .await;
    assert_eq!(opened, ["m"]);
}
