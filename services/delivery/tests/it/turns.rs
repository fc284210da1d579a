//! Turns with a real Postgres, a real broker and a scripted provider: one notification, many of one session, many
//! sessions, tools in between, and the prompt's content.

use futures::StreamExt;
use prompt::{Manifest, manifest::PartKind};
use serde_json::{Value, json};
use testkit::{Reply, StubProvider, World, eventually};

use crate::scene::Scene;

#[tokio::test]
async fn a_notification_becomes_a_recorded_turn() {
    let scene = Scene::with(|_| Reply::text("All tests pass again.")).await;
    let mut live = scene
        .world
        .operator()
        .await
        .subscribe("signalbox.live.acme.PROJ-7")
        .await
        .unwrap();
    scene
        .world
        .fixture()
        .message(&scene.account, &scene.task, "Please look at the tests")
        .await;
    scene.enqueue("n-1", "Tests fail on main").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;

    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].key, scene.key);
    assert_eq!(seen[0].body["user"], scene.key);
    assert!(
        seen[0].body["instructions"]
            .as_str()
            .unwrap()
            .contains("Act on this notification only")
    );
    for expected in [
        "Notification: \"n-1\"",
        "Task: PROJ-7",
        "Tests fail on main",
        "Please look at the tests",
    ] {
        assert!(
            seen[0].input().contains(expected),
            "{expected} is not in {}",
            seen[0].input()
        );
    }
    let tools: Vec<&str> = seen[0].body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert!(
        tools.contains(&"task_history") && tools.contains(&"no_reply"),
        "{tools:?}"
    );

    assert_eq!(scene.turns("state").await, ["finished"]);
    assert_eq!(scene.turns("reply").await, ["All tests pass again."]);
    assert_eq!(scene.turns("usage ->> 'total_tokens'").await, ["53"]);
    assert_eq!(
        scene
            .turns("profile_hash = encode(sha256(convert_to((select body from instruction_text), 'utf8')), 'hex')")
            .await,
        ["true"]
    );
    let packed = hex::decode(&scene.turns("encode(manifest_packed, 'hex')").await[0]).unwrap();
    let manifest = Manifest::unpacked(&packed).unwrap();
    let parts: Vec<PartKind> = manifest.parts.iter().map(|part| part.part).collect();
    assert_eq!(
        parts,
        [
            PartKind::Policy,
            PartKind::Notification,
            PartKind::TaskState,
            PartKind::Notification,
            PartKind::Thread,
            PartKind::Message
        ]
    );

    let mut spoken = String::new();
    while spoken != "All tests pass again." {
        let piece: Value = serde_json::from_slice(&live.next().await.unwrap().payload).unwrap();
        spoken.push_str(piece["text"].as_str().unwrap());
    }
    let row = scene
        .world
        .database
        .texts("select phase || ' ' || queued || ' ' || coalesce(active_turn_id::text, '-') from session")
        .await;
    assert_eq!(row, ["idle 0 -"]);
    eventually("the relay sends what was committed", || async {
        // Only the orchestrator reads the end of a turn, and none runs here.
        let left = "select count(*) from outbox where stored_at is null or subject not like '%.turn.finished'";
        (scene.world.database.count(left).await == 0).then_some(())
    })
    .await;
    running.stop().await;
}

/// Simulates a database that was restored to an earlier state under a running delivery.
#[tokio::test]
async fn instructions_that_are_gone_are_stored_again_before_a_turn_begins() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.until("n-1", "delivered").await;
    let gone = sqlx::query("delete from instruction_text");
    gone.execute(&scene.world.database.owner).await.unwrap();
    scene.enqueue("n-2", "y").await;
    scene.until("n-2", "delivered").await;
    let stored = "select count(*) from instruction_text i join turn t on (t.account_id, t.profile_hash) = (i.account_id, i.hash)";
    assert_eq!(scene.world.database.count(stored).await, 2);
    running.stop().await;
}

#[tokio::test]
async fn a_session_s_notifications_are_delivered_one_at_a_time_in_order() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    for n in 0..100 {
        scene.enqueue(&format!("n-{n:03}"), "x").await;
    }
    let running = scene.run().await;
    scene.until("n-099", "delivered").await;
    let order: Vec<String> = scene
        .provider
        .seen()
        .iter()
        .map(|seen| seen.input().lines().next().unwrap().to_owned())
        .collect();
    assert_eq!(
        order,
        (0..100)
            .map(|n| format!("Notification: \"n-{n:03}\""))
            .collect::<Vec<_>>()
    );
    assert!(scene.provider.overlaps().is_empty());
    assert_eq!(
        scene.turns("number").await,
        (1..=100).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    running.stop().await;
}

