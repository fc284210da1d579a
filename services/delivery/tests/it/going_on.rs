//! A session's next turn that begins with the record of its last one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

/// The beginning waits for a lock; the outcome is recorded without it.
#[tokio::test]
async fn a_beginning_that_waits_holds_up_no_outcome() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    // Longer than this test waits for anything.
    scene.world.set("database.statement_timeout_ms", 600_000);
    scene.world.set("database.lock_timeout_ms", 300_000);
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "x").await;
    let running = scene.run().await;
    eventually("the first is called", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    let mut holder = scene.world.database.owner.begin().await.unwrap();
    sqlx::query("select from notification where id = 'n-2' for update")
        .execute(&mut *holder)
        .await
        .unwrap();
    gate.add_permits(2);
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.state("n-2").await.0, "queued");
    holder.rollback().await.unwrap();
    scene.until("n-2", "delivered").await;
    running.stop().await;
}

/// A reply's id follows from its turn: what the second attempt posts has the id of what the first could not.
#[tokio::test]
async fn a_reply_that_was_rolled_back_stands_in_no_prompt() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let mut scene = Scene::with(move |_| {
        let call = counted.fetch_add(1, Ordering::Relaxed) + 1;
        Reply::text(&format!("answer {call} of all"))
    })
    .await;
    scene.world.set("delivery.retry_delay_ms", 50);
    // A prompt from the record: a thread has its own replies.
    let assembled = "update account set context_policy = 'assembled'";
    sqlx::query(assembled)
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as $$ begin
             if new.body = 'answer 1 of all' then raise exception 'refused by the test'; end if;
             return null;
         end $$;
         create constraint trigger refused after insert on message deferrable initially deferred
         for each row execute function refuse()",
    )
    .execute(&scene.world.database.owner)
    .await
    .unwrap();
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "x").await;
    let running = scene.run().await;
    scene.until("n-2", "delivered").await;
    let seen = scene.provider.seen();
    let prompts: Vec<[bool; 2]> = seen
        .iter()
        .map(|seen| ["answer 1", "answer 2"].map(|answer| seen.input().contains(answer)))
        .collect();
    assert_eq!(prompts, [[false, false], [false, false], [false, true]]);
    running.stop().await;
}
