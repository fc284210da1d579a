//! Queue modes: places, items that may be answered together, turns that a steer ends, gates that an item opens.

use contracts::session::{SessionResolved, SessionStopRequested};
use resolver::handlers::notification::Committed;
use serde_json::{Value, json};
use testkit::rows;

use crate::scene::{Message, Scene, message, scene};

fn sent(id: &str, mode: &str, kind: &str) -> Message {
    let sender = json!({"kind": kind, "id": "s-1", "name": "Somebody"});
    let payload = json!({"id": id, "agent": "coder", "body": id, "queue_mode": mode, "sender": sender});
    Message {
        // Only our own services send in an agent's name.
        is_signed: kind == "agent",
        ..message("acme", "PROJ-7", &payload)
    }
}

impl Scene {
    /// The queue in its order: id, number, mode, whether it may join others.
    async fn queue(&self) -> Vec<String> {
        self.test
            .texts(
                "select concat_ws(' ', id, case when position < 0 then position + 1099511627776 else position end, queue_mode,
                                  case when joins then 'joins' end)
                 from notification where state = 'queued' order by position",
            )
            .await
    }

    /// Gives the session a turn in progress on a task.
    async fn turn_begins(&self, task: Option<&str>) {
        self.execute("update session set active_turn_id = null, phase = 'idle', lease_owner = null")
            .await;
        self.execute("delete from turn").await;
        let turn = rows("turn").with("state", "calling").set("finished_at", "null");
        let turn = match task {
            Some(task) => turn.with("task_id", task),
            None => turn.set("task_id", "null"),
        };
        turn.from("session s").insert(&self.test.owner).await;
        self.execute(
            "update session s set phase = 'running', lease_owner = gen_random_uuid(), stop_turn_id = null,
                 active_turn_id = (select t.id from turn t where t.session_id = s.id limit 1)",
        )
        .await;
    }

    async fn parked(&self, gate: &'static str) {
        let park = format!(
            "update session set phase = 'backoff', active_turn_id = null, lease_owner = null, wake_at = null, gate = '{gate}'"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(park))
            .execute(&self.test.owner)
            .await
            .unwrap();
    }

    async fn stop(&self) -> Vec<String> {
        let asked =
            "select concat_ws(' ', stop_kind, stop_by, stop_then, (stop_turn_id = active_turn_id)::text) from session";
        self.test.texts(asked).await
    }
}

fn hints(committed: &Committed) -> Vec<SessionStopRequested> {
    let stops = committed
        .wakes
        .iter()
        .filter(|wake| wake.subject.contains(".stop_requested."));
    stops
        .map(|wake| serde_json::from_slice(&wake.payload).unwrap())
        .collect()
}

fn woken(committed: &Committed) -> usize {
    let wakes = committed.wakes.iter();
    wakes
        .filter(|wake| serde_json::from_slice::<SessionResolved>(&wake.payload).is_ok())
        .count()
}

#[tokio::test]
async fn steers_stand_first_and_the_others_as_they_came() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    let batch = [
        sent("b", "collect", "user"),
        sent("c", "steer", "service"),
        sent("d", "inject", "user"),
        sent("e", "steer", "agent"),
    ];
    reader.take(&batch).await;
    reader.take(&[sent("f", "steer", "user")]).await;
    assert_eq!(
        scene.queue().await,
        [
            "c 3 steer",
            "f 6 steer",
            "a 1 followup",
            "b 2 collect joins",
            "d 4 inject",
            "e 5 followup"
        ]
    );
    let asked = scene
        .test
        .texts("select metadata ->> 'queue_mode_asked' from notification where id = 'e'")
        .await;
    assert_eq!(asked, ["steer"]);
    scene.check().await;
}

/// The same by a look-up and by a route.
#[tokio::test]
async fn an_item_joins_others_unless_it_met_an_idle_session() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader
        .take(&[sent("a", "collect", "user"), sent("b", "collect", "user")])
        .await;
    reader
        .take(&[sent("c", "collect", "user"), sent("d", "followup", "user")])
        .await;
    let expected = ["a 1 collect", "b 2 collect joins", "c 3 collect joins", "d 4 followup"];
    assert_eq!(scene.queue().await, expected);
    scene
        .execute("update notification set state = 'delivered'; update session set queued = 0")
        .await;
    reader
        .take(&[sent("e", "collect", "user"), sent("f", "collect", "user")])
        .await;
    assert_eq!(scene.queue().await, ["e 5 collect", "f 6 collect joins"]);
    scene.check().await;
}

