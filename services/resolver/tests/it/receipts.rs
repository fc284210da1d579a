//! Receipts: the sender's outbox row ends with the batch that read the message, whatever was decided, and not before.

use contracts::header;
use resolver::handlers::notification::Handled;
use serde_json::json;
use testkit::rows;
use uuid::Uuid;

use crate::{
    batches::poison,
    scene::{Message, Scene, message, raw, scene, to_coder},
};

impl Scene {
    /// The row that another service's relay keeps of a message, as the message names it.
    async fn kept(&self, owner: &str, message: Message) -> Message {
        let id = Uuid::now_v7();
        let kept = rows("outbox")
            .with("account_id", owner)
            .with("id", id)
            .with("service", "orchestrator");
        let kept = kept
            .with("subject", "signalbox.notification.acme.-")
            .set("stored_at", "now()");
        kept.insert(&self.test.owner).await;
        message.with(header::RECEIPT, &id.to_string())
    }

    async fn unread(&self) -> i64 {
        self.test
            .count("select count(*) from outbox where stored_at is not null")
            .await
    }
}

#[tokio::test]
async fn every_decision_gives_a_receipt() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let ghost = json!({"id": "refused", "agent": "ghost", "body": "b"});
    let batch = [
        scene.kept("acme", to_coder("n-1", "b")).await,
        scene.kept("acme", to_coder("n-1", "b")).await,
        scene.kept("acme", to_coder("n-1", "other")).await,
        scene
            .kept("acme", message("acme", "PROJ-7", &json!({"id": "all", "body": "b"})))
            .await,
        scene.kept("acme", message("acme", "PROJ-7", &ghost)).await,
        scene.kept("acme", raw("acme", "PROJ-7", "nonsense")).await,
        scene
            .kept("-", message("nowhere", "-", &json!({"body": "b"})))
            .await
            .again(),
    ];
    assert_eq!(scene.unread().await, 7);
    reader.take(&batch).await;
    assert_eq!(scene.unread().await, 0);
    // Again, after an unnoticed crash: no receipt is left to give.
    reader.rewind();
    reader.take(&batch).await;
    scene.check().await;
}

#[tokio::test]
async fn an_uncommitted_message_is_not_read() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let batch = [scene
        .kept(
            "acme",
            message(
                "acme",
                "PROJ-7",
                &json!({"id": "n", "agent": "coder", "body": "poison"}),
            ),
        )
        .await];
    poison(&scene).await;
    reader.handle(&batch).await.unwrap_err();
    assert_eq!(scene.unread().await, 1);
    // A dead-lettered message counts as read, even where nothing of it can be stored.
    let received = reader.received(&batch);
    let to = reader.place(&received);
    let handled = reader.handler.skip(&reader.lease, &to, &received[0]).await.unwrap();
    assert!(matches!(handled, Handled::Committed(_)));
    assert_eq!(scene.unread().await, 0);
}

#[tokio::test]
async fn a_receipt_never_ends_another_accounts_row() {
    let scene = scene().await;
    scene.fixture().account("other").await;
    let mut reader = scene.reader().await;
    let mine = to_coder("n-1", "b");
    let theirs = scene.kept("other", mine).await;
    let beside = message("other", "-", &json!({"id": "n-2", "agent": "ghost", "body": "b"}));
    reader.take(&[theirs, beside]).await;
    assert_eq!(scene.unread().await, 1, "though the batch works for both accounts");
}
