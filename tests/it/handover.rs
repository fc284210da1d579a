//! A handover through all services and the public contract: what the first agent still does changes nothing, and what waited is
//! answered by the second.

use std::sync::Arc;

use serde_json::json;
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

/// The first agent's call is held; the stop request drops it, or its reply comes too late. Both change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_changes_no_handed_over_task() {
    // With its hint, or found by nobody while the call lasts.
    for sweep_interval_ms in ["500", "600000"] {
        let gate = Arc::new(Semaphore::new(0));
        let script = Arc::clone(&gate);
        let house = House::open_with(
            move |seen| match seen.input().contains("body of first") {
                true => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("from the first agent"))),
                false => Reply::text("from the second agent"),
            },
            &[("delivery.sweep_interval_ms", sweep_interval_ms)],
        )
        .await;
        house.account("acme").await;
        house.agent("acme", "coder").await;
        house.agent("acme", "tester").await;
        house.task("acme", "T-1", &["coder"]).await;
        let send = async |id: &str| {
            let sender = json!({"kind": "user", "id": "ann", "name": "Ann"});
            let payload = json!({"id": id, "agent": "coder", "body": format!("body of {id}"), "sender": sender});
            house.publish("acme", "T-1", payload).await;
        };
        send("first").await;
        eventually("the first call is in flight", || async {
            (house.provider.seen().len() == 1).then_some(())
        })
        .await;
        for id in ["second", "third"] {
            send(id).await;
            house.until("acme", id, "queued").await;
        }
        let body = json!({"from": "coder", "to": "tester"});
        let handed = house.post("/api/orgs/acme/tasks/T-1/handover", body).await;
        assert_eq!(
            handed["affected"],
            json!({"turns": 1, "items": {"cancelled": 0, "carried": 2}, "sessions": 1})
        );
        gate.add_permits(1);
        for id in ["second", "third"] {
            house.until("acme", id, "delivered").await;
        }
        let first = eventually("the first turn has ended", || async {
            let first = house.notification("acme", "first").await;
            (first["state"] != "running").then_some(first)
        })
        .await;
        let told: Vec<bool> = ["second", "third"]
            .map(|id| {
                let seen = house.provider.seen();
                let turn = seen.iter().find(|seen| seen.input().contains(&format!("body of {id}")));
                turn.unwrap().input().contains("an earlier turn on this work")
            })
            .into();
        assert_eq!(
            told,
            [true, false],
            "the second agent is told once that the first one had begun"
        );
        let posted =
            "select g.slug || ': ' || m.body from message m join agent g on g.id::text = m.author_id order by m.id";
        assert_eq!(
            house.world.database.texts(posted).await,
            ["tester: from the second agent", "tester: from the second agent"],
            "{first}"
        );
        let task = house.get("/api/orgs/acme/tasks/T-1").await;
        assert_eq!(
            (&task["status"], &task["assignees"][0]["slug"]),
            (&json!("assigned"), &json!("tester"))
        );
        let asked = house.get("/api/orgs/acme/notifications/second").await;
        assert_eq!(asked["sender"]["name"], json!("Ann"));
        let sessions = house.sessions("acme", "task=T-1").await;
        let closed = sessions.iter().find(|session| session["close_reason"] == "handed_over");
        assert_eq!(closed.unwrap()["agent"]["slug"], json!("coder"), "{sessions:?}");
        assert!(house.provider.overlaps().is_empty());
        house.close().await;
    }
}
