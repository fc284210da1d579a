//! Subagents: a call makes all of its branches or none, once; what a branch is offered and shown; and who ends it.

use contracts::tool::ToolRequested;
use domain::{AgentId, SessionId, ToolCallState, TurnId};
use serde_json::{Value, json};
use storage::{Role, lifecycle::agent_remove};
use testkit::{eventually, rows};
use uuid::Uuid;

use crate::world::{TestSession, World};

/// `coder` on PROJ-7, whose context is written; and `reviewer`.
async fn coder(world: &World) -> TestSession {
    let coder = world.coder("acme").await;
    world.fixture().agent(&coder.account, "reviewer").await;
    rows("task_context")
        .with("body", "We build a parser.")
        .from("task t")
        .insert(&world.database.owner)
        .await;
    coder
}

/// As `resolver.hops_max` is by default.
const HOPS_MAX: i32 = 8;

fn part(n: usize) -> Value {
    json!({"request": format!("Do part {n}."), "label": format!("part {n}")})
}

pub(crate) fn spawn(session: &TestSession, ordinal: i32, count: usize) -> ToolRequested {
    let subagents: Vec<Value> = (1..=count).map(part).collect();
    session.request(ordinal, "subagent_spawn", &json!({"subagents": subagents}))
}

/// The session of the n-th branch of a result, with a turn in progress.
pub(crate) async fn inside(world: &World, parent: &TestSession, made: &Value, n: usize) -> TestSession {
    let of = &made["subagents"][n];
    let id = Uuid::parse_str(of["session_id"].as_str().unwrap()).unwrap();
    let key: &'static str = format!("select key from session where id = '{id}'").leak();
    let session = TestSession {
        id: SessionId(id),
        key: world.database.texts(key).await.remove(0),
        turn: TurnId(Uuid::now_v7()),
        ..parent.clone()
    };
    let busy = "update session set phase = 'waiting', fence = 1, active_turn_id = $2, turn_count = 1 where id = $1";
    world.run(sqlx::query(busy).bind(id).bind(session.turn.uuid())).await;
    world.turn(&session, 1).await;
    session
}

