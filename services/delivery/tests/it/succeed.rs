//! Generations that end: resets that wait for the end of a turn, however it ends, and rotations by rule.

use std::{sync::Arc, time::Duration};

use contracts::{Root, outgoing::Origin, session::SessionStopRequested};
use domain::{Actor, ActorKind, ResetInFlight, ResetQueue, ResetRequest, SessionId, StopThen};
use storage::{
    Accounts, Role, Setting,
    session::{
        session_reset::{Asked, session_reset},
        sessions_lock::{SESSIONS_LOCK, sessions_lock},
    },
};
use testkit::{Reply, enqueued, eventually};
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use crate::scene::Scene;

const SESSIONS: &str = "
    select concat_ws(' ', generation, close_reason, phase, gate, queued, interrupted, provider_thread, reset_request ->> 'reason')
    from session where task_id = 'proj-7' order by generation";
/// Turns by generation, with their items.
const TURNS: &str = "concat_ws(' ', generation, state, error_class, array_to_string(notification_ids, ','))";

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

fn request(queue: ResetQueue, in_flight: ResetInFlight) -> ResetRequest {
    ResetRequest {
        reason: "confused".to_owned(),
        by: Actor {
            kind: ActorKind::User,
            id: "u-1".to_owned(),
            name: "Ann".to_owned(),
            via: None,
        },
        queue,
        in_flight,
        at: OffsetDateTime::now_utc().into(),
    }
}

impl Scene {
    /// Writes a request as the orchestrator does. No hint is sent: the sweep finds it.
    async fn reset(&self, request: &ResetRequest) -> Asked {
        self.reset_of(self.session, request).await
    }

    async fn reset_of(&self, session: SessionId, request: &ResetRequest) -> Asked {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let name = (self.account.clone(), session);
        let locked = sessions_lock(&tx, SESSIONS_LOCK, &[name]).await.unwrap().pop().unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let (asked, _) = session_reset(&tx, (&locked, Some(&self.task)), request, &setting)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        asked
    }

    async fn keep(&self) -> Asked {
        self.reset(&request(ResetQueue::Keep, ResetInFlight::Cancel)).await
    }

    /// The same of another session of the scene.
    pub(crate) async fn keep_of(&self, session: SessionId) -> Asked {
        self.reset_of(session, &request(ResetQueue::Keep, ResetInFlight::Cancel))
            .await
    }

    async fn sessions_are(&self, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|&line| line.to_owned()).collect();
        eventually(&format!("the sessions are {expected:?}"), || async {
            (self.world.database.texts(SESSIONS).await == expected).then_some(())
        })
        .await;
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.world.database.texts(sql).await
    }

    /// An item of the open generation, whichever it is.
    async fn enqueue_open(&self, id: &str) {
        let open = self.texts("select id::text from session where closed_at is null").await;
        let row = enqueued(&self.account, &open[0])
            .with("id", id)
            .with("body", format!("body of {id}"));
        row.insert(&self.world.database.owner).await;
    }
}

#[tokio::test]
async fn a_reset_stops_the_call_and_the_next_generation_begins_anew() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    assert!(matches!(scene.keep().await, Asked::Stopping(_)));
    scene.until("n-2", "delivered").await;
    assert_eq!(
        scene.state("n-1").await,
        ("cancelled".to_owned(), Some("session reset".to_owned()))
    );
    scene.sessions_are(&["1 reset idle 0 f", "2 idle 0 f"]).await;
    assert_eq!(scene.turns(TURNS).await, ["1 aborted reset n-1", "2 finished n-2"]);
    let next = &scene.called(2).await[1];
    assert!(next.key.ends_with(":v2"), "{}", next.key);
    for old in ["previous turn", "interrupted", "never said"] {
        assert!(!next.input().contains(old), "{}", next.input());
    }
    let context = "context ->> 'reason'";
    assert_eq!(scene.turns(context).await, ["first", "first"]);
    let events = "select split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) from outbox where subject like '%.event.%'";
    testkit::eventually("all are published", async || {
        scene.texts(events).await.is_empty().then_some(())
    })
    .await;
    running.stop().await;
}

