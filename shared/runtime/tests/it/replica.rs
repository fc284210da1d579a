//! A process renews its registration, detects its expiry, and registers again under another id.

use runtime::{EndsWith, Replica};
use testkit::eventually;

use crate::world::{LIMIT, World};

const QUICK: &str = "[replica]\nlease_ms = 2000\nrenew_ms = 100\n";

async fn alive(world: &World) -> Vec<String> {
    world
        .database
        .texts("select id::text from replica where lease_until > now() and service = 'orchestrator'")
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
    let replica = world.context(QUICK).await.start_replica(EndsWith::Lease).await.unwrap();
    let incarnation = replica.current().expect("entered");
    let until = "select lease_until::text from replica";
    let first = world.database.texts(until).await;
    eventually("it is renewed", async || {
        (world.database.texts(until).await != first).then_some(())
    })
    .await;
    assert_eq!(replica.current().map(|current| current.id), Some(incarnation.id));
    assert_eq!(alive(&world).await, [incarnation.id.to_string()]);

    world.stop().await;
    assert!(incarnation.lost.is_cancelled());
    assert!(replica.current().is_none());
    assert!(alive(&world).await.is_empty(), "its leases are free at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn registers_under_another_id_after_its_expiry() {
    let world = World::new().await;
    let replica = world.context(QUICK).await.start_replica(EndsWith::Lease).await.unwrap();
    lost(&replica, &world, "update replica set lease_until = now() returning ''").await;
    lost(&replica, &world, "delete from replica returning ''").await;
    world.stop().await;
}

/// The database does not answer renewals: the process must detect the expiry by itself.
#[tokio::test(flavor = "multi_thread")]
async fn notices_by_its_own_clock() {
    let world = World::new().await;
    let replica = world.context(QUICK).await.start_replica(EndsWith::Lease).await.unwrap();
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

/// The connection with the presence lock may end while the process lives. The process takes the lock again and loses no
/// lease.
#[tokio::test(flavor = "multi_thread")]
async fn shows_itself_by_a_connection_and_again_when_that_has_ended() {
    let world = World::new().await;
    let shown = "select l.pid::text from replica r join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1
                 and (l.classid::bigint << 32) | l.objid::bigint = r.presence where r.lease_until > now()";
    let replica = world
        .context(QUICK)
        .await
        .start_replica(EndsWith::Connection)
        .await
        .unwrap();
    let incarnation = replica.current().expect("entered");
    let first = world.database.texts(shown).await;
    assert_eq!(first.len(), 1, "it is shown before it is entered");
    let end = format!("select pg_terminate_backend({})::text", first[0]);
    sqlx::query(sqlx::AssertSqlSafe(end))
        .execute(&world.database.owner)
        .await
        .unwrap();
    eventually("it is shown again", async || {
        let now = world.database.texts(shown).await;
        (now.len() == 1 && now != first).then_some(())
    })
    .await;
    assert_eq!(replica.current().map(|current| current.id), Some(incarnation.id));
    assert_eq!(alive(&world).await, [incarnation.id.to_string()]);
    world.stop().await;
    eventually("its connection ends with it", async || {
        world.database.texts(shown).await.is_empty().then_some(())
    })
    .await;
}

/// Other replicas are reported when they expire, and not before; a live one is not reported.
#[tokio::test(flavor = "multi_thread")]
async fn reports_the_expiry_of_another_replica() {
    let world = World::new().await;
    let one = world.context(QUICK).await.start_replica(EndsWith::Lease).await.unwrap();
    let two = world.context(QUICK).await.start_replica(EndsWith::Lease).await.unwrap();
    let (mut seen_by_one, mut seen_by_two) = (one.others(), two.others());
    let dead = "insert into replica (id, service, lease_until)
                values (gen_random_uuid(), 'orchestrator', now() + interval '1 second') returning id::text";
    let dead = world.database.texts(dead).await[0].clone();
    let resolver = "insert into replica (id, service, lease_until)
                    values (gen_random_uuid(), 'resolver', now() + interval '1 hour') returning ''";
    world.database.texts(resolver).await;
    for others in [&mut seen_by_one, &mut seen_by_two] {
        tokio::time::timeout(LIMIT, others.one_ended())
            .await
            .expect("it is told");
        assert!(!alive(&world).await.contains(&dead), "not before the time was over");
    }
    assert_eq!(alive(&world).await.len(), 2);
    let told = async |others: &mut runtime::Peers| {
        tokio::select! {
            biased;
            () = others.one_ended() => true,
            () = std::future::ready(()) => false,
        }
    };
    // A few renewals report the dead replica again; renewals of more than a lease later report none.
    let until = "select max(lease_until)::text from replica where service = 'orchestrator'";
    let mut last = String::new();
    for renewal in 0..60 {
        last = eventually("it is renewed", async || {
            let now = world.database.texts(until).await[0].clone();
            (now != last).then_some(now)
        })
        .await;
        for others in [&mut seen_by_one, &mut seen_by_two] {
            assert!(!told(others).await || renewal < 30, "those who live were told of");
        }
    }
    world.stop().await;
}
