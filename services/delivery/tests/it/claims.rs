//! Claims with a real Postgres, without the service's workers: the state after a claim's answer was lost.

use std::{collections::HashMap, sync::Arc};

use contracts::Root;
use delivery::{
    breaker::Breakers,
    providers::{Driver, ProviderSettings},
    settings::DeliverySettings,
    turn::{
        claim::{Claimed, Claimer},
        starter::Starter,
    },
};
use domain::{Fence, TurnState};
use prompt::MarkSecret;
use runtime::Shutdown;
use serde_json::json;
use storage::{Database, DatabaseOptions, Role, replica::replica_register};
use testkit::Reply;
use uuid::Uuid;

use crate::scene::Scene;

pub(crate) async fn claimer(scene: &Scene) -> (Claimer, Database) {
    let settings = json!({"kind": "openresponses", "url": scene.provider.url(), "model": "stub"});
    let settings: ProviderSettings = serde_json::from_value(settings).unwrap();
    testkit::install_tls_provider();
    let driver = Arc::new(Driver::new(&settings).unwrap());
    let config = DeliverySettings::default();
    let providers = HashMap::from([("default".to_owned(), settings)]);
    let root = Root::parse("signalbox").unwrap();
    let database = Database::connect(&scene.world.database.url, Role::Delivery, &DatabaseOptions::default())
        .await
        .unwrap();
    let claimer = Claimer {
        database: database.clone(),
        root: root.clone(),
        starter: Starter {
            breakers: Arc::new(Breakers::new(root, &providers, &config)),
            config: Arc::new(config),
            drivers: Arc::new(HashMap::from([("default".to_owned(), driver)])),
            profiles: Arc::default(),
            personas: Arc::default(),
            kept: Arc::default(),
            marks: MarkSecret::new([7; 32]),
            branch_depth_max: 1,
            models: Arc::default(),
        },
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
    claimer.starter.marks = MarkSecret::new([8; 32]);
    let found = claimer.claim(&name, ours).await.unwrap();
    assert_eq!(found.work.len(), 1);
    let sent = |claimed: &Claimed| format!("{:?}", claimed.work[0].input);
    assert!(sent(&lost).contains("[begin "), "{}", sent(&lost));
    assert_eq!(sent(&found), sent(&lost), "a turn sends the same bytes");
    assert_eq!(found.work[0].turn.id, lost.work[0].turn.id, "no second turn");
    assert_eq!(found.work[0].turn.fence, Fence(lost.work[0].turn.fence.0 + 1));
    assert_eq!(scene.turns("state").await, [TurnState::Calling.as_str()]);
}

/// What a prompt shows of a thread does not depend on which messages this process has read before.
#[tokio::test]
async fn a_thread_from_the_cache_is_the_thread_as_stored() {
    let scene = Scene::with(|_| Reply::text("never asked")).await;
    let fixture = scene.world.fixture();
    let (remembering, database) = claimer(&scene).await;
    let replica = replica(&database).await;
    let name = [(scene.account.clone(), scene.session)];
    let shown_max = DeliverySettings::default().thread_messages_max.get() as usize;
    let mut posted: Vec<String> = Vec::new();
    // None, some known ones, all known, more than are shown.
    for (round, new) in [0, 2, 0, 3, 9, 1].into_iter().enumerate() {
        for _ in 0..new {
            let body = format!("message {}", posted.len());
            fixture.message(&scene.account, &scene.task, &body).await;
            posted.push(body);
        }
        scene.enqueue(&format!("n-{round}"), "x").await;
        let claimed = remembering.claim(&name, replica).await.unwrap();
        let sent = format!("{:?}", claimed.work[0].input);
        let shown: Vec<&str> = sent.match_indices("message ").map(|(at, _)| &sent[at..]).collect();
        let expected = posted.iter().rev().take(shown_max).rev();
        assert!(
            shown.iter().zip(expected).all(|(shown, body)| shown.starts_with(body)),
            "{sent}"
        );
        assert_eq!(shown.len(), posted.len().min(shown_max), "{sent}");
        sqlx::query("update session set phase = 'idle', active_turn_id = null, lease_owner = null")
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
    }
}
