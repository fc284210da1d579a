//! The effects of the other tools, and their refusals.

use std::collections::BTreeMap;

use contracts::{
    header,
    notification::NotificationMessage,
    tools::{Audience, IdOf, ToolEffect},
};
use domain::{
    AgentId,
    ToolCallState::{Failed, Finished, Refused},
};
use serde_json::{Value, json};
use testkit::{
    Tenant, enqueued, eventually, rows,
    tools::{arguments, in_order, named},
};

use crate::world::{ITEM, World};

/// A call leaves its record; its other effects are those of its tool's definition.
#[tokio::test]
async fn every_tool_has_the_effect_that_it_is_declared_with() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.fixture().agent(&coder.account, "reviewer").await;
    // Its task is on the board of a person's orchestrator: the agent's session is a child.
    world.run(sqlx::query("update account set mail_enabled = true")).await;
    world.run(sqlx::query("update task set board = 'user:ann'")).await;
    rows("member")
        .with("user_id", "ann")
        .insert(&world.database.owner)
        .await;
    let ann = world.orchestrator(&coder.account, "ann").await;
    let identity = rows("orchestrator_identity").with("account_id", &coder.account);
    let identity = identity
        .with("user_id", "ann")
        .with("name", "Agent")
        .with("handle", "jarvis");
    identity.insert(&world.database.owner).await;
    let org = world.account_orchestrator(&coder.account).await;
    rows("memory").insert(&world.database.owner).await;
    let item = enqueued(&coder.account, ann.id)
        .with("id", ITEM)
        .with("state", "running");
    let item = item.with("sender_kind", "user").with("sender_id", "ann");
    item.with("turn_id", ann.turn).insert(&world.database.owner).await;
    // Mail to the agent, which waits.
    let mail_waits = async || {
        let id = uuid::Uuid::now_v7();
        let mail = rows("mail").with("id", id).set("to_user", "null");
        mail.with("to_session", &coder.key).insert(&world.database.owner).await;
        let item = enqueued(&coder.account, coder.id).with("id", format!("mail:{id}"));
        item.with("kind", "mail").insert(&world.database.owner).await;
        world
            .run(sqlx::query("update session set queued = 1 where kind = 'task'"))
            .await;
    };
    rows("task_context").from("task t").insert(&world.database.owner).await;
    let tenant = Tenant {
        account: coder.account.to_string(),
        keys: BTreeMap::new(),
    };
    let all_rows = async || {
        let mut rows = tenant.snapshot(&world.database.owner).await;
        rows.remove("tool_call");
        // Its rows are counted: its sender notes in them when it looks again.
        rows.entry("outbox".to_owned()).and_modify(|(_, rows)| rows.clear());
        rows
    };
    // A question of another agent to this one.
    let reviewer = world
        .database
        .texts("select id::text from agent where slug = 'reviewer'")
        .await;
    let reviewer = AgentId::parse(&reviewer[0]).unwrap();
    let other = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let asking = json!({"question": "Which one?", "ask": ["coder"]});
    let asked = world.call(&other.request(1, "ask_question", &asking)).await.ok();
    let asked = asked["question_id"].as_str().unwrap().to_owned();
    world.told().await;
    // External calls have tests of their own, with somebody to call.
    let inner = in_order()
        .into_iter()
        .filter(|tool| tool.effect != ToolEffect::External);
    for (tool, ordinal) in inner.collect::<Vec<_>>().iter().zip(1..) {
        let own = "select q.id::text from question q join agent g on g.id = q.agent_id where q.state = 'open' and g.slug = 'coder'";
        let own = world.database.texts(own).await;
        let branches = "select b.id::text from branch b join agent g on g.id = b.agent_id where b.state = 'live'";
        let branches = world.database.texts(branches).await;
        let id = |_: &str, of| match of {
            IdOf::Question if tool.name == "answer_question" => asked.clone(),
            IdOf::Question => own.first().cloned().unwrap_or_default(),
            IdOf::Branch => branches.first().cloned().unwrap_or_default(),
            IdOf::Session => coder.id.to_string(),
            _ => named(of, "PROJ-7", "reviewer"),
        };
        let is_said = |argument: &str| argument == "text" || (tool.name == "create_session" && argument == "agent");
        let said = arguments(tool, is_said, id, "review");
        if tool.name == "check_messages" {
            mail_waits().await;
        }
        let caller = match tool.offered_to {
            Audience::Orchestrator | Audience::Own => &ann,
            Audience::Account => &org,
            _ => &coder,
        };
        let request = caller.request(ordinal, tool.name, &said);
        world.record(&request).await;
        let before = all_rows().await;
        let answer = world.call(&request).await;
        assert_eq!(answer.state, Finished, "{}: {}", tool.name, answer.result);
        world.told().await;
        let writes = match tool.effect {
            ToolEffect::None | ToolEffect::Read => false,
            ToolEffect::Write | ToolEffect::External => true,
        };
        let after = all_rows().await;
        let changed: Vec<&String> = after
            .keys()
            .filter(|table| after.get(*table) != before.get(*table))
            .collect();
        assert_eq!(!changed.is_empty(), writes, "{}: {changed:?}", tool.name);
    }
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn done_closes_the_tasks_sessions_with_an_outcome_for_all_that_waits() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let task = coder.task.clone().unwrap();
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let reviewer = world.session(&coder.account, Some(&task), reviewer).await;
    let other = world.fixture().task(&coder.account, "PROJ-8", &[]).await;
    let other = world.session(&coder.account, Some(&other), coder.agent).await;
    // Newer than the turn: from a person, from an agent. One for another session must survive.
    world.waiting(&coder, "from-person", "user").await;
    world.waiting(&coder, "from-agent", "agent").await;
    world.waiting(&reviewer, "from-service", "service").await;
    world.waiting(&other, "elsewhere", "service").await;

    let arguments = json!({"task_id": "PROJ-7", "status": "done", "note": "All green."});
    let result = world.call(&coder.request(1, "task_status", &arguments)).await.ok();
    assert_eq!(
        (&result["from"], &result["status"], &result["changed"]),
        (&json!("in_progress"), &json!("done"), &json!(true))
    );
    assert!(result["note"].as_str().unwrap().contains("session is closed"));

    assert_eq!(
        world
            .database
            .texts("select id || ' ' || status from task order by id")
            .await,
        ["proj-7 done", "proj-8 in_progress"]
    );
    assert_eq!(
        world
            .database
            .texts(
                "select a.slug || ' ' || s.task_id || ' ' || s.generation || ' ' || coalesce(s.close_reason, 'open')
                 from session s join agent a on a.id = s.agent_id order by 1"
            )
            .await,
        [
            "coder proj-7 1 task_done",
            "coder proj-7 2 open",
            "coder proj-8 1 open",
            "reviewer proj-7 1 task_done"
        ]
    );
    assert_eq!(
        world
            .database
            .texts("select id || ' ' || state || ' ' || coalesce(reason, '') from notification order by id")
            .await,
        [
            "elsewhere queued ",
            "from-agent cancelled task closed",
            "from-person queued ",
            "from-service cancelled task closed"
        ]
    );
    assert_eq!(
        world
            .database
            .texts("select body || ' ' || author_name from message")
            .await,
        ["All green. coder"]
    );
    eventually("events and wake-ups", async || {
        let said = |prefix: &str, count: usize| world.heard(prefix).len() == count;
        (said("signalbox.event.acme.PROJ-7.task.status_changed", 1)
            && said("signalbox.event.acme.PROJ-7.message.posted", 1)
            && said("signalbox.session.closed.acme.PROJ-7", 2)
            && said("signalbox.session.resolved.acme.PROJ-7", 1)
            && said("signalbox.event.acme.PROJ-7.notification.cancelled", 2))
        .then_some(())
    })
    .await;
    let moved = &world.heard("signalbox.event.acme.PROJ-7.task.status_changed")[0];
    assert_eq!(moved.headers.get(header::CAUSE), Some(coder.turn.to_string().as_str()));
    assert_eq!(moved.payload["data"]["by"]["id"], coder.agent.to_string());
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_agent_moves_only_its_own_task_and_not_through_a_gate() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.fixture().task(&coder.account, "PROJ-8", &[coder.agent]).await;
    let status = |task: &str, status: &str| json!({"task_id": task, "status": status});
    let mut ordinal = 0;
    let mut next = |arguments: Value| {
        ordinal += 1;
        coder.request(ordinal, "task_status", &arguments)
    };

    let answer = world.call(&next(status("PROJ-8", "done"))).await;
    assert_eq!(answer.code(Refused), "task_not_found");
    for word in ["archived", "awaiting_approval", "inbox", "closed"] {
        let answer = world.call(&next(status("PROJ-7", word))).await;
        assert_eq!(answer.code(Failed), "invalid_arguments", "{word}");
    }
    for word in ["assigned", "pending", "review", "failed", "in_progress"] {
        world.call(&next(status("PROJ-7", word))).await.ok();
    }
    // A block has an owner, or something that ends it.
    let answer = world.call(&next(status("PROJ-7", "blocked"))).await;
    assert_eq!(answer.code(Refused), "blocked_needs_owner");
    for (owner, expected) in [
        ("nobody-at-all", "unknown_agent"),
        ("somebody:else", "invalid_arguments"),
    ] {
        let on = json!({"owner": owner, "action": "Start the database."});
        let answer = world
            .call(&next(
                json!({"task_id": "PROJ-7", "status": "blocked", "blocked_on": on}),
            ))
            .await;
        assert_eq!(answer.code(Failed), expected);
    }
    let on = json!({"owner": "role:member", "action": "Start the database."});
    let blocked = json!({"task_id": "PROJ-7", "status": "blocked", "blocked_on": on});
    world.call(&next(blocked)).await.ok();
    let owners = "select concat_ws(' ', blocked_owner, blocked_action) from task where id = 'proj-7'";
    assert_eq!(world.database.texts(owners).await, ["role:member Start the database."]);
    world.call(&next(status("PROJ-7", "in_progress"))).await.ok();
    assert_eq!(world.database.texts(owners).await, [""]);
    let result = world.call(&next(status("PROJ-7", "in_progress"))).await.ok();
    assert_eq!(result["changed"], false);
    world
        .run(sqlx::query(
            "update task set status = 'awaiting_approval' where id = 'proj-7'",
        ))
        .await;
    let answer = world.call(&next(status("PROJ-7", "in_progress"))).await;
    assert_eq!(answer.code(Refused), "awaiting_approval");
    assert_eq!(
        world
            .database
            .texts("select id || ' ' || status from task order by id")
            .await,
        ["proj-7 awaiting_approval", "proj-8 in_progress"]
    );
    assert_eq!(
        world
            .database
            .count("select count(*) from session where closed_at is null")
            .await,
        1
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_message_is_posted_and_wakes_no_agent() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let post =
        |ordinal, body: &str| coder.request(ordinal, "task_message", &json!({"task_id": "proj-7", "body": body}));
    let result = world.call(&post(1, "half way")).await.ok();
    assert_eq!(result["task_id"], "PROJ-7");
    assert_eq!(
        world
            .database
            .texts("select id || ' ' || turn_id || ' ' || body from message")
            .await,
        [format!(
            "{} {} half way",
            result["message_id"].as_str().unwrap(),
            coder.turn
        )]
    );
    assert_eq!(world.call(&post(2, " \n")).await.code(Failed), "invalid_arguments");
    // The limit is 16 KiB in bytes: fewer characters may exceed it.
    assert_eq!(
        world.call(&post(3, &"ä".repeat(9_000))).await.code(Failed),
        "invalid_arguments"
    );
    assert_eq!(world.call(&post(4, "a\0b")).await.code(Failed), "invalid_arguments");
    world.call(&post(5, &"a".repeat(16 * 1024))).await.ok();
    assert_eq!(world.database.count("select count(*) from message").await, 2);
    assert_eq!(world.heard("signalbox.notification.").len(), 0);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_request_reaches_every_named_agent_once_and_one_hop_further() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let tester = world.fixture().agent(&coder.account, "tester").await;
    let arguments = json!({"agents": ["reviewer", tester, "@Reviewer", reviewer], "body": "Please look."});
    let request = coder.request(1, "response_request", &arguments);
    let result = world.call(&request).await.ok();
    let asked = result["asked"].as_array().unwrap();
    assert_eq!(asked.len(), 2);
    assert_eq!(
        (&asked[0]["agent"], &asked[1]["agent"]),
        (&json!("reviewer"), &json!("tester"))
    );

    eventually("two notifications", async || {
        (world.heard("signalbox.notification.").len() == 2).then_some(())
    })
    .await;
    for (heard, agent) in world.heard("signalbox.notification.").iter().zip([reviewer, tester]) {
        assert_eq!(heard.subject, "signalbox.notification.acme.PROJ-7");
        assert_eq!(heard.headers.hops(), 3, "the turn has two hops");
        assert_eq!(heard.headers.get(header::CAUSE), Some(coder.turn.to_string().as_str()));
        let message: NotificationMessage = serde_json::from_value(heard.payload.clone()).unwrap();
        assert_eq!(message.kind.as_deref(), Some("response_request"));
        assert_eq!(message.agent, Some(agent.to_string()));
        assert_eq!(message.sender.unwrap().id, coder.agent.to_string());
        assert_eq!(message.body, "Please look.");
        let id = message.id.unwrap();
        assert!(asked.iter().any(|asked| asked["notification_id"] == id.as_str()));
    }
    world.end(&[&gateway]).await;
}

