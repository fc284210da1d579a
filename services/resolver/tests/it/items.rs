//! `item_enter`: services enter items directly, next to a resolver that reads the same ids and a task that closes.

use std::sync::Arc;

use contracts::{
    Root, header,
    notification::{NotificationMessage, RefusalReason},
    outgoing::Origin,
};
use domain::{Actor, ActorKind, Conversation, NotificationId, NotificationState, QueueLimits, SessionScope};
use serde_json::{Value, json};
use storage::{
    Accounts, Role, Setting,
    outbox::outbox_insert,
    session::item_enter::{Entered, NewEntry, item_enter},
};
use time::OffsetDateTime;

use crate::scene::{LIMITS, Message, Scene, message, raw, scene, to_coder};

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

fn person() -> Actor {
    Actor {
        kind: ActorKind::User,
        id: "u-1".to_owned(),
        name: "Ann".to_owned(),
        via: None,
    }
}

fn said(body: &str, sender: Actor) -> NotificationMessage {
    let message = json!({"type": "answer", "body": body, "sender": sender});
    serde_json::from_value(message).unwrap()
}

/// The wire form of [`said`], to `coder` on PROJ-7, signed by a service.
fn sent(id: &str, body: &str, sender: Actor) -> Message {
    let payload = json!({"id": id, "agent": "coder", "type": "answer", "body": body, "sender": sender});
    Message {
        is_signed: true,
        ..message("acme", "PROJ-7", &payload)
    }
}

impl Scene {
    fn conversation(&self) -> Conversation {
        Conversation::of(&self.account, SessionScope::Task, Some(&self.task), self.coder)
    }

    /// Enters an item for `coder` on PROJ-7.
    async fn enter(
        &self,
        role: Role,
        id: &str,
        message: NotificationMessage,
        hops: u16,
        limits: &QueueLimits,
    ) -> Entered {
        let database = self.test.connect(role).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/test",
            origin: Origin {
                cause: Some("turn-1".to_owned()),
                hops,
                ..Origin::default()
            },
            now: OffsetDateTime::now_utc(),
        };
        let item = NewEntry {
            id: &NotificationId::parse(id).unwrap(),
            task: Some(&self.task),
            message,
        };
        let (entered, messages) = item_enter(&tx, &self.conversation(), item, limits, &setting)
            .await
            .unwrap();
        outbox_insert(&tx, messages).await.unwrap();
        tx.commit().await.unwrap();
        entered
    }

    /// Takes the notifications out of the outbox, as the resolver will read them.
    async fn relayed(&self) -> Vec<Message> {
        let rows: Vec<(Value, Vec<u8>)> = sqlx::query_as(
            "delete from outbox where split_part(subject, '.', 2) = 'notification' returning headers, payload",
        )
        .fetch_all(&self.test.owner)
        .await
        .unwrap();
        rows.into_iter()
            .map(|(headers, payload)| {
                assert!(headers.get(header::RECEIPT).is_some(), "it is awaited: {headers}");
                let mut message = raw("acme", "PROJ-7", std::str::from_utf8(&payload).unwrap());
                for name in [header::MESSAGE_ID, header::CAUSE, header::HOPS] {
                    message = message.with(name, headers[name].as_str().unwrap());
                }
                Message {
                    is_signed: true,
                    ..message
                }
            })
            .collect()
    }

    async fn states(&self) -> Vec<String> {
        let states = "select state || ' ' || count(*) from notification group by state order by 1";
        self.test.texts(states).await
    }
}

#[tokio::test]
async fn every_service_appends_to_the_open_session() {
    let scene = scene().await;
    let (session, _) = scene.fixture().session(&scene.account, &scene.task, scene.coder).await;
    for (n, role) in (1..).zip(ROLES) {
        let id = format!("answer-{n}");
        let entered = scene.enter(role, &id, said("Yes", person()), 2, &LIMITS).await;
        assert_eq!(entered, Entered::Placed { session, position: n });
        let again = scene.enter(role, &id, said("Yes", person()), 2, &LIMITS).await;
        assert_eq!(again, Entered::Known(NotificationState::Queued));
    }
    scene.check().await;
    let stored = scene.stored("answer-1").await.unwrap();
    assert_eq!((stored.body.as_str(), stored.task.as_deref()), ("Yes", Some("proj-7")));
    assert_eq!((stored.cause.as_deref(), stored.hops), (Some("turn-1"), 2));
    // Delivery is woken once: after the first item the session is no longer idle.
    let wakes = scene.outgoing().await;
    assert_eq!(wakes.len(), 1, "{wakes:?}");
    assert_eq!(wakes[0].0, "signalbox.session.resolved.acme.PROJ-7");
    assert_eq!(
        (&wakes[0].1["session_id"], &wakes[0].1["position"]),
        (&json!(session), &json!(1))
    );
}