/// The turn may have had effects: the agent that gets its notifications again is told.
#[tokio::test]
async fn what_is_put_back_is_first_and_its_agent_is_told() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "deploy it").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    // What waits is cancelled; the stopped turn's own is not.
    scene.reset(&request(ResetQueue::Cancel, ResetInFlight::Requeue)).await;
    scene.until("n-1", "delivered").await;
    assert_eq!(
        scene.state("n-2").await,
        ("cancelled".to_owned(), Some("session reset".to_owned()))
    );
    assert_eq!(scene.turns(TURNS).await, ["1 aborted reset n-1", "2 finished n-1"]);
    let told = scene.called(2).await[1].input();
    assert!(
        told.contains("was ended by a reset by \"Ann\" at ") && told.contains("Check before you repeat it."),
        "{told}"
    );
    assert_eq!(
        scene
            .texts("select attempts::text from notification where id = 'n-1'")
            .await,
        ["1"],
        "a stop is no attempt"
    );
    running.stop().await;
}

/// The answer is there before the reset: it is posted, and then the generation ends.
#[tokio::test]
async fn an_answer_that_came_first_is_posted() {
    let (scene, gate) = gated("said in time").await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    let mut reset = scene.world.database.owner.begin().await.unwrap();
    sqlx::query("select from session for update")
        .execute(&mut *reset)
        .await
        .unwrap();
    gate.add_permits(1);
    scene.world.database.lock_is_awaited().await;
    let asked = "update session set stop_turn_id = active_turn_id, stop_kind = 'reset', stop_by = 'Ann', stop_at = now(), stop_then = 'continue',
                     reset_request = jsonb_build_object('reason', 'confused', 'queue', 'keep', 'in_flight', 'requeue', 'at', now(),
                                                        'by', jsonb_build_object('kind', 'user', 'id', 'u-1', 'name', 'Ann'))";
    sqlx::query(asked).execute(&mut *reset).await.unwrap();
    reset.commit().await.unwrap();
    scene.until("n-2", "delivered").await;
    assert_eq!(scene.state("n-1").await.0, "delivered");
    assert_eq!(scene.turns(TURNS).await, ["1 finished n-1", "2 finished n-2"]);
    assert_eq!(
        scene.texts("select body from message order by created_at").await[0],
        "said in time"
    );
    let told = scene.called(2).await[1].input();
    assert!(!told.contains("previous turn"), "nothing was put back: {told}");
    running.stop().await;
}

