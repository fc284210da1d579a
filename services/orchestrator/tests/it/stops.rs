//! Stopping the turn in progress of a session, and resuming a session that is parked behind a stop.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    seed,
    world::{Tenant, World},
};

const REQUEST: &str = "
    select concat_ws(' ', stop_turn_id, stop_kind, stop_by, stop_then, stop_at is not null) from session
    where stop_turn_id is not null";

const DUE: &str = "select (wake_at <= now())::text from session";

/// An account with an agent on a task.
async fn working(account: &str) -> (World, Tenant, String) {
    let world = World::new().await;
    let tenant = world.tenant(account).await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    (world, tenant, coder)
}

fn stop(tenant: &Tenant, session: Uuid) -> String {
    tenant.path(&format!("/sessions/{session}/stop"))
}

fn resume(tenant: &Tenant, session: Uuid) -> String {
    tenant.path(&format!("/sessions/{session}/resume"))
}

#[tokio::test]
async fn a_turn_in_progress_is_asked_to_stop() {
    let (world, tenant, coder) = working("acme").await;
    let (session, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    seed::queued(&world, &tenant, session, "n-1").await;
    let path = stop(&tenant, session);
    let before = world.sent().await.len();

    let answer = world.post(&tenant.member, &path, json!({})).await;
    let stopping = json!({"state": "stopping", "turn_id": turn});
    assert_eq!((answer.status.as_u16(), &answer.body), (202, &stopping));
    let requests = world.test.texts(REQUEST).await;
    assert_eq!(requests, [format!("{turn} stopped a member hold t")]);
    assert_eq!(world.test.texts(DUE).await, ["true"]);
    let sent = world.sent().await.split_off(before);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].subject, "signalbox.session.stop_requested.acme.PROJ-7");
    let expected = json!({"account": "acme", "task": "PROJ-7", "session_id": session, "turn_id": turn, "kind": "stopped",
        "session_key": format!("task:proj-7:agent:{coder}:acme:v1"), "generation": 1});
    assert_eq!(sent[0].payload, expected);

    let shown = world
        .get(&tenant.member, &tenant.path(&format!("/sessions/{session}")))
        .await;
    let listed = world.get(&tenant.member, &tenant.path("/sessions")).await;
    assert_eq!(listed.body["items"][0], shown.body, "the same shape");
    let expected = json!({"stopping": true, "active_turn_id": turn, "queued": 1, "gate": null, "gated_since": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown.body[name], value, "{name}");
    }

    // The later request decides what follows.
    let again = json!({"turn_id": turn, "then": "continue"});
    let answer = world.post(&tenant.admin, &path, again).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (202, &stopping));
    let requests = world.test.texts(REQUEST).await;
    assert_eq!(requests, [format!("{turn} stopped a admin continue t")]);
}

#[tokio::test]
async fn a_session_at_rest_and_another_turn_are_not_stopped() {
    let (world, tenant, coder) = working("acme").await;
    let (busy, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let tester = world.agent(&tenant, "tester").await;
    let idle = seed::session(&world, &tenant, "PROJ-7", &tester, 1, true).await;
    let before = world.sent().await.len();
    let check = async |session, body: Value, expected: Value| {
        let answer = world.post(&tenant.member, &stop(&tenant, session), body.clone()).await;
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &expected), "{body}");
    };
    let nothing = json!({"state": "nothing", "turn_id": null});
    check(idle, json!({}), nothing.clone()).await;
    check(idle, json!({"turn_id": turn}), nothing).await;
    for other in [Uuid::now_v7(), Uuid::nil()] {
        check(
            busy,
            json!({"turn_id": other}),
            json!({"state": "over", "turn_id": other}),
        )
        .await;
    }
    assert_eq!(world.test.texts(REQUEST).await, [] as [String; 0]);
    assert_eq!(world.sent().await.len(), before);
}

#[tokio::test]
async fn a_stop_is_refused_for_other_roles_and_accounts_and_for_a_body_that_asks_for_more() {
    let (world, tenant, coder) = working("acme").await;
    let theirs = world.tenant("globex").await;
    let (session, _) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let before = world.sent().await.len();
    for path in [stop(&tenant, session), resume(&tenant, session)] {
        for key in [&tenant.service, &tenant.publisher, &tenant.gateway] {
            world
                .post(key, &path, json!({}))
                .await
                .is_problem(403, "forbidden", "may not do this");
        }
    }
    for path in [
        stop(&tenant, session),
        stop(&theirs, session),
        stop(&theirs, Uuid::now_v7()),
        resume(&tenant, session),
        resume(&theirs, session),
    ] {
        world
            .post(&theirs.admin, &path, json!({}))
            .await
            .is_problem(404, "not_found", "");
    }
    for (body, word) in [
        (json!({"turn": session}), "unknown field `turn`"),
        (json!({"turn_id": "the last one"}), "turn_id"),
        (json!({"then": "wait"}), "then"),
    ] {
        let refused = world.post(&tenant.member, &stop(&tenant, session), body).await;
        refused.is_problem(400, "invalid_field", word);
    }
    assert_eq!(world.test.texts(REQUEST).await, [] as [String; 0]);
    assert_eq!(world.sent().await.len(), before);
}

