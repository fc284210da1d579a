//! Turns against a real Postgres, a real broker and a provider that does what a script says.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use testkit::{Reply, StubProvider, World, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

#[tokio::test]
async fn a_notification_becomes_a_recorded_turn() {
    let scene = Scene::with(|_| Reply::text("All tests pass again.")).await;
    let mut live = scene
        .world
        .client()
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
        "Notification: n-1",
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
    let manifest: Value = serde_json::from_str(&scene.turns("manifest").await[0]).unwrap();
    let parts: Vec<&str> = manifest["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["part"].as_str().unwrap())
        .collect();
    assert_eq!(parts, ["policy", "notification", "thread", "message"]);

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
        // The end of the turn is the orchestrator's to read, and there is none.
        let left = "select count(*) from outbox where stored_at is null or subject not like '%.turn.finished'";
        (scene.world.database.count(left).await == 0).then_some(())
    })
    .await;
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
        (0..100).map(|n| format!("Notification: n-{n:03}")).collect::<Vec<_>>()
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
    // On a machine so busy that leases are lost, calls are rightly made again.
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
async fn tool_results_go_back_on_the_same_key_whoever_carries_the_turn_on() {
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
        .texts("select phase || ' ' || coalesce(lease_owner::text, 'nobody') from session")
        .await;
    assert_eq!(session, ["waiting nobody"], "a turn that waits holds no lease");
    // Delivery dies; another takes its place.
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

/// One failure first, then an answer.
async fn recovers_from(failure: Reply, settings: &[(&str, &str)]) {
    let label = format!("{failure:?}");
    let mut scene = Scene::with(move |seen| {
        if seen.nth_of_key == 0 {
            failure.clone()
        } else {
            Reply::text("ok")
        }
    })
    .await;
    for (setting, value) in settings {
        scene.world.set(setting, value);
    }
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.provider.seen().len(), 2, "{label}");
    assert_eq!(
        scene
            .world
            .database
            .count("select attempts::bigint from notification")
            .await,
        2,
        "{label}"
    );
    assert_eq!(scene.turns("state").await, ["finished"], "{label}");
    running.stop().await;
}

#[tokio::test]
async fn passing_failures_are_tried_again() {
    recovers_from(Reply::Status(500, "{}".to_owned(), vec![]), &[]).await;
    recovers_from(Reply::Status(503, "{}".to_owned(), vec![]), &[]).await;
    recovers_from(
        Reply::Status(429, "{}".to_owned(), vec![("retry-after", "1".to_owned())]),
        &[],
    )
    .await;
}

#[tokio::test]
async fn broken_answers_are_tried_again() {
    recovers_from(Reply::Malformed, &[]).await;
    recovers_from(Reply::CutStream, &[]).await;
    recovers_from(Reply::Silence, &[("providers.default.idle_timeout_ms", "200")]).await;
    recovers_from(Reply::Status(401, "{}".to_owned(), vec![]), &[]).await;
}

#[tokio::test]
async fn what_cannot_succeed_fails_with_its_reason_and_can_be_redriven() {
    let check = async |reply: Reply, calls: usize, class: &str| {
        let mut scene = Scene::with(move |_| reply.clone()).await;
        scene.world.set("delivery.attempts_max", 3);
        scene.world.set("providers.default.answer_bytes_max", 4096);
        let client = scene.world.client().await;
        let mut events = client
            .subscribe("signalbox.event.acme.PROJ-7.notification.failed")
            .await
            .unwrap();
        client.flush().await.unwrap();
        scene.enqueue("n-1", "x").await;
        scene.enqueue("n-2", "y").await;
        let running = scene.run().await;
        scene.until("n-2", "failed").await;
        let ids = scene
            .world
            .database
            .texts("select id::text from dead_letter order by created_at")
            .await;
        for (id, letter) in ["n-1", "n-2"].into_iter().zip(ids) {
            let event: Value = serde_json::from_slice(&events.next().await.unwrap().payload).unwrap();
            assert_eq!(event["data"]["reason"], class);
            assert_eq!(
                (&event["data"]["id"], &event["data"]["dead_letter_id"]),
                (&json!(id), &json!(letter))
            );
        }
        let (state, reason) = scene.state("n-1").await;
        assert_eq!(state, "failed");
        assert!(reason.as_deref().unwrap().starts_with(class), "{reason:?}");
        assert_eq!(scene.provider.seen().len(), calls * 2, "{class}");
        let letters = scene.world.database.texts("select reason || ' ' || subject || ' ' || (payload::jsonb ->> 'id') from dead_letter order by created_at").await;
        assert_eq!(
            letters,
            [
                format!("{class} signalbox.notification.acme.PROJ-7 n-1"),
                format!("{class} signalbox.notification.acme.PROJ-7 n-2")
            ]
        );
        assert_eq!(scene.turns("error_class").await, [class, class]);
        running.stop().await;
    };
    // Boxed: a scene with what listens to it is a large future.
    Box::pin(check(Reply::Status(500, "{}".to_owned(), vec![]), 3, "server_error")).await;
    Box::pin(check(
        Reply::Status(400, r#"{"error":{"message":"no such model"}}"#.to_owned(), vec![]),
        1,
        "bad_request",
    ))
    .await;
    Box::pin(check(Reply::Huge(100_000), 1, "too_large")).await;
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_tried_again_and_given_up() {
    let mut scene = Scene::with(|_| Reply::text("never")).await;
    // Bound and not listening: nobody else can take the port, and whoever connects is refused.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/v1/responses");
    scene.world.set("providers.default.url", url);
    scene.world.set("delivery.attempts_max", 2);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "failed").await;
    assert!(scene.state("n-1").await.1.unwrap().starts_with("refused"));
    running.stop().await;
}

#[tokio::test]
async fn a_turn_whose_holder_died_is_carried_on_by_another_under_the_same_id() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.nth_of_key {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("too late"))),
        _ => Reply::text("again"),
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let first = scene.run().await;
    eventually("the call is in flight", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    first.cut_off();
    let second = scene.run().await;
    scene.until("n-1", "delivered").await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[0].idempotency_key, seen[1].idempotency_key,
        "the same call keeps its key"
    );
    assert_eq!(scene.turns("reply").await, ["again"]);
    assert_eq!(scene.turns("fence").await, ["2"]);
    second.stop().await;
}

