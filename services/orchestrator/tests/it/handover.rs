//! A task goes from one agent to another, with what waits for it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

/// What waits, by its session's agent and in its order; then what ended.
const QUEUE: &str = "
    select concat_ws(' ', g.slug, n.agent_id = s.agent_id, n.id, n.queue_mode, n.sender_kind, n.sender_id)
    from notification n join session s on s.id = n.session_id join agent g on g.id = s.agent_id
    where n.state = 'queued' order by g.slug, n.position";
const ENDED: &str = "select concat_ws(' ', id, state, reason) from notification where state <> 'queued' order by id";
const SESSIONS: &str = "
    select concat_ws(' ', g.slug, s.generation, s.close_reason, s.phase, s.stop_kind, s.stop_by, s.queued, s.queue_tail)
    from session s join agent g on g.id = s.agent_id order by g.slug, s.generation";
/// Whether the agent that has the task now is told that an earlier turn may have begun on it.
const TOLD: &str = "
    select interrupted::text from session s join agent g on g.id = s.agent_id where g.slug = 'tester' and s.closed_at is null";
const ASSIGNED: &str = "select g.slug from task_assignee t join agent g on g.id = t.agent_id order by 1";

struct Scene {
    world: World,
    tenant: Tenant,
    coder: String,
    tester: String,
}

async fn scene() -> Scene {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    let tester = world.agent(&tenant, "tester").await;
    world.task(&tenant, "PROJ-7", &["coder"]).await;
    Scene {
        world,
        tenant,
        coder,
        tester,
    }
}

impl Scene {
    async fn hand(&self, from: &str, to: &str, more: Value) -> Answer {
        let mut body = json!({"from": from, "to": to});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.world
            .post(&self.tenant.member, &self.tenant.path("/tasks/proj-7/handover"), body)
            .await
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.world.test.texts(sql).await
    }

