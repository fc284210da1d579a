//! A process is entered once a second, knows when it is not, and comes back under another name.

use runtime::Replica;
use testkit::eventually;

use crate::world::{LIMIT, World};

const QUICK: &str = "[replica]\nlease_ms = 2000\nrenew_ms = 100\n";

async fn alive(world: &World) -> Vec<String> {
    world
        .database
        .texts("select id::text from replica where lease_until > now() and service = 'delivery'")
        .await
}

async fn lost(replica: &Replica, world: &World, how: &'static str) {
    let before = replica.current().expect("entered");
    world.database.texts(how).await;
    tokio::time::timeout(LIMIT, before.lost.cancelled())
        .await
        .expect("it notices");
    assert!(!before.is_alive());
    let after = tokio::time::timeout(LIMIT, replica.alive())
        .await
        .expect("it comes back")
        .expect("the process is not stopping");
    assert_ne!(after.id, before.id);
    assert_eq!(alive(world).await, [after.id.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn is_renewed_and_ends_at_a_stop() {
    let world = World::new().await;
    let replica = world.context(QUICK).await.start_replica().await.unwrap();
    let incarnation = replica.current().expect("entered");
    let until = "select lease_until::text from replica";
    let first = world.database.texts(until).await;
    eventually("it is renewed", async || {
        (world.database.texts(until).await != first).then_some(())
    })
    .await;
    assert_eq!(replica.replica_id(), Some(incarnation.id));
    assert_eq!(alive(&world).await, [incarnation.id.to_string()]);

    world.stop().await;
    assert!(incarnation.lost.is_cancelled());
    assert_eq!(replica.replica_id(), None);
    assert!(alive(&world).await.is_empty(), "its leases are free at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn comes_back_under_another_id_when_its_time_was_over() {
    let world = World::new().await;
    let replica = world.context(QUICK).await.start_replica().await.unwrap();
    lost(&replica, &world, "update replica set lease_until = now() returning ''").await;
    lost(&replica, &world, "delete from replica returning ''").await;
    world.stop().await;
}

/// The database does not answer renewals: the process must know without being told.
#[tokio::test(flavor = "multi_thread")]
async fn notices_by_its_own_clock() {
    let world = World::new().await;
    let replica = world.context(QUICK).await.start_replica().await.unwrap();
    let before = replica.current().expect("entered");
    let mut hold = world.database.owner.begin().await.unwrap();
    sqlx::query("select 1 from replica for update")
        .execute(&mut *hold)
        .await
        .unwrap();
    tokio::time::timeout(LIMIT, before.lost.cancelled())
        .await
        .expect("it notices");
    assert!(!before.is_alive());
    let after = tokio::time::timeout(LIMIT, replica.alive())
        .await
        .expect("it comes back")
        .unwrap();
    assert_ne!(after.id, before.id);
    hold.rollback().await.unwrap();
    world.stop().await;
}