#[tokio::test]
async fn a_thousand_sessions_are_worked_at_once_and_none_twice() {
    let provider = StubProvider::start(|_| Reply::text("ok")).await;
    let mut world = World::start().await;
    world.provider(&provider);
    // On a machine so busy that leases expire, repeated calls are correct.
    world.set("replica.lease_ms", 60_000);
    let scene = Scene::of(world, provider).await;
    let fixture = scene.world.fixture();
    for n in 0..1_000 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let (one, two) = (scene.run().await, scene.run().await);
    eventually("all are delivered", || async {
        (scene
            .world
            .database
            .count("select count(*) from notification where state = 'delivered'")
            .await
            == 1_000)
            .then_some(())
    })
    .await;
    assert_eq!(scene.provider.seen().len(), 1_000);
    assert!(scene.provider.overlaps().is_empty());
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn tool_results_go_back_on_the_same_key_from_any_replica() {
    let scene = Scene::with(|seen| match seen.nth_of_key {
        0 => Reply::Calls(vec![
            (
                "c-1".to_owned(),
                "task_history".to_owned(),
                json!({"task_id": "PROJ-7"}),
            ),
            ("c-2".to_owned(), "no_such_tool".to_owned(), json!({})),
        ]),
        _ => Reply::text("Read it."),
    })
    .await;
    scene.enqueue("n-1", "What happened?").await;
    let first = scene.run().await;
    eventually("the turn waits", || async {
        (scene.turns("state").await == ["awaiting_tools"]).then_some(())
    })
    .await;
    let session = scene
        .world
        .database
        .texts("select phase || ' ' || coalesce(lease_owner::text, '-') from session")
        .await;
    assert_eq!(session, ["waiting -"], "a turn that waits holds no lease");
    // Delivery dies; another replica takes over.
    first.cut_off();
    let second = scene.run().await;
    scene.tool_finished("c-1", 1, "one").await;
    scene.tool_finished("c-2", 2, "two").await;
    scene.until("n-1", "delivered").await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].key, scene.key);
    assert_eq!(
        seen[1].tool_outputs(),
        [
            ("c-1".to_owned(), "one".to_owned()),
            ("c-2".to_owned(), "two".to_owned())
        ]
    );
    assert_ne!(seen[0].idempotency_key, seen[1].idempotency_key);
    assert_eq!(scene.turns("task_history_called").await, ["true"]);
    assert_eq!(scene.turns("rounds").await, ["1"]);
    assert_eq!(scene.turns("usage ->> 'total_tokens'").await, ["106"]);
    second.stop().await;
}

#[tokio::test]
async fn missing_tool_results_are_requested_again_until_the_wait_ends() {
    let mut scene = Scene::with(|seen| {
        if seen.nth_of_key == 0 {
            Reply::call("c-1", "task_history", json!({}))
        } else {
            Reply::text("ok")
        }
    })
    .await;
    scene.world.set("delivery.tools_again_ms", 100);
    scene.world.set("delivery.tools_wait_ms_max", 600);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    let outputs = scene.provider.seen()[1].tool_outputs();
    assert!(outputs[0].1.contains("outcome_unknown"), "{outputs:?}");
    running.stop().await;
}

#[tokio::test]
async fn inline_instructions_stand_before_the_input() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    scene
        .world
        .fixture()
        .account_set(&scene.account, "instruction_layout", "inline")
        .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    let seen = &scene.provider.seen()[0];
    assert!(seen.body["instructions"].is_null());
    let input = seen.input();
    assert!(input.find("Act on this notification only").unwrap() < input.find("Notification: \"n-1\"").unwrap());
    running.stop().await;
}

#[tokio::test]
async fn only_the_coordinator_sees_the_overview() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "coordinator_task", "COORD").await;
    fixture
        .account_set(&scene.account, "briefing", "We ship on Friday.")
        .await;
    let coordinator = fixture.task(&scene.account, "COORD", &[]).await;
    let (session, key) = fixture.session(&scene.account, &coordinator, scene.agent).await;
    fixture.enqueue(&scene.account, session, "n-coord", "How are we?").await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    scene.until("n-coord", "delivered").await;
    let chat = &scene.provider.seen_of(&key)[0];
    assert!(
        chat.text().contains("We ship on Friday.")
            && chat.text().contains("- PROJ-7 [in_progress]")
            && chat.text().contains("Coordinate only")
    );
    let other = &scene.provider.seen_of(&scene.key)[0];
    assert!(
        !other.text().contains("Friday")
            && !other.text().contains("COORD")
            && !other.text().contains("Coordinate only")
    );
    // Assigned to an agent, the chat belongs to that agent alone: another agent with a session in it sees none of it.
    let lead = fixture.agent(&scene.account, "lead").await;
    fixture.assign(&scene.account, &coordinator, lead).await;
    let (of_lead, lead_key) = fixture.session(&scene.account, &coordinator, lead).await;
    fixture.enqueue(&scene.account, of_lead, "n-lead", "And now?").await;
    fixture.enqueue(&scene.account, session, "n-left", "And you?").await;
    scene.until("n-lead", "delivered").await;
    scene.until("n-left", "delivered").await;
    assert!(
        scene.provider.seen_of(&lead_key)[0]
            .text()
            .contains("We ship on Friday.")
    );
    let left = &scene.provider.seen_of(&key)[1];
    assert!(
        !left.text().contains("Friday") && !left.text().contains("PROJ-7"),
        "{}",
        left.text()
    );
    running.stop().await;
}
