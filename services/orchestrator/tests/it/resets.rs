//! Resets: a session's generation ends on request, at once or with its turn in progress. And the limits of generations.

use axum::http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

const SESSIONS: &str = "
    select concat_ws(' ', generation, close_reason, queued, stop_kind, stop_then, reset_request ->> 'queue', reset_request ->> 'in_flight')
    from session order by generation";
const QUEUE: &str = "
    select concat_ws(' ', s.generation, n.id) from notification n join session s on s.id = n.session_id
    where n.state = 'queued' order by n.position";

async fn working(account: &str) -> (World, Tenant, String) {
    let world = World::new().await;
    let tenant = world.tenant(account).await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    (world, tenant, coder)
}

async fn reset(world: &World, tenant: &Tenant, session: Uuid, more: Value) -> Answer {
    let mut body = json!({"reason": "it is confused"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let path = tenant.path(&format!("/sessions/{session}/reset"));
    world.post(&tenant.member, &path, body).await
}

async fn shown(world: &World, tenant: &Tenant, session: &str) -> Value {
    world
        .get(&tenant.member, &tenant.path(&format!("/sessions/{session}")))
        .await
        .body
}

#[tokio::test]
async fn a_session_at_rest_is_reset_at_once() {
    let (world, tenant, coder) = working("acme").await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    for id in ["n-1", "n-2"] {
        seed::queued(&world, &tenant, session, id).await;
    }
    let before = world.sent().await.len();
    let answer = reset(&world, &tenant, session, json!({})).await;
    let next = answer.body["session"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (answer.status.as_u16(), &answer.body),
        (200, &json!({"state": "reset", "session": next}))
    );
    assert_eq!(world.test.texts(SESSIONS).await, ["1 reset 0", "2 2"]);
    assert_eq!(world.test.texts(QUEUE).await, ["2 n-1", "2 n-2"]);

    let closed = shown(&world, &tenant, &session.to_string()).await;
    let expected =
        json!({"state": "closed", "close_reason": "reset", "close_detail": "by a member: it is confused", "queued": 0});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&closed[name], value, "{name}");
    }
    let open = shown(&world, &tenant, &next).await;
    let expected = json!({"state": "active", "generation": 2, "queued": 2, "continues_id": null, "tokens_used": 0, "reset_request": null,
        "thread": {"number": 0, "live": false}, "close_detail": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&open[name], value, "{name}");
    }
    let log = world
        .get(&tenant.member, &tenant.path(&format!("/sessions/{next}/log")))
        .await;
    let boundary = &log.body["segments"][1]["boundary"];
    let words = ["reason", "by", "detail"].map(|name| boundary[name].as_str());
    assert_eq!(words, [Some("reset"), Some("a member"), Some("it is confused")]);
    let sent: Vec<_> = world.sent().await.split_off(before);
    let mut subjects: Vec<&str> = sent.iter().map(|sent| sent.subject.as_str()).collect();
    subjects.sort_unstable();
    assert_eq!(
        subjects,
        [
            "signalbox.event.acme.PROJ-7.session.closed",
            "signalbox.event.acme.PROJ-7.session.opened",
            "signalbox.event.acme.PROJ-7.session.reset",
            "signalbox.session.closed.acme.PROJ-7",
            "signalbox.session.resolved.acme.PROJ-7"
        ]
    );
    let event = sent
        .iter()
        .find(|sent| sent.subject.ends_with("session.reset"))
        .unwrap();
    let data = &event.payload["data"];
    assert_eq!(
        (
            &data["session_id"],
            &data["next_session_id"],
            &data["reason"],
            &data["by"]["name"]
        ),
        (
            &json!(session),
            &json!(next),
            &json!("it is confused"),
            &json!("a member")
        )
    );
    let activity = world
        .get(&tenant.member, &tenant.path("/tasks/PROJ-7/activities"))
        .await;
    let of_reset = |one: &&Value| one["kind"] == "session.reset";
    let activity = activity.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(of_reset)
        .cloned()
        .unwrap();
    assert_eq!(
        (
            &activity["actor"]["name"],
            &activity["detail"]["next_session_id"],
            &activity["detail"]["reason"]
        ),
        (&json!("a member"), &json!(next), &json!("it is confused"))
    );
}

#[tokio::test]
async fn what_waits_may_be_cancelled() {
    let (world, tenant, coder) = working("acme").await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    seed::queued(&world, &tenant, session, "n-1").await;
    let answer = reset(
        &world,
        &tenant,
        session,
        json!({"queue": "cancel", "in_flight": "requeue"}),
    )
    .await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    assert_eq!(world.test.texts(SESSIONS).await, ["1 reset 0", "2 0"]);
    let item = world.get(&tenant.member, &tenant.path("/notifications/n-1")).await;
    assert_eq!(
        (&item.body["state"], &item.body["reason"]),
        (&json!("cancelled"), &json!("session reset"))
    );
    assert_eq!(
        world
            .sent_on("signalbox.event.acme.PROJ-7.notification.cancelled")
            .await
            .len(),
        1
    );
    assert_eq!(world.sent_on("signalbox.session.resolved").await.len(), 0);
}

