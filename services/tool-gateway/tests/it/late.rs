//! Calls that come after the end of what they belong to: recorded, answered, without effect. And calls that say what
//! their session is not.

use contracts::tool::ToolRequested;
use domain::{AgentId, Fence, Generation, TaskId, ToolCallState::Refused, TurnId};
use serde_json::json;
use uuid::Uuid;

use crate::world::{Session, World};

fn post(session: &Session, ordinal: i32) -> ToolRequested {
    session.request(ordinal, "task_message", &json!({"task_id": "PROJ-7", "body": "late"}))
}

#[tokio::test]
async fn a_closed_session_a_turn_that_is_over_and_a_turn_that_went_on_take_no_more_calls() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let check = async |ordinal, change: &'static str, code: &str| {
        world.run(sqlx::query(change)).await;
        let answer = world.call(&post(&coder, ordinal)).await;
        assert_eq!(answer.code(Refused), code, "{change}");
        assert!(answer.late, "{change}");
        // The same again, and the same answer
        world.ask_as(&post(&coder, ordinal), &format!("again-{ordinal}")).await;
    };
    check(1, "update turn set fence = 2", "superseded").await;
    check(2, "update turn set fence = 1, state = 'aborted'", "turn_over").await;
    check(
        3,
        "with reopened as (update turn set state = 'awaiting_tools')
         update session set closed_at = now(), close_reason = 'task_done'",
        "session_closed",
    )
    .await;
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    assert_eq!(
        world.database.count("select count(*) from tool_call where late").await,
        3
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_claim_that_has_not_moved_the_turn_does_not_make_its_calls_late() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    // Delivery looked after the turn meanwhile, and asks again under its new fence.
    world.run(sqlx::query("update session set fence = 2")).await;
    let old = post(&coder, 1);
    let mut new = old.clone();
    new.fence = Fence(2);
    world.call(&old).await.ok();
    world.ask_as(&new, "under the new fence").await;
    testkit::eventually("both are answered", async || {
        (world.finished(&old).len() == 2).then_some(())
    })
    .await;
    assert_eq!(world.database.count("select count(*) from message").await, 1);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_call_that_disagrees_with_its_session_has_no_effect() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let mut ordinal = 0;
    let mut check = async |change: &dyn Fn(&mut ToolRequested), code: &str| {
        ordinal += 1;
        let mut request = post(&coder, ordinal);
        change(&mut request);
        let answer = world.call(&request).await;
        assert_eq!(answer.code(Refused), code);
        assert!(!answer.late || code == "superseded");
    };
    check(&|request| request.generation = Generation(2), "session_mismatch").await;
    check(
        &|request| request.agent_id = AgentId(Uuid::now_v7()),
        "session_mismatch",
    )
    .await;
    check(&|request| request.session_key = "task:x".to_owned(), "session_mismatch").await;
    check(&|request| request.task = None, "session_mismatch").await;
    check(
        &|request| request.task = TaskId::parse("PROJ-8").ok(),
        "session_mismatch",
    )
    .await;
    check(&|request| request.fence = Fence(7), "superseded").await;
    assert_eq!(world.database.count("select count(*) from message").await, 0);

    let mut request = post(&coder, 1);
    request.turn_id = TurnId(Uuid::now_v7());
    assert_eq!(world.call(&request).await.code(Refused), "unknown_turn");
    // Another session's turn of the same agent and task
    let chat = world.fixture().task(&coder.account, "Chat", &[]).await;
    let chat = world.session(&coder.account, Some(&chat), coder.agent).await;
    let mut request = chat.request(1, "no_reply", &json!({}));
    request.session_id = coder.id;
    request.session_key = coder.key.clone();
    assert_eq!(world.call(&request).await.code(Refused), "unknown_turn");
    world.end(&[&gateway]).await;
}