    /// Waiting items of a session: id, mode, type, kind and id of the sender.
    async fn items(&self, session: Uuid, items: &[(&str, &str, &str, &str, &str)]) {
        for (id, mode, kind, sender_kind, sender) in items {
            seed::item(&self.world, &self.tenant, session, (id, mode, kind, sender)).await;
            sqlx::query("update notification set sender_kind = $1 where id = $2")
                .bind(sender_kind)
                .bind(id)
                .execute(&self.world.test.owner)
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn handover_moves_items_and_keeps_authors() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let (old, turn) = seed::busy(world, tenant, "PROJ-7", &scene.coder).await;
    scene
        .items(
            old,
            &[
                ("from-ann", "followup", "message", "user", "ann"),
                ("from-ci", "collect", "build", "service", "ci"),
                ("its-timer", "followup", "timer", "service", "signalbox"),
                ("its-answer", "followup", "answer", "service", "signalbox"),
                ("from-bob", "steer", "message", "user", "bob"),
                ("from-planner", "followup", "response_request", "agent", "planner"),
                ("from-tester", "followup", "response_request", "agent", &scene.tester),
            ],
        )
        .await;
    let new = seed::session(world, tenant, "PROJ-7", &scene.tester, 1, true).await;
    scene
        .items(new, &[("was-there", "followup", "message", "user", "eve")])
        .await;
    let timers = format!("session s where s.id in ('{old}', '{new}')");
    rows("timer")
        .set("due_at", "now() + interval '1 hour'")
        .from(timers)
        .insert(&world.test.owner)
        .await;

    let expected = json!({"turns": 1, "items": {"cancelled": 3, "carried": 4}, "sessions": 1});
    let dry = scene.hand("coder", "tester", json!({"dry_run": true})).await;
    assert_eq!(
        (dry.status.as_u16(), &dry.body["affected"]),
        (200, &expected),
        "{dry:?}"
    );
    assert_eq!(scene.texts(ASSIGNED).await, ["coder"], "a dry run changes nothing");

    let handed = scene.hand("coder", &scene.tester, json!({})).await;
    assert_eq!(
        (handed.status.as_u16(), &handed.body["affected"]),
        (200, &expected),
        "{handed:?}"
    );
    assert_eq!(handed.body["assignees"][0]["slug"], json!("tester"));
    assert_eq!(
        scene.texts(QUEUE).await,
        [
            "tester t from-bob steer user bob",
            "tester t was-there followup user eve",
            "tester t from-ann followup user ann",
            "tester t from-ci collect service ci",
            "tester t from-planner followup agent planner",
        ]
    );
    assert_eq!(
        scene.texts(ENDED).await,
        [
            "from-tester cancelled handed over",
            "its-answer cancelled handed over",
            "its-timer cancelled handed over",
        ]
    );
    assert_eq!(
        scene.texts(SESSIONS).await,
        [
            "coder 1 handed_over waiting handed_over a member 0 7",
            "tester 1 idle 5 5"
        ]
    );
    let stopped = "select stop_turn_id::text from session where stop_turn_id is not null";
    assert_eq!(scene.texts(stopped).await, [turn.to_string()]);
    assert_eq!(scene.texts(ASSIGNED).await, ["tester"]);
    let timers =
        "select concat_ws(' ', g.slug, t.state, t.reason) from timer t join agent g on g.id = t.agent_id order by 1";
    assert_eq!(
        scene.texts(timers).await,
        ["coder cleared handed over", "tester waiting"]
    );
    let activity =
        "select concat_ws(' ', actor_name, detail - 'from' - 'to') from activity where kind = 'task.handed_over'";
    assert_eq!(
        scene.texts(activity).await,
        [r#"a member {"moved": 4, "cancelled": 3}"#]
    );
    let on = async |subject: &str| world.sent_on(subject).await;
    let changed = on("signalbox.event.acme.PROJ-7.task.changed").await;
    assert_eq!(changed[0].payload["data"]["what"], json!("handover"));
    assert_eq!(on("signalbox.event.acme.PROJ-7.notification.cancelled").await.len(), 3);
    assert_eq!(on("signalbox.session.closed.acme.PROJ-7").await.len(), 1);
    assert_eq!(on("signalbox.session.stop_requested.acme.PROJ-7").await.len(), 1);

    // Twice: the first agent has no part in the task any more.
    let again = scene.hand("coder", "tester", json!({})).await;
    again.is_problem(409, "not_assigned", "tester is assigned");
}

#[tokio::test]
async fn a_handover_opens_the_next_session_of_the_other_agent() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let old = seed::session(world, tenant, "PROJ-7", &scene.coder, 1, true).await;
    seed::session(world, tenant, "PROJ-7", &scene.tester, 4, false).await;
    scene.items(old, &[("n-1", "followup", "message", "user", "ann")]).await;
    assert_eq!(scene.hand("coder", "tester", json!({})).await.status, 200);
    assert_eq!(scene.texts(QUEUE).await, ["tester t n-1 followup user ann"]);
    assert_eq!(scene.texts(TOLD).await, ["false"]);
    assert_eq!(
        scene.texts(SESSIONS).await,
        [
            "coder 1 handed_over idle 0 1",
            "tester 4 task_done idle 0 0",
            "tester 5 idle 1 1"
        ]
    );
    assert_eq!(world.sent_on("signalbox.session.resolved.acme.PROJ-7").await.len(), 1);
    assert_eq!(
        world.sent_on("signalbox.event.acme.PROJ-7.session.opened").await.len(),
        1
    );
}

/// A turn whose call did not begin, or failed, waits for its next attempt: its item was not answered, so it moves too.
#[tokio::test]
async fn what_waits_for_another_attempt_moves_first() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let (old, turn) = seed::busy(world, tenant, "PROJ-7", &scene.coder).await;
    scene
        .items(
            old,
            &[
                ("tried", "followup", "message", "user", "ann"),
                ("n-2", "followup", "message", "user", "ann"),
            ],
        )
        .await;
    for sql in [
        "update session set phase = 'backoff', wake_at = now() + interval '1 hour', queued = 1",
        "update turn set state = 'started', notification_ids = '{tried}'",
    ] {
        world.execute(sql).await;
    }
    sqlx::query("update notification set state = 'running', turn_id = $1 where id = 'tried'")
        .bind(turn)
        .execute(&world.test.owner)
        .await
        .unwrap();
    assert_eq!(scene.hand("coder", "tester", json!({})).await.status, 200);
    assert_eq!(
        scene.texts(QUEUE).await,
        ["tester t tried followup user ann", "tester t n-2 followup user ann"]
    );
    let woken = "select concat_ws(' ', phase, queued, wake_at <= now()) from session where closed_at is not null";
    assert_eq!(scene.texts(woken).await, ["backoff 0 t"]);
    assert_eq!(scene.texts(TOLD).await, ["true"]);
}

/// Its turn is in progress, and no other item waits: the other agent's session is there to tell it.
#[tokio::test]
async fn the_other_agent_is_told_though_nothing_moves() {
    for is_open in [true, false] {
        let scene = scene().await;
        seed::busy(&scene.world, &scene.tenant, "PROJ-7", &scene.coder).await;
        if is_open {
            seed::session(&scene.world, &scene.tenant, "PROJ-7", &scene.tester, 1, true).await;
        }
        assert_eq!(scene.hand("coder", "tester", json!({})).await.status, 200);
        assert_eq!(scene.texts(TOLD).await, ["true"], "{is_open}");
        let woken = scene.world.sent_on("signalbox.session.resolved.acme.PROJ-7").await;
        assert_eq!(woken.len(), 0, "nothing waits");
    }
}

/// The item of an interrupted turn waits in the queue as others do.
#[tokio::test]
async fn what_a_turn_broke_off_on_is_told_to_the_other_agent() {
    for broken in ["interrupted = true", "stopped_turn_id = gen_random_uuid()"] {
        let scene = scene().await;
        let old = seed::session(&scene.world, &scene.tenant, "PROJ-7", &scene.coder, 1, true).await;
        scene.items(old, &[("n-1", "followup", "message", "user", "ann")]).await;
        scene.world.execute(&format!("update session set {broken}")).await;
        assert_eq!(scene.hand("coder", "tester", json!({})).await.status, 200);
        assert_eq!(scene.texts(TOLD).await, ["true"], "{broken}");
    }
}

/// Its session stays, for its other tasks. It is not assigned: its work on the task is part enough.
#[tokio::test]
async fn an_agent_with_one_session_gives_what_waits_for_another_attempt_too() {
    for (of, moves) in [("proj-7", true), ("proj-8", false)] {
        let scene = scene().await;
        let (world, tenant) = (&scene.world, &scene.tenant);
        world.execute("update account set session_scope = 'agent'").await;
        world.task(tenant, "PROJ-8", &["coder"]).await;
        let (session, turn) = seed::busy(world, tenant, "PROJ-7", &scene.coder).await;
        scene
            .items(session, &[("tried", "followup", "message", "user", "ann")])
            .await;
        for sql in [
            "update session set kind = 'system', task_id = null, phase = 'backoff', wake_at = now(), queued = 0",
            "update turn set state = 'started', notification_ids = '{tried}'",
            "delete from task_assignee where task_id = 'proj-7'",
        ] {
            world.execute(sql).await;
        }
        world.execute(&format!("update turn set task_id = '{of}'")).await;
        world
            .execute(&format!(
                "update notification set state = 'running', turn_id = '{turn}', task_id = '{of}'"
            ))
            .await;
        let handed = scene.hand("coder", "tester", json!({})).await;
        if moves {
            assert_eq!(handed.status, 200, "{handed:?}");
            assert_eq!(scene.texts(QUEUE).await, ["tester t tried followup user ann"]);
            assert_eq!(scene.texts(TOLD).await, ["true"]);
        } else {
            handed.is_problem(409, "not_assigned", "no agent is assigned");
        }
    }
}

/// Its session stays, for its other tasks.
#[tokio::test]
async fn an_agent_with_one_session_gives_the_items_of_the_task_only() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    world.execute("update account set session_scope = 'agent'").await;
    world.task(tenant, "PROJ-8", &["coder"]).await;
    let row = rows("session")
        .with("account_id", "acme")
        .with("agent_id", &scene.coder);
    let session = Uuid::now_v7();
    row.with("id", session).insert(&world.test.owner).await;
    scene
        .items(
            session,
            &[
                ("n-7", "followup", "message", "user", "ann"),
                ("n-8", "followup", "message", "user", "ann"),
            ],
        )
        .await;
    world
        .execute("update notification set task_id = 'proj-' || right(id, 1)")
        .await;
    assert_eq!(scene.hand("coder", "tester", json!({})).await.status, 200);
    assert_eq!(
        scene.texts(QUEUE).await,
        ["coder t n-8 followup user ann", "tester t n-7 followup user ann"]
    );
    assert_eq!(scene.texts(SESSIONS).await, ["coder 1 idle 1 2", "tester 1 idle 1 1"]);
}