/// The gate was of the generation that a person has ended: what waited behind it goes on.
#[tokio::test]
async fn a_reset_goes_on_with_what_a_stop_has_held() {
    for gate in ["stopped", "no_progress"] {
        let (world, tenant, coder) = working("acme").await;
        let session = seed::parked(&world, &tenant, "PROJ-7", &coder, gate).await;
        seed::queued(&world, &tenant, session, "n-1").await;
        assert_eq!(reset(&world, &tenant, session, json!({})).await.status.as_u16(), 200);
        let rows = "select concat_ws(' ', generation, phase, gate, queued) from session order by generation";
        assert_eq!(world.test.texts(rows).await, ["1 backoff 0", "2 idle 1"], "{gate}");
        assert_eq!(world.sent_on("signalbox.session.resolved").await.len(), 1);
    }
}

#[tokio::test]
async fn a_turn_in_progress_ends_first() {
    let (world, tenant, coder) = working("acme").await;
    let (session, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    seed::queued(&world, &tenant, session, "n-1").await;
    let stopping = json!({"state": "stopping", "turn": turn});
    let answer = reset(&world, &tenant, session, json!({"queue": "cancel"})).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (202, &stopping));
    assert_eq!(world.test.texts(SESSIONS).await, ["1 1 reset continue cancel cancel"]);
    let sent = world.sent_on("signalbox.session.stop_requested.acme.PROJ-7").await;
    assert_eq!((sent.len(), &sent[0].payload["kind"]), (1, &json!("reset")));
    let session_shown = shown(&world, &tenant, &session.to_string()).await;
    assert_eq!(session_shown["stopping"], json!(true));
    let request = &session_shown["reset_request"];
    assert_eq!(
        (
            &request["reason"],
            &request["queue"],
            &request["in_flight"],
            &request["by"]["name"]
        ),
        (
            &json!("it is confused"),
            &json!("cancel"),
            &json!("cancel"),
            &json!("a member")
        )
    );
    let listed = world.get(&tenant.member, &tenant.path("/sessions")).await;
    assert_eq!(listed.body["items"][0], session_shown, "the same shape");

    // A second one gets the same answer, and its words count.
    let again = reset(&world, &tenant, session, json!({"in_flight": "requeue"})).await;
    assert_eq!((again.status.as_u16(), &again.body), (202, &stopping));
    assert_eq!(world.test.texts(SESSIONS).await, ["1 1 reset continue keep requeue"]);
}

#[tokio::test]
async fn the_same_request_again_resets_once() {
    let (world, tenant, coder) = working("acme").await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let path = tenant.path(&format!("/sessions/{session}/reset"));
    let body = json!({"reason": "x"});
    let post = async || {
        let call = world.call(Method::POST, &path).token(&tenant.member);
        call.header("idempotency-key", "key-1").json(&body).send().await
    };
    let (one, two) = (post().await, post().await);
    assert_eq!((one.status.as_u16(), two.status.as_u16()), (200, 200));
    assert_eq!(one.body, two.body);
    assert_eq!(world.test.count("select count(*) from session").await, 2);
}

/// The refusal names the generation that is open, so that a client can go on with it.
#[tokio::test]
async fn a_closed_generation_and_one_piece_of_work_are_not_reset() {
    let (world, tenant, coder) = working("acme").await;
    let old = seed::session(&world, &tenant, "PROJ-7", &coder, 1, false).await;
    let alone = reset(&world, &tenant, old, json!({})).await;
    let none = "generation 1 is closed; its agent has no open session on the task";
    alone.is_problem(409, "session_closed", none);
    assert_eq!(alone.body["session"], json!(null), "none is open");
    let open = seed::session(&world, &tenant, "PROJ-7", &coder, 2, true).await;
    let refused = reset(&world, &tenant, old, json!({})).await;
    refused.is_problem(409, "session_closed", &format!("on the task is {open}"));
    assert_eq!(refused.body["session"], json!(open));

    for kind in ["branch", "replay"] {
        let id = Uuid::now_v7();
        let row = testkit::rows("session")
            .with("id", id)
            .with("kind", kind)
            .with("task_id", "proj-7");
        let row = row
            .with("agent_id", &coder)
            .with("origin_id", id)
            .with("key", format!("{kind}:{id}"));
        row.insert(&world.test.owner).await;
        let refused = reset(&world, &tenant, id, json!({})).await;
        refused.is_problem(409, "not_resettable", kind);
        assert_eq!(refused.body["session"], json!(open), "its agent's");
    }
    let rows = "select count(*) from session where close_reason = 'reset' or reset_request is not null";
    assert_eq!(world.test.count(rows).await, 0);
}

