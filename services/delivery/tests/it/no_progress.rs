//! Turns without progress: an agent that goes round is parked until a person acts, and delays no other.

use domain::ActorKind;
use serde_json::json;
use storage::{Accounts, Role, session::sessions_park::sessions_unpark};
use testkit::{Reply, enqueued, eventually, rows};

use crate::scene::Scene;

impl Scene {
    /// A notification of an agent, or of somebody else.
    async fn from(&self, id: &str, sender: ActorKind) {
        let item = enqueued(&self.account, self.session).with("id", id).with("body", id);
        item.with("sender_kind", sender)
            .with("sender_id", "someone")
            .insert(&self.world.database.owner)
            .await;
    }

    async fn streak(&self) -> String {
        let sql = "select concat_ws(' ', streak, streak_key, gate) from session where task_id = 'proj-7'";
        self.world.database.texts(sql).await.remove(0)
    }

    async fn streak_is(&self, expected: &str) {
        eventually(&format!("the streak is {expected}"), || async {
            (self.streak().await == expected).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn one_looping_agent_delays_no_other() {
    let mut scene = Scene::with(|_| Reply::text("on it")).await;
    scene.world.set("delivery.no_progress_turns_max", 3);
    let running = scene.run().await;
    for n in 1..=3 {
        let id = format!("n-{n}");
        scene.from(&id, ActorKind::Agent).await;
        scene.until(&id, "delivered").await;
    }
    assert_eq!(scene.streak().await, "3 test agent someone");
    // Nothing waited when the bound was met: the next one does, whoever sends it but a person.
    scene.from("n-4", ActorKind::Service).await;
    scene.streak_is("3 test agent someone no_progress").await;
    let never = "select coalesce(wake_at::text, 'never') from session where task_id = 'proj-7'";
    assert_eq!(scene.world.database.texts(never).await, ["never"]);

    // A person has to see to the task, once.
    let recovery = "select concat_ws(' ', r.cause, r.state, r.attempts, r.detail, s.gate_ref = r.id) from recovery r, session s where s.task_id = r.task_id";
    assert_eq!(
        scene.world.database.texts(recovery).await,
        ["no_progress person 1 3 turns changed nothing t"]
    );

    let fixture = scene.world.fixture();
    let other = fixture.agent(&scene.account, "other").await;
    let task = fixture.task(&scene.account, "O-1", &[]).await;
    let (session, _) = fixture.session(&scene.account, &task, other).await;
    fixture.enqueue(&scene.account, session, "o-1", "x").await;
    scene.until("o-1", "delivered").await;
    assert_eq!(scene.state("n-4").await.0, "queued");

    // As `POST …/resume` does.
    let database = scene.world.database.connect(Role::Orchestrator).await;
    let tx = database.begin(&Accounts::one(&scene.account)).await.unwrap();
    sessions_unpark(&tx, &[(scene.account.clone(), scene.session)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    scene.until("n-4", "delivered").await;
    scene.streak_is("0").await;
    running.stop().await;
}

#[tokio::test]
async fn what_a_person_sends_starts_and_counts_anew() {
    let mut scene = Scene::with(|_| Reply::text("on it")).await;
    scene.world.set("delivery.no_progress_turns_max", 2);
    for n in 1..=2 {
        scene.from(&format!("n-{n}"), ActorKind::Agent).await;
    }
    let running = scene.run().await;
    scene.until("n-2", "delivered").await;
    scene.from("n-3", ActorKind::User).await;
    scene.until("n-3", "delivered").await;
    scene.streak_is("0").await;
    scene.from("n-4", ActorKind::Agent).await;
    scene.until("n-4", "delivered").await;
    running.stop().await;
}

/// Turns that begin in the transaction of the one before count as well, and a full queue stops at the bound.
#[tokio::test]
async fn a_queue_of_one_reason_stops_at_the_bound() {
    let mut scene = Scene::with(|_| Reply::text("on it")).await;
    scene.world.set("delivery.no_progress_turns_max", 4);
    for n in 1..=9 {
        scene.from(&format!("n-{n}"), ActorKind::Agent).await;
    }
    let running = scene.run().await;
    scene.streak_is("4 test agent someone no_progress").await;
    assert_eq!(scene.world.database.count("select count(*) from turn").await, 4);
    assert_eq!(scene.provider.seen().len(), 4);
    let told = "select count(*) from outbox cross join string_to_table(subject, ' ') as s (one) where s.one like '%.session.parked'";
    assert!(scene.world.database.count(told).await <= 1);
    running.stop().await;
}

/// What a service sends is news, however much it is.
#[tokio::test]
async fn a_service_may_send_as_much_as_it_likes() {
    let mut scene = Scene::with(|_| Reply::text("noted")).await;
    scene.world.set("delivery.no_progress_turns_max", 2);
    scene.world.set("delivery.no_progress_self_turns_max", 3);
    for n in 1..=8 {
        scene.from(&format!("n-{n}"), ActorKind::Service).await;
    }
    let running = scene.run().await;
    scene.until("n-8", "delivered").await;
    scene.streak_is("0").await;
    running.stop().await;
}

#[tokio::test]
async fn a_tool_that_changes_something_is_progress() {
    let check = async |tool: &'static str, expected: &str| {
        let scene = Scene::with(move |seen| match seen.tool_outputs().is_empty() {
            true => Reply::call("c-1", tool, json!({})),
            false => Reply::text("done"),
        })
        .await;
        scene.from("n-1", ActorKind::Agent).await;
        let running = scene.run().await;
        eventually("the turn waits", || async {
            (scene.turns("state").await == ["awaiting_tools"]).then_some(())
        })
        .await;
        let call = rows("tool_call")
            .with("call_id", "c-1")
            .with("ordinal", 1)
            .with("name", tool)
            .with("result", "{}");
        call.from("turn t where t.state = 'awaiting_tools'")
            .insert(&scene.world.database.owner)
            .await;
        sqlx::query("update session set wake_at = now()")
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
        scene.until("n-1", "delivered").await;
        assert_eq!(scene.streak().await, expected, "{tool}");
        running.stop().await;
    };
    // Boxed: a scene is a large future.
    Box::pin(check("task_status", "0")).await;
    Box::pin(check("task_history", "1 test agent someone")).await;
    Box::pin(check("task_message", "1 test agent someone")).await;
}

/// What a person sends waits behind others, and is reached.
#[tokio::test]
async fn an_item_from_a_person_is_reached_behind_others() {
    let mut scene = Scene::with(|_| Reply::text("on it")).await;
    scene.world.set("delivery.no_progress_turns_max", 2);
    for n in 1..=4 {
        scene.from(&format!("n-{n}"), ActorKind::Agent).await;
    }
    scene.from("n-5", ActorKind::User).await;
    scene.from("n-6", ActorKind::Agent).await;
    let running = scene.run().await;
    scene.until("n-6", "delivered").await;
    running.stop().await;
}