#[tokio::test]
async fn a_parked_session_is_resumed_once() {
    let (world, tenant, coder) = working("acme").await;
    let session = seed::parked(&world, &tenant, "PROJ-7", &coder, "stopped").await;
    for id in ["n-1", "n-2"] {
        seed::queued(&world, &tenant, session, id).await;
    }
    let parked = world
        .get(&tenant.member, &tenant.path(&format!("/sessions/{session}")))
        .await;
    assert_eq!(
        (&parked.body["gate"], &parked.body["phase"]),
        (&json!("stopped"), &json!("backoff"))
    );
    assert!(parked.body["gated_since"].is_string(), "{parked:?}");
    let before = world.sent().await.len();

    let resumed = world.post(&tenant.member, &resume(&tenant, session), json!({})).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let expected = json!({"id": session, "gate": null, "gated_since": null, "queued": 2, "stopping": false});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&resumed.body[name], value, "{name}");
    }
    assert_eq!(world.test.texts(DUE).await, ["true"]);
    let again = world.post(&tenant.member, &resume(&tenant, session), json!({})).await;
    assert_eq!((again.status.as_u16(), &again.body), (200, &resumed.body));

    let mut sent = world.sent().await.split_off(before);
    sent.sort_by(|one, other| one.subject.cmp(&other.subject));
    let subjects: Vec<&str> = sent.iter().map(|sent| sent.subject.as_str()).collect();
    assert_eq!(
        subjects,
        [
            "signalbox.event.acme.PROJ-7.session.released",
            "signalbox.session.resolved.acme.PROJ-7"
        ],
        "once"
    );
    let key = format!("task:proj-7:agent:{coder}:acme:v1");
    let released = json!({"session_id": session, "session_key": key, "generation": 1, "agent_id": coder, "gate": "stopped",
        "queued": 2});
    assert_eq!(sent[0].payload["data"], released);
    let wake_up = json!({"account": "acme", "task": "PROJ-7", "session_id": session, "session_key": key, "generation": 1,
        "agent_id": coder, "position": 2});
    assert_eq!(sent[1].payload, wake_up);
    // The resolver's wake-up for the same item has another id: the broker would drop this one as its duplicate.
    let id = format!("session.resolved:{session}:2:turn:1");
    assert_eq!(sent[1].headers["Nats-Msg-Id"], id);
}

#[tokio::test]
async fn only_a_stop_is_undone() {
    let (world, tenant, coder) = working("acme").await;
    let tester = world.agent(&tenant, "tester").await;
    let writer = world.agent(&tenant, "writer").await;
    let collecting = seed::parked(&world, &tenant, "PROJ-7", &coder, "collect").await;
    let (busy, _) = seed::busy(&world, &tenant, "PROJ-7", &tester).await;
    let closed = seed::session(&world, &tenant, "PROJ-7", &writer, 1, false).await;
    let rows = "select t::text from session t order by id";
    let before = (world.sent().await.len(), world.test.texts(rows).await);
    for session in [collecting, busy, closed] {
        let read = world
            .get(&tenant.member, &tenant.path(&format!("/sessions/{session}")))
            .await;
        let answer = world.post(&tenant.member, &resume(&tenant, session), json!({})).await;
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &read.body));
    }
    let after = (world.sent().await.len(), world.test.texts(rows).await);
    assert_eq!(after, before, "nothing has changed");
}

#[tokio::test]
async fn a_resume_counts_before_the_stopped_turn_has_ended() {
    let (world, tenant, coder) = working("acme").await;
    let (session, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    seed::queued(&world, &tenant, session, "n-1").await;
    world.post(&tenant.member, &stop(&tenant, session), json!({})).await;
    let answer = world.post(&tenant.member, &resume(&tenant, session), json!({})).await;
    assert_eq!(answer.status.as_u16(), 200);
    let requests = world.test.texts(REQUEST).await;
    assert_eq!(requests, [format!("{turn} stopped a member continue t")]);
}

/// The hold may cover the item that was first, and not the one that is first now.
#[tokio::test]
async fn an_edit_of_a_paused_queue_asks_its_gate_again() {
    let (world, tenant, coder) = working("acme").await;
    let session = seed::parked(&world, &tenant, "PROJ-7", &coder, "pause").await;
    for id in ["n-1", "n-2"] {
        seed::queued(&world, &tenant, session, id).await;
    }
    let before = world.sent().await.len();
    let path = tenant.path(&format!("/sessions/{session}/queue/n-2/steer"));
    let answer = world.post(&tenant.member, &path, json!({})).await;
    assert_eq!(answer.status.as_u16(), 202, "{answer:?}");
    assert_eq!(world.test.texts(DUE).await, ["true"]);
    assert_eq!(world.test.texts("select gate from session").await, ["pause"]);
    let sent = world.sent().await.split_off(before);
    let subjects: Vec<&str> = sent.iter().map(|sent| sent.subject.as_str()).collect();
    assert!(
        subjects.contains(&"signalbox.session.resolved.acme.PROJ-7"),
        "{subjects:?}"
    );
}
