//! Replies of ended turns in their threads: once, and only if there is one.

use bytes::Bytes;
use contracts::{
    Headers, Outgoing,
    event::{Event, EventMessage, ReplyTo, TurnFinished},
};
use domain::{AccountId, AgentId, Fence, Generation, SessionId, TurnId, TurnState};
use messaging::{BatchHandler, Incoming, Verdict};
use orchestrator::handlers::turn_finished::TurnFinishedHandler;
use serde_json::{Value, json};
use testkit::rows;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    seed::{self, Ended},
    world::{Tenant, World},
};

/// An event as the previous version's delivery sends it; only the turn's name is read from it.
pub(crate) fn event(tenant: &Tenant, turn: Uuid) -> Incoming {
    let finished = TurnFinished {
        turn_id: TurnId(turn),
        session_id: SessionId(Uuid::nil()),
        session_key: "k".to_owned(),
        generation: Generation(1),
        fence: Fence(1),
        number: 1,
        agent_id: AgentId(Uuid::nil()),
        notifications: Vec::new(),
        state: TurnState::Finished,
        reply: Some("not what is in the row".to_owned()),
        reply_cut: true,
        no_reply: false,
        late: false,
        attempts: 1,
        error: None,
        reply_to: ReplyTo::Thread,
    };
    let message = EventMessage {
        account: AccountId::parse(&tenant.id).ok(),
        task: None,
        at: OffsetDateTime::UNIX_EPOCH.into(),
        event: Event::TurnFinished(finished),
    };
    incoming(&tenant.id, serde_json::to_vec(&message).unwrap())
}

fn incoming(account: &str, payload: Vec<u8>) -> Incoming {
    let mut headers = Headers::default();
    headers.set(contracts::header::RECEIPT, Uuid::now_v7().to_string());
    Incoming {
        subject: format!("signalbox.event.{account}.-.turn.finished"),
        headers,
        payload: Bytes::from(payload),
        stream_sequence: 1,
        deliveries: 1,
        published: OffsetDateTime::UNIX_EPOCH,
    }
}

pub(crate) fn published(verdict: &Verdict) -> &[Outgoing] {
    match verdict {
        Verdict::Done(outgoing) => outgoing,
        other => panic!("not done: {other:?}"),
    }
}

#[tokio::test]
async fn a_reply_enters_its_thread_once() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &["coder"]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let turn = seed::turn(&world, &tenant, session, 1, Ended::default()).await;
    let handler = TurnFinishedHandler::new(world.app.clone());

    let twice = handler.handle(&[event(&tenant, turn), event(&tenant, turn)]).await;
    let again = handler.handle(&[event(&tenant, turn)]).await;
    let sent = published(&twice[0]);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].subject, "signalbox.event.acme.PROJ-7.message.posted");
    assert_eq!(
        published(&again[0]),
        sent,
        "the same event, id and all: the first may not have been sent"
    );

    let thread = world.get(&tenant.member, &tenant.path("/tasks/PROJ-7/messages")).await;
    assert_eq!(thread.column("body"), ["It is done."]);
    let message = &thread.body["items"][0];
    assert_eq!(
        message["author"],
        json!({"kind": "agent", "id": coder, "name": "coder"})
    );
    assert_eq!(message["turn_id"], json!(turn));
    let payload: Value = serde_json::from_slice(&sent[0].payload).unwrap();
    assert_eq!(payload["data"]["message_id"], message["id"]);
    let activities = world
        .get(&tenant.member, &tenant.path("/tasks/PROJ-7/activities"))
        .await
        .column("kind");
    assert_eq!(activities.iter().filter(|kind| *kind == "message.posted").count(), 1);
    assert!(
        world.sent_on("signalbox.notification.").await.is_empty(),
        "agents' words wake nobody"
    );
}

/// This version's delivery posts a reply with its turn's record, and its event asks for no receipt.
#[tokio::test]
async fn an_event_without_a_receipt_is_only_read() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    let turn = seed::turn(&world, &tenant, session, 1, Ended::default()).await;
    let mut event = event(&tenant, turn);
    event.headers = Headers::default();
    world.app.database.close().await;
    let verdicts = TurnFinishedHandler::new(world.app.clone()).handle(&[event]).await;
    assert!(published(&verdicts[0]).is_empty());
    assert_eq!(world.test.count("select count(*) from message").await, 0);
}

