//! Rows that allow no step: the session is left unchanged, and the rest of the batch continues.

use testkit::Reply;

use crate::scene::Scene;

/// A session of the same agent on another task.
async fn another(scene: &Scene) -> domain::SessionId {
    let fixture = scene.world.fixture();
    let task = fixture.task(&scene.account, "PROJ-8", &[scene.agent]).await;
    fixture.session(&scene.account, &task, scene.agent).await.0
}

async fn plant(scene: &Scene, sql: &'static str) {
    let planted = sqlx::query(sql).bind(scene.session.uuid());
    let rows = planted
        .execute(&scene.world.database.owner)
        .await
        .unwrap()
        .rows_affected();
    assert_eq!(rows, 1, "{sql}");
}

#[tokio::test]
async fn an_ended_turn_is_not_resent_and_blocks_no_other_session() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    scene.until("n-1", "delivered").await;
    running.stop().await;
    plant(
        &scene,
        "update session s set phase = 'backoff', wake_at = now(), active_turn_id = (select id from turn) where s.id = $1",
    )
    .await;
    let other = another(&scene).await;
    scene.enqueue("n-2", "y").await;
    scene.world.fixture().enqueue(&scene.account, other, "n-3", "z").await;
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    assert_eq!(scene.state("n-2").await.0, "queued");
    assert_eq!(scene.provider.seen().len(), 2);
    assert_eq!(scene.turns("fence").await, ["1", "1"], "nothing was written of it");
    running.stop().await;
}

/// Several services may write items. The provider's conversation of a session is of one task.
#[tokio::test]
async fn an_item_of_another_task_enters_no_prompt() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let other = another(&scene).await;
    scene.enqueue("n-1", "x").await;
    plant(
        &scene,
        "update notification set task_id = 'proj-8' where session_id = $1",
    )
    .await;
    scene.world.fixture().enqueue(&scene.account, other, "n-2", "y").await;
    let running = scene.run().await;
    scene.until("n-2", "delivered").await;
    assert_eq!(scene.state("n-1").await.0, "queued");
    assert_eq!(scene.provider.seen().len(), 1);
    // The task's own item, of the same session, goes its way once the other is gone.
    plant(
        &scene,
        "update notification set task_id = 'proj-7' where session_id = $1",
    )
    .await;
    scene.until("n-1", "delivered").await;
    running.stop().await;
}
