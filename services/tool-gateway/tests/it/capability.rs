//! Calls that no turn requested, signed as a service signs them: each has no effect, and an unconfirmed call leaves no
//! record that could take a genuine call's id. `src/capability/tests.rs` shows that one check refuses each.

use contracts::tool::ToolRequested;
use domain::{AccountId, AgentId, CallId, Fence, Generation, TaskId, ToolCallState::Refused, TurnId};
use serde_json::json;
use uuid::Uuid;

use crate::world::{TestSession, World};

fn post(session: &TestSession, ordinal: i32) -> ToolRequested {
    session.request(
        ordinal,
        "task_message",
        &json!({"task_id": "PROJ-7", "body": "genuine"}),
    )
}

async fn nothing_was_done(world: &World) {
    let rows =
        "select (select count(*) from message) + (select count(*) from activity) + (select count(*) from tool_call)";
    assert_eq!(world.database.count(rows).await, 0);
    assert_eq!(world.heard("signalbox.tool.finished.").len(), 0);
}

/// The envelope key and a service's rights on the broker do not suffice to forge an agent's call.
#[tokio::test]
async fn a_forged_call_is_buried_and_leaves_the_genuine_calls_id_free() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let genuine = post(&coder, 1);
    let forged = |change: &dyn Fn(&mut ToolRequested)| {
        let mut request = genuine.clone();
        change(&mut request);
        request
    };
    let other_words = json!({"task_id": "PROJ-7", "body": "forged"}).to_string();
    // Before the turn has requested a call, and after.
    world.forge(&genuine, "too early").await;
    assert_eq!(world.dead_letters(1).await, ["acme not_asked"]);
    world.record(&genuine).await;
    let forgeries = [
        forged(&|request| request.arguments.clone_from(&other_words)),
        forged(&|request| request.name = "no_reply".to_owned()),
        forged(&|request| request.call_id = CallId("call_2".to_owned())),
        forged(&|request| request.ordinal = 2),
        forged(&|request| request.ordinal = 0),
        forged(&|request| request.generation = Generation(2)),
        forged(&|request| request.agent_id = AgentId(Uuid::now_v7())),
        forged(&|request| request.session_key = "task:x".to_owned()),
        forged(&|request| request.task = None),
        forged(&|request| request.task = TaskId::parse("PROJ-8").ok()),
        forged(&|request| request.turn_id = TurnId(Uuid::now_v7())),
    ];
    for (n, forgery) in forgeries.iter().enumerate() {
        world.forge(forgery, &format!("forgery {n}")).await;
    }
    let mut letters = world.dead_letters(12).await;
    letters.sort();
    let expected = [("not_asked", 6), ("session_mismatch", 5), ("unknown_turn", 1)];
    for (reason, count) in expected {
        let found = letters
            .iter()
            .filter(|letter| **letter == format!("acme {reason}"))
            .count();
        assert_eq!(found, count, "{reason}: {letters:?}");
    }
    nothing_was_done(&world).await;

    // The genuine call's id is still free.
    world.ask(&genuine).await;
    world.answer(&genuine).await.ok();
    assert_eq!(world.database.texts("select body from message").await, ["genuine"]);
    gateway.stop().await;
}

/// A call of another session, of this account or another one, under this session's ids or its own.
#[tokio::test]
async fn a_call_of_another_session_is_refused() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let globex = world.coder("globex").await;
    let other = world.fixture().task(&coder.account, "PROJ-8", &[]).await;
    let other = world.session(&coder.account, Some(&other), coder.agent).await;
    let genuine = post(&coder, 1);
    world.record(&genuine).await;

    // The turn's call in the other session, then with all of that session's ids but the turn's.
    let mut moved = genuine.clone();
    moved.session_id = other.id;
    world.forge(&moved, "moved").await;
    moved.session_key = other.key.clone();
    moved.task = other.task.clone();
    world.forge(&moved, "renamed").await;
    // With all ids of the other session, its turn included: that turn did not request the call.
    moved.turn_id = other.turn;
    world.forge(&moved, "all renamed").await;
    // The same towards the other account. Rows of another account are invisible.
    let mut abroad = genuine.clone();
    abroad.account = AccountId::parse("globex").expect("an account");
    world.forge(&abroad, "abroad").await;
    abroad.session_id = globex.id;
    abroad.session_key = globex.key.clone();
    abroad.agent_id = globex.agent;
    world.forge(&abroad, "abroad, renamed").await;
    abroad.turn_id = globex.turn;
    world.forge(&abroad, "abroad, all renamed").await;

    let mut letters = world.dead_letters(6).await;
    letters.sort();
    assert_eq!(
        letters,
        [
            "acme not_asked",
            "acme unknown_turn",
            "acme unknown_turn",
            "globex not_asked",
            "globex unknown_session",
            "globex unknown_turn"
        ]
    );
    nothing_was_done(&world).await;
    gateway.stop().await;
}

/// Genuine calls that were delayed: after their fence moved, their task was done, or their time was over, while the
/// turn's row still names them.
#[tokio::test]
async fn a_delayed_call_is_late() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let held_back = async |account: &str, since: &'static str| {
        let session = world.coder(account).await;
        let request = post(&session, 1);
        world.record(&request).await;
        world.run(sqlx::query(since).bind(account)).await;
        world.forge(&request, account).await;
        let answer = world.answer(&request).await;
        assert!(answer.late, "{account}");
        answer.code(Refused).to_owned()
    };
    let fence = "with taken as (update turn set fence = 2 where account_id = $1)
                 update session set fence = 2 where account_id = $1";
    assert_eq!(held_back("fence", fence).await, "superseded");
    let done = "update session set closed_at = now(), close_reason = 'task_done' where account_id = $1";
    assert_eq!(held_back("done", done).await, "session_closed");
    let expired = "update turn set waiting_since = now() - interval '11 min' where account_id = $1";
    assert_eq!(held_back("expired", expired).await, "call_expired");
    let over = "update turn set state = 'failed' where account_id = $1";
    assert_eq!(held_back("over", over).await, "turn_over");

    // A fence that no claim assigned
    let session = world.coder("made-up").await;
    let mut request = post(&session, 1);
    request.fence = Fence(7);
    assert_eq!(world.call(&request).await.code(Refused), "superseded");
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}

/// Calls that the agent requested and may not make: refused with an answer, so that it can do something else.
#[tokio::test]
async fn a_tool_that_was_not_offered_and_a_task_that_is_not_the_turns_are_refused() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.fixture().task(&coder.account, "PROJ-8", &[]).await;
    world
        .run(sqlx::query("update turn set tools = array['no_reply', 'task_message']"))
        .await;
    let check = async |ordinal, name: &str, arguments, code: &str| {
        let answer = world.call(&coder.request(ordinal, name, &arguments)).await;
        assert_eq!(answer.code(Refused), code, "{name}");
        assert!(!answer.late, "{name}");
    };
    let done = json!({"task_id": "PROJ-7", "status": "done"});
    check(1, "task_status", done, "not_offered").await;
    let elsewhere = json!({"task_id": "PROJ-8", "body": "b"});
    check(2, "task_message", elsewhere, "task_not_found").await;
    let nowhere = json!({"task_id": "PROJ-9", "body": "b"});
    check(3, "task_message", nowhere, "task_not_found").await;
    assert_eq!(
        world.database.texts("select status from task order by id").await,
        ["in_progress", "in_progress"]
    );
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.call(&post(&coder, 4)).await.ok();
    world.end(&[&gateway]).await;
}
