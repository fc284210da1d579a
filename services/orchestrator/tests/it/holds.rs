//! Holds over the API: set, listed, released; what they count, whom they refuse, and what is settled in pieces.

use std::time::{Duration, Instant};

use orchestrator::{forget::forget_once, holds::sweep::settle_once};
use serde_json::{Value, json};
use storage::hold::SESSIONS_MAX;
use testkit::rows;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

const COUNT: &str = "select holds::text from account where id = 'acme'";
const STOPS: &str = "select concat_ws(' ', stop_kind, stop_by, stop_then) from session where stop_turn_id is not null";

async fn working() -> (World, Tenant, String) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    (world, tenant, coder)
}

fn scope(kind: &str, id: impl ToString) -> Value {
    json!({"scope": {"kind": kind, "id": id.to_string()}})
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

impl World {
    async fn hold(&self, tenant: &Tenant, body: Value) -> Answer {
        self.post(&tenant.member, &tenant.path("/holds"), body).await
    }

    async fn held(&self, tenant: &Tenant, body: Value) -> String {
        let answer = self.hold(tenant, body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["id"].as_str().unwrap().to_owned()
    }

    async fn release(&self, tenant: &Tenant, hold: &str) -> Answer {
        self.delete(&tenant.admin, &tenant.path(&format!("/holds/{hold}")))
            .await
    }

    async fn settle(&self) -> u64 {
        settle_once(&self.app, &CancellationToken::new()).await.unwrap()
    }

    /// As if the holds had been set and released a while ago.
    async fn later(&self) {
        self.execute(
            "update hold set created_at = created_at - interval '1 minute', released_at = released_at - interval '1 minute'",
        )
        .await;
    }
}

#[tokio::test]
async fn a_hold_says_what_it_affects_and_is_released_once() {
    let (world, tenant, coder) = working().await;
    seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let tester = world.agent(&tenant, "tester").await;
    let waits = seed::session(&world, &tenant, "PROJ-7", &tester, 1, true).await;
    for id in ["n-1", "n-2"] {
        seed::queued(&world, &tenant, waits, id).await;
    }
    let check = async |kind: &str, id: String, expected: [i64; 3]| {
        let [turns, items, sessions] = expected;
        let affected = json!({"turns": turns, "items": items, "sessions": sessions, "at_least": false});
        let dry = with(scope(kind, &id), json!({"dry_run": true}));
        let answer = world.hold(&tenant, dry).await;
        let would = json!({"id": null, "affected": affected});
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &would), "{kind}");
        assert_eq!(
            world.test.count("select count(*) from hold").await,
            0,
            "a dry run writes nothing"
        );

        let answer = world.hold(&tenant, scope(kind, &id)).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body["affected"]),
            (201, &affected),
            "{kind}"
        );
        assert_eq!(world.test.texts(COUNT).await, ["1"]);
        let hold = answer.body["id"].as_str().unwrap();
        let listed = world.get(&tenant.member, &tenant.path("/holds?active=true")).await;
        let shown = &listed.body["items"][0];
        assert_eq!(
            (&shown["id"], &shown["scope"]["kind"], &shown["active"]),
            (&json!(hold), &json!(kind), &json!(true))
        );
        assert_eq!(
            (&shown["by"]["name"], &shown["running"]),
            (&json!("a member"), &json!("finish"))
        );

        let released = world.release(&tenant, hold).await;
        assert_eq!(released.status, 200, "{released:?}");
        assert_eq!(
            (&released.body["active"], &released.body["released_by"]),
            (&json!(false), &json!("a admin"))
        );
        let again = world.release(&tenant, hold).await;
        assert_eq!((again.status, &again.body), (released.status, &released.body));
        assert_eq!(world.test.texts(COUNT).await, ["0"]);
        let events = world.sent_on("signalbox.event.acme.-.hold.changed").await;
        let told: Vec<&Value> = events.iter().map(|event| &event.payload["data"]["released"]).collect();
        assert_eq!(told, [&json!(false), &json!(true)], "a repetition is no news");
        world.execute("delete from hold").await;
        world.execute("delete from outbox").await;
    };
    check("account", "acme".to_owned(), [1, 2, 2]).await;
    check("task", "proj-7".to_owned(), [1, 2, 2]).await;
    check("agent", "coder".to_owned(), [1, 0, 1]).await;
    check("agent", tester, [0, 2, 1]).await;
    check("session", waits.to_string(), [0, 2, 1]).await;
}

