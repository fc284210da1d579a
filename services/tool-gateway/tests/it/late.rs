//! Calls that arrive after their turn or session ended: recorded, answered, without effect.

use contracts::tool::ToolRequested;
use domain::{Fence, ToolCallState::Refused};
use serde_json::json;

use crate::world::{TestSession, World};

fn post(session: &TestSession, ordinal: i32) -> ToolRequested {
    session.request(ordinal, "task_message", &json!({"task_id": "PROJ-7", "body": "late"}))
}

#[tokio::test]
async fn a_closed_session_and_a_turn_that_is_over_or_went_on_or_has_waited_take_no_more_calls() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let check = async |ordinal, change: &'static str, code: &str| {
        world.run(sqlx::query(change)).await;
        let answer = world.call(&post(&coder, ordinal)).await;
        assert_eq!(answer.code(Refused), code, "{change}");
        assert!(answer.late, "{change}");
        // The same call again gets the same answer
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
    check(
        4,
        "with waited as (update turn set waiting_since = now() - interval '601 s')
         update session set closed_at = null, close_reason = null",
        "call_expired",
    )
    .await;
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    assert_eq!(
        world.database.count("select count(*) from tool_call where late").await,
        4
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_claim_that_has_not_moved_the_turn_does_not_make_its_calls_late() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    // Delivery resumed the turn meanwhile, and requests the call again under its new fence.
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
