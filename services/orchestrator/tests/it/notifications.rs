//! Notifications over HTTP: accepted, visible at once, and their states.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::rows;

use crate::{
    seed,
    world::{OPERATOR, World},
};

#[tokio::test]
async fn what_is_accepted_is_published_and_found_at_once() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let path = tenant.path("/notifications");
    let full = json!({"task": "PROJ-7", "id": "ci-1", "type": "ci_failed", "agent": "coder", "title": "CI", "body": "Tests fail",
        "sender": {"kind": "service", "id": "ci", "name": "CI"}, "queue_mode": "followup", "metadata": {"run": 1}, "branch": "main"});
    let accepted = world.post(&tenant.service, &path, full.clone()).await;
    assert_eq!(
        (accepted.status.as_u16(), &accepted.body),
        (202, &json!({"id": "ci-1"}))
    );
    let sent = world.sent_on("signalbox.notification.acme.PROJ-7").await;
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].headers["Nats-Msg-Id"], "acme:ci-1");
    assert_eq!(
        (&sent[0].payload["id"], &sent[0].payload["agent"]),
        (&json!("ci-1"), &json!("coder"))
    );
    assert_eq!(sent[0].payload["metadata"], json!({"run": 1, "branch": "main"}));
    assert!(sent[0].payload.get("task").is_none());

    let found = world.get(&tenant.member, &format!("{path}/ci-1")).await;
    assert_eq!(found.status, 200);
    for (name, value) in [
        ("id", "ci-1"),
        ("task", "PROJ-7"),
        ("agent", "coder"),
        ("type", "ci_failed"),
        ("state", "queued"),
    ] {
        assert_eq!(found.body[name], value);
    }
    for name in ["session_id", "session_key", "turn_id"] {
        assert!(found.body[name].is_null() && found.body.get(name).is_some(), "{name}");
    }
    assert_eq!(found.body["attempts"], 0);
    // Why it waits: not published, not read, or being written now.
    let reason = async || {
        let found = world.get(&tenant.member, &format!("{path}/ci-1")).await;
        found.body["reason"].clone()
    };
    assert_eq!(reason().await, "waits_for_broker");
    world
        .execute("update outbox set stored_at = now(), look_at = now()")
        .await;
    assert_eq!(reason().await, "waits_for_resolver");
    world.execute("delete from outbox").await;
    assert_eq!(reason().await, serde_json::Value::Null);

    // the same request is the same notification; other content under its id is refused
    assert_eq!(world.post(&tenant.service, &path, full.clone()).await.status, 202);
    let mut other = full;
    other["body"] = json!("Something else");
    world
        .post(&tenant.service, &path, other)
        .await
        .is_problem(409, "id_conflict", "ci-1");
    world
        .get(&tenant.member, &format!("{path}/ci-2"))
        .await
        .is_problem(404, "not_found", "");
}

#[tokio::test]
async fn what_is_left_out_is_filled_in() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let accepted = world
        .post(
            &tenant.member,
            &tenant.path("/notifications"),
            json!({"agent": "coder", "body": "b"}),
        )
        .await;
    let id = accepted.body["id"].as_str().unwrap();
    let sent = world.sent_on("signalbox.notification.acme.-").await;
    assert_eq!(sent[0].payload["id"], id);
    assert_eq!(
        (&sent[0].payload["sender"]["kind"], &sent[0].payload["sender"]["name"]),
        (&json!("user"), &json!("a member"))
    );
    let found = world
        .get(&tenant.member, &tenant.path(&format!("/notifications/{id}")))
        .await;
    assert!(found.body["task"].is_null());
}

#[tokio::test]
async fn what_nats_would_refuse_is_refused_here() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let check = async |body: serde_json::Value, status, code, words| {
        world
            .post(&tenant.service, &tenant.path("/notifications"), body)
            .await
            .is_problem(status, code, words);
    };
    check(json!({}), 400, "invalid_field", "body: missing").await;
    check(json!({"body": "b", "agent": "No Body"}), 400, "invalid_field", "agent").await;
    check(
        json!({"body": "b", "agent": "a", "agents": ["b"]}),
        400,
        "invalid_field",
        "not both",
    )
    .await;
    check(json!({"body": "a\u{0}b"}), 400, "invalid_field", "U+0000").await;
    check(json!({"body": "b", "task": "not a task"}), 400, "invalid_field", "task").await;
    check(json!({"body": "b", "id": ""}), 400, "invalid_field", "id").await;
    check(
        json!({"body": "x".repeat(256 * 1024 + 1)}),
        413,
        "too_large",
        "at most 262144",
    )
    .await;
    check(json!([1]), 400, "malformed", "not an object").await;
    assert!(world.sent_on("signalbox.notification.").await.is_empty());
    assert_eq!(world.test.count("select count(*) from accepted_notification").await, 0);
}

