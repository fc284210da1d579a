//! A call runs once, however often it is delivered, on every replica and after every failure; and in the turn's order.

use contracts::{Headers, Outgoing, header};
use domain::{CallId, SessionId};
use serde_json::json;
use testkit::eventually;
use uuid::Uuid;

use crate::world::World;

#[tokio::test]
async fn a_replay_gives_the_first_result_and_does_nothing() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let request = coder.request(1, "task_message", &json!({"task_id": "PROJ-7", "body": "once"}));
    let first = world.call(&request).await;
    for copy in 0..3 {
        world.ask_as(&request, &format!("copy-{copy}")).await;
    }
    // Another call of the same id: the first request counts, and a repeated one with other arguments gets its result.
    let mut other = request.clone();
    other.arguments = json!({"task_id": "PROJ-7", "body": "twice"}).to_string();
    world.ask_as(&other, "copy-other").await;

    let results = eventually("five results", async || {
        let results = world.finished(&request);
        (results.len() == 5).then_some(results)
    })
    .await;
    for result in results {
        assert_eq!(result.result.unwrap(), first.result.to_string());
    }
    assert_eq!(world.database.texts("select body from message").await, ["once"]);
    assert_eq!(world.heard("signalbox.event.acme.PROJ-7.message.posted").len(), 1);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn copies_that_race_on_two_replicas_have_one_effect() {
    let world = World::new().await;
    let gateways = [
        &world.gateway_with("loops = 3").await,
        &world.gateway_with("loops = 3").await,
    ];
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let tools = [
        ("task_message", json!({"task_id": "PROJ-7", "body": "once"})),
        ("response_request", json!({"agents": [reviewer], "body": "once"})),
        ("task_status", json!({"task_id": "PROJ-7", "status": "done"})),
    ];
    for (ordinal, (tool, arguments)) in (1..).zip(&tools) {
        let request = coder.request(ordinal, tool, arguments);
        for copy in 0..10 {
            world.ask_as(&request, &format!("{ordinal}-{copy}")).await;
        }
        let results = eventually("ten results", async || {
            let results = world.finished(&request);
            (results.len() == 10).then_some(results)
        })
        .await;
        assert!(results.iter().all(|result| result == &results[0]), "{results:?}");
        assert_eq!(results[0].state, domain::ToolCallState::Finished);
    }
    assert_eq!(world.database.count("select count(*) from message").await, 1);
    assert_eq!(world.database.count("select count(*) from tool_call").await, 3);
    assert_eq!(
        world
            .database
            .count("select count(*) from session where close_reason = 'task_done'")
            .await,
        1
    );
    world.end(&gateways).await;
    assert_eq!(world.heard("signalbox.notification.").len(), 1);
}