/// No resolver reads the requests here, so all of them stay unread.
#[tokio::test]
async fn an_account_whose_requests_fill_its_share_is_refused_more() {
    let world = World::new().await;
    let limits = "[nats.limits]\nnotification_bytes_max = 65536\nmessage_bytes_max = 4096";
    let gateway = world.gateway_with(limits).await;
    let coder = world.coder("acme").await;
    let other = world.coder("other").await;
    for account in [&coder.account, &other.account] {
        for agent in ["reviewer", "tester"] {
            world.fixture().agent(account, agent).await;
        }
    }
    let arguments = json!({"agents": ["reviewer", "tester"], "body": "x".repeat(3_000)});
    let ask = async |session: &crate::world::TestSession, ordinal| {
        world
            .call(&session.request(ordinal, "response_request", &arguments))
            .await
    };
    for ordinal in 1..=2 {
        ask(&coder, ordinal).await.ok();
    }
    // A request that was not committed when the service read the shares counts from the next read on.
    let mut last = ask(&coder, 3).await;
    for ordinal in 4..=6 {
        if last.state == Failed {
            break;
        }
        last = ask(&coder, ordinal).await;
    }
    assert_eq!(last.code(Failed), "too_much_unread");
    ask(&other, 1).await.ok();
    world.end(&[&gateway]).await;
}

