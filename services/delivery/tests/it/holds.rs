//! Holds: what is paused starts no turn, on no replica, whoever sends; a turn in progress goes on, or is ended.

use std::{sync::Arc, time::Duration};

use contracts::{Root, outgoing::Origin};
use domain::{Actor, ActorKind, HoldId, HoldRunning, HoldScope};
use futures::StreamExt;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use storage::{
    Accounts, Role, Setting,
    hold::{NewHold, SESSIONS_MAX, hold_release, hold_set, hold_settle},
    outbox::outbox_insert,
};
use testkit::{Reply, Seen, enqueued, eventually};
use time::OffsetDateTime;
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::scene::Scene;

/// What delivery says of gates: the fact and the gate.
async fn listen(scene: &Scene) -> mpsc::UnboundedReceiver<String> {
    let client = scene.world.operator().await;
    let subject = "signalbox.event.acme.PROJ-7.session.>".to_owned();
    let mut heard = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = heard.next().await {
            let payload: Value = serde_json::from_slice(&message.payload).unwrap();
            let (_, fact) = message.subject.rsplit_once('.').unwrap();
            let gate = payload["data"]["gate"].as_str().unwrap();
            let _ = tell.send(format!("{fact} {gate}"));
        }
    });
    told
}

async fn told(heard: &mut mpsc::UnboundedReceiver<String>, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    while told.len() < count {
        let one = timeout(Duration::from_secs(20), heard.recv()).await.unwrap();
        told.push(one.unwrap());
    }
    told.extend(std::iter::from_fn(|| heard.try_recv().ok()));
    told
}

/// What the orchestrator has to say of releases: nothing relays it here.
const RELEASED: &str = "select count(*) from outbox cross join string_to_table(subject, ' ') as s (one) where s.one like '%.session.released'";

impl Scene {
    /// As the orchestrator does; hints are left to the sweep.
    async fn hold(
        &self,
        scope: HoldScope,
        scope_id: &str,
        running: HoldRunning,
        until: Option<OffsetDateTime>,
    ) -> HoldId {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let by = Actor {
            kind: ActorKind::User,
            id: "ann".to_owned(),
            name: "Ann".to_owned(),
            via: None,
        };
        let new = NewHold {
            account: &self.account,
            scope,
            scope_id,
            reason: "",
            by: &by,
            running,
            until,
        };
        let (hold, _) = hold_set(&tx, &new, &setting(&Root::default())).await.unwrap().unwrap();
        tx.commit().await.unwrap();
        hold.id
    }

    async fn release(&self, hold: HoldId) {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let root = Root::default();
        let released = hold_release(&tx, &self.account, hold, "Bob", &setting(&root))
            .await
            .unwrap();
        assert!(released.0, "it was active");
        outbox_insert(&tx, released.1).await.unwrap();
        tx.commit().await.unwrap();
        // A session that a claim has locked is left to the orchestrator's sweep, which does not run here.
        eventually("the hold keeps no session", || async {
            let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
            let (_, opened) = hold_settle(&tx, &self.account, hold, SESSIONS_MAX, &setting(&root))
                .await
                .unwrap();
            outbox_insert(&tx, opened).await.unwrap();
            tx.commit().await.unwrap();
            let kept = "select count(*) from session where gate = 'pause'";
            (self.world.database.count(kept).await == 0).then_some(())
        })
        .await;
    }

    async fn enqueue_from(&self, id: &str, sender: &str) {
        let row = enqueued(&self.account, self.session).with("id", id).with("body", id);
        row.with("sender_kind", sender).insert(&self.world.database.owner).await;
    }

    async fn session_is_now(&self, expected: &str) {
        let sql = "select concat_ws(' ', phase, gate, queued) from session where task_id = 'proj-7'";
        eventually(&format!("the session is {expected}"), || async {
            (self.world.database.texts(sql).await == [expected]).then_some(())
        })
        .await;
    }

    async fn calls(&self, count: usize) -> Vec<Seen> {
        eventually(&format!("the provider has {count} calls"), || async {
            (self.provider.seen().len() >= count).then(|| self.provider.seen())
        })
        .await
    }