#[tokio::test]
async fn a_hold_is_refused() {
    let (world, tenant, coder) = working().await;
    let theirs = world.tenant("globex").await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    for key in [&tenant.service, &tenant.publisher, &tenant.gateway] {
        let answer = world.post(key, &tenant.path("/holds"), scope("account", "acme")).await;
        answer.is_problem(403, "forbidden", "may not do this");
    }
    for (kind, id) in [
        ("account", "globex".to_owned()),
        ("task", "PROJ-8".to_owned()),
        ("task", "no task".to_owned()),
        ("agent", Uuid::nil().to_string()),
        ("agent", "nobody".to_owned()),
        ("session", Uuid::nil().to_string()),
        ("session", "nonsense".to_owned()),
    ] {
        for dry_run in [false, true] {
            let body = with(scope(kind, &id), json!({"dry_run": dry_run}));
            world.hold(&tenant, body).await.is_problem(404, "not_found", "");
        }
    }
    for (kind, id) in [
        ("account", "acme".to_owned()),
        ("task", "PROJ-7".to_owned()),
        ("agent", coder),
        ("session", session.to_string()),
    ] {
        let answer = world.hold(&theirs, scope(kind, &id)).await;
        answer.is_problem(404, "not_found", "");
    }
    let past = with(scope("account", "acme"), json!({"until": "2020-01-01T00:00:00Z"}));
    world
        .hold(&tenant, past)
        .await
        .is_problem(422, "invalid", "until is in the past");
    for (more, word) in [
        (json!({"running": "pause"}), "running"),
        (json!({"reason": "x".repeat(1_025)}), "reason"),
        (json!({"scope": {"kind": "team", "id": "x"}}), "team"),
        (json!({"for": "ever"}), "unknown field `for`"),
    ] {
        let body = with(scope("account", "acme"), more);
        world.hold(&tenant, body).await.is_problem(400, "invalid_field", word);
    }
    assert_eq!(world.test.count("select count(*) from hold").await, 0);

    let hold = world.held(&tenant, scope("account", "acme")).await;
    for path in [
        tenant.path(&format!("/holds/{hold}")),
        theirs.path(&format!("/holds/{hold}")),
    ] {
        world
            .delete(&theirs.admin, &path)
            .await
            .is_problem(404, "not_found", "");
    }
    world
        .release(&tenant, &Uuid::nil().to_string())
        .await
        .is_problem(404, "not_found", "");
    assert_eq!(world.test.texts(COUNT).await, ["1"]);
}

#[tokio::test]
async fn one_hold_a_scope_and_caller_and_a_hundred_an_account() {
    let (world, tenant, _) = working().await;
    let first = world.held(&tenant, scope("task", "PROJ-7")).await;
    let changed = with(
        scope("task", "proj-7"),
        json!({"reason": "a review", "running": "stop"}),
    );
    assert_eq!(world.held(&tenant, changed).await, first, "the same one is changed");
    let row = "select concat_ws(' ', reason, running) from hold";
    assert_eq!(world.test.texts(row).await, ["a review stop"]);
    let other = world
        .post(&tenant.admin, &tenant.path("/holds"), scope("task", "PROJ-7"))
        .await;
    assert_eq!(other.status, 201, "another person's is another");
    assert_eq!(world.test.texts(COUNT).await, ["2"]);

    let many = rows("hold").set("scope_id", "'t-' || n").with("scope_kind", "task");
    many.from("generate_series(1, 98) n").insert(&world.test.owner).await;
    world.task(&tenant, "PROJ-8", &[]).await;
    let answer = world.hold(&tenant, scope("task", "PROJ-8")).await;
    answer.is_problem(409, "too_many_holds", "the account has 100 active holds");
    answer.is_problem(
        409,
        "too_many_holds",
        &format!("the oldest is {first} on task proj-7, by a member since "),
    );
    assert_eq!(world.test.count("select count(*) from hold").await, 100);
    // A change of one is no further one; and one whose time is over makes room.
    assert_eq!(world.held(&tenant, scope("task", "PROJ-7")).await, first);
    world
        .execute("update hold set until = now() where scope_id = 't-1'")
        .await;
    world.held(&tenant, scope("task", "PROJ-8")).await;
    assert_eq!(world.test.texts(COUNT).await, ["100"]);
    // What stops everything has its place.
    world.held(&tenant, scope("account", "acme")).await;
    assert_eq!(world.test.texts(COUNT).await, ["101"]);
}

