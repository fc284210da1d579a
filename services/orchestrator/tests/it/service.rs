//! The whole service on a real broker: it listens, publishes accepted notifications, and consumes ended turns.

use std::{sync::Arc, time::Duration};

use contracts::{Headers, Outgoing, Root, header};
use devstack::NatsServer;
use futures::StreamExt;
use messaging::{Bus, BusOptions, Provision, Topology, TopologyLimits, User};
use runtime::{Context, Settings, Shutdown};
use serde_json::{Value, json};
use storage::Role;
use testkit::{TestDatabase, eventually, rows};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(30);
const TOKEN: &str = "the-operators-own-token";

#[tokio::test]
async fn a_notification_goes_out_and_a_reply_comes_in() {
    testkit::install_tls_provider();
    let test = TestDatabase::fresh().await;
    let nats = NatsServer::start_temporary().await.unwrap();
    let options = BusOptions {
        keys: testkit::keyring(),
        ..BusOptions::new(nats.url(), Root::default(), "test")
    };
    let bus = Bus::connect(options).await.unwrap();
    // As `signalbox migrate` does: a service alone creates no streams.
    let topology = Topology {
        limits: TopologyLimits::default(),
        provision: Provision::Update,
        scope: User::Operator,
    };
    topology.ensure(&bus).await.unwrap();
    let mut published = bus.client().subscribe("signalbox.notification.>").await.unwrap();
    let variables = [
        ("DATABASE_URL", test.url.as_str()),
        ("NATS_URL", nats.url()),
        testkit::ENVELOPE,
        ("SIGNALBOX_OPERATOR_TOKEN", TOKEN),
    ];
    let settings = Settings::load_from("[orchestrator]\nlisten = \"127.0.0.1:0\"\n", variables).unwrap();
    let shutdown = Shutdown::new();
    let context = Context::connect(Role::Orchestrator, Arc::new(settings), shutdown.clone())
        .await
        .unwrap();
    let address = orchestrator::start(context).await.unwrap();

    let client = reqwest::Client::new();
    let post = async |path: &str, body: Value| {
        let sent = client
            .post(format!("http://{address}{path}"))
            .bearer_auth(TOKEN)
            .json(&body)
            .send()
            .await
            .unwrap();
        (sent.status().as_u16(), sent.json::<Value>().await.unwrap())
    };
    let get = async |path: &str| {
        let sent = client
            .get(format!("http://{address}{path}"))
            .bearer_auth(TOKEN)
            .send()
            .await
            .unwrap();
        (sent.status().as_u16(), sent.json::<Value>().await.unwrap())
    };
    assert_eq!(get("/readyz").await.0, 200);
    assert_eq!(
        post("/api/accounts", json!({"id": "acme", "name": "Acme"})).await.0,
        201
    );
    // A link begins with the address at which the service listens.
    let new = json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true});
    let (_, made) = post("/api/orgs/acme/members", new).await;
    let link = made["link"]["sign_in_link"].as_str().unwrap();
    assert!(link.starts_with(&format!("http://{address}/sign-in/acme_")), "{link}");
    assert_eq!(client.post(link).send().await.unwrap().status(), 201);
    let (_, agent) = post("/api/orgs/acme/agents", json!({"slug": "coder", "name": "Coder"})).await;
    post(
        "/api/orgs/acme/tasks",
        json!({"id": "PROJ-7", "title": "t", "assignees": ["coder"]}),
    )
    .await;
    let accepted = post(
        "/api/orgs/acme/notifications",
        json!({"task": "PROJ-7", "agent": "coder", "body": "b", "id": "n-1"}),
    )
    .await;
    assert_eq!(accepted, (202, json!({"id": "n-1"})));
    let message = tokio::time::timeout(LIMIT, published.next()).await.unwrap().unwrap();
    assert_eq!(message.subject.as_str(), "signalbox.notification.acme.PROJ-7");
    eventually(
        "what was published leaves the outbox, but for what the resolver has to read",
        || async {
            let left = test
                .texts("select subject from outbox where stored_at is not null")
                .await;
            let unsent = test.count("select count(*) from outbox where stored_at is null").await;
            (unsent == 0 && left == ["signalbox.notification.acme.PROJ-7"]).then_some(())
        },
    )
    .await;

    let turn = ended_turn(&test, agent["id"].as_str().unwrap()).await;
    // As a delivery of the previous version publishes it.
    let event = json!({"account": "acme", "task": "PROJ-7", "at": "2026-01-01T00:00:00Z", "type": "turn.finished", "data": {
        "turn_id": turn, "session_id": Uuid::nil(), "session_key": "k", "generation": 1, "number": 1, "agent_id": agent["id"],
        "notifications": [], "state": "finished", "reply": null, "reply_cut": false, "no_reply": false, "late": false,
        "attempts": 1, "error": null}});
    let mut headers = Headers::default();
    headers.set(header::RECEIPT, Uuid::now_v7().to_string());
    let event = Outgoing {
        subject: "signalbox.event.acme.PROJ-7.turn.finished".to_owned(),
        headers,
        payload: event.to_string().into_bytes(),
    };
    bus.publish_all(&[event]).await.pop().unwrap().unwrap();
    let thread = eventually("the reply is in the thread", || async {
        let (_, thread) = get("/api/orgs/acme/tasks/PROJ-7/messages").await;
        thread["items"][0].is_object().then_some(thread)
    })
    .await;
    assert_eq!(thread["items"][0]["body"], "All green.");

    assert!(shutdown.stop(LIMIT).await.is_empty(), "all workers end in time");
    assert_eq!(shutdown.failure(), None);
}

/// A finished turn, as delivery writes it.
async fn ended_turn(test: &TestDatabase, agent: &str) -> Uuid {
    let turn = Uuid::now_v7();
    let session = Uuid::now_v7();
    let row = rows("session")
        .with("id", session)
        .with("task_id", "proj-7")
        .with("agent_id", agent);
    row.insert(&test.owner).await;
    let row = rows("turn").with("id", turn).with("reply", "All green.");
    row.from("session s").insert(&test.owner).await;
    turn
}
