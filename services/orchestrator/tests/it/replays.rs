//! Replays over HTTP: what is refused, what is counted, and that a repetition makes no second one.

use axum::http::Method;
use prompt::Manifest;
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{
    seed,
    world::{Tenant, World},
};

/// A turn that has ended, with its texts.
async fn ended(account: &str) -> (World, Tenant, Uuid) {
    let world = World::new().await;
    let tenant = world.tenant(account).await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let turn = Uuid::now_v7();
    let of_session = format!("session s where s.account_id = '{}' and s.id = '{session}'", tenant.id);
    let manifest = hex::encode(Manifest::new(domain::InstructionLayout::Layered).packed());
    let context = json!({"asked": "continue", "used": "continue", "reason": "first", "thread": 1});
    let row = rows("turn").with("id", turn).with("state", "finished");
    row.set("finished_at", "now()")
        .set("manifest_packed", format!("decode('{manifest}', 'hex')"))
        .set("context", format!("'{context}'::jsonb"))
        .from(of_session)
        .insert(&world.test.owner)
        .await;
    (world, tenant, turn)
}

fn path_of(tenant: &Tenant, turn: Uuid) -> String {
    tenant.path(&format!("/turns/{turn}/replays"))
}

#[tokio::test]
async fn a_replay_is_made_once_and_waits_for_delivery() {
    let (world, tenant, turn) = ended("acme").await;
    let path = path_of(&tenant, turn);
    for token in [&tenant.publisher, &tenant.gateway] {
        assert_eq!(world.post(token, &path, json!({})).await.status, 403);
    }
    let begin = async || {
        let call = world
            .call(Method::POST, &path)
            .token(&tenant.member)
            .header("idempotency-key", "k");
        call.json(&json!({"profile": {"role": "You plan."}})).send().await
    };
    let first = begin().await;
    assert_eq!(first.status, 202, "{}", first.body);
    assert_eq!(
        begin().await.body,
        first.body,
        "a repetition has the answer of the first"
    );
    let id = first.body["id"].as_str().unwrap();
    let shown = world
        .get(&tenant.member, &tenant.path(&format!("/replays/{id}")))
        .await
        .body;
    let expected = json!({"id": id, "state": "queued", "source_turn": turn, "turn": null, "history": null, "calls": [], "unused_calls": 0,
        "reply": null, "usage": null, "error": null, "spec": {"profile": {"role": "You plan."}}});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    let list = world.get(&tenant.member, &path).await.body;
    assert_eq!(list["items"], json!([shown]));
    let rows = "select concat_ws(' ', s.kind, s.task_id, s.queued, n.id = 'replay:' || s.origin_id, n.state)
                from session s join notification n on n.session_id = s.id where s.kind = 'replay'";
    assert_eq!(world.test.texts(rows).await, ["replay proj-7 1 t queued"]);
    let opened = world.sent_on("signalbox.event.acme.PROJ-7.session.opened").await;
    assert_eq!(opened[0].payload["data"]["kind"], "replay");
    // What it is to do is not edited; it ends with its item.
    let session = shown["session"].as_str().unwrap();
    let item = tenant.path(&format!("/sessions/{session}/queue/replay:{id}"));
    let edited = world
        .patch(&tenant.admin, &item, json!({"revision": 1, "body": "x"}))
        .await;
    edited.is_problem(409, "immutable_item", "ends the replay");
    assert_eq!(world.delete(&tenant.admin, &item).await.status, 200);
    let ended = world
        .get(&tenant.member, &tenant.path(&format!("/replays/{id}")))
        .await
        .body;
    assert_eq!(ended["state"], "failed");
    let closed = "select concat_ws(' ', phase, queued, close_reason) from session where kind = 'replay'";
    assert_eq!(world.test.texts(closed).await, ["idle 0 replayed"]);
    let none = tenant.path(&format!("/replays/{}", Uuid::now_v7()));
    assert_eq!(world.get(&tenant.member, &none).await.status, 404);
    let none = path_of(&tenant, Uuid::now_v7());
    assert_eq!(world.post(&tenant.member, &none, json!({})).await.status, 404);
    assert_eq!(world.get(&tenant.member, &none).await.status, 404);
}

#[tokio::test]
async fn a_turn_whose_texts_are_gone_is_not_run_again() {
    let (world, tenant, turn) = ended("acme").await;
    let path = path_of(&tenant, turn);
    let refused = async |spec: Value, status: u16, code: &str, word: &str| {
        let answer = world.post(&tenant.member, &path, spec).await;
        answer.is_problem(status, code, word);
    };
    refused(json!({"provider": " "}), 422, "invalid_field", "provider").await;
    refused(json!({"profile": ["v1", null, null]}), 400, "invalid_field", "profile").await;
    refused(json!({"persona": "x"}), 400, "invalid_field", "persona").await;
    refused(json!({"profile": {"version": "0"}}), 422, "invalid_field", "version").await;
    refused(
        json!({"profile": {"role": "r", "instructions": "i"}}),
        422,
        "invalid_field",
        "instructions",
    )
    .await;
    let cases = [
        ("update turn set context = null", "texts_not_kept"),
        (
            "update turn set finished_at = null, state = 'calling'",
            "turn_in_progress",
        ),
        ("update agent set removed_at = now()", "agent_removed"),
    ];
    for (sql, code) in cases {
        let mut tx = world.test.owner.begin().await.unwrap();
        sqlx::query("create table kept as select * from turn")
            .execute(&mut *tx)
            .await
            .unwrap();
        sqlx::query(sql).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        refused(json!({}), 422, code, "").await;
        for back in [
            "update turn t set context = k.context, finished_at = k.finished_at, state = k.state from kept k where k.id = t.id",
            "update agent set removed_at = null",
            "drop table kept",
        ] {
            sqlx::query(back).execute(&world.test.owner).await.unwrap();
        }
    }
    assert_eq!(world.test.count("select count(*) from replay").await, 0);
}

#[tokio::test]
async fn replays_are_counted() {
    let (world, tenant, turn) = ended("acme").await;
    let path = path_of(&tenant, turn);
    for _ in 0..4 {
        assert_eq!(world.post(&tenant.member, &path, json!({})).await.status, 202);
    }
    let answer = world.post(&tenant.member, &path, json!({})).await;
    assert_eq!(answer.headers["retry-after"], "5");
    answer.is_problem(429, "too_many_replays", "4");
    let ended = "update session set closed_at = now(), close_reason = 'replayed' where kind = 'replay'";
    for _ in 0..4 {
        sqlx::query(ended).execute(&world.test.owner).await.unwrap();
        for _ in 0..4 {
            assert_eq!(world.post(&tenant.member, &path, json!({})).await.status, 202);
        }
    }
    let answer = world.post(&tenant.member, &path, json!({})).await;
    answer.is_problem(409, "replays_of_turn", "20");
    let failed = world.get(&tenant.member, &format!("{path}?limit=5")).await.body;
    assert_eq!(
        failed["items"][4]["state"], "failed",
        "its session has ended without a turn"
    );
}