/// One session for all of an agent's work.
#[tokio::test]
async fn a_session_without_a_task_is_reset_too() {
    let (world, tenant, coder) = working("acme").await;
    let id = Uuid::now_v7();
    let row = testkit::rows("session").with("id", id).with("agent_id", &coder);
    row.insert(&world.test.owner).await;
    seed::queued(&world, &tenant, id, "n-1").await;
    let answer = reset(&world, &tenant, id, json!({})).await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    let rows = "select concat_ws(' ', kind, generation, key = 'system:agent:' || agent_id || ':acme:v' || generation, queued) from session
                order by generation";
    assert_eq!(world.test.texts(rows).await, ["system 1 t 0", "system 2 t 1"]);
    let refused = reset(&world, &tenant, id, json!({})).await;
    assert_eq!(refused.body["session"], answer.body["session"]);
}

#[tokio::test]
async fn a_reset_is_refused_for_other_roles_and_accounts_and_without_a_reason() {
    let (world, tenant, coder) = working("acme").await;
    let theirs = world.tenant("globex").await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let before = world.sent().await.len();
    let path = tenant.path(&format!("/sessions/{session}/reset"));
    for key in [&tenant.service, &tenant.publisher, &tenant.gateway] {
        let refused = world.post(key, &path, json!({"reason": "x"})).await;
        refused.is_problem(403, "forbidden", "may not do this");
    }
    for path in [path.clone(), theirs.path(&format!("/sessions/{session}/reset"))] {
        let refused = world.post(&theirs.admin, &path, json!({"reason": "x"})).await;
        refused.is_problem(404, "not_found", "");
    }
    for (body, word) in [
        (json!({}), "reason"),
        (json!({"reason": " "}), "reason"),
        (json!({"reason": "x".repeat(1_025)}), "reason"),
        (json!({"reason": "x", "queue": "drop"}), "queue"),
        (json!({"reason": "x", "in_flight": "keep"}), "in_flight"),
        (json!({"reason": "x", "fresh": true}), "fresh"),
    ] {
        let refused = world.post(&tenant.member, &path, body).await;
        refused.is_problem(400, "invalid_field", word);
    }
    assert_eq!(world.test.texts(SESSIONS).await, ["1 0"]);
    assert_eq!(world.sent().await.len(), before);
}

/// An agent's limits replace the account's; absent ones have their defaults, and null is none.
#[tokio::test]
async fn limits_of_generations_are_of_the_account_or_of_the_agent() {
    let (world, tenant, _) = working("acme").await;
    let defaults = json!({"failures_max": 3, "tokens_max": 1_000_000, "age_hours_max": null, "profile_changed": false});
    let account = tenant.path("");
    let agent = tenant.path("/agents/coder");
    assert_eq!(world.get(&tenant.admin, &account).await.body["rotation"], defaults);
    assert_eq!(
        world.get(&tenant.admin, &agent).await.body["rotation"],
        json!(null),
        "the account's"
    );
    let change = async |path: &str, rotation: Value| {
        let body = json!({ "rotation": rotation });
        world.patch(&tenant.admin, path, body).await
    };
    let changed = change(&account, json!({"failures_max": null, "age_hours_max": 24})).await;
    let expected =
        json!({"failures_max": null, "tokens_max": 1_000_000, "age_hours_max": 24, "profile_changed": false});
    assert_eq!((changed.status.as_u16(), &changed.body["rotation"]), (200, &expected));
    // Another change leaves them.
    let named = world.patch(&tenant.admin, &account, json!({"name": "Acme"})).await;
    assert_eq!(named.body["rotation"], expected);
    assert_eq!(
        change(&account, json!({})).await.body["rotation"],
        defaults,
        "they replace those before"
    );

    let changed = change(&agent, json!({"tokens_max": 5, "profile_changed": true})).await;
    let expected = json!({"failures_max": 3, "tokens_max": 5, "age_hours_max": null, "profile_changed": true});
    assert_eq!((changed.status.as_u16(), &changed.body["rotation"]), (200, &expected));
    assert_eq!(
        world.get(&tenant.admin, &tenant.path("/agents")).await.body["items"][0]["rotation"],
        expected
    );
    assert_eq!(change(&agent, json!(null)).await.body["rotation"], json!(null));
    let new = json!({"slug": "tester", "name": "Tester", "rotation": {"failures_max": 1}});
    let made = world.post(&tenant.admin, &tenant.path("/agents"), new).await;
    assert_eq!(
        (made.status.as_u16(), &made.body["rotation"]["failures_max"]),
        (201, &json!(1))
    );

    for bad in [
        json!({"failures_max": 0}),
        json!({"tokens_max": 1.5}),
        json!({"tokens": 5}),
        json!(7),
    ] {
        for path in [&account, &agent] {
            change(path, bad.clone()).await.is_problem(400, "invalid_field", "");
        }
    }
}