#[tokio::test]
async fn a_handover_is_refused_visibly() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let check = async |from: &str, to: &str, status, code: &str, words: &str| {
        scene.hand(from, to, json!({})).await.is_problem(status, code, words);
    };
    check("tester", "coder", 409, "not_assigned", "coder is assigned").await;
    check("coder", "coder", 400, "invalid_field", "name another agent").await;
    check("coder", "nobody", 400, "unknown_agent", "nobody").await;
    check("nobody", "tester", 400, "unknown_agent", "nobody").await;
    let path = tenant.path("/tasks/PROJ-9/handover");
    let body = json!({"from": "coder", "to": "tester"});
    assert_eq!(world.post(&tenant.member, &path, body.clone()).await.status, 404);
    let path = tenant.path("/tasks/PROJ-7/handover");
    assert_eq!(world.post(&tenant.service, &path, body).await.status, 403);
    let done = world
        .patch(&tenant.member, &tenant.path("/tasks/PROJ-7"), json!({"status": "done"}))
        .await;
    assert_eq!(done.status, 200);
    check("coder", "tester", 409, "task_ended", "reopen it").await;
    assert_eq!(scene.texts(ASSIGNED).await, ["coder"]);
}

#[tokio::test]
async fn two_handovers_have_one_winner() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let third = world.agent(tenant, "writer").await;
    let old = seed::session(world, tenant, "PROJ-7", &scene.coder, 1, true).await;
    scene.items(old, &[("n-1", "followup", "message", "user", "ann")]).await;
    let (one, other) = tokio::join!(
        scene.hand("coder", "tester", json!({})),
        scene.hand("coder", &third, json!({}))
    );
    let mut statuses = [one.status.as_u16(), other.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{one:?} {other:?}");
    let queue = scene.texts(QUEUE).await;
    assert_eq!(queue.len(), 1);
    assert!(queue[0].starts_with(&scene.texts(ASSIGNED).await[0]), "{queue:?}");
}

