//! Edits of waiting items and released leases against delivery as it runs: a claim and an edit have one winner, the agent gets
//! what the item says when its turn begins, and a holder whose lease was taken writes nothing.

use std::sync::Arc;

use contracts::{Root, outgoing::Origin};
use domain::{Actor, ActorKind, NotificationId, NotificationState, queue::Editor};
use storage::{
    Accounts, Role, Setting,
    session::{
        queue_edit::{Edit, Refused, queue_edit},
        session_release::session_release,
        sessions_lock::{SESSIONS_LOCK, sessions_lock},
    },
};
use testkit::{Reply, eventually};
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use crate::scene::Scene;

/// A provider whose first call waits for a permit.
async fn gated() -> (Scene, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.order {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("from the first call"))),
        _ => Reply::text("from a later call"),
    })
    .await;
    (scene, gate)
}

fn ann() -> Actor {
    Actor {
        kind: ActorKind::User,
        id: "ann".to_owned(),
        name: "Ann".to_owned(),
        via: None,
    }
}

fn setting(root: &Root) -> Setting<'_> {
    Setting {
        root,
        source: "/signalbox/orchestrator",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    }
}

impl Scene {
    async fn first_call(&self) {
        eventually("the provider has a call", || async {
            (!self.provider.seen().is_empty()).then_some(())
        })
        .await;
    }

    async fn edit(&self, id: &str, edit: Edit<'_>) -> Result<(), Refused> {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let (by, root, id) = (ann(), Root::default(), NotificationId::parse(id).unwrap());
        let editor = Editor {
            actor: &by,
            is_admin: true,
        };
        let name = (self.account.clone(), self.session);
        let edited = queue_edit(&tx, (&name, Some(&id)), edit, &editor, &setting(&root))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        edited.map(|_| ())
    }

    /// Takes the lease from its holder; the wake-up is not published.
    async fn release_lease(&self) -> bool {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let name = (self.account.clone(), self.session);
        let locked = sessions_lock(&tx, SESSIONS_LOCK, &[name]).await.unwrap().remove(0);
        let root = Root::default();
        let released = session_release(&tx, &locked, &ann(), &setting(&root)).await.unwrap();
        tx.commit().await.unwrap();
        released.is_some()
    }

    async fn session_rests(&self) {
        let sql = "select concat_ws(' ', phase, queued) from session where task_id = 'proj-7'";
        eventually("the session rests", || async {
            (self.world.database.texts(sql).await == ["idle 0"]).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_replacement_between_two_turns_is_delivered_and_waits_for_no_call() {
    let (scene, gate) = gated().await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.first_call().await;
    scene.enqueue("n-2", "the old text").await;
    scene.enqueue("n-3", "to be withdrawn").await;
    let replace = Edit::Replace {
        revision: 1,
        title: None,
        body: Some("the new text"),
        mode: None,
    };
    // The first call still runs.
    scene.edit("n-2", replace).await.unwrap();
    scene.edit("n-3", Edit::Withdraw { revision: None }).await.unwrap();
    let started = scene.edit("n-1", Edit::Withdraw { revision: None }).await;
    assert!(
        matches!(started, Err(Refused::Started { turn: Some(_) })),
        "{started:?}"
    );
    gate.add_permits(1);
    scene.until("n-2", "delivered").await;
    scene.session_rests().await;
    let inputs: Vec<String> = scene.provider.seen().iter().map(testkit::Seen::input).collect();
    assert_eq!(inputs.len(), 2, "no turn for what was withdrawn: {inputs:?}");
    assert!(
        inputs[1].contains("the new text") && !inputs[1].contains("the old text"),
        "{}",
        inputs[1]
    );
    assert_eq!(
        scene.state("n-3").await,
        ("cancelled".to_owned(), Some("withdrawn: by Ann".to_owned()))
    );
    running.stop().await;
}

#[tokio::test]
async fn a_withdrawal_and_a_claim_have_one_winner() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let ids: Vec<String> = (0..30).map(|n| format!("n-{n}")).collect();
    for id in &ids {
        scene.enqueue(id, id).await;
    }
    let running = scene.run().await;
    // From the end, while claims come from the head.
    for id in ids.iter().rev() {
        let withdrawn = scene.edit(id, Edit::Withdraw { revision: None }).await;
        let expected = match withdrawn {
            Ok(()) => "cancelled",
            Err(
                Refused::Started { .. }
                | Refused::Ended {
                    state: NotificationState::Delivered,
                    ..
                },
            ) => "delivered",
            Err(refused) => panic!("{id}: {refused:?}"),
        };
        scene.until(id, expected).await;
        let turns = scene.turns("array_to_string(notification_ids, ' ')").await;
        assert_eq!(turns.contains(id), expected == "delivered", "{id} {turns:?}");
    }
    scene.session_rests().await;
    running.stop().await;
}

#[tokio::test]
async fn a_released_lease_is_taken_up_at_once_and_its_old_holder_changes_nothing() {
    let (scene, gate) = gated().await;
    scene.enqueue("n-1", "x").await;
    let holder = scene.run().await;
    scene.first_call().await;
    let other = scene.run().await;
    assert!(scene.release_lease().await);
    scene.until("n-1", "delivered").await;
    let rows = "select concat_ws(' ', t.state, t.reply, t.attempt, s.phase, s.turn_count, s.fence = t.fence) from turn t, session s
        where s.task_id = 'proj-7'";
    let before = scene.world.database.texts(rows).await;
    assert_eq!(before, ["finished from a later call 1 idle 1 t"]);
    // The first call is answered now: too late.
    gate.add_permits(1);
    scene.enqueue("n-2", "x").await;
    scene.until("n-2", "delivered").await;
    holder.stop().await;
    other.stop().await;
    let replies = scene.turns("reply").await;
    assert_eq!(replies, ["from a later call", "from a later call"]);
    assert!(!scene.release_lease().await, "no one holds it");
}