#[tokio::test]
async fn a_hold_that_stops_asks_the_turns_in_its_scope_only() {
    let (world, tenant, coder) = working().await;
    let tester = world.agent(&tenant, "tester").await;
    world.task(&tenant, "PROJ-8", &[]).await;
    let (session, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let (stopped, _) = seed::busy(&world, &tenant, "PROJ-8", &coder).await;
    seed::busy(&world, &tenant, "PROJ-7", &tester).await;
    // A person has stopped this one, and keeps the say of what follows.
    let path = tenant.path(&format!("/sessions/{stopped}/stop"));
    world.post(&tenant.member, &path, json!({"then": "hold"})).await;
    let before = world.sent().await.len();
    world
        .held(&tenant, with(scope("agent", &coder), json!({"running": "stop"})))
        .await;
    let mut stops = world.test.texts(STOPS).await;
    stops.sort();
    assert_eq!(stops, ["paused a member continue", "stopped a member hold"]);
    let sent = world.sent().await.split_off(before);
    let hints: Vec<&Value> = sent
        .iter()
        .filter(|sent| sent.subject == "signalbox.session.stop_requested.acme.PROJ-7")
        .map(|sent| &sent.payload)
        .collect();
    assert_eq!(hints.len(), 1, "{sent:?}");
    assert_eq!(
        (&hints[0]["turn_id"], &hints[0]["session_id"], &hints[0]["kind"]),
        (&json!(turn), &json!(session), &json!("paused"))
    );
}

/// The process ended between a hold and its stop requests, or a claim was in flight: the row says what is left.
#[tokio::test]
async fn turns_that_a_hold_did_not_see_are_found_by_the_sweep() {
    let (world, tenant, coder) = working().await;
    world
        .held(&tenant, with(scope("account", "acme"), json!({"running": "stop"})))
        .await;
    assert_eq!(world.settle().await, 0);
    let unsettled = "select count(*) from hold where unsettled";
    assert_eq!(world.test.count(unsettled).await, 1, "it looks again for a while");
    seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    assert_eq!(world.settle().await, 1);
    assert_eq!(world.test.texts(STOPS).await, ["paused a member continue"]);
    assert_eq!(world.settle().await, 0, "asked once");
    world.later().await;
    world.settle().await;
    assert_eq!(world.test.count(unsettled).await, 0);
}

/// A claim that was in flight at the release parks its session after it.
#[tokio::test]
async fn sessions_that_a_release_did_not_see_are_opened_by_the_sweep() {
    let (world, tenant, coder) = working().await;
    let hold = world.held(&tenant, scope("account", "acme")).await;
    world.release(&tenant, &hold).await;
    let parked = rows("session")
        .with("task_id", "proj-7")
        .with("agent_id", &coder)
        .with("phase", "backoff");
    let parked = parked.with("gate", "pause").with("gate_ref", &hold).with("queued", 1);
    parked.insert(&world.test.owner).await;
    let session = world.test.texts("select id::text from session").await.remove(0);
    // Locked by somebody: found at the next look, and the hold is not settled before.
    world.later().await;
    let mut holder = world.test.owner.begin().await.unwrap();
    sqlx::query("select from session for update")
        .execute(&mut *holder)
        .await
        .unwrap();
    assert_eq!(world.settle().await, 0);
    holder.rollback().await.unwrap();
    assert_eq!(world.settle().await, 1);
    let open = "select concat_ws(' ', gate, gate_ref, (wake_at <= now())::text) from session";
    assert_eq!(world.test.texts(open).await, ["true"]);
    let woken = world.sent_on("signalbox.session.resolved.acme.PROJ-7").await;
    assert_eq!(woken[0].payload["session_id"], json!(session));
    assert_eq!(world.settle().await, 0);
    assert_eq!(world.test.count("select count(*) from hold where unsettled").await, 0);
}

#[tokio::test]
async fn a_hold_whose_time_is_over_is_marked_and_forgotten_after_a_while() {
    let (world, tenant, _) = working().await;
    let soon = with(scope("account", "acme"), json!({"until": "2999-01-01T00:00:00Z"}));
    world.held(&tenant, soon).await;
    world.settle().await;
    assert_eq!(world.test.texts(COUNT).await, ["1"]);
    world
        .execute("update hold set until = now() - interval '1 second'")
        .await;
    let listed = world.get(&tenant.member, &tenant.path("/holds")).await;
    assert_eq!(listed.body["items"][0]["active"], json!(false), "marked or not");
    world.settle().await;
    assert_eq!(world.test.texts(COUNT).await, ["0"]);
    let listed = world.get(&tenant.member, &tenant.path("/holds?active=false")).await;
    let shown = &listed.body["items"][0];
    assert_eq!(
        (&shown["released_at"], &shown["released_by"]),
        (&shown["until"], &json!(null))
    );

    let stop = CancellationToken::new();
    forget_once(&world.app, &stop).await.unwrap();
    assert_eq!(world.test.count("select count(*) from hold").await, 1);
    world
        .execute("update hold set released_at = released_at - interval '91 days'")
        .await;
    forget_once(&world.app, &stop).await.unwrap();
    assert_eq!(world.test.count("select count(*) from hold").await, 0);
}

/// 5,000 of them, or 100,000 at night: each piece is short, and the account's other statements go on.
#[tokio::test]
async fn parked_sessions_are_opened_in_bounded_pieces() {
    let (world, tenant, _) = working().await;
    let count: u64 = if std::env::var_os("SIGNALBOX_NIGHTLY").is_some() {
        100_000
    } else {
        5_000
    };
    let hold = world.held(&tenant, scope("account", "acme")).await;
    let agents = "generate_series(1, 100) n";
    rows("agent")
        .set("slug", "'a' || n")
        .from(agents)
        .insert(&world.test.owner)
        .await;
    let tasks = format!("generate_series(1, {}) n", count / 100);
    rows("task")
        .set("display_id", "'T-' || n")
        .from(tasks)
        .insert(&world.test.owner)
        .await;
    let of_all = "agent a cross join task t where a.slug like 'a%' and t.id like 't-%'";
    let parked = rows("session")
        .set("task_id", "t.id")
        .set("agent_id", "a.id")
        .with("phase", "backoff")
        .with("gate", "pause");
    let parked = parked.with("gate_ref", &hold).with("queued", 1).with("queue_tail", 1);
    parked
        .set("gated_since", "now()")
        .from(of_all)
        .insert(&world.test.owner)
        .await;
    world.execute("analyze").await;

    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    assert_eq!(world.release(&tenant, &hold).await.status, 200);
    longest = longest.max(begun.elapsed());
    let mut opened = SESSIONS_MAX.unsigned_abs();
    while opened < count {
        let begun = Instant::now();
        let some = world.settle().await;
        assert!((1..=SESSIONS_MAX.unsigned_abs()).contains(&some), "{some} at one look");
        opened += some;
        longest = longest.max(begun.elapsed());
    }
    assert_eq!(opened, count);
    let left = "select count(*) from session where gate is not null or wake_at is null";
    assert_eq!(world.test.count(left).await, 0);
    println!("{count} sessions, the longest look took {longest:?}");
}

/// A hold goes to the next generation with its session, so one on a generation that has ended would keep nothing.
#[tokio::test]
async fn a_generation_that_has_ended_cannot_be_paused() {
    let (world, tenant, coder) = working().await;
    let ended = seed::session(&world, &tenant, "PROJ-7", &coder, 1, false).await;
    let open = seed::session(&world, &tenant, "PROJ-7", &coder, 2, true).await;
    for dry_run in [true, false] {
        let body = with(scope("session", ended), json!({"dry_run": dry_run}));
        let refused = world.hold(&tenant, body).await;
        refused.is_problem(409, "session_closed", "generation 1 is closed");
        assert_eq!(refused.body["session"], json!(open));
    }
    assert_eq!(world.test.texts(COUNT).await, ["0"]);

    // It ends while the hold is on its way.
    let mut ending = world.test.owner.begin().await.unwrap();
    sqlx::query("update session set closed_at = now(), close_reason = 'rotated' where generation = 2")
        .execute(&mut *ending)
        .await
        .unwrap();
    let end = async {
        world.test.lock_is_awaited().await;
        ending.commit().await.unwrap();
    };
    let (refused, ()) = tokio::join!(world.hold(&tenant, scope("session", open)), end);
    refused.is_problem(409, "session_closed", "generation 2 is closed");
    assert_eq!(world.test.texts(COUNT).await, ["0"]);
}
