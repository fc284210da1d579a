//! Whole batches: order, many accounts, crashes, and values that the database cannot store.

use resolver::handlers::notification::Handled;
use serde_json::json;

use crate::scene::{Message, message, raw, scene, to_coder};

#[tokio::test]
async fn queue_positions_follow_the_stream() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let ids: Vec<String> = (0..300).map(|n| format!("n-{:03}", (n * 7919) % 1000)).collect();
    for batch in ids.chunks(70) {
        let messages: Vec<Message> = batch.iter().map(|id| to_coder(id, "b")).collect();
        reader.take(&messages).await;
    }
    let stored = scene.test.texts("select id from notification order by position").await;
    assert_eq!(stored, ids);
    scene.check().await;
}

#[tokio::test]
async fn a_batch_mixes_accounts_agents_and_tasks() {
    let scene = scene().await;
    for n in 0..5 {
        let account = scene.fixture().account(&format!("account-{n}")).await;
        scene.fixture().agent(&account, "coder").await;
        scene.fixture().agent(&account, "reviewer").await;
    }
    let mut reader = scene.reader().await;
    let messages: Vec<Message> = (0..200)
        .map(|n| {
            let agent = if n % 3 == 0 { "reviewer" } else { "coder" };
            let task = ["T-1", "t-1", "T-2", "-"][n / 6 % 4];
            message(
                &format!("account-{}", n % 6),
                task,
                &json!({"id": format!("n-{n}"), "agent": agent, "body": "b"}),
            )
        })
        .collect();
    let committed = reader.take(&messages).await;
    // account-5 does not exist.
    assert_eq!(
        committed.refusals.len(),
        messages.iter().filter(|one| one.subject.contains("account-5")).count()
    );
    let misplaced = scene
        .test
        .texts(
            "select n.id from notification n join session s on s.account_id = n.account_id and s.id = n.session_id
             where n.agent_id <> s.agent_id or n.task_id is distinct from s.task_id",
        )
        .await;
    assert_eq!(misplaced, Vec::<String>::new());
    assert_eq!(
        scene.test.count("select count(*) from task where id like 't-%'").await,
        10
    );
    scene.check().await;
}

/// The process died after the commit, before it published anything. Read again from an older offset, every message is a
/// duplicate, and nothing is done twice.
#[tokio::test]
async fn reading_a_committed_batch_again_does_nothing() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let batch = [
        to_coder("n-1", "b"),
        message("acme", "NEW", &json!({"agent": "coder", "body": "nameless"})),
        message("acme", "PROJ-7", &json!({"id": "all", "body": "b"})),
        raw("acme", "PROJ-7", "nonsense"),
        message(
            "acme",
            "PROJ-7",
            &json!({"id": "refused", "agent": "ghost", "body": "b"}),
        ),
        message("ghost", "-", &json!({"id": "unowned", "body": "b"})),
    ];
    reader.take(&batch).await;
    let rows = "select (select count(*) from notification) * 10000 + (select count(*) from dead_letter) * 100
                     + (select count(*) from session)";
    let before = (scene.test.count(rows).await, scene.sessions().await);
    for _ in 0..2 {
        reader.rewind();
        let committed = reader.take(&batch).await;
        assert_eq!((committed.resolutions.len(), committed.wakes.len()), (0, 0));
        assert_eq!((scene.test.count(rows).await, scene.sessions().await), before);
    }
    scene.check().await;
}

/// A transaction that is not committed leaves nothing, and a retry of the batch has the same result.
#[tokio::test]
async fn an_uncommitted_batch_leaves_nothing_and_can_be_retried() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let batch = [
        message("acme", "NEW", &json!({"agent": "coder", "body": "one"})),
        message(
            "acme",
            "PROJ-7",
            &json!({"id": "poison", "agent": "coder", "body": "poison"}),
        ),
    ];
    poison(&scene).await;
    let error = reader.handle(&batch).await.unwrap_err();
    assert!(error.blames_values());
    for table in [
        "select count(*) from notification",
        "select count(*) from session",
        "select count(*) from outbox",
        "select count(*) from activity",
        "select max(sequence) from resolver_partition",
    ] {
        assert_eq!(scene.test.count(table).await, 0, "{table}");
    }
    let ids: Vec<_> = reader.received(&batch).into_iter().map(|one| one.id).collect();
    scene.execute("drop trigger poison on notification").await;
    reader.take(&batch).await;
    assert!(scene.stored(ids[0].as_str()).await.is_some());
    scene.check().await;
}

/// Makes the database reject bodies that contain `poison`.
pub(crate) async fn poison(scene: &crate::scene::Scene) {
    scene
        .execute(
            "create function poison() returns trigger language plpgsql as
             $$ begin raise exception 'not this one'; end $$;
             create trigger poison before insert on notification for each row when (new.body = 'poison')
             execute function poison()",
        )
        .await;
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_is_buried() {
    let scene = scene().await;
    let reader = scene.reader().await;
    let batch = [message(
        "acme",
        "PROJ-7",
        &json!({"id": "n", "agent": "coder", "body": "poison"}),
    )];
    let received = reader.received(&batch);
    let to = reader.place(&received);
    let handled = reader
        .handler
        .bury(&reader.lease, &to, &received[0], time::OffsetDateTime::now_utc())
        .await
        .unwrap();
    assert!(matches!(handled, Handled::Committed(_)));
    assert_eq!(
        scene.test.texts("select reason from dead_letter").await,
        ["unprocessable"]
    );
    assert_eq!(
        scene.test.count("select max(sequence) from resolver_partition").await,
        1
    );
    assert_eq!(scene.stored("n").await, None);
}