#[tokio::test]
async fn a_call_whose_transaction_is_cut_off_is_run_again_and_counts_once() {
    let world = World::new().await;
    let gateway = world.gateway_with("postpone_delay_ms = 50").await;
    let coder = world.coder("acme").await;
    let held = world.hold_messages("acme").await;
    let request = coder.request(1, "task_message", &json!({"task_id": "PROJ-7", "body": "once"}));
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
    held.rollback().await.unwrap();

    world.answer(&request).await.ok();
    assert_eq!(world.database.texts("select body from message").await, ["once"]);
    assert_eq!(world.database.count("select count(*) from tool_call").await, 1);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn calls_requested_during_an_outage_are_run_later() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    gateway.stop().await;
    // The server has noticed as well: it delivers no message to the stopped process's open request.
    eventually("no request for messages is open", async || {
        (world.consumer().await.num_waiting == 0).then_some(())
    })
    .await;
    let requests: Vec<_> = (1..=5)
        .map(|ordinal| {
            let body = format!("m{ordinal}");
            coder.request(ordinal, "task_message", &json!({"task_id": "PROJ-7", "body": body}))
        })
        .collect();
    for request in &requests {
        world.ask(request).await;
    }
    let gateway = world.gateway().await;
    for request in &requests {
        world.answer(request).await.ok();
    }
    assert_eq!(
        world
            .database
            .texts("select body from message order by created_at, id")
            .await,
        ["m1", "m2", "m3", "m4", "m5"]
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_turns_calls_run_in_its_order_whatever_order_they_come_in() {
    let world = World::new().await;
    let gateways = [
        &world.gateway_with("loops = 3").await,
        &world.gateway_with("loops = 3").await,
    ];
    let coder = world.coder("acme").await;
    let post = |ordinal| {
        let body = format!("m{ordinal}");
        coder.request(ordinal, "task_message", &json!({"task_id": "PROJ-7", "body": body}))
    };
    let done = coder.request(4, "task_status", &json!({"task_id": "PROJ-7", "status": "done"}));
    let after = coder.request(5, "task_message", &json!({"task_id": "PROJ-7", "body": "too late"}));
    // An agent that posts and then ends its task expects that order. Its answer is recorded before any of its calls is
    // sent.
    let requests = [&after, &done, &post(3), &post(2), &post(1)];
    for request in requests {
        world.record(request).await;
    }
    for request in requests {
        world.ask(request).await;
    }
    for ordinal in 1..=3 {
        world.answer(&post(ordinal)).await.ok();
    }
    world.answer(&done).await.ok();
    let answer = world.answer(&after).await;
    assert_eq!(answer.code(domain::ToolCallState::Refused), "session_closed");
    assert!(answer.late);
    assert_eq!(
        world
            .database
            .texts("select body from message order by created_at, id")
            .await,
        ["m1", "m2", "m3"]
    );
    world.end(&gateways).await;
}

#[tokio::test]
async fn a_call_waits_for_the_previous_one_through_redeliveries_and_failures() {
    let world = World::new().await;
    let gateway = world.gateway_with("postpone_delay_ms = 20").await;
    let coder = world.coder("acme").await;
    let post = coder.request(1, "task_message", &json!({"task_id": "PROJ-7", "body": "first"}));
    let done = coder.request(2, "task_status", &json!({"task_id": "PROJ-7", "status": "done"}));
    // The turn requested both, and the first one has not arrived.
    world.record(&post).await;
    world.ask(&done).await;
    world.delivered(15).await;
    assert_eq!(world.database.count("select count(*) from tool_call").await, 0);
    // Postgres is unavailable for both: that counts as no attempt.
    let away = "create function away() returns trigger language plpgsql as
                $$ begin raise exception 'away' using errcode = '57P01'; end $$;
                create trigger away before insert on tool_call for each row execute function away()";
    sqlx::raw_sql(away).execute(&world.database.owner).await.unwrap();
    world.ask(&post).await;
    world.delivered(60).await;
    let back = "drop trigger away on tool_call";
    sqlx::raw_sql(back).execute(&world.database.owner).await.unwrap();

    world.answer(&done).await.ok();
    world.answer(&post).await.ok();
    assert_eq!(world.database.texts("select body from message").await, ["first"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn no_call_runs_after_its_turn_stopped_waiting() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let post = coder.request(1, "task_message", &json!({"task_id": "PROJ-7", "body": "first"}));
    let done = coder.request(2, "task_status", &json!({"task_id": "PROJ-7", "status": "done"}));
    world.record(&post).await;
    world.ask(&done).await;
    world.delivered(3).await;
    let over = "update turn set waiting_since = now() - interval '1 hour'";
    world.run(sqlx::query(over)).await;
    for request in [&done, &post] {
        world.ask(request).await;
        let answer = world.answer(request).await;
        assert_eq!(answer.code(domain::ToolCallState::Refused), "call_expired");
        assert!(answer.late);
    }
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_call_waits_only_for_calls_of_its_own_answer() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    // The first two belonged to an answer that the turn no longer waits for.
    let request = coder.request(3, "task_message", &json!({"task_id": "PROJ-7", "body": "b"}));
    world.call(&request).await.ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_slow_call_does_not_delay_other_results() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (acme, globex) = (world.coder("acme").await, world.coder("globex").await);
    gateway.stop().await;
    eventually("no request for messages is open", async || {
        (world.consumer().await.num_waiting == 0).then_some(())
    })
    .await;
    let post = |ordinal, body: &str| ("task_message", ordinal, json!({"task_id": "PROJ-7", "body": body}));
    let request = |session: &crate::world::TestSession, (tool, ordinal, arguments): (&str, i32, serde_json::Value)| {
        session.request(ordinal, tool, &arguments)
    };
    let held = world.hold_messages("acme").await;
    // Both in one batch of the only loop.
    let slow = request(&acme, post(1, "slow"));
    let quick = request(&globex, post(1, "quick"));
    world.ask(&slow).await;
    world.ask(&quick).await;
    // Longer than this test waits: the slow call continues only when it is released.
    let settings = "loops = 1\nstatement_timeout_ms = 120000\n[database]\nstatement_timeout_ms = 120000\n\
                    lock_timeout_ms = 120000";
    let gateway = world.gateway_with(settings).await;
    eventually("the slow one waits", async || {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        (world.database.count(waiting).await == 1).then_some(())
    })
    .await;
    world.answer(&quick).await.ok();
    // The same in the next batch.
    let next = request(&globex, post(2, "next"));
    world.call(&next).await.ok();
    assert!(world.finished(&slow).is_empty());
    held.rollback().await.unwrap();
    world.answer(&slow).await.ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn calls_of_several_turns_share_a_transaction() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let sessions = [
        world.coder("acme").await,
        world.coder("globex").await,
        world.coder("initech").await,
    ];
    let asked: Vec<_> = sessions
        .iter()
        .zip([
            ("task_history", json!({"task_id": "PROJ-7"})),
            ("task_message", json!({"task_id": "PROJ-7", "body": "of globex"})),
            // Its error leaves the others alone.
            ("task_message", json!({"task_id": "PROJ-7", "body": " "})),
        ])
        .map(|(session, (tool, arguments))| session.request(1, tool, &arguments))
        .collect();
    // Has run before, so that it is found and not recorded again.
    world.call(&asked[0]).await.ok();
    gateway.stop().await;
    eventually("no request for messages is open", async || {
        (world.consumer().await.num_waiting == 0).then_some(())
    })
    .await;
    for (n, request) in asked.iter().enumerate() {
        world.ask_as(request, &format!("again-{n}")).await;
    }
    let gateway = world.gateway_with("loops = 1").await;
    for request in &asked[..2] {
        world.answer(request).await.ok();
    }
    let invalid = world.answer(&asked[2]).await;
    assert_eq!(invalid.code(domain::ToolCallState::Failed), "invalid_arguments");
    let calls = "select account_id || ' ' || name || ' ' || state from tool_call order by account_id";
    assert_eq!(
        world.database.texts(calls).await,
        [
            "acme task_history finished",
            "globex task_message finished",
            "initech task_message failed"
        ]
    );
    let transactions = "select count(distinct xmin::text) from tool_call where account_id <> 'acme'";
    assert_eq!(world.database.count(transactions).await, 1);
    let messages = "select account_id || ': ' || body from message";
    assert_eq!(world.database.texts(messages).await, ["globex: of globex"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn the_same_call_id_in_a_later_answer_is_another_call() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    for ordinal in 1..=2 {
        let body = format!("m{ordinal}");
        let mut request = coder.request(ordinal, "task_message", &json!({"task_id": "PROJ-7", "body": body}));
        request.call_id = CallId("call_0".to_owned());
        world.call(&request).await.ok();
    }
    assert_eq!(world.database.count("select count(*) from message").await, 2);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_unconfirmed_call_is_buried() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let globex = world.coder("globex").await;
    let mut made_up = coder.request(1, "no_reply", &json!({}));
    made_up.session_id = SessionId(Uuid::now_v7());
    world.ask_as(&made_up, "made-up").await;
    // Another account's session
    let mut foreign = coder.request(1, "no_reply", &json!({}));
    foreign.session_id = globex.id;
    world.ask_as(&foreign, "foreign").await;
    let publish = async |id: &str, subject: &str, payload: Vec<u8>| {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, id);
        let subject = subject.to_owned();
        world
            .publish(Outgoing {
                subject,
                headers,
                payload,
            })
            .await;
    };
    // One account's request on another's subject
    let request = serde_json::to_vec(&globex.request(1, "no_reply", &json!({}))).unwrap();
    publish("on-foreign-subject", "signalbox.tool.requested.acme.PROJ-7", request).await;
    publish("nonsense", "signalbox.tool.requested.acme.PROJ-7", b"nonsense".to_vec()).await;

    eventually("four dead letters", async || {
        (world.database.count("select count(*) from dead_letter").await == 4).then_some(())
    })
    .await;
    assert_eq!(
        world
            .database
            .texts("select account_id || ' ' || reason from dead_letter order by reason")
            .await,
        [
            "acme malformed",
            "acme subject_mismatch",
            "acme unknown_session",
            "acme unknown_session"
        ]
    );
    assert_eq!(world.database.count("select count(*) from tool_call").await, 0);
    assert_eq!(world.heard("signalbox.tool.finished.").len(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn concurrent_ends_of_one_task_end_it_once_without_deadlock() {
    const TASKS: usize = 6;
    const AGENTS: usize = 4;
    let world = World::new().await;
    let gateways = [
        &world.gateway_with("loops = 3").await,
        &world.gateway_with("loops = 3").await,
    ];
    let fixture = world.fixture();
    let account = fixture.account("acme").await;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(fixture.agent(&account, &format!("agent-{number}")).await);
    }
    let mut requests = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let task = fixture.task(&account, &format!("T-{number}"), &agents).await;
        for agent in &agents {
            let session = world.session(&account, Some(&task), *agent).await;
            world.waiting(&session, &format!("{task}-{agent}"), "user").await;
            let arguments = json!({"task_id": task, "status": "done", "note": "done"});
            requests.push(session.request(1, "task_status", &arguments));
        }
        tasks.push(task);
    }
    // A person ends each of them as well.
    let people = world.database.connect(storage::Role::Orchestrator).await;
    let root = contracts::Root::default();
    let person = domain::Actor {
        kind: domain::ActorKind::User,
        id: "ann".to_owned(),
        name: "Ann".to_owned(),
        via: None,
    };
    let by_person = async |task: &domain::TaskId| {
        let tx = people.begin(&storage::Accounts::one(&account)).await.expect("begin");
        let asked = storage::lifecycle::TaskMove {
            account: &account,
            task,
            to: domain::TaskStatus::Done,
            by: &person,
            reason: None,
            turn: None,
            passes_stages: false,
        };
        let setting = storage::Setting {
            root: &root,
            source: "/test",
            origin: contracts::outgoing::Origin::default(),
            now: time::OffsetDateTime::now_utc(),
        };
        let moved = storage::lifecycle::task_status_set(&tx, &asked, &setting).await;
        moved.expect("no deadlock").expect("the task exists");
        tx.commit().await.expect("commit");
    };
    let asking = async {
        for request in &requests {
            world.ask(request).await;
        }
    };
    futures::future::join(asking, futures::future::join_all(tasks.iter().map(by_person))).await;

    for request in &requests {
        let answer = world.answer(request).await;
        if answer.state != domain::ToolCallState::Finished {
            assert_eq!(answer.code(domain::ToolCallState::Refused), "session_closed");
        }
    }
    let moves = "select count(*) from activity where kind = 'task.status_changed'";
    assert_eq!(world.database.count(moves).await, TASKS as i64);
    let still_open = "select count(*) from session where closed_at is null and generation = 1";
    assert_eq!(world.database.count(still_open).await, 0);
    world.end(&gateways).await;
    // A backend reports its statistics when it ends.
    people.close().await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(world.database.count(deadlocks).await, 0);
}