#[tokio::test]
async fn what_became_of_it_is_told() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    let tester = world.agent(&tenant, "tester").await;
    world.task(&tenant, "PROJ-7", &["coder"]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    seed::queued(&world, &tenant, session, "n 1").await;
    seed::notification(&world, &tenant, "n-2", &tester, "refused").await;

    let found = world.get(&tenant.member, &tenant.path("/notifications/n%201")).await;
    assert_eq!(
        (&found.body["task"], &found.body["agent"]),
        (&json!("PROJ-7"), &json!("coder"))
    );
    assert_eq!(
        (&found.body["agent_id"], &found.body["session_id"]),
        (&json!(coder), &json!(session))
    );
    assert_eq!(found.body["session_key"], format!("task:proj-7:agent:{coder}:acme:v1"));
    assert_eq!(found.body["sender"]["name"], "A person");

    let list = async |query: &str| {
        world
            .get(&tenant.member, &tenant.path(&format!("/notifications{query}")))
            .await
            .column("id")
    };
    assert_eq!(list("").await, ["n-2", "n 1"]);
    assert_eq!(list("?state=refused").await, ["n-2"]);
    assert_eq!(list("?task=proj-7").await, ["n 1"]);
    assert_eq!(list("?agent=tester").await, ["n-2"]);
    assert_eq!(list(&format!("?agent={coder}")).await, ["n 1"]);
    let first = world.get(&tenant.member, &tenant.path("/notifications?limit=1")).await;
    let cursor = first.body["next_cursor"].as_str().unwrap();
    assert_eq!(list(&format!("?limit=1&cursor={cursor}")).await, ["n 1"]);
    world
        .get(&tenant.member, &tenant.path("/notifications?state=lost"))
        .await
        .is_problem(400, "invalid_field", "");
}