/// The overview and the briefing are shown in the coordinator's chat, so no other agent gets a session on it (S6).
#[tokio::test]
async fn the_coordinator_asks_others_on_their_tasks_and_not_in_its_chat() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let fixture = world.fixture();
    let coder = world.coder("acme").await;
    let lead = fixture.agent(&coder.account, "lead").await;
    let chat = fixture.task(&coder.account, "Chat", &[]).await;
    fixture.account_set(&coder.account, "coordinator_task", "CHAT").await;
    let lead = world.session(&coder.account, Some(&chat), lead).await;
    let mut ordinal = 0;
    let mut ask = |task: Option<&str>| {
        ordinal += 1;
        let mut arguments = json!({"agents": ["coder"], "body": "Please mend the build."});
        if let Some(task) = task {
            arguments["task_id"] = json!(task);
        }
        lead.request(ordinal, "response_request", &arguments)
    };
    for task in [None, Some("Chat"), Some("CHAT")] {
        let answer = world.call(&ask(task)).await;
        assert_eq!(answer.code(Failed), "coordinator_chat", "{task:?}");
        assert!(answer.result["error"]["hint"].as_str().unwrap().contains("task_id"));
    }
    world.call(&ask(Some("PROJ-7"))).await.ok();
    eventually("one is asked, on its own task", async || {
        (world.heard("signalbox.notification.").len() == 1).then_some(())
    })
    .await;
    assert_eq!(
        world.heard("signalbox.notification.")[0].subject,
        "signalbox.notification.acme.PROJ-7"
    );
    // Two coordinators may ask each other in the chat.
    for agent in ["lead", "coder"] {
        world
            .run(
                sqlx::query("insert into task_assignee (account_id, task_id, agent_id) select 'acme', 'chat', id from agent where slug = $1")
                    .bind(agent),
            )
            .await;
    }
    world.call(&ask(None)).await.ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_request_with_one_wrong_name_is_refused() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let fixture = world.fixture();
    fixture.agent(&coder.account, "reviewer").await;
    fixture.agent(&coder.account, "gone").await;
    world
        .run(sqlx::query("update agent set removed_at = now() where slug = 'gone'"))
        .await;
    let globex = fixture.account("globex").await;
    let stranger = fixture.agent(&globex, "stranger").await;
    fixture.task(&coder.account, "PROJ-8", &[]).await;

    let check = async |ordinal, arguments: Value, state, code: &str, words: &[&str]| {
        let answer = world
            .call(&coder.request(ordinal, "response_request", &arguments))
            .await;
        assert_eq!(answer.code(state), code, "{arguments}");
        let message = answer.result["error"]["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{message}");
        }
    };
    let ask = |agents: Value| json!({"agents": agents, "body": "b"});
    check(
        1,
        ask(json!(["reviewer", "nobody", "gone", stranger, "No One"])),
        Failed,
        "unknown_agent",
        &["nobody", "gone", &stranger.to_string(), "No One"],
    )
    .await;
    check(2, ask(json!(["reviewer", "coder"])), Failed, "own_name", &["coder"]).await;
    check(3, ask(json!([])), Failed, "invalid_arguments", &["agents"]).await;
    check(
        4,
        json!({"agents": ["reviewer"], "body": "b", "task_id": "PROJ-8"}),
        Refused,
        "task_not_found",
        &["PROJ-8"],
    )
    .await;
    assert_eq!(world.heard("signalbox.notification.").len(), 0);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_session_without_a_task_asks_others_and_stays_away_from_tasks() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let fixture = world.fixture();
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    fixture.agent(&account, "reviewer").await;
    fixture.task(&account, "PROJ-7", &[agent]).await;
    let system = world.session(&account, None, agent).await;

    let answer = world
        .call(&system.request(1, "task_history", &json!({"task_id": "PROJ-7"})))
        .await;
    assert_eq!(answer.code(Refused), "not_offered");
    let arguments = json!({"agents": ["reviewer"], "body": "b", "task_id": "PROJ-7"});
    let answer = world.call(&system.request(2, "response_request", &arguments)).await;
    assert_eq!(answer.code(Refused), "task_not_found");
    world
        .call(&system.request(3, "response_request", &json!({"agents": ["reviewer"], "body": "b"})))
        .await
        .ok();
    eventually("a notification without a task", async || {
        (world.heard("signalbox.notification.acme.-").len() == 1).then_some(())
    })
    .await;
    let result = world
        .call(&system.request(4, "no_reply", &json!({"reason": "all is well"})))
        .await
        .ok();
    assert_eq!(result["recorded"], true);
    assert_eq!(
        world
            .database
            .texts("select arguments from tool_call where name = 'no_reply' and state = 'finished'")
            .await,
        [r#"{"reason":"all is well"}"#]
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_agent_wide_session_has_its_turns_task() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let fixture = world.fixture();
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    let task = fixture.task(&account, "PROJ-7", &[agent]).await;
    fixture.task(&account, "PROJ-8", &[agent]).await;
    let mut wide = world.session(&account, None, agent).await;
    let offer =
        "update turn set task_id = 'proj-7', tools = tools || array['task_history', 'task_status', 'task_message']";
    world.run(sqlx::query(offer)).await;
    wide.task = Some(task);

    world
        .call(&wide.request(1, "task_history", &json!({"task_id": "PROJ-7"})))
        .await
        .ok();
    let answer = world
        .call(&wide.request(2, "task_history", &json!({"task_id": "PROJ-8"})))
        .await;
    assert_eq!(answer.code(Refused), "task_not_found");
    let result = world
        .call(&wide.request(3, "task_status", &json!({"task_id": "PROJ-7", "status": "done"})))
        .await
        .ok();
    // The session is not the task's, so it stays open.
    assert!(result.get("note").is_none());
    world.call(&wide.request(4, "no_reply", &json!({}))).await.ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_failed_call_is_answered_and_leaves_only_its_record() {
    let world = World::new().await;
    let gateway = world.gateway_with("statement_timeout_ms = 300").await;
    let coder = world.coder("acme").await;
    let answer = world.call(&coder.request(1, "exec", &json!({"command": "ls"}))).await;
    assert_eq!(answer.code(Refused), "unknown_tool");
    let hint = answer.result["error"]["hint"].as_str().unwrap();
    assert!(hint.contains("task_history") && hint.contains("no_reply"), "{hint}");
    let answer = world.call(&coder.request(2, "task_message", &json!("{not json"))).await;
    assert_eq!(answer.code(Failed), "invalid_arguments");
    let huge = json!({"task_id": "PROJ-7", "body": "x".repeat(70_000)});
    let answer = world.call(&coder.request(3, "task_message", &huge)).await;
    assert_eq!(answer.code(Failed), "arguments_too_large");

    let held = world.hold_messages("acme").await;
    let post = coder.request(4, "task_message", &json!({"task_id": "PROJ-7", "body": "b"}));
    let answer = world.call(&post).await;
    assert_eq!(answer.code(Failed), "too_slow");
    held.rollback().await.unwrap();

    assert_eq!(world.database.count("select count(*) from message").await, 0);
    assert_eq!(world.database.count("select count(*) from activity").await, 0);
    assert_eq!(
        world
            .database
            .texts("select ordinal || ' ' || name || ' ' || state || ' ' || length(arguments) from tool_call order by ordinal")
            .await,
        [
            "1 exec refused 16",
            "2 task_message failed 9",
            "3 task_message failed 65536",
            "4 task_message failed 31"
        ]
    );
    world.end(&[&gateway]).await;
}
