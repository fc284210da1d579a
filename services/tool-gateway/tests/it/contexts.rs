//! `task_context_write` and `task_context_read`: versions, limits, and who may not write.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::World;

const VERSIONS: &str = "select concat_ws(' ', account_id, version, author_name, body) from task_context
                        order by account_id, version";

fn text(body: &str) -> Value {
    json!({"body": body})
}

#[tokio::test]
async fn each_write_is_the_next_version_and_the_newest_is_read() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let none = world
        .call(&coder.request(1, "task_context_read", &json!({})))
        .await
        .ok();
    assert_eq!(none, json!({"ok": true, "task_context": null}));
    let first = coder.request(2, "task_context_write", &text(" Build the parser.\n"));
    let written = world.call(&first).await.ok();
    assert_eq!(
        written,
        json!({"ok": true, "version": 1, "characters": 17, "cut_characters": 0})
    );
    // The same call again, as after a crash that lost its answer.
    world.ask_as(&first, "again").await;
    let second = coder.request(3, "task_context_write", &text("Build the parser in Rust."));
    assert_eq!(world.call(&second).await.ok()["version"], 2);
    let read = world
        .call(&coder.request(4, "task_context_read", &json!({})))
        .await
        .ok();
    assert_eq!(
        (
            &read["version"],
            &read["body"],
            &read["author"]["name"],
            &read["warning"]
        ),
        (
            &json!(2),
            &json!("Build the parser in Rust."),
            &json!("coder"),
            &Value::Null
        )
    );
    let of_turn = "select count(*) from task_context where turn_id = (select id from turn) and task_id = 'proj-7'";
    assert_eq!(world.database.count(of_turn).await, 2);
    world.told().await;
    assert_eq!(
        world.database.texts(VERSIONS).await,
        [
            "acme 1 coder Build the parser.",
            "acme 2 coder Build the parser in Rust."
        ]
    );
    let heard = world.heard("signalbox.event.acme.PROJ-7.task_context.written");
    let versions: Vec<&Value> = heard.iter().map(|heard| &heard.payload["data"]["version"]).collect();
    assert_eq!(versions, [1, 2]);
    let activities = "select detail::text from activity where kind = 'task_context.written' order by created_at";
    let expected = [
        r#"{"version": 1, "characters": 17}"#,
        r#"{"version": 2, "characters": 25}"#,
    ];
    assert_eq!(world.database.texts(activities).await, expected);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_long_text_is_cut_by_characters_when_it_is_written_and_said_at_every_use() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let whole = "😀".repeat(10_000);
    let kept = world
        .call(&coder.request(1, "task_context_write", &text(&whole)))
        .await
        .ok();
    assert_eq!(
        kept,
        json!({"ok": true, "version": 1, "characters": 10_000, "cut_characters": 0})
    );
    let long = format!("{whole}!");
    let cut = world
        .call(&coder.request(2, "task_context_write", &text(&long)))
        .await
        .ok();
    let warning = "The task context was cut from 10,001 to 10,000 characters. Consider shortening it.";
    assert_eq!(
        (&cut["characters"], &cut["cut_characters"], &cut["warning"]),
        (&json!(10_000), &json!(1), &json!(warning))
    );
    let read = world
        .call(&coder.request(3, "task_context_read", &json!({})))
        .await
        .ok();
    assert_eq!((&read["body"], &read["warning"]), (&json!(whole), &json!(warning)));
    for (ordinal, bad, code) in [
        (4, json!({"body": " \n"}), "invalid_arguments"),
        (5, json!({"body": ""}), "invalid_arguments"),
        (6, json!({}), "invalid_arguments"),
        (7, json!({"body": "a\0b"}), "invalid_arguments"),
        (8, json!({"body": "b", "task_id": "PROJ-8"}), "invalid_arguments"),
        (9, text(&"x".repeat(64 * 1024)), "arguments_too_large"),
    ] {
        let answer = world.call(&coder.request(ordinal, "task_context_write", &bad)).await;
        assert_eq!(answer.code(Failed), code, "{ordinal}");
    }
    assert_eq!(world.database.count("select count(*) from task_context").await, 2);
    world.end(&[&gateway]).await;
}

