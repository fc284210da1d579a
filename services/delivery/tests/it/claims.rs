//! Claims with a real Postgres, without the service's workers: the state after a claim's answer was lost.

use std::{collections::HashMap, sync::Arc};

use contracts::Root;
use delivery::{
    prompt::MarkSecret,
    settings::DeliverySettings,
    turn::claim::{Claimed, Claimer},
};
use domain::{Fence, TurnState};
use runtime::Shutdown;
use storage::{Database, DatabaseOptions, Role, replica::replica_register};
use testkit::Reply;
use uuid::Uuid;

use crate::scene::Scene;

pub(crate) async fn claimer(scene: &Scene) -> (Claimer, Database) {
    let database = Database::connect(&scene.world.database.url, Role::Delivery, &DatabaseOptions::default())
        .await
        .unwrap();
    let claimer = Claimer {
        database: database.clone(),
        root: Root::parse("signalbox").unwrap(),
        config: Arc::new(DeliverySettings::default()),
        drivers: Arc::new(HashMap::new()),
        profiles: Arc::default(),
        kept: Arc::default(),
        marks: MarkSecret::new([7; 32]),
        shutdown: Shutdown::new(),
    };
    (claimer, database)
}

pub(crate) async fn replica(database: &Database) -> Uuid {
    let id = Uuid::now_v7();
    replica_register(database, id, 60_000, None).await.unwrap();
    id
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_taken_up_by_its_replica_only() {
    let scene = Scene::with(|_| Reply::text("never asked")).await;
    scene.enqueue("n-1", "x").await;
    let (mut claimer, database) = claimer(&scene).await;
    let (ours, other) = (replica(&database).await, replica(&database).await);
    let name = [(scene.account.clone(), scene.session)];

    // The claim was committed, and its answer was lost.
    let lost = claimer.claim(&name, ours).await.unwrap();
    assert_eq!(lost.work.len(), 1);

    let theirs = claimer.claim(&name, other).await.unwrap();
    assert!(theirs.work.is_empty(), "the lease's holder is alive");
    assert_eq!(theirs.left, name);

    // The keys were changed meanwhile.
    claimer.marks = MarkSecret::new([8; 32]);
    let found = claimer.claim(&name, ours).await.unwrap();
    assert_eq!(found.work.len(), 1);
    let sent = |claimed: &Claimed| format!("{:?}", claimed.work[0].input);
    assert!(sent(&lost).contains("[begin "), "{}", sent(&lost));
    assert_eq!(sent(&found), sent(&lost), "a turn sends the same bytes");
    assert_eq!(found.work[0].turn.id, lost.work[0].turn.id, "no second turn");
    assert_eq!(found.work[0].turn.fence, Fence(lost.work[0].turn.fence.0 + 1));
    assert_eq!(scene.turns("state").await, [TurnState::Calling.as_str()]);
}
