//! Answers in queues, turns that a plan ends, and the gate of plans.

use std::sync::Arc;

use domain::StopThen;
use serde_json::json;
use testkit::{Reply, enqueued, rows};
use tokio::sync::Semaphore;

use crate::scene::Scene;

impl Scene {
    /// A question of the session, and its row of an answer.
    async fn question(&self, kind: &str, state: &str, notification: Option<&str>) {
        let of_session = format!("session s where s.id = '{}'", self.session);
        let row = rows("question").with("kind", kind).with("state", state);
        let row = match notification {
            Some(id) => row.with("notification_id", id),
            None => row,
        };
        row.from(of_session).insert(&self.world.database.owner).await;
    }

    async fn item(&self, id: &str, kind: &str, mode: &str, sender: &str) {
        let row = enqueued(&self.account, self.session).with("id", id).with("kind", kind);
        let row = row.with("body", format!("body of {id}")).with("queue_mode", mode);
        let row = row.with("joins", mode == "collect").with("sender_kind", sender);
        row.insert(&self.world.database.owner).await;
    }

    async fn turns_of_items(&self) -> Vec<String> {
        self.turns("array_to_string(notification_ids, ' ')").await
    }

    async fn awaits_approval(&self) {
        self.question("plan", "open", None).await;
        self.execute("update task set status = 'awaiting_approval'").await;
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.world.database.owner).await.unwrap();
    }
}

/// A provider whose first call waits for a permit.
async fn gated() -> (Scene, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |seen| match seen.order {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("first"))),
        _ => Reply::text("ok"),
    })
    .await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.collect_debounce_ms", 1);
    (scene, gate)
}

#[tokio::test]
async fn an_answer_is_never_merged_in_either_order() {
    for answer_first in [true, false] {
        let (scene, gate) = gated().await;
        let running = scene.run().await;
        scene.enqueue("n-1", "x").await;
        scene.called(1).await;
        scene.question("question", "answered", Some("a-1")).await;
        // Of the same author, with the mode that joins.
        let expected: &[&str] = match answer_first {
            true => {
                scene.item("a-1", "answer", "collect", "user").await;
                scene.item("m-1", "message", "collect", "user").await;
                scene.item("m-2", "message", "collect", "user").await;
                &["n-1", "a-1", "m-1 m-2"]
            }
            false => {
                scene.item("m-1", "message", "collect", "user").await;
                scene.item("m-2", "message", "collect", "user").await;
                scene.item("a-1", "answer", "collect", "user").await;
                &["n-1", "m-1 m-2", "a-1"]
            }
        };
        gate.add_permits(1);
        for id in ["a-1", "m-1", "m-2"] {
            scene.until(id, "delivered").await;
        }
        assert_eq!(scene.turns_of_items().await, expected);
        running.stop().await;
    }
}

#[tokio::test]
async fn an_answer_during_the_asking_turn_comes_after_it() {
    let (scene, gate) = gated().await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.called(1).await;
    scene.enqueue("n-2", "x").await;
    scene.question("question", "answered", Some("a-1")).await;
    scene.item("a-1", "answer", "followup", "service").await;
    gate.add_permits(1);
    scene.until("a-1", "delivered").await;
    assert_eq!(scene.turns_of_items().await, ["n-1", "n-2", "a-1"]);
    let inputs: Vec<String> = scene.provider.seen().iter().map(testkit::Seen::input).collect();
    assert!(!inputs[1].contains("Answer to your question"), "{}", inputs[1]);
    assert!(inputs[2].contains("\nAnswer to your question: "), "{}", inputs[2]);
    running.stop().await;
}

#[tokio::test]
async fn an_answer_cannot_be_injected() {
    let scene = Scene::with(|seen| match seen.order {
        0 => Reply::call("c-1", "task_history", json!({})),
        _ => Reply::text("ok"),
    })
    .await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.waits_for_its_tool().await;
    scene.question("question", "answered", Some("a-1")).await;
    scene.item("a-1", "answer", "inject", "service").await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("a-1", "delivered").await;
    assert_eq!(scene.turns_of_items().await, ["n-1", "a-1"]);
    running.stop().await;
}

impl Scene {
    async fn waits_for_its_tool(&self) {
        testkit::eventually("the turn waits for its tool", || async {
            (self.turns("state").await == ["awaiting_tools"]).then_some(())
        })
        .await;
    }

    /// The record of a finished `submit_plan` of the turn in progress. Ordinal 0: over HTTP.
    pub(crate) async fn plan_submitted(&self, call: &str, ordinal: i32) {
        let row = rows("tool_call").with("call_id", call).with("ordinal", ordinal);
        let row = row
            .with("name", "submit_plan")
            .with("arguments", json!({"plan": "First this."}).to_string());
        let row = row.with("result", "{\"ok\":true}");
        let of_turn = "turn t where t.state = 'awaiting_tools'";
        row.from(of_turn).insert(&self.world.database.owner).await;
    }
}

/// The provider asks for a plan and one more tool in the same answer.
async fn planning() -> Scene {
    Scene::with(|seen| match seen.order {
        0 => {
            let plan = json!({"task_id": "PROJ-7", "plan": "First this.", "summary": "s"});
            let more = json!({"task_id": "PROJ-7", "body": "b"});
            Reply::Calls(vec![
                ("c-1".to_owned(), "submit_plan".to_owned(), plan),
                ("c-2".to_owned(), "task_message".to_owned(), more),
            ])
        }
        _ => Reply::text("ok"),
    })
    .await
}