#[tokio::test]
async fn a_steer_asks_the_turn_in_progress_to_stop() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    scene.turn_begins(Some("proj-7")).await;
    let committed = reader.take(&[sent("b", "followup", "user")]).await;
    assert_eq!(
        (hints(&committed), scene.stop().await),
        (Vec::new(), vec![String::new()])
    );
    let committed = reader
        .take(&[sent("c", "steer", "user"), sent("d", "steer", "user")])
        .await;
    let asked = hints(&committed);
    assert_eq!(asked.len(), 1, "one request for one turn");
    let turn = scene.test.texts("select active_turn_id::text from session").await;
    assert_eq!(asked[0].turn_id.to_string(), turn[0]);
    assert_eq!(
        committed.wakes[0].subject,
        "signalbox.session.stop_requested.acme.PROJ-7"
    );
    assert_eq!(
        scene.stop().await,
        ["steered publisher, on behalf of Somebody continue true"]
    );
    scene.check().await;
}

/// A session of scope `agent` has turns of many tasks.
#[tokio::test]
async fn a_steer_ends_a_turn_on_its_own_task_only() {
    let scene = scene().await;
    let fixture = scene.fixture();
    fixture.account_set(&scene.account, "session_scope", "agent").await;
    fixture.task(&scene.account, "OTHER-1", &[scene.coder]).await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    for (task, ends) in [(Some("other-1"), false), (None, false), (Some("proj-7"), true)] {
        scene.turn_begins(task).await;
        let id = format!("steer-{task:?}");
        let committed = reader.take(&[sent(&id, "steer", "user")]).await;
        assert_eq!(hints(&committed).len(), usize::from(ends), "{task:?}");
    }
}

#[tokio::test]
async fn a_gate_is_opened_by_a_person_or_a_steer_and_delivery_is_woken_once() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    let cases = [
        ("stopped", "followup", "service", false),
        ("stopped", "followup", "user", true),
        ("stopped", "steer", "service", true),
        ("collect", "followup", "user", false),
        ("collect", "steer", "user", true),
    ];
    for (n, (gate, mode, kind, opens)) in cases.into_iter().enumerate() {
        scene.parked(gate).await;
        let ids = [format!("n-{n}-1"), format!("n-{n}-2")];
        let batch = ids.map(|id| sent(&id, mode, kind));
        let committed = reader.take(&batch).await;
        let session = scene
            .test
            .texts("select concat_ws(' ', phase, gate, (wake_at <= now())::text) from session")
            .await;
        let expected = if opens {
            "backoff true".to_owned()
        } else {
            format!("backoff {gate}")
        };
        assert_eq!(session, [expected], "{gate} {mode} {kind}");
        assert_eq!(woken(&committed), usize::from(opens), "{gate} {mode} {kind}");
        let told = scene.outgoing().await;
        let released: Vec<&Value> = told
            .iter()
            .filter(|(subject, _)| subject.ends_with("session.released"))
            .map(|(_, event)| &event["data"]["gate"])
            .collect();
        let announced = opens && gate == "stopped";
        assert_eq!(
            released,
            vec![&json!("stopped"); usize::from(announced)],
            "{gate} {mode} {kind}"
        );
        scene.execute("delete from outbox").await;
    }
    scene.check().await;
}

/// The turn is still to end: what waits behind it would be held then.
#[tokio::test]
async fn what_a_person_sends_before_a_stopped_turn_has_ended_lets_the_queue_go_on() {
    for (mode, sender, then) in [
        ("followup", "service", "hold"),
        ("inject", "service", "continue"),
        ("followup", "user", "continue"),
        ("collect", "user", "continue"),
    ] {
        let scene = scene().await;
        let mut reader = scene.reader().await;
        reader.take(&[sent("a", "followup", "user")]).await;
        scene.turn_begins(Some("proj-7")).await;
        scene
            .execute(
                "update session set stop_turn_id = active_turn_id, stop_kind = 'stopped', stop_by = 'Ann', stop_then = 'hold',
                     stop_at = now()",
            )
            .await;
        // Its route is known by now.
        for id in ["b", "c"] {
            reader.take(&[sent(id, mode, sender)]).await;
        }
        assert_eq!(
            scene.stop().await,
            [format!("stopped Ann {then} true")],
            "{mode} {sender}"
        );
    }
}

/// What the stop kept is gone, so nothing else is kept.
#[tokio::test]
async fn a_gate_without_a_queue_is_opened_by_any_item() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    scene.parked("stopped").await;
    reader.take(&[sent("b", "followup", "service")]).await;
    let gate = "select coalesce(gate, 'open') from session";
    assert_eq!(scene.test.texts(gate).await, ["stopped"]);
    scene
        .execute("update notification set state = 'cancelled'; update session set queued = 0")
        .await;
    let committed = reader.take(&[sent("c", "followup", "service")]).await;
    assert_eq!(scene.test.texts(gate).await, ["open"]);
    assert_eq!(woken(&committed), 1);
}

/// A word of a later version in a session's row.
#[tokio::test]
async fn a_gate_of_a_later_version_is_left_to_that_version() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[sent("a", "followup", "user")]).await;
    scene.parked("of-later").await;
    reader.take(&[sent("b", "followup", "user")]).await;
    assert_eq!(scene.queue().await, ["a 1 followup", "b 2 followup"]);
    assert_eq!(scene.test.texts("select gate from session").await, ["of-later"]);
}