/// Only the record of a provider confirms that an agent with effects of its own has ended; this one has no record.
#[tokio::test]
async fn a_reset_that_is_not_confirmed_is_told_as_an_interruption() {
    let (mut scene, _gate) = gated("never said").await;
    scene.world.set("providers.default.effects", "own");
    scene.world.set("delivery.stop_confirm_ms_max", 50);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.called(1).await;
    scene.keep().await;
    scene.until("n-2", "delivered").await;
    assert_eq!(
        scene.turns(TURNS).await,
        ["1 aborted stop_unconfirmed n-1", "2 finished n-2"]
    );
    let told = scene.called(2).await[1].input();
    assert!(
        told.contains("was interrupted") && !told.contains("previous turn"),
        "{told}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_reset_survives_the_death_of_the_holder() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let first = scene.run().await;
    scene.called(1).await;
    first.cut_off();
    scene.keep().await;
    let second = scene.run().await;
    scene.until("n-2", "delivered").await;
    assert_eq!(scene.turns(TURNS).await, ["1 aborted reset n-1", "2 finished n-2"]);
    assert_eq!(
        scene.called(2).await.len(),
        2,
        "the next holder makes no call for the stopped turn"
    );
    second.stop().await;
}

/// A crash before the commit leaves the turn to the next holder; one after it leaves nothing to do. Either way there is one next
/// generation.
#[tokio::test]
async fn a_crash_in_the_record_of_a_reset_opens_one_generation() {
    for point in ["delivery.outcome_written", "delivery.outcome_committed"] {
        let (scene, _gate) = gated("never said").await;
        scene.enqueue("n-1", "x").await;
        scene.enqueue("n-2", "y").await;
        let first = scene.run().await;
        scene.called(1).await;
        first.crash_at(point, 1);
        scene.keep().await;
        tokio::time::timeout(Duration::from_secs(20), first.crashed())
            .await
            .unwrap();
        first.cut_off();
        let second = scene.run().await;
        scene.until("n-2", "delivered").await;
        scene.sessions_are(&["1 reset idle 0 f", "2 idle 0 f"]).await;
        assert_eq!(
            scene.turns(TURNS).await,
            ["1 aborted reset n-1", "2 finished n-2"],
            "{point}"
        );
        second.stop().await;
    }
}

#[tokio::test]
async fn a_turn_that_waits_for_tools_or_for_its_next_attempt_is_reset_at_once() {
    let scene = Scene::with(|seen| match seen.order {
        0 => Reply::call("c-1", "task_history", serde_json::json!({})),
        _ => Reply::text("ok"),
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.sessions_are(&["1 waiting 0 f"]).await;
    scene.keep().await;
    scene.until("n-1", "cancelled").await;
    scene.sessions_are(&["1 reset idle 0 f", "2 idle 0 f"]).await;
    // The result comes for a turn that is over.
    scene.tool_finished("c-1", 1, "{}").await;
    scene.enqueue_open("n-2").await;
    scene.until("n-2", "delivered").await;
    assert_eq!(scene.called(2).await.len(), 2);
    running.stop().await;

    let mut scene = Scene::with(|seen| match seen.order {
        0 => Reply::Status(503, String::new(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    scene.world.set("delivery.retry_delay_ms", 600_000);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.sessions_are(&["1 backoff 0 f"]).await;
    scene.keep().await;
    scene.until("n-1", "cancelled").await;
    scene.sessions_are(&["1 reset idle 0 f", "2 idle 0 f"]).await;
    running.stop().await;
}

/// The person who stops it after the reset holds what waits: in the next generation, since this one ends.
#[tokio::test]
async fn a_stop_after_a_reset_holds_the_next_generation() {
    let (mut scene, _gate) = gated("never said").await;
    scene.world.set("delivery.sweep_interval_ms", 600_000);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    let resolved = serde_json::json!({"account": "acme", "task": "PROJ-7", "session_id": scene.session, "session_key": scene.key,
        "generation": 1, "agent_id": scene.agent, "position": 1});
    let subject = "signalbox.session.resolved.acme.PROJ-7".to_owned();
    scene
        .world
        .publish_as_service(subject, resolved.to_string().into_bytes())
        .await;
    scene.called(1).await;
    scene.keep().await;
    let asked: SessionStopRequested = scene.ask(StopThen::Hold, None).await.unwrap();
    let subject = "signalbox.session.stop_requested.acme.PROJ-7".to_owned();
    scene
        .world
        .publish_as_resolver(subject, serde_json::to_vec(&asked).unwrap())
        .await;
    scene.until("n-1", "cancelled").await;
    scene.sessions_are(&["1 reset idle 0 f", "2 backoff stopped 1 f"]).await;
    assert_eq!(scene.turns(TURNS).await, ["1 aborted stopped n-1"]);
    running.stop().await;
}

/// The task has ended meanwhile: its end has closed the generation, and none follows.
#[tokio::test]
async fn a_session_that_closed_meanwhile_has_no_next_generation() {
    let (scene, _gate) = gated("never said").await;
    scene.enqueue("n-1", "x").await;
    let first = scene.run().await;
    scene.called(1).await;
    first.cut_off();
    scene.keep().await;
    scene
        .execute("update session set closed_at = now(), close_reason = 'task_done', reset_request = null, provider_thread = null")
        .await;
    let second = scene.run().await;
    scene.until("n-1", "cancelled").await;
    scene.sessions_are(&["1 task_done idle 0 f"]).await;
    second.stop().await;
}

/// A version of Signalbox that knows no resets has ended the turn.
#[tokio::test]
async fn a_reset_whose_turn_has_ended_without_it_is_carried_out_before_the_next_turn() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    scene
        .execute(
            "update session set reset_request = jsonb_build_object('reason', 'confused', 'queue', 'keep', 'in_flight', 'cancel', 'at', now(),
                                                                   'by', jsonb_build_object('kind', 'user', 'id', 'u-1', 'name', 'Ann'))",
        )
        .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    scene.sessions_are(&["1 reset idle 0 f", "2 idle 0 f"]).await;
    assert_eq!(scene.turns("generation").await, ["2"]);
    running.stop().await;
}

/// Every answer of the stub counts 53 tokens. The second turn would begin with the record of the first.
#[tokio::test]
async fn a_generation_over_its_tokens_is_rotated_before_its_next_turn() {
    let scene = Scene::with(|seen| Reply::text(&format!("answer {}", seen.order))).await;
    scene
        .execute(
            r#"update account set rotation = '{"tokens_max": 1}'; update agent set rotation = '{"tokens_max": 100}'"#,
        )
        .await;
    for n in 1..=5 {
        scene.enqueue(&format!("n-{n}"), &format!("body {n}")).await;
    }
    let running = scene.run().await;
    scene.until("n-5", "delivered").await;
    assert_eq!(
        scene.turns(TURNS).await,
        [
            "1 finished n-1",
            "1 finished n-2",
            "2 finished n-3",
            "2 finished n-4",
            "3 finished n-5"
        ],
        "in their order, and two turns a generation"
    );
    let because = "tokens_max: 106 tokens used, the limit is 100";
    assert_eq!(scene.turns("rotated_because").await, ["", "", because, "", because]);
    assert_eq!(
        scene.turns("context ->> 'reason'").await,
        ["first", "", "rotated:tokens_max", "", "rotated:tokens_max"]
    );
    let chain = "select concat_ws(' ', o.generation, o.close_reason, o.close_detail, o.provider_thread, n.generation, n.thread ->> 'tokens')
                 from session n left join session o on o.id = n.continues_id order by n.generation";
    let closed = |before: i32, tokens: i32| format!("{before} rotated {because} {} {tokens}", before + 1);
    assert_eq!(
        scene.texts(chain).await,
        ["1 106".to_owned(), closed(1, 106), closed(2, 53)]
    );
    // The next generation knows the turns of the one before it, and not those of the one before that.
    let last = scene.called(5).await[4].input();
    for (text, is_there) in [("body 3", true), ("answer 3", true), ("body 1", false)] {
        assert_eq!(last.contains(text), is_there, "{text}: {last}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_generation_whose_turns_fail_is_rotated() {
    let scene = Scene::with(|seen| match seen.order {
        0..2 => Reply::Status(400, "no".to_owned(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    scene
        .execute(r#"update account set rotation = '{"failures_max": 2}'"#)
        .await;
    for n in 1..=3 {
        scene.enqueue(&format!("n-{n}"), "x").await;
    }
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    assert_eq!(scene.turns("generation").await, ["1", "1", "2"]);
    assert_eq!(
        scene.turns("rotated_because").await[2],
        "failures_max: 2 turns in a row failed, the limit is 2"
    );
    running.stop().await;
}

/// Failures of a provider are its breaker's.
#[tokio::test]
async fn a_failing_provider_rotates_nothing() {
    let mut scene = Scene::with(|seen| match seen.order {
        0..2 => Reply::Status(500, String::new(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    scene.world.set("delivery.attempts_max", 1);
    scene
        .execute(r#"update account set rotation = '{"failures_max": 1}'"#)
        .await;
    for n in 1..=3 {
        scene.enqueue(&format!("n-{n}"), "x").await;
    }
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    assert_eq!(scene.turns("generation").await, ["1", "1", "1"]);
    assert_eq!(scene.texts("select thread ->> 'failures' from session").await, ["0"]);
    running.stop().await;
}

#[tokio::test]
async fn other_instructions_and_age_rotate_where_they_are_to() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    scene
        .execute(r#"update account set rotation = '{"profile_changed": true, "age_hours_max": 2}'"#)
        .await;
    let running = scene.run().await;
    scene.enqueue_open("n-1").await;
    scene.until("n-1", "delivered").await;
    scene.enqueue_open("n-2").await;
    scene.until("n-2", "delivered").await;
    scene.execute("update agent set role = 'You write tests.'").await;
    scene.enqueue_open("n-3").await;
    scene.until("n-3", "delivered").await;
    scene
        .execute("update session set opened_at = now() - interval '3 hours' where closed_at is null")
        .await;
    scene.enqueue_open("n-4").await;
    scene.until("n-4", "delivered").await;
    assert_eq!(scene.turns("generation").await, ["1", "1", "2", "3"]);
    assert_eq!(
        scene.turns("rotated_because").await,
        [
            "",
            "",
            "profile_changed: the instructions have changed",
            "age_hours_max: open for 3 hours, the limit is 2"
        ]
    );
    running.stop().await;
}

/// No rule holds before the first turn: a generation would follow the other without an end.
#[tokio::test]
async fn a_generation_has_a_turn_before_it_is_rotated() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    scene
        .execute(r#"update account set rotation = '{"age_hours_max": 1}'"#)
        .await;
    scene
        .execute("update session set opened_at = now() - interval '9 hours'")
        .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("generation").await, ["1"]);
    running.stop().await;
}

/// The provider refused the first turn of the next generation: the turn after it has the past, too.
#[tokio::test]
async fn a_rotated_generation_knows_the_past_until_its_provider_has_answered() {
    let scene = Scene::with(|seen| match seen.order {
        1 => Reply::Status(400, "no".to_owned(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    scene
        .execute(r#"update account set rotation = '{"tokens_max": 50}'"#)
        .await;
    scene.enqueue("n-1", "the first of all").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    scene.enqueue_open("n-2").await;
    scene.until("n-2", "failed").await;
    scene.enqueue_open("n-3").await;
    scene.until("n-3", "delivered").await;
    assert_eq!(scene.turns("generation").await, ["1", "2", "2"]);
    assert_eq!(
        scene.turns("context ->> 'reason'").await,
        ["first", "rotated:tokens_max", "rotated:tokens_max"]
    );
    for call in &scene.called(3).await[1..] {
        assert!(call.input().contains("the first of all"), "{}", call.input());
    }
    running.stop().await;
}

/// Both replicas are woken at once, again and again: each generation has its turns once.
#[tokio::test]
async fn two_replicas_rotate_once() {
    let mut scene = Scene::with(|_| Reply::text("ok")).await;
    scene.world.set("delivery.sweep_interval_ms", 10);
    scene
        .execute(r#"update account set rotation = '{"tokens_max": 50}'"#)
        .await;
    for n in 1..=6 {
        scene.enqueue(&format!("n-{n}"), "x").await;
    }
    let running = [scene.run().await, scene.run().await];
    scene.until("n-6", "delivered").await;
    let turns: Vec<String> = (1..=6).map(|n| format!("{n} finished n-{n}")).collect();
    assert_eq!(scene.turns(TURNS).await, turns);
    for one in running {
        one.stop().await;
    }
}