#[tokio::test]
async fn an_agent_with_tools_of_its_own_is_told_and_never_sent_the_same_blindly() {
    let mut scene = Scene::with(|seen| {
        if seen.nth_of_key == 0 {
            Reply::CutStream
        } else {
            Reply::text("I looked first.")
        }
    })
    .await;
    scene.world.set("providers.default.effects", "own");
    scene.enqueue("n-1", "Deploy it").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state").await, ["unknown", "finished"]);
    let seen = scene.provider.seen();
    assert!(!seen[0].input().contains("interrupted"));
    assert!(
        seen[1]
            .input()
            .contains("your previous turn in this conversation was interrupted"),
        "{}",
        seen[1].input()
    );
    assert_ne!(seen[0].idempotency_key, seen[1].idempotency_key);
    running.stop().await;
}

/// The notification is given up, and what the agent did for it is still not known: whatever comes next begins with that.
#[tokio::test]
async fn an_interruption_that_was_the_last_attempt_is_told_to_the_next_notification() {
    let mut scene = Scene::with(|seen| {
        if seen.nth_of_key == 0 {
            Reply::CutStream
        } else {
            Reply::text("I looked first.")
        }
    })
    .await;
    scene.world.set("providers.default.effects", "own");
    scene.world.set("delivery.attempts_max", 1);
    scene.enqueue("n-1", "Deploy it").await;
    scene.enqueue("n-2", "And now?").await;
    scene.enqueue("n-3", "Well done").await;
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    let (state, reason) = scene.state("n-1").await;
    assert_eq!(state, "failed");
    assert!(reason.as_deref().unwrap().starts_with("outcome_unknown"), "{reason:?}");
    let told: Vec<bool> = scene
        .provider
        .seen()
        .iter()
        .map(|seen| seen.input().contains("was interrupted"))
        .collect();
    assert_eq!(told, [false, true, false]);
    running.stop().await;
}

