//! Runs of `collect` and `steer` items, and turns that are stopped: with a hint and without, while they run, wait, or have
//! lost their holder.

use std::sync::Arc;

use contracts::session::SessionStopRequested;
use domain::{StopKind, StopThen, TurnId};
use storage::{
    Accounts, Role,
    session::{
        sessions_park::sessions_unpark,
        turn_stop::{StopRequest, turn_stop},
    },
};
use testkit::{Reply, Seen, enqueued, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

/// A provider whose first call waits for a permit.
async fn gated(reply: &'static str) -> (Scene, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.order {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text(reply))),
        _ => Reply::text("ok"),
    })
    .await;
    (scene, gate)
}

impl Scene {
    async fn enqueue_in(&self, id: &str, mode: &str, joins: bool) {
        let row = enqueued(&self.account, self.session)
            .with("id", id)
            .with("body", format!("body of {id}"));
        let row = row.with("queue_mode", mode).with("joins", joins);
        row.insert(&self.world.database.owner).await;
    }

    pub(crate) async fn called(&self, calls: usize) -> Vec<Seen> {
        eventually(&format!("the provider has {calls} calls"), || async {
            (self.provider.seen().len() >= calls).then(|| self.provider.seen())
        })
        .await
    }

    /// Writes a request as the orchestrator does; returns the hint, which is not published.
    pub(crate) async fn ask(&self, then: StopThen, turn: Option<TurnId>) -> Option<SessionStopRequested> {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let request = StopRequest {
            session: (self.account.clone(), self.session),
            turn,
            kind: StopKind::Stopped,
            by: "Ann",
            then,
            task: Some(&self.task),
        };
        let asked = turn_stop(&tx, &[request]).await.unwrap().pop();
        tx.commit().await.unwrap();
        asked
    }

    async fn hint(&self, asked: &SessionStopRequested) {
        let subject = "signalbox.session.stop_requested.acme.PROJ-7".to_owned();
        self.world
            .publish_as_resolver(subject, serde_json::to_vec(asked).unwrap())
            .await;
    }

    pub(crate) async fn resume(&self) {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        sessions_unpark(&tx, &[(self.account.clone(), self.session)])
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }

    pub(crate) async fn session_is(&self, expected: &str) {
        let sql = "select concat_ws(' ', phase, gate, queued, (stop_turn_id is not null)::text) from session where task_id = 'proj-7'";
        eventually(&format!("the session is {expected}"), || async {
            (self.world.database.texts(sql).await == [expected]).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_came_during_a_turn_is_one_turn_after_its_debounce() {
    let (mut scene, gate) = gated("first").await;
    scene.world.set("delivery.collect_debounce_ms", 300);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.called(1).await;
    for id in ["n-2", "n-3"] {
        scene.enqueue_in(id, "collect", true).await;
    }
    gate.add_permits(1);
    // Until the debounce of the newest is over.
    scene.session_is("backoff collect 2 false").await;
    scene.enqueue_in("n-4", "collect", true).await;
    for id in ["n-2", "n-3", "n-4"] {
        scene.until(id, "delivered").await;
    }
    assert_eq!(
        scene.turns("array_to_string(notification_ids, ' ')").await,
        ["n-1", "n-2 n-3 n-4"]
    );
    let input = scene.called(2).await[1].input();
    let places: Vec<usize> = [
        "[Follow-up messages from @",
        "body of n-2",
        "body of n-3",
        "body of n-4",
    ]
    .iter()
    .map(|text| input.find(text).unwrap_or_else(|| panic!("{text} is not in {input}")))
    .collect();
    assert!(places.is_sorted(), "{input}");
    scene.session_is("idle 0 false").await;
    running.stop().await;
}

#[tokio::test]
async fn a_failed_run_is_put_back_and_its_items_end_together() {
    let mut scene = Scene::with(|_| Reply::Status(500, String::new(), Vec::new())).await;
    scene.world.set("delivery.attempts_max", 1);
    scene.world.set("delivery.collect_debounce_ms", 1);
    for id in ["n-1", "n-2"] {
        scene.enqueue_in(id, "collect", true).await;
    }
    let running = scene.run().await;
    for id in ["n-1", "n-2"] {
        scene.until(id, "failed").await;
    }
    assert_eq!(scene.turns("array_length(notification_ids, 1)").await, ["2"]);
    let letters = "select id from notification n where exists (select from dead_letter d where d.payload like '%body of ' || n.id || '%')";
    let letters = scene.world.database.texts(letters).await;
    assert_eq!(letters.len(), 2, "each item has a dead letter of its own: {letters:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_stop_with_a_hint_drops_the_call_and_holds_what_waits() {
    let (mut scene, _gate) = gated("never said").await;
    // The sweep would take longer than this test waits.
    scene.world.set("delivery.sweep_interval_ms", 600_000);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.wake().await;
    scene.called(1).await;
    let asked = scene.ask(StopThen::Hold, None).await.unwrap();
    scene.hint(&asked).await;
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.state("n-1").await.1.as_deref(), Some("stopped: by Ann"));
    assert_eq!(
        scene.turns("concat_ws(' ', state, error_class, error)").await,
        ["aborted stopped stopped: by Ann"]
    );
    scene.session_is("backoff stopped 1 false").await;
    assert_eq!(scene.state("n-2").await.0, "queued");
    let parked = "select count(*) from dead_letter";
    assert_eq!(scene.world.database.count(parked).await, 0, "a stop is no failure");
    running.stop().await;

    // Nothing restarts by itself, on no replica.
    scene.world.set("delivery.sweep_interval_ms", 50);
    let running = scene.run().await;
    another(&scene).await;
    scene.until("other", "delivered").await;
    scene.session_is("backoff stopped 1 false").await;
    scene.resume().await;
    scene.until("n-2", "delivered").await;
    let told = scene.called(3).await.pop().unwrap().input();
    for text in [
        "was stopped by \"Ann\" at ",
        "It may be partly done. Check before you repeat it.",
        "]\nx\n[end ",
    ] {
        assert!(told.contains(text), "{text} is not in {told}");
    }
    running.stop().await;
}

/// A session of another task, with a notification.
async fn another(scene: &Scene) {
    let fixture = scene.world.fixture();
    let task = fixture.task(&scene.account, "OTHER-1", &[scene.agent]).await;
    let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
    fixture.enqueue(&scene.account, session, "other", "x").await;
}

#[tokio::test]
async fn a_stop_without_a_hint_is_found_within_a_sweep() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    scene.ask(StopThen::Continue, None).await.unwrap();
    scene.until("n-1", "cancelled").await;
    scene.until("n-2", "delivered").await;
    assert_eq!(scene.turns("state").await, ["aborted", "finished"]);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_survives_the_death_of_the_holder() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    let first = scene.run().await;
    scene.called(1).await;
    first.cut_off();
    scene.ask(StopThen::Hold, None).await.unwrap();
    let second = scene.run().await;
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.called(1).await.len(), 1, "the next holder makes no call");
    scene.session_is("idle 0 false").await;
    second.stop().await;
}

#[tokio::test]
async fn a_turn_that_waits_for_tools_is_stopped_at_once() {
    let scene = Scene::with(|_| Reply::call("c-1", "task_history", serde_json::json!({}))).await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.session_is("waiting 0 false").await;
    let asked = scene.ask(StopThen::Hold, None).await.unwrap();
    scene.hint(&asked).await;
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.called(1).await.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_of_an_ended_turn_hits_no_other() {
    let (scene, gate) = gated("said").await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    gate.add_permits(1);
    scene.until("n-1", "delivered").await;
    scene.session_is("idle 0 false").await;
    assert_eq!(
        scene.ask(StopThen::Hold, None).await,
        None,
        "a stop at rest does nothing"
    );
    let ended = TurnId::parse(&scene.turns("id").await[0]).unwrap();
    assert_eq!(scene.ask(StopThen::Hold, Some(ended)).await, None);
    scene.enqueue("n-2", "y").await;
    scene.until("n-2", "delivered").await;
    running.stop().await;
}

/// Only the record of a provider confirms that an agent with effects of its own has ended; this one has no record.
#[tokio::test]
async fn a_silent_stop_is_unconfirmed_and_told() {
    let (mut scene, _gate) = gated("never said").await;
    scene.world.set("providers.default.effects", "own");
    scene.world.set("delivery.stop_confirm_ms_max", 50);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    scene.ask(StopThen::Continue, None).await.unwrap();
    scene.until("n-2", "delivered").await;
    let turns = scene.turns("concat_ws(' ', state, error_class)").await;
    assert_eq!(turns, ["aborted stop_unconfirmed", "finished"]);
    let told = scene.called(2).await[1].input();
    assert!(
        told.contains("was interrupted") && told.contains("was stopped by"),
        "{told}"
    );
    running.stop().await;
}

/// A later version's words in the row: the turn ends, and its outcome is recorded.
#[tokio::test]
async fn a_stop_of_a_later_version_ends_its_turn() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    let asked = "update session set stop_turn_id = active_turn_id, stop_kind = 'of-later', stop_by = 'Ann', stop_then = 'of-later',
                     stop_at = now()";
    sqlx::raw_sql(asked).execute(&scene.world.database.owner).await.unwrap();
    scene.until("n-1", "cancelled").await;
    scene.session_is("backoff stopped 1 false").await;
    running.stop().await;
}