    /// Another session is worked, so a claim after this one has looked at all.
    async fn others_are_worked(&self, id: &str) {
        let fixture = self.world.fixture();
        let beta = fixture.account("beta").await;
        let agent = fixture.agent(&beta, "coder").await;
        let task = fixture.task(&beta, "T-1", &[agent]).await;
        let (session, _) = fixture.session(&beta, &task, agent).await;
        fixture.enqueue(&beta, session, id, "x").await;
        self.until(id, "delivered").await;
    }
}

fn setting(root: &Root) -> Setting<'_> {
    Setting {
        root,
        source: "/signalbox/test",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    }
}

#[tokio::test]
async fn a_paused_session_takes_nobody_s_item() {
    let mut scene = Scene::with(|_| Reply::text("ok")).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    let mut heard = listen(&scene).await;
    let (one, two) = (scene.run().await, scene.run().await);
    let (agent, session) = (scene.agent.to_string(), scene.session.to_string());
    let scopes = [
        (HoldScope::Account, "acme"),
        (HoldScope::Task, "proj-7"),
        (HoldScope::Agent, &agent),
        (HoldScope::Session, &session),
    ];
    for (n, (scope, id)) in scopes.into_iter().enumerate() {
        let hold = scene.hold(scope, id, HoldRunning::Finish, None).await;
        let ids = [format!("person-{n}"), format!("service-{n}")];
        scene.enqueue_from(&ids[0], "user").await;
        scene.enqueue_from(&ids[1], "service").await;
        scene.session_is_now("backoff pause 2").await;
        let kept = scene
            .world
            .database
            .texts("select gate_ref::text from session where gate_ref is not null")
            .await;
        assert_eq!(kept, [hold.to_string()], "{scope}");
        assert_eq!(scene.provider.seen().len(), 2 * n, "{scope}");
        scene.release(hold).await;
        for id in ids {
            scene.until(&id, "delivered").await;
        }
        scene.session_is_now("idle 0").await;
    }
    assert_eq!(told(&mut heard, 4).await, ["parked pause"; 4]);
    assert_eq!(scene.world.database.count(RELEASED).await, 4);
    // What others have paused is nothing to this session.
    for (scope, id) in [(HoldScope::Task, "proj-8"), (HoldScope::Agent, &session)] {
        scene.hold(scope, id, HoldRunning::Stop, None).await;
    }
    scene.enqueue_from("free", "user").await;
    scene.until("free", "delivered").await;
    one.stop().await;
    two.stop().await;
}

/// A session that was found with work is claimed after the hold: once with the claim, once with the record of its last turn,
/// which both have waited for the session's lock.
#[tokio::test]
async fn a_hold_between_look_and_claim_holds() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("database.lock_timeout_ms", 30_000);
    scene.enqueue_from("n-1", "user").await;
    let lock = format!("select from session where id = '{}' for update", scene.session);
    let mut holder = scene.world.database.owner.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(lock.clone()))
        .execute(&mut *holder)
        .await
        .unwrap();
    let running = scene.run().await;
    // The sweep has found both, and claimed the one that is free.
    gate.add_permits(1);
    scene.others_are_worked("free").await;
    let first = scene.hold(HoldScope::Account, "acme", HoldRunning::Stop, None).await;
    holder.rollback().await.unwrap();
    scene.session_is_now("backoff pause 1").await;
    assert_eq!(scene.provider.seen().len(), 1, "of the other account");

    scene.release(first).await;
    scene.calls(2).await;
    scene.enqueue_from("n-2", "user").await;
    let mut holder = scene.world.database.owner.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(lock)).execute(&mut *holder).await.unwrap();
    gate.add_permits(1);
    let waits = "select count(*) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock' and query like '%select s.account_id, s.id, s.kind%'";
    eventually("the record waits for the session", || async {
        (scene.world.database.count(waits).await == 1).then_some(())
    })
    .await;
    scene.hold(HoldScope::Task, "proj-7", HoldRunning::Finish, None).await;
    holder.rollback().await.unwrap();
    scene.until("n-1", "delivered").await;
    scene.session_is_now("backoff pause 1").await;
    assert_eq!(scene.provider.seen().len(), 2);
    running.stop().await;
}