/// Two agents of a task, on two replicas; and a task of the same name in another account.
#[tokio::test]
async fn writers_of_a_task_take_turns_and_accounts_stay_apart() {
    let world = World::new().await;
    let gateways = [
        &world.gateway_with("loops = 3").await,
        &world.gateway_with("loops = 3").await,
    ];
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let other = world.coder("umbra").await;
    let mut requests = Vec::new();
    for ordinal in 1..=8 {
        for session in [&coder, &reviewer, &other] {
            let request = session.request(ordinal, "task_context_write", &text(&format!("of {}", session.account)));
            world.ask(&request).await;
            requests.push(request);
        }
    }
    for request in &requests {
        world.answer(request).await.ok();
    }
    let counted = "select concat_ws(' ', account_id, count(*), min(version), max(version), min(body), max(body))
                   from task_context group by account_id order by account_id";
    assert_eq!(
        world.database.texts(counted).await,
        ["acme 16 1 16 of acme of acme", "umbra 8 1 8 of umbra of umbra"]
    );
    let read = world
        .call(&other.request(9, "task_context_read", &json!({})))
        .await
        .ok();
    assert_eq!((&read["version"], &read["body"]), (&json!(8), &json!("of umbra")));
    world.end(&gateways).await;
}

#[tokio::test]
async fn after_a_stop_or_the_end_of_the_task_it_is_not_written() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world
        .call(&coder.request(1, "task_context_write", &text("first")))
        .await
        .ok();
    world
        .run(sqlx::query("update session set stop_turn_id = active_turn_id"))
        .await;
    let stopped = world
        .call(&coder.request(2, "task_context_write", &text("second")))
        .await;
    assert_eq!(stopped.code(Refused), "turn_stopped");
    let read = world
        .call(&coder.request(3, "task_context_read", &json!({})))
        .await
        .ok();
    assert_eq!(read["body"], "first");
    world
        .run(sqlx::query(
            "update session set stop_turn_id = null, closed_at = now(), close_reason = 'task_done'",
        ))
        .await;
    for (ordinal, tool) in [(4, "task_context_write"), (5, "task_context_read")] {
        let arguments = if ordinal == 4 { text("third") } else { json!({}) };
        let late = world.call(&coder.request(ordinal, tool, &arguments)).await;
        assert_eq!(late.code(Refused), "session_closed");
        assert!(late.late);
    }
    assert_eq!(world.database.texts(VERSIONS).await, ["acme 1 coder first"]);
    world.end(&[&gateway]).await;
}

/// A call waits for a writer who has not committed, and is cut off there: nothing of it stays, and it is run again.
#[tokio::test]
async fn a_write_that_is_cut_off_while_it_waits_counts_once() {
    let world = World::new().await;
    let gateway = world.gateway_with("postpone_delay_ms = 50").await;
    let coder = world.coder("acme").await;
    let mut writer = world.database.owner.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('context of acme proj-7', 0))")
        .execute(&mut *writer)
        .await
        .unwrap();
    let request = coder.request(1, "task_context_write", &text("once"));
    world.ask(&request).await;
    let backend = eventually("the call waits", async || {
        let waiting = sqlx::query_scalar::<_, i32>(
            "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        );
        waiting.fetch_optional(&world.database.owner).await.unwrap()
    })
    .await;
    let cut = sqlx::query("select pg_terminate_backend($1)").bind(backend);
    cut.execute(&world.database.owner).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!(world.answer(&request).await.ok()["version"], 1);
    assert_eq!(world.database.texts(VERSIONS).await, ["acme 1 coder once"]);
    world.end(&[&gateway]).await;
}
