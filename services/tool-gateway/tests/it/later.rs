//! `check_later`: what it sets, and what it refuses.

use domain::ToolCallState::Failed;
use serde_json::{Value, json};
use testkit::rows;

use crate::world::{TestSession, World};

const TIMERS: &str = "
    select concat_ws('|', kind, state, task_id, session_id = (select id from session), note, chain, payload - 'agent',
                     round(extract(epoch from due_at - created_at) / 60))
    from timer order by created_at, id";

fn later(minutes: i64) -> Value {
    json!({"after_minutes": minutes, "note": "Look at the build."})
}

/// A timer that began the session's turn.
async fn began(world: &World, session: &TestSession, chain: i32) {
    let of = format!("session s where s.id = '{}'", session.id);
    let row = rows("timer").with("state", "fired").set("ended_at", "now()");
    let row = row.with("notification_id", "n-timer").with("chain", chain);
    row.from(of).insert(&world.database.owner).await;
    let begun = "update turn set notification_ids = '{n-timer,n-joined}' where state = 'awaiting_tools'";
    world.run(sqlx::query(begun)).await;
}

#[tokio::test]
async fn a_timer_is_set_once_for_each_call() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let request = coder.request(1, "check_later", &later(90));
    let result = world.call(&request).await.ok();
    let timer = "select id || ' ' || to_char(due_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI') from timer";
    let set = world.database.texts(timer).await.remove(0);
    let (id, due_at) = set.split_once(' ').unwrap();
    assert_eq!(result["timer_id"], json!(id));
    assert!(result["due_at"].as_str().unwrap().starts_with(due_at), "{result}");
    world.ask_as(&request, "again").await;
    world.told().await;
    let expected = r#"check_later|waiting|proj-7|t|Look at the build.|0|{"hops": 2, "of_task": true}|90"#;
    assert_eq!(world.database.texts(TIMERS).await, [expected]);
    let events = world.heard("signalbox.event.acme.PROJ-7.timer.changed");
    assert_eq!(events.len(), 1);

    let at = json!({"at": "2020-01-01T00:00:00Z", "note": "n"});
    let refused = world.call(&coder.request(2, "check_later", &at)).await;
    assert_eq!(refused.code(Failed), "invalid_arguments");
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_session_has_few_timers_and_a_chain_ends() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    began(&world, &coder, 49).await;
    for ordinal in 1..=10 {
        world.call(&coder.request(ordinal, "check_later", &later(5))).await.ok();
    }
    let chains = "select distinct chain::text from timer where state = 'waiting'";
    assert_eq!(world.database.texts(chains).await, ["50"]);
    let full = world.call(&coder.request(11, "check_later", &later(5))).await;
    assert_eq!(full.code(Failed), "too_many_timers");
    world
        .run(sqlx::query(
            "update timer set state = 'cleared' where state = 'waiting'",
        ))
        .await;
    world
        .run(sqlx::query("update timer set chain = 50 where state = 'fired'"))
        .await;
    let chain = world.call(&coder.request(12, "check_later", &later(5))).await;
    assert_eq!(chain.code(Failed), "timer_chain");
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_agent_without_a_task_sets_timers_too() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let fixture = world.fixture();
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    let system = world.session(&account, None, agent).await;
    world.call(&system.request(1, "check_later", &later(43_200))).await.ok();
    let expected = r#"check_later|waiting|t|Look at the build.|0|{"hops": 2, "of_task": false}|43200"#;
    assert_eq!(world.database.texts(TIMERS).await, [expected]);
    let note = json!({"after_minutes": 1, "note": "é".repeat(1_025)});
    let long = world.call(&system.request(2, "check_later", &note)).await;
    assert_eq!(long.code(Failed), "invalid_arguments");
    world.end(&[&gateway]).await;
}