#[tokio::test]
async fn ten_thousand_items_move_in_their_order() {
    let scene = scene().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let old = seed::session(world, tenant, "PROJ-7", &scene.coder, 1, true).await;
    rows("notification")
        .set("id", "'n-' || n")
        .set("position", "n")
        .set("kind", "case when n % 4 = 0 then 'timer' else 'message' end")
        .from(format!("session s, generate_series(1, 10000) n where s.id = '{old}'"))
        .insert(&world.test.owner)
        .await;
    world
        .execute("update session set queued = 10000, queue_tail = 10000")
        .await;
    let begun = Instant::now();
    let handed = scene.hand("coder", "tester", json!({})).await;
    let took = begun.elapsed();
    assert_eq!(
        handed.body["affected"]["items"],
        json!({"cancelled": 2500, "carried": 7500}),
        "{handed:?}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    let sorted = "
        select concat_ws(' ', count(*), count(distinct position), min(position), max(position),
                         count(*) filter (where place = position))
        from (select position, row_number() over (order by substr(id, 3)::int) as place from notification where state = 'queued') n";
    assert_eq!(scene.texts(sorted).await, ["7500 7500 1 7500 7500"]);
    assert_eq!(
        scene.texts(SESSIONS).await,
        ["coder 1 handed_over idle 0 10000", "tester 1 idle 7500 7500"]
    );
}
