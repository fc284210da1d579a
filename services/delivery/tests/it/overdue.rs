//! A notification that has waited too long fails, with a dead letter; one that is in work does not.

use serde_json::{Value, json};
use storage::{Role, directory::OverdueRound};
use testkit::{Reply, enqueued, eventually, rows};

use crate::scene::Scene;

const OUTCOMES: &str = "select concat_ws(' ', id, state, reason) from notification order by id";

/// A session that a gate keeps, with items of which the first ones are old.
async fn parked(scene: &Scene) {
    for (id, age) in [("n-1", "9 days"), ("n-2", "8 days"), ("n-3", "1 day")] {
        let row = enqueued(&scene.account, scene.session).with("id", id);
        let row = row.set("created_at", format!("date_trunc('second', now()) - interval '{age}'"));
        row.insert(&scene.world.database.owner).await;
    }
    let park =
        "update session set phase = 'backoff', gate = 'stopped', gated_since = now() - interval '8 days 12 hours'";
    sqlx::query(park).execute(&scene.world.database.owner).await.unwrap();
}

#[tokio::test]
async fn an_item_that_waited_too_long_fails_and_can_be_redriven() {
    let mut scene = Scene::with(|_| Reply::text("done")).await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    parked(&scene).await;
    let delivery = scene.run().await;
    scene.until("n-2", "failed").await;
    let times = "select concat_ws(' ', to_char(gated_since at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
                        (select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') from notification where id = 'n-2'))
                 from session";
    let times = scene.world.database.texts(times).await.remove(0);
    let (gated, entered) = times.split_once(' ').unwrap();
    assert_eq!(
        scene.world.database.texts(OUTCOMES).await,
        [
            format!("n-1 failed expired: waited for stopped since {gated}"),
            format!("n-2 failed expired: waited for stopped since {entered}"),
            "n-3 queued".to_owned(),
        ]
    );
    let session = "select concat_ws(' ', phase, gate, queued, queue_edits) from session";
    assert_eq!(scene.world.database.texts(session).await, ["backoff stopped 1 1"]);
    let letters = "select reason || ' ' || payload from dead_letter order by payload";
    let letters = scene.world.database.texts(letters).await;
    assert_eq!(letters.len(), 2);
    let (reason, payload) = letters[0].split_once(' ').unwrap();
    let payload: Value = serde_json::from_str(payload).unwrap();
    assert_eq!((reason, &payload["id"]), ("expired", &json!("n-1")));
    let look = "select coalesce(wake_at::text, 'never') from session";
    assert_eq!(scene.world.database.texts(look).await, ["never"], "a person goes on");
    assert!(scene.provider.seen().is_empty(), "nothing was started");
    let recovery = "select concat_ws(' ', cause, state, attempts) from recovery";
    assert_eq!(scene.world.database.texts(recovery).await, ["expired person 1"]);

    // The last one: the session rests.
    let older = "update notification set created_at = now() - interval '8 days' where id = 'n-3'";
    sqlx::query(older).execute(&scene.world.database.owner).await.unwrap();
    scene.until("n-3", "failed").await;
    eventually("the session rests", || async {
        (scene.world.database.texts(session).await == ["idle 0 2"]).then_some(())
    })
    .await;
    delivery.stop().await;
}

#[tokio::test]
async fn an_item_in_work_does_not_expire() {
    let scene = Scene::with(|_| Reply::text("done")).await;
    let row = enqueued(&scene.account, scene.session).with("id", "n-1");
    let row = row
        .with("state", "running")
        .set("created_at", "now() - interval '30 days'");
    row.insert(&scene.world.database.owner).await;
    let none = "update session set queued = 0";
    sqlx::query(none).execute(&scene.world.database.owner).await.unwrap();
    let database = scene.world.database.connect(Role::Delivery).await;
    let age = std::time::Duration::from_secs(60);
    let found = OverdueRound::default().look(&database, age, 10).await.unwrap();
    assert_eq!(found, []);
}

#[tokio::test]
async fn the_search_goes_round_a_page_at_a_time() {
    let scene = Scene::with(|_| Reply::text("done")).await;
    let owner = &scene.world.database.owner;
    rows("task")
        .set("display_id", "'t-' || n")
        .from("generate_series(1, 7) n")
        .insert(owner)
        .await;
    rows("session")
        .set("task_id", "'t-' || n")
        .from("agent a, generate_series(1, 7) n")
        .insert(owner)
        .await;
    rows("notification")
        .set("id", "s.task_id")
        .set(
            "created_at",
            "now() - case when s.task_id in ('t-2', 't-5', 't-7') then interval '1 hour' else interval '0' end",
        )
        .from("session s where s.task_id like 't-%'")
        .insert(owner)
        .await;
    let database = scene.world.database.connect(Role::Delivery).await;
    let age = std::time::Duration::from_secs(60);
    let (mut round, mut found) = (OverdueRound::default(), 0);
    for _ in 0..4 {
        found += round.look(&database, age, 2).await.unwrap().len();
    }
    assert_eq!(found, 3, "each of the seven is looked at once in four pages");
}

/// Nobody redrives a replay, and a branch ends at its deadline: neither leaves a letter, or work for a person.
#[tokio::test]
async fn what_a_replay_or_a_branch_has_to_do_leaves_no_letter() {
    for (kind, expected) in [("replay", "replayed cancelled failed"), ("branch", "queued")] {
        let mut scene = Scene::with(|_| Reply::text("done")).await;
        scene.world.set("delivery.sweep_interval_ms", 50);
        parked(&scene).await;
        let is = format!("update session set kind = '{kind}', origin_id = gen_random_uuid()");
        sqlx::query(sqlx::AssertSqlSafe(is))
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
        let other = scene
            .world
            .fixture()
            .task(&scene.account, "OTHER-1", &[scene.agent])
            .await;
        let (session, _) = scene.world.fixture().session(&scene.account, &other, scene.agent).await;
        let row = enqueued(&scene.account, session).with("id", "n-9");
        let row = row.set("created_at", "now() - interval '9 days'");
        row.insert(&scene.world.database.owner).await;
        let park =
            sqlx::query("update session set phase = 'backoff', gate = 'stopped', gated_since = now() where id = $1");
        park.bind(session.uuid())
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
        let delivery = scene.run().await;
        scene.until("n-9", "failed").await;
        let outcome = format!(
            "select concat_ws(' ', s.close_reason, string_agg(distinct n.state, ' ' order by n.state)) from session s
             join notification n on n.session_id = s.id where s.kind = '{kind}' group by s.id, s.close_reason"
        );
        let outcome: &'static str = outcome.leak();
        let found = scene.world.database.texts(outcome).await.remove(0);
        assert_eq!(found, expected);
        let letters = "select concat_ws(' ', payload::json ->> 'id', (select count(*) from recovery)) from dead_letter";
        assert_eq!(scene.world.database.texts(letters).await, ["n-9 1"]);
        delivery.stop().await;
    }
}