#[tokio::test]
async fn a_turn_in_progress_goes_on_with_its_tools_under_a_hold() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.order {
        0 => Reply::Gated(
            Arc::clone(&script),
            Box::new(Reply::call("c-1", "task_history", json!({}))),
        ),
        _ => Reply::text("ok"),
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let injected = enqueued(&scene.account, scene.session)
        .with("id", "n-2")
        .with("queue_mode", "inject");
    injected.insert(&scene.world.database.owner).await;
    let running = scene.run().await;
    scene.calls(1).await;
    scene.hold(HoldScope::Account, "acme", HoldRunning::Finish, None).await;
    gate.add_permits(1);
    scene.session_is_now("waiting 1").await;
    scene.tool_finished("c-1", 1, "a result").await;
    scene.until("n-1", "delivered").await;
    // What waits to be injected waits too.
    scene.session_is_now("backoff pause 1").await;
    assert_eq!(scene.turns("state").await, ["finished"]);
    running.stop().await;
}

#[tokio::test]
async fn a_hold_that_stops_ends_a_call_and_what_waits_stays() {
    let gate = Arc::new(Semaphore::new(0));
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&gate), Box::new(Reply::text("never said")))).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.calls(1).await;
    scene.hold(HoldScope::Task, "proj-7", HoldRunning::Stop, None).await;
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.state("n-1").await.1.as_deref(), Some("paused: by Ann"));
    scene.session_is_now("backoff pause 1").await;
    let turns = scene.turns("concat_ws(' ', state, error_class, error)").await;
    assert_eq!(turns, ["aborted paused paused: by Ann"]);
    assert_eq!(scene.world.database.count("select count(*) from dead_letter").await, 0);
    running.stop().await;
}

/// Its stop request is not written: the hold was made while the claim of the turn was in flight.
#[tokio::test]
async fn no_replica_carries_a_turn_on_under_a_hold_that_stops() {
    let mut scene = Scene::with(|_| Reply::call("c-1", "task_history", json!({}))).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.session_is_now("waiting 0").await;
    scene.hold(HoldScope::Account, "acme", HoldRunning::Finish, None).await;
    sqlx::query("update hold set running = 'stop'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.tool_finished("c-1", 1, "a result").await;
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.turns("error_class").await, ["paused"]);
    assert_eq!(scene.provider.seen().len(), 1, "no further call");
    running.stop().await;
}

#[tokio::test]
async fn a_hold_ends_at_its_time() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let until = OffsetDateTime::now_utc() + Duration::from_millis(1_500);
    scene
        .hold(HoldScope::Account, "acme", HoldRunning::Finish, Some(until))
        .await;
    let mut heard = listen(&scene).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.session_is_now("backoff pause 1").await;
    scene.until("n-1", "delivered").await;
    let begun = "select count(*) from turn t, hold h where t.sent_at >= h.until";
    assert_eq!(scene.world.database.count(begun).await, 1, "not before");
    assert_eq!(told(&mut heard, 2).await, ["parked pause", "released pause"]);
    running.stop().await;
}

#[tokio::test]
async fn looks_at_a_paused_session_are_counted_and_cost_no_attempt() {
    let mut scene = Scene::with(|_| Reply::text("ok")).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.hold_look_ms", 50);
    let hold = scene.hold(HoldScope::Account, "acme", HoldRunning::Finish, None).await;
    let mut heard = listen(&scene).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    eventually("it was looked at three times", || async {
        let looks = "select count(*) from session where gate_looks >= 3 and gate = 'pause'";
        (scene.world.database.count(looks).await == 1).then_some(())
    })
    .await;
    let row = "select concat_ws(' ', attempts, (select count(*) from turn)) from notification";
    assert_eq!(scene.world.database.texts(row).await, ["0 0"]);
    assert_eq!(told(&mut heard, 1).await, ["parked pause"], "once");
    scene.release(hold).await;
    scene.until("n-1", "delivered").await;
    // Delivery's own look may have come first: then delivery has said it.
    if scene.world.database.count(RELEASED).await != 1 {
        assert_eq!(told(&mut heard, 1).await, ["released pause"]);
    }
    running.stop().await;
}
