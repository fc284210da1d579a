//! Tool policies: what a turn is offered is fixed when it begins, and its instructions speak of no other tool.

use std::sync::Arc;

use serde_json::json;
use testkit::{Reply, Seen, rows};
use tokio::sync::Semaphore;

use crate::scene::Scene;

fn tools(seen: &Seen) -> Vec<String> {
    let tools = seen.body["tools"].as_array().expect("tools are offered");
    tools
        .iter()
        .map(|tool| tool["name"].as_str().expect("a tool has a name").to_owned())
        .collect()
}

async fn hide(scene: &Scene, scope: &str, id: &str, tool: &str, visible: bool) {
    let row = rows("tool_policy")
        .with("scope_kind", scope)
        .with("scope_id", id)
        .with("tool", tool)
        .with("visible", visible);
    row.insert(&scene.world.database.owner).await;
    let count = "update account a set tool_policies = (select count(*) from tool_policy p where p.account_id = a.id)";
    sqlx::query(count).execute(&scene.world.database.owner).await.unwrap();
}

#[tokio::test]
async fn a_turn_is_offered_what_its_policies_show() {
    let scene = Scene::with(|_| Reply::text("done")).await;
    let delivery = scene.run().await;
    scene.enqueue("n-1", "b").await;
    scene.until("n-1", "delivered").await;
    hide(&scene, "account", "acme", "*", false).await;
    hide(&scene, "agent", &scene.agent.to_string(), "task_*", true).await;
    hide(&scene, "task", "proj-7", "task_status", false).await;
    hide(&scene, "task", "proj-8", "*", true).await;
    scene.enqueue("n-2", "b").await;
    scene.until("n-2", "delivered").await;
    let seen = scene.provider.seen();
    assert!(tools(&seen[0]).len() > 3, "{:?}", tools(&seen[0]));
    let shown = [
        "task_history",
        "task_message",
        "task_context_read",
        "task_context_write",
    ];
    assert_eq!(tools(&seen[1]), shown);
    assert_eq!(scene.turns("tools").await[1], format!("{{{}}}", shown.join(",")));
    let said = |seen: &Seen, tool: &str| seen.body["instructions"].as_str().unwrap().contains(tool);
    assert!(said(&seen[0], "task_status") && said(&seen[0], "no_reply"));
    assert!(!said(&seen[1], "task_status") && !said(&seen[1], "no_reply"));
    assert!(said(&seen[1], "task_history"));
    delivery.stop().await;
}

/// With the results of its tools a turn is offered what it began with.
#[tokio::test]
async fn the_offer_of_a_turn_stays() {
    let scene = Scene::with(|seen| match seen.tool_outputs().is_empty() {
        true => Reply::Calls(vec![("c-1".to_owned(), "no_reply".to_owned(), json!({}))]),
        false => Reply::text("done"),
    })
    .await;
    hide(&scene, "account", "acme", "task_status", false).await;
    let delivery = scene.run().await;
    scene.enqueue("n-1", "b").await;
    testkit::eventually("the turn waits for its tool", || async {
        (scene.turns("state").await == ["awaiting_tools"]).then_some(())
    })
    .await;
    let before = tools(&scene.provider.seen()[0]);
    assert!(!before.contains(&"task_status".to_owned()));
    hide(&scene, "account", "acme", "*", false).await;
    let result = rows("tool_call")
        .set("session_id", "t.session_id")
        .set("turn_id", "t.id")
        .set("agent_id", "t.agent_id")
        .with("call_id", "c-1")
        .with("name", "no_reply")
        .with("result", r#"{"ok": true}"#)
        .set("finished_at", "now()")
        .from("turn t");
    result.insert(&scene.world.database.owner).await;
    let due = "update session set wake_at = now()";
    sqlx::query(due).execute(&scene.world.database.owner).await.unwrap();
    scene.until("n-1", "delivered").await;
    assert_eq!(tools(&scene.provider.seen()[1]), before);
    delivery.stop().await;
}

/// The turn calls a tool that somebody is asked about: as the tool-gateway records it.
async fn asked(scene: &Scene) {
    let owner = &scene.world.database.owner;
    let call = rows("tool_call")
        .set("session_id", "t.session_id")
        .set("turn_id", "t.id")
        .set("agent_id", "t.agent_id")
        .with("call_id", "c-1")
        .with("name", "task_message")
        .with("state", "requested")
        .set("result", "null")
        .set("started_at", "now() - interval '20 hours'")
        .from("turn t");
    call.insert(owner).await;
    for sql in [
        "insert into question (account_id, id, kind, task_id, session_id, session_kind, generation, agent_id, turn_id, tool_call, title, body,
                               audience, tool, arguments, arguments_hash)
         select account_id, gen_random_uuid(), 'tool', 'proj-7', session_id, 'task', 1, agent_id, turn_id, id, 't', 'b', '{role:member}',
                'task_message', '{}', '' from tool_call",
        "update turn set waiting_since = now() - interval '20 hours'",
        "update session set wake_at = now()",
    ] {
        sqlx::query(sql).execute(owner).await.unwrap();
    }
}

