//! Two accounts in one batch with the same ids of agents, tasks, messages, notifications, sessions and receipts, and
//! with some rows that only one of them has. Row-level security shows a batch the rows of both, so only the code's own
//! conditions separate them, in SQL and in memory.

use contracts::header;
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::scene::{Message, Scene, message, scene};

const ACCOUNTS: [&str; 2] = ["acme", "umbra"];

impl Scene {
    /// `account id state reason`, and the queue.
    async fn ends(&self) -> Vec<String> {
        self.test
            .texts(
                "select concat_ws(' ', n.account_id, split_part(n.id, ':', 1), n.state, n.reason, n.body,
                                  replace(replace(s.key, s.agent_id::text, a.slug), s.account_id, '@'))
                 from notification n left join session s on s.account_id = n.account_id and s.id = n.session_id
                 left join agent a on a.account_id = s.account_id and a.id = s.agent_id
                 order by n.account_id, n.created_at, n.id",
            )
            .await
            .into_iter()
            // The reason's text is for people.
            .map(|end| end.split(": ").next().unwrap_or_default().to_owned())
            .collect()
    }
}

/// The same message of both accounts, apart from the body.
fn of_both(task: &str, payload: &Value) -> [Message; 2] {
    ACCOUNTS.map(|account| {
        let mut payload = payload.clone();
        payload["body"] = json!(format!("of {account}"));
        message(account, task, &payload)
    })
}

#[tokio::test]
async fn a_batch_reads_each_twins_own_facts() {
    let scene = scene().await;
    let fixture = scene.fixture();
    let about = fixture.message(&scene.account, &scene.task, "hello").await;
    fixture.twin(&scene.account, "umbra").await;
    scene
        .execute(
            "update account set session_scope = 'agent', auto_create_tasks = false where id = 'umbra';
             update agent set removed_at = now() where account_id = 'acme' and slug = 'reviewer';
             delete from message where account_id = 'umbra';
             delete from task_assignee t using agent a
             where t.account_id = 'umbra' and a.account_id = t.account_id and a.id = t.agent_id and a.slug = 'coder'",
        )
        .await;
    let mut reader = scene.reader().await;
    let batch: Vec<Message> = [
        ("PROJ-7", json!({"id": "1-agent", "agent": scene.reviewer})),
        ("PROJ-7", json!({"id": "2-slug", "agent": "coder"})),
        (
            "PROJ-7",
            json!({"id": "3-message", "agent": "coder", "message_id": about}),
        ),
        ("NEW-1", json!({"id": "4-task", "agent": "coder"})),
        ("PROJ-7", json!({"id": "5-assigned"})),
    ]
    .iter()
    .flat_map(|(task, payload)| of_both(task, payload))
    .collect();
    reader.take(&batch).await;
    assert_eq!(
        scene.ends().await,
        [
            "acme 1-agent refused unknown_agent",
            "acme 2-slug queued of acme task:proj-7:agent:coder:@:v1",
            "acme 3-message queued of acme task:proj-7:agent:coder:@:v1",
            "acme 4-task queued of acme task:new-1:agent:coder:@:v1",
            "acme 5-assigned queued of acme task:proj-7:agent:coder:@:v1",
            "umbra 1-agent queued of umbra system:agent:reviewer:@:v1",
            "umbra 2-slug queued of umbra system:agent:coder:@:v1",
            "umbra 3-message refused message_mismatch",
            "umbra 4-task refused unknown_task",
            "umbra 5-assigned queued of umbra system:agent:reviewer:@:v1",
        ]
    );
    assert_eq!(
        scene.test.count("select count(*) from task where id = 'new-1'").await,
        1
    );
    scene.check().await;
}

#[tokio::test]
async fn a_batch_changes_each_twins_own_rows() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader
        .take(&[message(
            "acme",
            "PROJ-7",
            &json!({"id": "old", "agent": "coder", "body": "of acme"}),
        )])
        .await;
    scene.fixture().twin(&scene.account, "umbra").await;
    let receipt = Uuid::now_v7();
    let kept = rows("outbox")
        .set("account_id", "a.id")
        .with("id", receipt)
        .with("service", "orchestrator");
    let kept = kept
        .with("subject", "signalbox.notification.acme.-")
        .set("stored_at", "now()");
    kept.from("account a where a.id in ('acme', 'umbra')")
        .insert(&scene.test.owner)
        .await;
    scene.execute("update notification set state = 'failed' where account_id = 'umbra'; update session set queued = 0 where account_id = 'umbra'").await;

    // Queued again where it had failed, in the session of the same id; a duplicate where it is queued; a receipt of one
    // of them.
    let old = json!({"id": "old", "agent": "coder"});
    let [ours, theirs] = of_both("PROJ-7", &old).map(Message::again);
    let ours = ours.with(header::RECEIPT, &receipt.to_string());
    // As it was sent first.
    let theirs = Message {
        payload: theirs.payload.replace("of umbra", "of acme"),
        ..theirs
    };
    reader.take(&[theirs, ours]).await;
    assert_eq!(
        scene.sessions_of().await,
        ["acme 1 1", "umbra 1 2"],
        "queued, and the newest place"
    );
    assert_eq!(
        scene
            .test
            .texts("select account_id from outbox where stored_at is not null and service = 'orchestrator'")
            .await,
        ["umbra"]
    );

    // New in both accounts, in sessions with the same id.
    reader
        .take(&of_both("PROJ-7", &json!({"id": "new", "agent": "coder"})))
        .await;
    assert_eq!(scene.sessions_of().await, ["acme 2 2", "umbra 2 3"]);
    scene.check().await;
}

#[tokio::test]
async fn parts_of_one_account_do_not_replace_the_twins_whole() {
    let scene = scene().await;
    scene.fixture().twin(&scene.account, "umbra").await;
    let mut reader = scene.reader().await;
    let both = json!({"id": "1-both", "agents": ["coder", "late"]});
    reader.take(&of_both("PROJ-7", &both)).await;
    assert_eq!(
        scene.ends().await,
        [
            "acme 1-both refused unknown_agent",
            "umbra 1-both refused unknown_agent"
        ]
    );

    // One account now has such an agent. The same batch has another message of the other account.
    scene.fixture().agent(&scene.account, "late").await;
    let [ours, _] = of_both("PROJ-7", &both).map(Message::again);
    let [_, theirs] = of_both("PROJ-7", &json!({"id": "2-other", "agent": "coder"}));
    reader.take(&[theirs, ours]).await;
    assert_eq!(
        scene.ends().await,
        [
            "acme 1-both queued of acme task:proj-7:agent:coder:@:v1",
            "acme 1-both queued of acme task:proj-7:agent:late:@:v1",
            "umbra 1-both refused unknown_agent",
            "umbra 2-other queued of umbra task:proj-7:agent:coder:@:v1",
        ]
    );
    scene.check().await;
}

impl Scene {
    async fn sessions_of(&self) -> Vec<String> {
        self.test
            .texts("select concat_ws(' ', account_id, queued, queue_tail) from session order by account_id")
            .await
    }
}