#[tokio::test]
async fn a_submitted_plan_ends_its_turn_without_a_further_call() {
    let mut scene = planning().await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.waits_for_its_tool().await;
    // A stop that comes after the plan is too late.
    scene.plan_submitted("c-1", 1).await;
    scene.ask(StopThen::Continue, None).await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state || ' ' || reply").await, ["finished First this."]);
    assert_eq!(scene.provider.seen().len(), 1);
    let posted = "select body from message";
    assert_eq!(scene.world.database.texts(posted).await, ["First this."]);
    running.stop().await;
}

/// An agent with tools of its own calls ours over HTTP, while its provider has the turn.
#[tokio::test]
async fn a_plan_over_http_ends_its_turn_without_a_further_call() {
    let scene = Scene::with(|seen| match seen.order {
        0 => Reply::call("c-1", "task_history", json!({})),
        _ => Reply::text("ok"),
    })
    .await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.waits_for_its_tool().await;
    scene.plan_submitted("http", 0).await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state || ' ' || reply").await, ["finished First this."]);
    assert_eq!(scene.provider.seen().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_plan_that_was_refused_ends_no_turn() {
    let mut scene = planning().await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.tools_again_ms", 100);
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.waits_for_its_tool().await;
    for (call, ordinal, name) in [("c-1", 1, "submit_plan"), ("c-2", 2, "task_message")] {
        let row = rows("tool_call")
            .with("call_id", call)
            .with("ordinal", ordinal)
            .with("name", name);
        let row = row
            .with("state", "failed")
            .set("finished_at", "now()")
            .with("result", "{}");
        row.from("turn t where t.state = 'awaiting_tools'")
            .insert(&scene.world.database.owner)
            .await;
    }
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("reply").await, ["ok"]);
    running.stop().await;
}

#[tokio::test]
async fn the_first_item_that_may_go_goes_while_a_plan_awaits_approval() {
    let mut scene = Scene::with(|_| Reply::text("ok")).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.hold_look_ms", 50);
    scene.awaits_approval().await;
    scene.question("question", "answered", Some("a-1")).await;
    scene.item("s-1", "test", "followup", "service").await;
    // Of this type, and no answer.
    scene.item("s-2", "answer", "followup", "service").await;
    scene.item("a-1", "answer", "followup", "service").await;
    scene.item("p-1", "test", "followup", "user").await;
    scene.item("s-3", "test", "followup", "agent").await;
    let running = scene.run().await;
    for id in ["a-1", "p-1"] {
        scene.until(id, "delivered").await;
    }
    scene.session_is("backoff approval 3 false").await;
    assert_eq!(scene.turns_of_items().await, ["a-1", "p-1"]);
    let held = "select (s.gate_ref = q.id)::text from session s join question q on q.kind = 'plan'";
    assert_eq!(scene.world.database.texts(held).await, ["true"]);
    // The plan's end lets the others go in their order.
    scene
        .execute("update question set state = 'answered' where kind = 'plan'")
        .await;
    scene.execute("update task set status = 'in_progress'").await;
    scene.until("s-3", "delivered").await;
    assert_eq!(scene.turns_of_items().await, ["a-1", "p-1", "s-1", "s-2", "s-3"]);
    running.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_asked_about_a_plan_may_start() {
    let mut scene = Scene::with(|_| Reply::text("ok")).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.hold_look_ms", 50);
    scene.awaits_approval().await;
    // Of the type, while the agent is not asked.
    scene.item("s-1", "test", "followup", "service").await;
    scene.item("asked", "question", "followup", "agent").await;
    let running = scene.run().await;
    scene.session_is("backoff approval 2 false").await;
    scene
        .execute("update question set audience = array['agent:' || (select id from agent)]")
        .await;
    scene.until("asked", "delivered").await;
    scene.session_is("backoff approval 1 false").await;
    assert_eq!(scene.turns_of_items().await, ["asked"]);
    let offered = "select ('answer_question' = any (tools))::text from turn";
    assert_eq!(scene.world.database.texts(offered).await, ["true"]);
    running.stop().await;
}

#[tokio::test]
async fn opening_one_gate_passes_no_other() {
    let (scene, gate) = gated().await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.called(1).await;
    scene.item("s-1", "test", "followup", "service").await;
    scene.ask(StopThen::Hold, None).await;
    scene.awaits_approval().await;
    scene.session_is("backoff stopped 1 false").await;
    // A person resumes the session: the plan keeps it.
    scene.resume().await;
    scene.session_is("backoff approval 1 false").await;
    // The plan is approved, and a hold was set meanwhile: the hold keeps it.
    let hold = rows("hold").with("scope_kind", "account").with("scope_id", "acme");
    hold.insert(&scene.world.database.owner).await;
    scene.execute("update account set holds = 1").await;
    scene.execute("update question set state = 'answered'").await;
    scene.execute("update task set status = 'in_progress'").await;
    scene.resume().await;
    scene.session_is("backoff pause 1 false").await;
    assert_eq!(scene.turns_of_items().await, ["n-1"]);
    scene.execute("update hold set released_at = now()").await;
    scene.resume().await;
    scene.until("s-1", "delivered").await;
    gate.close();
    running.stop().await;
}