#[tokio::test]
async fn a_call_makes_its_branches_once_wherever_it_is_delivered() {
    let world = World::new().await;
    let gateways = [world.gateway().await, world.gateway().await];
    let coder = coder(&world).await;
    let request = spawn(&coder, 1, 3);
    world.record(&request).await;
    for n in 0..4 {
        world.forge(&request, &format!("again-{n}")).await;
    }
    let made = world.answer(&request).await.ok();
    world.delivered(4).await;
    world.told().await;
    let labels: Vec<&str> = (0..3)
        .map(|n| made["subagents"][n]["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["part 1", "part 2", "part 3"]);
    let branches = "select concat_ws(' ', ordinal, label, state, context, join_mode, depth, group_id) from branch order by ordinal";
    let group = made["group"].as_str().unwrap();
    let expected = [1, 2, 3].map(|n| format!("{n} part {n} live snapshot all 1 {group}"));
    assert_eq!(world.database.texts(branches).await, expected);
    let spawned = world.heard("signalbox.event.acme.PROJ-7.branch.spawned");
    assert_eq!(spawned.len(), 3, "{spawned:?}");
    assert_eq!(world.heard("signalbox.session.resolved.acme.PROJ-7").len(), 3);
    world.end(&[&gateways[0], &gateways[1]]).await;
}

#[tokio::test]
async fn all_are_made_or_none_with_the_reason() {
    let world = World::new().await;
    let gateway = world
        .gateway_with("branches_live_session_max = 3\nbranches_live_account_max = 5")
        .await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let mut ordinal = 0;
    let mut refused = async |session: &TestSession, arguments: Value, code: &str| {
        ordinal += 1;
        let before = world.database.count("select count(*) from branch").await;
        let answer = world
            .call(&session.request(ordinal, "subagent_spawn", &arguments))
            .await;
        assert_eq!(answer.code(answer.state), code, "{arguments}");
        assert_ne!(answer.state, ToolCallState::Finished);
        assert_eq!(
            world.database.count("select count(*) from branch").await,
            before,
            "{arguments}"
        );
        answer.result
    };
    let parts = |count: usize| json!({"subagents": (1..=count).map(part).collect::<Vec<Value>>()});
    refused(&coder, parts(1), "task_context_missing").await;
    rows("task_context").from("task t").insert(&world.database.owner).await;
    refused(&coder, parts(0), "invalid_arguments").await;
    refused(&coder, parts(11), "invalid_arguments").await;
    refused(
        &coder,
        json!({"subagents": [{"request": "a", "context": "whole"}]}),
        "invalid_arguments",
    )
    .await;
    refused(&coder, json!({"subagents": [{"request": " "}]}), "invalid_arguments").await;
    let two = json!({"subagents": [part(1), {"request": "b", "agent": "nobody"}]});
    let told = refused(&coder, two, "unknown_agent").await;
    assert!(told.to_string().contains("No subagent was made."), "{told}");
    refused(&coder, parts(4), "too_many_branches").await;
    let hops = |n: i32| sqlx::query("update turn set hops = $1").bind(n);
    world.run(hops(HOPS_MAX - 1)).await;
    refused(&coder, parts(1), "hop_limit").await;
    world.run(hops(2)).await;
    for status in ["done", "cancelled"] {
        world.run(sqlx::query("update task set status = $1").bind(status)).await;
        refused(&coder, parts(1), "task_ended").await;
    }
    world.run(sqlx::query("update task set status = 'in_progress'")).await;

    // There is room for two more of the account, and for three in another session.
    let made = world.call(&spawn(&coder, 100, 3)).await.ok();
    let other = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let told = refused(&other, parts(3), "too_many_branches").await;
    assert!(told.to_string().contains("3 subagents of this account"), "{told}");
    let below = inside(&world, &coder, &made, 0).await;
    refused(&below, parts(1), "branch_depth").await;
    let taskless = world.session(&coder.account, None, coder.agent).await;
    refused(&taskless, parts(1), "no_task").await;

    // A turn that makes and cancels them has an end: those of before it do not count.
    world
        .run(sqlx::query("update branch set state = 'cancelled', ended_at = now()"))
        .await;
    rows("branch")
        .with("state", "cancelled")
        .from(format!(
            "session s, generate_series(1, 61) where s.id = '{}'",
            coder.id.0
        ))
        .insert(&world.database.owner)
        .await;
    let told = refused(&coder, parts(1), "too_many_branches").await;
    assert!(told.to_string().contains("This turn has made 64"), "{told}");
    world
        .run(sqlx::query(
            "update branch set created_at = created_at - interval '1 day'",
        ))
        .await;
    world.call(&spawn(&coder, 101, 1)).await.ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_account_may_let_branches_go_deeper() {
    let world = World::new().await;
    let gateway = world.gateway_with("branch_depth_max = 2").await;
    let coder = coder(&world).await;
    let made = world.call(&spawn(&coder, 1, 1)).await.ok();
    let below = inside(&world, &coder, &made, 0).await;
    let made = world.call(&spawn(&below, 1, 1)).await.ok();
    let deepest = inside(&world, &coder, &made, 0).await;
    let answer = world.call(&spawn(&deepest, 1, 1)).await;
    assert_eq!(answer.code(ToolCallState::Refused), "branch_depth");
    let depths = "select concat_ws(' ', b.depth, p.kind) from branch b join session p on p.id = b.parent_session_id order by b.depth";
    assert_eq!(world.database.texts(depths).await, ["1 task", "2 branch"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_parent_lists_and_cancels_its_own() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = coder(&world).await;
    let made = world.call(&spawn(&coder, 1, 2)).await.ok();
    let list = async |ordinal| {
        let listed = world
            .call(&coder.request(ordinal, "subagent_list", &json!({})))
            .await
            .ok();
        let all = listed["subagents"].as_array().unwrap().clone();
        let line = |one: &Value| {
            format!(
                "{} {} {}",
                one["label"].as_str().unwrap(),
                one["state"].as_str().unwrap(),
                one["detail"]
            )
        };
        let mut lines: Vec<String> = all.iter().map(line).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(list(2).await, ["part 1 live null", "part 2 live null"]);
    let branch = made["subagents"][0]["branch_id"].as_str().unwrap();
    let cancel = |session: &TestSession, ordinal, branch: &str| {
        session.request(
            ordinal,
            "subagent_cancel",
            &json!({"branch_id": branch, "reason": "not needed"}),
        )
    };
    // Another session has no such branch, as if it were not there at all.
    let reviewer = world
        .database
        .texts("select id::text from agent where slug = 'reviewer'")
        .await;
    let reviewer = AgentId::parse(&reviewer[0]).unwrap();
    let other = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let mut words = Vec::new();
    for (ordinal, named) in (1..).zip([branch, &Uuid::now_v7().to_string(), "no id"]) {
        let answer = world.call(&cancel(&other, ordinal, named)).await;
        assert_eq!(answer.code(ToolCallState::Failed), "not_found");
        words.push(answer.result.to_string());
    }
    assert!(words.iter().all(|text| *text == words[0]), "{words:?}");

    let ended = world.call(&cancel(&coder, 3, branch)).await.ok();
    assert_eq!(ended["state"], "cancelled");
    let again = world.call(&cancel(&coder, 4, branch)).await.ok();
    assert_eq!(again["state"], "cancelled");
    assert!(again["note"].as_str().unwrap().contains("before"), "{again}");
    assert_eq!(
        list(5).await,
        ["part 1 cancelled \"by coder: not needed\"", "part 2 live null"]
    );
    world.told().await;
    assert_eq!(world.heard("signalbox.event.acme.PROJ-7.branch.ended").len(), 1);
    let items = "select count(*) from notification where kind = 'branch_result'";
    assert_eq!(world.database.count(items).await, 0, "the other one is still at work");
    let second = made["subagents"][1]["branch_id"].as_str().unwrap();
    world.call(&cancel(&coder, 6, second)).await.ok();
    assert_eq!(world.database.count(items).await, 1);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_branch_sees_the_task_as_its_parent_knew_it() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = coder(&world).await;
    rows("message")
        .with("body", "Before.")
        .insert(&world.database.owner)
        .await;
    let made = world.call(&spawn(&coder, 1, 1)).await.ok();
    // The world goes on.
    rows("message")
        .with("body", "After.")
        .insert(&world.database.owner)
        .await;
    rows("task_context")
        .with("version", 2)
        .with("body", "We build a compiler.")
        .from("task t")
        .insert(&world.database.owner)
        .await;
    world
        .run(sqlx::query("update task set title = 'Renamed', status = 'review'"))
        .await;
    let below = inside(&world, &coder, &made, 0).await;
    let look = async |session: &TestSession, ordinal: i32| {
        let history = world
            .call(&session.request(ordinal, "task_history", &json!({"task_id": "PROJ-7"})))
            .await
            .ok();
        let context = world
            .call(&session.request(ordinal + 1, "task_context_read", &json!({})))
            .await
            .ok();
        (history.to_string(), context.to_string())
    };
    let (history, context) = look(&below, 1).await;
    assert!(history.contains("Before.") && !history.contains("After."), "{history}");
    assert!(
        history.contains("in_progress") && !history.contains("Renamed"),
        "{history}"
    );
    assert!(
        context.contains("a parser") && !context.contains("a compiler"),
        "{context}"
    );
    let (history, context) = look(&coder, 2).await;
    assert!(history.contains("After.") && history.contains("Renamed"), "{history}");
    assert!(context.contains("a compiler"), "{context}");
    world.end(&[&gateway]).await;
}

/// What a branch may do is written with its session: neither its turn's list of tools nor a key says more.
#[tokio::test]
async fn a_branch_writes_nothing_whatever_key_it_has() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = coder(&world).await;
    let made = world.call(&spawn(&coder, 1, 1)).await.ok();
    let below = inside(&world, &coder, &made, 0).await;
    let calls = [
        ("task_message", json!({"task_id": "PROJ-7", "body": "hi"})),
        ("task_status", json!({"task_id": "PROJ-7", "status": "review"})),
        ("task_context_write", json!({"body": "x"})),
        ("response_request", json!({"agents": ["reviewer"], "body": "x"})),
        ("ask_question", json!({"question": "Which one?"})),
        ("check_later", json!({"after_minutes": 1})),
    ];
    for (ordinal, (name, arguments)) in (1..).zip(&calls) {
        let answer = world.call(&below.request(ordinal, name, arguments)).await;
        assert_eq!(answer.code(ToolCallState::Refused), "not_offered", "{name}");
    }
    let (client, base) = (reqwest::Client::new(), format!("http://{}", gateway.address));
    for role in ["gateway", "admin"] {
        let token = world.api_key(&coder.account, role).await;
        let list = client.get(format!("{base}/agent/tools")).bearer_auth(&token);
        let list = list.header("x-openclaw-session-key", &below.key).send().await.unwrap();
        let list: Value = list.json().await.unwrap();
        let names: Vec<&str> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        for (name, arguments) in &calls {
            assert!(!names.contains(name), "{role}: {names:?}");
            let call = client.post(format!("{base}/agent/tools/{name}")).bearer_auth(&token);
            let call = call
                .header("x-openclaw-session-key", &below.key)
                .body(arguments.to_string());
            let answer = call.send().await.unwrap();
            assert!(!answer.status().is_success(), "{role} {name}");
        }
    }
    let written = "select (select count(*) from message) + (select count(*) from question) + (select count(*) from task_context where version > 1)";
    assert_eq!(world.database.count(written).await, 0);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn no_branch_is_made_for_an_agent_that_is_removed_meanwhile() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = coder(&world).await;
    let reviewer = world
        .database
        .texts("select id::text from agent where slug = 'reviewer'")
        .await;
    let reviewer = AgentId::parse(&reviewer[0]).unwrap();
    let database = world.database.connect(Role::Orchestrator).await;
    let tx = database.begin(&storage::Accounts::one(&coder.account)).await.unwrap();
    let root = contracts::Root::default();
    let setting = storage::Setting {
        root: &root,
        source: "/signalbox/orchestrator",
        origin: contracts::outgoing::Origin::default(),
        now: time::OffsetDateTime::now_utc(),
    };
    // No orchestrator runs that would publish what the removal says.
    agent_remove(&tx, &coder.account, reviewer, &setting)
        .await
        .unwrap()
        .unwrap();
    let arguments = json!({"subagents": [{"request": "a", "agent": "reviewer"}]});
    let request = coder.request(1, "subagent_spawn", &arguments);
    world.ask(&request).await;
    // It tries again while the removal is in progress.
    eventually("the call is delivered", async || {
        (world.consumer().await.delivered.consumer_sequence >= 1).then_some(())
    })
    .await;
    tx.commit().await.unwrap();
    let answer = world.answer(&request).await;
    assert_eq!(answer.code(ToolCallState::Failed), "unknown_agent");
    assert_eq!(world.database.count("select count(*) from branch").await, 0);
    world.end(&[&gateway]).await;
}