#[tokio::test]
async fn without_an_open_session_the_resolver_queues_it() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    for (n, role) in (1..).zip(ROLES) {
        let id = format!("answer-{n}");
        for _ in 0..2 {
            let entered = scene.enter(role, &id, said("Yes", person()), 2, &LIMITS).await;
            assert_eq!(entered, Entered::Sent, "{role:?}");
        }
        let relayed = scene.relayed().await;
        assert_eq!(relayed.len(), 2);
        reader.take(&relayed).await;
        let stored = scene.stored(&id).await.unwrap();
        assert_eq!(
            (stored.state.as_str(), stored.position),
            ("queued", Some(1)),
            "{role:?}"
        );
        assert_eq!((stored.cause.as_deref(), stored.hops), (Some("turn-1"), 2));
        // The act is repeated after the resolver queued its item.
        let entered = scene.enter(role, &id, said("Yes", person()), 2, &LIMITS).await;
        assert_eq!(entered, Entered::Known(NotificationState::Queued));
        scene.task_close(domain::TaskStatus::Cancelled).await;
    }
    scene.check().await;
    assert_eq!(scene.states().await, ["cancelled 4"]);
    let accepted = "select id from accepted_notification order by id";
    assert_eq!(
        scene.test.texts(accepted).await,
        ["answer-1", "answer-2", "answer-3", "answer-4"]
    );
}

#[tokio::test]
async fn an_id_is_one_item_on_every_path() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("first", "b"), sent("n", "Yes", person())]).await;
    let known = scene
        .enter(Role::Delivery, "n", said("Yes", person()), 0, &LIMITS)
        .await;
    assert_eq!(known, Entered::Known(NotificationState::Queued));
    let other = scene.enter(Role::Delivery, "n", said("No", person()), 0, &LIMITS).await;
    let conflict =
        |entered: &Entered| matches!(entered, Entered::Refused(refusal) if refusal.reason == RefusalReason::IdConflict);
    assert!(conflict(&other), "{other:?}");

    scene
        .enter(Role::ToolGateway, "m", said("Yes", person()), 0, &LIMITS)
        .await;
    let committed = reader.take(&[sent("m", "Yes", person())]).await;
    assert_eq!((committed.duplicates, committed.refusals.len()), (1, 0));
    let committed = reader.take(&[sent("m", "No", person())]).await;
    assert_eq!(committed.refusals, [RefusalReason::IdConflict]);
    scene.check().await;
    assert_eq!(scene.states().await, ["queued 3"]);
}

#[tokio::test]
async fn the_limits_are_the_resolver_s() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let limits = QueueLimits {
        items_max: 10,
        ..LIMITS
    };
    reader.handler.limits = limits;
    let reason = |entered: Entered| match entered {
        Entered::Refused(refusal) => Some(refusal.reason),
        Entered::Placed { .. } | Entered::Known(_) | Entered::Sent => None,
    };
    let service = || Actor::publisher();

    // No session is open: a chain that is too long is not passed on.
    let far = scene
        .enter(
            Role::Orchestrator,
            "far",
            said("x", person()),
            LIMITS.hops_max + 1,
            &limits,
        )
        .await;
    assert_eq!(reason(far), Some(RefusalReason::HopLimit));
    assert_eq!(scene.outgoing().await.len(), 0);

    let seven: Vec<Message> = (0..7).map(|n| to_coder(&format!("n-{n}"), "b")).collect();
    assert_eq!(reader.take(&seven).await.refusals, []);
    let last = scene
        .enter(Role::Delivery, "eighth", said("x", service()), 0, &limits)
        .await;
    assert_eq!(reason(last), None);
    // The session has room for one item of the batch.
    let committed = reader.take(&[to_coder("ninth", "b"), to_coder("tenth", "b")]).await;
    assert_eq!(committed.refusals, [RefusalReason::QueueFull]);
    let full = scene
        .enter(Role::Delivery, "more", said("x", service()), 0, &limits)
        .await;
    assert_eq!(reason(full), Some(RefusalReason::QueueFull));
    // The last tenth is for people, and Signalbox itself is not limited.
    assert_eq!(reader.take(&[sent("person", "x", person())]).await.refusals, []);
    let full = scene
        .enter(Role::Delivery, "person-2", said("x", person()), 0, &limits)
        .await;
    assert_eq!(reason(full), Some(RefusalReason::QueueFull));
    let system = scene
        .enter(Role::Delivery, "system", said("x", Actor::system()), 0, &limits)
        .await;
    assert_eq!(reason(system), None);
    // Nothing is accepted in part, although `reviewer` has room.
    let both = json!({"id": "both", "agents": ["coder", "reviewer"], "body": "b"});
    assert_eq!(
        reader.take(&[message("acme", "PROJ-7", &both)]).await.refusals,
        [RefusalReason::QueueFull]
    );
    scene.check().await;
    assert_eq!(scene.states().await, ["queued 11", "refused 5"]);

    for id in ["far", "tenth", "more", "person-2", "both"] {
        let stored = scene.stored(id).await.unwrap();
        assert!(
            stored
                .reason
                .unwrap()
                .starts_with(if id == "far" { "hop_limit: " } else { "queue_full: " })
        );
    }
    // The refused one is queued once there is room.
    let letter = "select count(*) from dead_letter where reason = 'queue_full'";
    assert_eq!(scene.test.count(letter).await, 2);
    scene.task_close(domain::TaskStatus::Cancelled).await;
    assert_eq!(reader.take(&[to_coder("tenth", "b").again()]).await.requeued, 1);
    scene.check().await;
}

