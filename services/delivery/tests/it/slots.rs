//! A provider's slots: a session that waits for one holds no lease, and takes no place of another provider's session.

use std::sync::Arc;

use domain::AccountId;
use testkit::{Reply, StubProvider, World, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

/// A slow provider with one slot, as `default`, and a quick one for the agent `quick` of account `acme`.
async fn slow_and_quick(gate: &Arc<Semaphore>) -> (Scene, StubProvider) {
    let script = Arc::clone(gate);
    let slow = StubProvider::start(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    let quick = StubProvider::answering("ok").await;
    let mut world = World::start().await;
    world.provider(&slow);
    world.set("providers.default.in_flight_max", 1);
    world.set("providers.quick.kind", "openresponses");
    world.set("providers.quick.url", quick.url());
    world.set("providers.quick.model", "stub");
    (Scene::of(world, slow).await, quick)
}

/// `sessions` sessions with one notification each; returns the account.
async fn crowd(scene: &Scene, account: &str, sessions: usize) -> AccountId {
    let fixture = scene.world.fixture();
    let account = fixture.account(account).await;
    let agent = fixture.agent(&account, "coder").await;
    for n in 0..sessions {
        let task = fixture.task(&account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&account, &task, agent).await;
        fixture.enqueue(&account, session, &format!("n-{n}"), "x").await;
    }
    account
}

#[tokio::test]
async fn sessions_of_a_slow_provider_block_no_other_provider() {
    let gate = Arc::new(Semaphore::new(0));
    let (mut scene, quick) = slow_and_quick(&gate).await;
    scene.world.set("delivery.turns_in_flight_max", 4);
    crowd(&scene, "one", 20).await;
    crowd(&scene, "two", 20).await;
    let fixture = scene.world.fixture();
    let agent = fixture.agent(&scene.account, "quick").await;
    sqlx::query("update agent set provider = 'quick' where slug = 'quick'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();

    let running = scene.run().await;
    eventually("the slow provider has its one call", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    let task = fixture.task(&scene.account, "Q-1", &[]).await;
    let (session, _) = fixture.session(&scene.account, &task, agent).await;
    fixture.enqueue(&scene.account, session, "q-1", "x").await;
    scene.until("q-1", "delivered").await;
    assert_eq!(quick.seen().len(), 1);
    let database = &scene.world.database;
    let begun = "select count(*) from turn where provider = 'default'";
    assert_eq!(database.count(begun).await, 1, "a turn begins with its slot");
    assert_eq!(
        database
            .count("select count(*) from session where phase = 'running'")
            .await,
        1,
        "a session that waits for a slot holds no lease"
    );

    // Released slots are taken again, by all waiting sessions.
    gate.add_permits(40);
    eventually("all are delivered", || async {
        let delivered = "select count(*) from notification where state = 'delivered'";
        (database.count(delivered).await == 41).then_some(())
    })
    .await;
    assert_eq!(scene.provider.seen().len(), 40);
    running.stop().await;
}

#[tokio::test]
async fn a_session_that_waits_for_a_slot_when_its_process_dies_was_not_sent() {
    let gate = Arc::new(Semaphore::new(0));
    let (mut scene, _quick) = slow_and_quick(&gate).await;
    // A call that was sent is never resent without a lookup.
    scene.world.set("providers.default.effects", "own");
    crowd(&scene, "one", 10).await;
    let first = scene.run().await;
    eventually("the provider has its one call", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    first.cut_off();
    gate.add_permits(100);
    let second = scene.run().await;
    let database = &scene.world.database;
    eventually("all have their outcome", || async {
        let delivered = "select count(*) from notification where state = 'delivered'";
        (database.count(delivered).await == 10).then_some(())
    })
    .await;
    let unknown = "select count(*) from turn where state = 'unknown'";
    assert_eq!(database.count(unknown).await, 1, "the one that was sent");
    assert_eq!(
        database
            .count("select count(*) from turn where state = 'finished'")
            .await,
        10
    );
    assert_eq!(
        scene.provider.seen().len(),
        11,
        "each once, and the one that was sent again after a look"
    );
    second.stop().await;
}