#[tokio::test]
async fn what_is_late_silent_failed_or_unknown_is_not_posted() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let other = world.tenant("other").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    let mut batch = Vec::new();
    for (number, ended) in [
        Ended {
            late: true,
            ..Ended::default()
        },
        Ended {
            no_reply: true,
            ..Ended::default()
        },
        Ended {
            state: "failed",
            ..Ended::default()
        },
        Ended {
            state: "aborted",
            ..Ended::default()
        },
        Ended {
            reply: " \n",
            ..Ended::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        let number = i64::try_from(number).unwrap() + 1;
        batch.push(event(
            &tenant,
            seed::turn(&world, &tenant, session, number, ended).await,
        ));
    }
    batch.push(event(&tenant, Uuid::now_v7()));
    let good = seed::turn(&world, &tenant, session, 9, Ended::default()).await;
    batch.push(event(&other, good));
    let verdicts = TurnFinishedHandler::new(world.app.clone()).handle(&batch).await;
    assert!(
        verdicts.iter().all(|verdict| published(verdict).is_empty()),
        "{verdicts:?}"
    );
    assert_eq!(world.test.count("select count(*) from message").await, 0);
}

#[tokio::test]
async fn an_unreadable_event_dies_alone() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    let turn = seed::turn(&world, &tenant, session, 1, Ended::default()).await;
    let other = json!({"account": "acme", "task": null, "at": "2026-01-01T00:00:00Z", "type": "agent.removed",
        "data": {"agent_id": Uuid::nil(), "slug": "s"}});
    let foreign = event(&world.tenant("other").await, turn);
    let batch = [
        incoming("acme", b"nonsense".to_vec()),
        incoming("acme", serde_json::to_vec(&other).unwrap()),
        incoming("acme", foreign.payload.to_vec()),
        event(&tenant, turn),
    ];
    let verdicts = TurnFinishedHandler::new(world.app.clone()).handle(&batch).await;
    for (dead, expected) in verdicts
        .iter()
        .zip(["malformed", "subject_mismatch", "subject_mismatch"])
    {
        assert!(
            matches!(dead, Verdict::Dead { reason, .. } if reason == expected),
            "{dead:?}"
        );
    }
    assert_eq!(published(&verdicts[3]).len(), 1);
}

/// A failure for one reply does not affect the others of its batch.
#[tokio::test]
async fn a_reply_that_takes_too_long_is_tried_again_alone() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    let (mut turns, mut batch) = (Vec::new(), Vec::new());
    for number in 1..=5 {
        let turn = seed::turn(&world, &tenant, session, number, Ended::default()).await;
        turns.push(turn);
        batch.push(event(&tenant, turn));
    }
    let slow = format!(
        "create function slow() returns trigger language plpgsql as
             $$ begin raise 'too slow' using errcode = '57014'; end $$;
         create trigger slow before insert on message for each row when (new.turn_id = '{}') execute function slow()",
        turns[2]
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(slow))
        .execute(&world.test.owner)
        .await
        .unwrap();
    let verdicts = TurnFinishedHandler::new(world.app.clone()).handle(&batch).await;
    let done: Vec<bool> = verdicts
        .iter()
        .map(|verdict| matches!(verdict, Verdict::Done(_)))
        .collect();
    assert_eq!(done, [true, true, false, true, true]);
    assert_eq!(world.test.count("select count(*) from message").await, 4);
}

/// The receipt deletes the event's outbox row, also for a turn without a reply.
#[tokio::test]
async fn what_was_read_is_kept_no_longer() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    let silent = Ended {
        no_reply: true,
        ..Ended::default()
    };
    let speaks = seed::turn(&world, &tenant, session, 1, Ended::default()).await;
    let silent = seed::turn(&world, &tenant, session, 2, silent).await;
    let mut batch = Vec::new();
    for (owner, turn) in [("acme", speaks), ("acme", silent), ("-", speaks)] {
        let row = Uuid::now_v7();
        let unread = rows("outbox")
            .with("account_id", owner)
            .with("id", row)
            .with("service", "delivery");
        let unread = unread.with("subject", "signalbox.event.acme.T.turn.finished");
        unread.set("stored_at", "now()").insert(&world.test.owner).await;
        let mut event = event(&tenant, turn);
        event.headers.set(contracts::header::RECEIPT, row.to_string());
        if owner == "-" {
            event.headers.set(contracts::header::REDRIVE, "letter");
        }
        batch.push(event);
    }
    let unread = "select count(*) from outbox where service = 'delivery'";
    assert_eq!(world.test.count(unread).await, 3);
    let verdicts = TurnFinishedHandler::new(world.app.clone()).handle(&batch).await;
    assert!(
        verdicts.iter().all(|verdict| matches!(verdict, Verdict::Done(_))),
        "{verdicts:?}"
    );
    assert_eq!(world.test.count(unread).await, 0);
    assert_eq!(world.test.count("select count(*) from message").await, 1);
}

#[tokio::test]
async fn an_outage_counts_no_attempts() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.app.database.close().await;
    let verdicts = TurnFinishedHandler::new(world.app.clone())
        .handle(&[event(&tenant, Uuid::now_v7())])
        .await;
    assert!(matches!(verdicts[0], Verdict::Postpone { .. }), "{verdicts:?}");
}