async fn awaiting() -> Scene {
    Scene::with(|seen| match seen.tool_outputs().is_empty() {
        true => Reply::Calls(vec![(
            "c-1".to_owned(),
            "task_message".to_owned(),
            json!({"task_id": "PROJ-7", "body": "b"}),
        )]),
        false => Reply::text("done"),
    })
    .await
}

/// However long a person takes; the turn looks every five minutes, and asks for a decided call as for any other.
#[tokio::test]
async fn a_turn_waits_for_an_approval_without_a_lease() {
    let mut scene = awaiting().await;
    scene.world.set("delivery.tools_again_ms", 60_000);
    let delivery = scene.run().await;
    scene.enqueue("n-1", "b").await;
    let waits = "select concat_ws(' ', phase, lease_owner is null) from session where task_id = 'proj-7'";
    let texts = async |sql: &'static str| scene.world.database.texts(sql).await;
    testkit::eventually("the turn waits", async || {
        (texts(waits).await == ["waiting t"]).then_some(())
    })
    .await;
    asked(&scene).await;
    let looks = "select phase from session where task_id = 'proj-7' and wake_at between now() + interval '4 minutes' and now() + interval '5 minutes'";
    testkit::eventually("the next look", async || (texts(looks).await.len() == 1).then_some(())).await;
    assert_eq!(texts(waits).await, ["waiting t"]);
    assert_eq!(scene.provider.seen().len(), 1);
    for sql in [
        "update question set state = 'answered'",
        "update session set wake_at = now()",
    ] {
        sqlx::query(sql).execute(&scene.world.database.owner).await.unwrap();
    }
    let looks = "select phase from session where task_id = 'proj-7' and wake_at between now() + interval '10 s' and now() + interval '1 minute'";
    testkit::eventually("the look at the decided call", async || {
        (texts(looks).await.len() == 1).then_some(())
    })
    .await;
    let decided = r#"update tool_call set state = 'finished', result = '{"ok": true}', finished_at = now()"#;
    for sql in [decided, "update session set wake_at = now()"] {
        sqlx::query(sql).execute(&scene.world.database.owner).await.unwrap();
    }
    scene.until("n-1", "delivered").await;
    delivery.stop().await;
}

#[tokio::test]
async fn a_stopped_turn_withdraws_what_it_asked() {
    let scene = awaiting().await;
    let delivery = scene.run().await;
    scene.enqueue("n-1", "b").await;
    let texts = async |sql: &'static str| scene.world.database.texts(sql).await;
    let waits = "select phase from session where task_id = 'proj-7'";
    testkit::eventually("the turn waits", async || {
        (texts(waits).await == ["waiting"]).then_some(())
    })
    .await;
    asked(&scene).await;
    let stop =
        "update session set stop_turn_id = active_turn_id, stop_kind = 'stopped', stop_by = 'Ann', stop_at = now(),
                stop_then = 'continue', wake_at = now() where task_id = 'proj-7'";
    sqlx::query(stop).execute(&scene.world.database.owner).await.unwrap();
    scene.until("n-1", "cancelled").await;
    let question = "select concat_ws(': ', state, reason) from question";
    assert_eq!(texts(question).await, ["withdrawn: the turn has ended"]);
    delivery.stop().await;
}

/// Its agent has called over HTTP while its provider was called; also if the account's first policy is younger than the turn.
#[tokio::test]
async fn a_turn_that_ends_withdraws_what_was_asked_meanwhile() {
    for is_older in [true, false] {
        withdraws_what_was_asked_meanwhile(is_older).await;
    }
}

async fn withdraws_what_was_asked_meanwhile(is_older: bool) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = Arc::clone(&gate);
    let scene = Scene::with(move |_| Reply::Gated(Arc::clone(&behind), Box::new(Reply::text("done")))).await;
    if is_older {
        hide(&scene, "account", "acme", "task_status", false).await;
    }
    let delivery = scene.run().await;
    scene.enqueue("n-1", "b").await;
    testkit::eventually("the turn is called", async || {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    if !is_older {
        hide(&scene, "account", "acme", "task_status", false).await;
    }
    asked(&scene).await;
    gate.add_permits(1);
    scene.until("n-1", "delivered").await;
    let question = "select concat_ws(': ', state, reason) from question";
    let found = scene.world.database.texts(question).await;
    assert_eq!(found, ["withdrawn: the turn has ended"]);
    delivery.stop().await;
}