#[tokio::test]
async fn a_reply_after_the_close_is_recorded_and_changes_nothing() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("a late word")))).await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("the call is in flight", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    sqlx::query("update session set closed_at = now(), close_reason = 'task_done'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    gate.add_permits(1);
    scene.until("n-1", "delivered").await;
    assert_eq!(
        scene.turns("state || ' ' || late || ' ' || reply").await,
        ["finished true a late word"]
    );
    let events = scene
        .world
        .database
        .count("select count(*) from session where closed_at is not null and phase = 'idle'")
        .await;
    assert_eq!(events, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_turn_that_waits_for_another_attempt_ends_with_its_session() {
    let mut scene = Scene::with(|_| Reply::Status(500, "{}".to_owned(), vec![])).await;
    scene.world.set("delivery.retry_delay_ms", 60_000);
    scene.world.set("delivery.retry_delay_ms_max", 60_000);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("it waits", || async {
        (scene.turns("state").await == ["started"]).then_some(())
    })
    .await;
    sqlx::query("update session set closed_at = now(), close_reason = 'task_done', wake_at = now()")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.state("n-1").await.1.as_deref(), Some("task closed"));
    assert_eq!(scene.turns("state").await, ["aborted"]);
    assert_eq!(scene.provider.seen().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn an_agent_that_keeps_calling_tools_is_stopped() {
    let mut scene = Scene::with(|seen| Reply::call(&format!("c-{}", seen.order), "task_history", json!({}))).await;
    scene.world.set("delivery.rounds_max", 2);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    for ordinal in 1..=2 {
        let rounds = ordinal.to_string();
        eventually("the turn waits", || async {
            (scene.turns("state || rounds").await == [format!("awaiting_tools{rounds}")]).then_some(())
        })
        .await;
        scene.tool_finished(&format!("c-{}", ordinal - 1), ordinal, "{}").await;
    }
    scene.until("n-1", "failed").await;
    assert!(scene.state("n-1").await.1.unwrap().starts_with("tool_loop"));
    assert_eq!(
        scene.turns("task_history_called").await,
        ["true"],
        "every turn says so, however it ended"
    );
    running.stop().await;
}

#[tokio::test]
async fn an_account_s_limit_holds() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("delivery.turns_in_flight_account_max", 2);
    let fixture = scene.world.fixture();
    for n in 0..6 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let running = scene.run().await;
    eventually("two are in flight", || async {
        (scene.provider.seen().len() == 2).then_some(())
    })
    .await;
    gate.add_permits(1);
    eventually("one takes the place of the one that ended", || async {
        (scene.provider.seen().len() == 3).then_some(())
    })
    .await;
    assert_eq!(
        scene
            .world
            .database
            .count("select count(*) from turn where state = 'calling'")
            .await,
        2
    );
    gate.add_permits(10);
    eventually("all are delivered", || async {
        (scene
            .world
            .database
            .count("select count(*) from notification where state = 'delivered'")
            .await
            == 6)
            .then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn missing_tool_results_are_asked_for_again_and_in_the_end_gone_without() {
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
    assert!(input.find("Act on this notification only").unwrap() < input.find("Notification: n-1").unwrap());
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
    // Assigned to somebody, it is theirs alone: whoever else still has something to do in it is shown nothing of it.
    let lead = fixture.agent(&scene.account, "lead").await;
    sqlx::query("insert into task_assignee (account_id, task_id, agent_id) values ('acme', 'coord', $1)")
        .bind(lead.uuid())
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
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

#[tokio::test]
async fn an_unknown_provider_fails_the_turn_with_the_setting_to_mend() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    sqlx::query("update agent set provider = 'gone'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "failed").await;
    assert!(scene.state("n-1").await.1.unwrap().contains("[providers.gone]"));
    running.stop().await;
}

/// What a provider says of itself is a stranger's word too: no part of it may keep an outcome from being recorded, since
/// its session would then be ours for as long as we live.
#[tokio::test]
async fn characters_that_postgres_does_not_keep_hold_no_session_up() {
    let scene = Scene::with(|_| {
        let response = json!({"id": "resp\0", "status": "incomplete", "incomplete_details": {"reason": "why\0"},
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "some\0thing"}]}]});
        Reply::Status(200, response.to_string(), vec![])
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("reply").await, ["some\u{fffd}thing"]);
    assert_eq!(scene.turns("response_id").await, ["resp\u{fffd}"]);
    running.stop().await;
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_counts_as_a_failed_attempt() {
    let scene = Scene::with(|seen| Reply::text(if seen.nth_of_key == 0 { "poison" } else { "fine" })).await;
    for sql in [
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this'; end $$",
        "create trigger refuse before update on turn for each row when (new.reply = 'poison') execute function refuse()",
    ] {
        sqlx::query(sql).execute(&scene.world.database.owner).await.unwrap();
    }
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("reply").await, ["fine"]);
    assert_eq!(scene.provider.seen().len(), 2);
    running.stop().await;
}

/// The limit is known only once a session was read, and is the account's in all processes together.
#[tokio::test]
async fn an_account_s_own_limit_holds_from_the_first_turn_on_and_over_all_replicas() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("delivery.sweep_interval_ms", 100);
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "turns_in_flight_max", "1").await;
    for n in 0..4 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let (one, two) = (scene.run().await, scene.run().await);
    for n in 1..=4 {
        eventually("the next is in flight", || async {
            (scene.provider.seen().len() == n).then_some(())
        })
        .await;
        let calling = "select count(*) from turn where state = 'calling'";
        assert_eq!(scene.world.database.count(calling).await, 1);
        gate.add_permits(1);
    }
    scene.until("n-3", "delivered").await;
    one.stop().await;
    two.stop().await;
}

/// The sweep looks at a few sessions at a time. Those that stay as they are hide nobody behind them: one account's at
/// its limit, and one that closed while it waited for another attempt.
#[tokio::test]
async fn the_sweep_comes_to_everybody() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |seen| {
        if seen.key.contains(":zeta:") {
            Reply::text("ok")
        } else {
            Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))
        }
    })
    .await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.sweep_sessions_max", 1);
    scene.world.set("delivery.turns_in_flight_account_max", 1);
    let fixture = scene.world.fixture();
    sqlx::query("update session set phase = 'backoff', wake_at = now(), closed_at = now(), close_reason = 'task_done'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    for n in 0..3 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let zeta = fixture.account("zeta").await;
    let agent = fixture.agent(&zeta, "coder").await;
    let task = fixture.task(&zeta, "T", &[]).await;
    let (session, _) = fixture.session(&zeta, &task, agent).await;
    fixture.enqueue(&zeta, session, "z-1", "x").await;
    let running = scene.run().await;
    scene.until("z-1", "delivered").await;
    gate.add_permits(3);
    scene.until("n-2", "delivered").await;
    running.stop().await;
}