#[tokio::test]
async fn one_for_several_agents_is_told_by_its_parts() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    let tester = world.agent(&tenant, "tester").await;
    let body = json!({"id": "all", "agents": ["coder", "tester"], "body": "b"});
    world.post(&tenant.member, &tenant.path("/notifications"), body).await;
    let read = async || world.get(&tenant.member, &tenant.path("/notifications/all")).await.body;
    assert_eq!(read().await["state"], "queued", "before the resolver has seen it");
    seed::notification(&world, &tenant, &format!("all:{coder}"), &coder, "delivered").await;
    seed::notification(&world, &tenant, &format!("all:{tester}"), &tester, "failed").await;
    let told = read().await;
    assert_eq!(
        (&told["id"], &told["state"], &told["agent"]),
        (&json!("all"), &json!("failed"), &json!(null))
    );
    assert_eq!(
        told["parts"][0],
        json!({"id": format!("all:{coder}"), "agent": "coder", "state": "delivered"})
    );
    assert_eq!(told["parts"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_account_with_more_waiting_than_its_share_is_refused_and_nobody_else() {
    let world = World::new().await;
    world.app.shares.limit(runtime::settings::Bytes::new(4 * 5_000));
    let (acme, globex) = (world.tenant("acme").await, world.tenant("globex").await);
    world.task(&acme, "PROJ-7", &[]).await;
    let post = async |tenant: &crate::world::Tenant| {
        let body = json!({"body": "x".repeat(2_000)});
        world.post(&tenant.member, &tenant.path("/notifications"), body).await
    };
    let look = async || world.app.shares.look(&world.app.database).await.unwrap();
    assert_eq!(post(&acme).await.status, 202);
    look().await;
    // One that waits for the broker, and one that the broker has.
    world
        .execute("update outbox set stored_at = now(), look_at = now()")
        .await;
    // Many earlier rows of other accounts do not change the share.
    let others = rows("outbox")
        .with("account_id", "globex")
        .with("service", "orchestrator");
    let others = others
        .with("subject", "signalbox.event.globex.-.task.created")
        .from("generate_series(1, 100000)");
    others
        .set("created_at", "now() - interval '1 hour'")
        .insert(&world.test.owner)
        .await;
    assert_eq!(post(&acme).await.status, 202);

    // Between two readings of the share as well as after one.
    for _ in 0..2 {
        let refused = post(&acme).await;
        assert_eq!(refused.headers["retry-after"], "5");
        refused.is_problem(429, "too_much_unread", "share of unread notifications is full");
        look().await;
    }
    let left = "select count(*) from outbox where account_id = 'acme' and subject like '%.notification.%'";
    assert_eq!(world.test.count(left).await, 2);
    assert_eq!(post(&globex).await.status, 202);
    // Notifications that were read no longer count.
    world.execute("delete from outbox where account_id = 'acme'").await;
    look().await;
    assert_eq!(post(&acme).await.status, 202);
}

/// A message to many agents is many notifications, each with the whole text.
#[tokio::test]
async fn each_who_is_woken_counts_as_one_that_waits() {
    let world = World::new().await;
    world.app.shares.limit(runtime::settings::Bytes::new(4 * 20_000));
    let tenant = world.tenant("acme").await;
    let mut agents = Vec::new();
    for n in 0..4 {
        agents.push(world.agent(&tenant, &format!("agent-{n}")).await);
    }
    let agents: Vec<&str> = agents.iter().map(String::as_str).collect();
    world.task(&tenant, "PROJ-7", &agents).await;
    let path = tenant.path("/tasks/PROJ-7/messages");
    let post = async || {
        let body = json!({"body": "x".repeat(3_000)});
        world.post(&tenant.member, &path, body).await
    };
    assert_eq!(post().await.status, 201);
    post().await.is_problem(429, "too_much_unread", "");
    // A refused message leaves nothing.
    assert_eq!(world.test.count("select count(*) from message").await, 1);

    // A redriven letter counts like any other message.
    let letter = seed::letter(
        &world,
        "acme",
        "signalbox.notification.acme.T",
        &format!(r#"{{"body": "{}"}}"#, "x".repeat(10_000)),
        json!({}),
    )
    .await;
    let again = tenant.path(&format!("/dead-letters/{letter}/redrive"));
    world
        .post(&tenant.admin, &again, json!({}))
        .await
        .is_problem(429, "too_much_unread", "");
    // A letter without an account counts for no account: the operator may always redrive it.
    let letter = seed::letter(&world, "-", "signalbox.notification.acme.T", "{}", json!({})).await;
    let again = format!("/api/dead-letters/{letter}/redrive");
    assert_eq!(world.post(OPERATOR, &again, json!({})).await.status, 202);
}

/// The sender that the resolver receives, for each key and each sender that the request names.
#[tokio::test]
async fn who_speaks_is_who_is_signed_in() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let path = tenant.path("/notifications");
    let sender = |kind: &str, id: &str| json!({"kind": kind, "id": id, "name": id, "via": "forged"});
    let posted = |id: &str, sender: serde_json::Value| json!({"task": "T", "id": id, "agent": "coder", "body": "b", "sender": sender});
    for key in [tenant.member.as_str(), tenant.admin.as_str(), OPERATOR] {
        for (kind, id) in [
            ("user", "ann"),
            ("service", "ci"),
            ("agent", "coder"),
            ("user", "somebody"),
        ] {
            world
                .post(key, &path, posted("n", sender(kind, id)))
                .await
                .is_problem(403, "forbidden", "sender");
        }
    }
    for key in [&tenant.member, &tenant.admin] {
        world
            .post(key, &path, posted("n", sender("user", "operator")))
            .await
            .is_problem(403, "forbidden", "sender");
    }
    for (kind, id) in [
        ("agent", "coder"),
        ("user", "operator"),
        ("service", "Oper-ator"),
        ("service", "signalbox"),
    ] {
        world
            .post(&tenant.service, &path, posted("n", sender(kind, id)))
            .await
            .is_problem(400, "invalid_field", "sender");
    }
    for (id, kind) in [("ann", "user"), ("ci", "service")] {
        let accepted = world.post(&tenant.service, &path, posted(id, sender(kind, id))).await;
        assert_eq!(accepted.status, 202);
    }
    for name in ["Operator", "signalbox"] {
        world
            .post(
                &tenant.admin,
                &tenant.path("/keys"),
                json!({"name": name, "role": "member"}),
            )
            .await
            .is_problem(400, "invalid_field", "name");
    }
    let own = json!({"task": "T", "id": "own", "agent": "coder", "body": "b"});
    assert_eq!(world.post(&tenant.member, &path, own).await.status, 202);
    let sent = world.sent_on("signalbox.notification.acme.T").await;
    let senders: Vec<&serde_json::Value> = sent.iter().map(|sent| &sent.payload["sender"]).collect();
    assert_eq!(
        senders[..2],
        [
            &json!({"kind": "user", "id": "ann", "name": "ann", "via": "a service"}),
            &json!({"kind": "service", "id": "ci", "name": "ci", "via": "a service"}),
        ]
    );
    assert_eq!((&senders[2]["kind"], senders[2].get("via")), (&json!("user"), None));
}

/// A publisher key may read the states of its own notifications and nothing else, by any name.
#[tokio::test]
async fn a_publisher_is_told_what_became_of_its_own() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    let path = tenant.path("/notifications");
    let publish = async |token: &str, id: &str| {
        let body = json!({"id": id, "agent": "coder", "title": "a secret", "body": "a secret"});
        world.post(token, &path, body).await.status.as_u16()
    };
    let read = async |id: &str| world.get(&tenant.publisher, &format!("{path}/{id}")).await;
    assert_eq!(publish(&tenant.publisher, "mine").await, 202);
    assert_eq!(read("mine").await.body["state"], "queued");
    seed::notification(&world, &tenant, "mine", &coder, "delivered").await;
    world.task(&tenant, "T", &["coder"]).await;
    let session = seed::session(&world, &tenant, "T", &coder, 1, true).await;
    sqlx::query(
        "update notification set session_id = $1, attempts = 2, title = 't', cause = 'c', message_id = gen_random_uuid(),
             metadata = '{\"a\": 1}'",
    )
    .bind(session)
    .execute(&world.test.owner)
    .await
    .unwrap();
    let told = read("mine").await;
    assert_eq!((told.status.as_u16(), &told.body["state"]), (200, &json!("delivered")));
    assert_eq!(told.body["attempts"], 2);
    let told = told.body.as_object().unwrap().iter();
    let told = told.filter(|(_, value)| !value.is_null());
    assert_eq!(
        told.map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>(),
        BTreeSet::from([
            "id",
            "agent",
            "agent_id",
            "type",
            "state",
            "session_id",
            "attempts",
            "reason",
            "revision",
            "hops",
            "queue_mode",
            "created_at"
        ])
    );
    assert_eq!(
        world.get(&tenant.member, &format!("{path}/mine")).await.body["body"],
        "b"
    );

    assert_eq!(publish(&tenant.service, "theirs").await, 202);
    // Received over NATS; its id is used again afterwards.
    seed::notification(&world, &tenant, "older", &coder, "delivered").await;
    assert_eq!(publish(&tenant.publisher, "older").await, 202);
    // The same for a notification to several agents, which has only parts.
    let part = format!("parted:{}", coder);
    seed::notification(&world, &tenant, &part, &coder, "delivered").await;
    for id in ["parted", &part] {
        assert_eq!(publish(&tenant.publisher, id).await, 202);
    }
    for id in ["theirs", "older", "nobodys", "parted", &part] {
        let found = read(id).await;
        found.is_problem(404, "not_found", "");
    }
    // The same content as another principal's, by its id.
    let same = json!({"id": "same", "body": "b", "sender": {"kind": "service", "id": "ci"}});
    for token in [&tenant.service, &tenant.publisher] {
        assert_eq!(world.post(token, &path, same.clone()).await.status, 202);
    }
    read("same").await.is_problem(404, "not_found", "");
    let list = world.get(&tenant.publisher, &path).await;
    list.is_problem(403, "forbidden", "publisher");
    // As long as an acceptance is known.
    sqlx::query("delete from accepted_notification where id = 'mine'")
        .execute(&world.test.owner)
        .await
        .unwrap();
    read("mine").await.is_problem(404, "not_found", "");
}