/// `coder` has no room, `reviewer` has: a notification for both opens no session and creates no task. One for `reviewer`
/// alone, in the same batch, does.
#[tokio::test]
async fn a_refused_notification_opens_no_session_and_creates_no_task() {
    let scene = scene().await;
    scene
        .fixture()
        .account_set(&scene.account, "session_scope", "agent")
        .await;
    let mut reader = scene.reader().await;
    reader.handler.limits = QueueLimits { items_max: 1, ..LIMITS };
    let to = |id: &str, task: &str, agents: &[&str]| {
        let payload = json!({"id": id, "agents": agents, "title": id, "body": "b"});
        message("acme", task, &payload)
    };
    assert_eq!(reader.take(&[to_coder("n-1", "b")]).await.refusals, []);
    let committed = reader
        .take(&[
            to("both", "NEW-1", &["coder", "reviewer"]),
            to("both-2", "new-1", &["coder", "reviewer"]),
            to("both-3", "NEW-2", &["coder", "reviewer"]),
            // Refused before its session is looked for, when the task still was to be created.
            to("unknown", "new-1", &["nobody"]),
        ])
        .await;
    assert_eq!(committed.refusals.len(), 4);
    const UNCREATED: &str = "select n.id from notification n where n.task_id is not null and not exists (
        select from task t where t.account_id = n.account_id and t.id = n.task_id)";
    assert_eq!(scene.test.texts(UNCREATED).await, [""; 0]);
    assert_eq!(scene.sessions().await.len(), 1);
    assert_eq!(scene.test.texts("select id from task order by id").await, ["proj-7"]);
    scene.check().await;

    reader
        .take(&[
            to("both-4", "NEW-3", &["coder", "reviewer"]),
            to("unknown-2", "new-3", &["nobody"]),
            to("one", "new-3", &["reviewer"]),
        ])
        .await;
    assert_eq!(scene.sessions().await.len(), 2);
    let tasks = "select display_id || ' ' || title from task order by id";
    assert_eq!(scene.test.texts(tasks).await, ["NEW-3 one", "PROJ-7 PROJ-7"]);
    let opened = scene.outgoing().await;
    let opened = opened
        .iter()
        .filter(|(subject, _)| subject.ends_with(".session.opened"));
    assert_eq!(opened.count(), 2);
    scene.check().await;
}

/// Two services enter the same items, a resolver reads the same notifications, and the task closes repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_item_is_stored_once_in_every_order_of_arrival() {
    const ITEMS: usize = 30;
    let scene = Arc::new(scene().await);
    let entering = [Role::Delivery, Role::Orchestrator].map(|role| {
        let scene = Arc::clone(&scene);
        tokio::spawn(async move {
            for n in 0..ITEMS {
                let entered = scene
                    .enter(role, &format!("n-{n}"), said("Yes", person()), 0, &LIMITS)
                    .await;
                assert!(!matches!(entered, Entered::Refused(_)), "{entered:?}");
            }
        })
    });
    let reading = {
        let scene = Arc::clone(&scene);
        tokio::spawn(async move {
            let mut reader = scene.reader().await;
            for n in (0..ITEMS).rev() {
                let committed = reader.take(&[sent(&format!("n-{n}"), "Yes", person())]).await;
                assert_eq!(committed.refusals, []);
                let relayed = scene.relayed().await;
                if !relayed.is_empty() {
                    assert_eq!(reader.take(&relayed).await.refusals, []);
                }
            }
            reader
        })
    };
    let closing = {
        let scene = Arc::clone(&scene);
        tokio::spawn(async move {
            for _ in 0..15 {
                scene.task_close(domain::TaskStatus::Cancelled).await;
            }
        })
    };
    for task in entering {
        task.await.unwrap();
    }
    closing.await.unwrap();
    let mut reader = reading.await.unwrap();
    let relayed = scene.relayed().await;
    if !relayed.is_empty() {
        assert_eq!(reader.take(&relayed).await.refusals, []);
    }
    scene.check().await;
    let ended = "select count(*) from notification where state in ('queued', 'cancelled')";
    assert_eq!(scene.test.count(ended).await, ITEMS as i64);
}
