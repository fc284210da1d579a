//! API keys on a real broker, with the whole service: who gets in, when a key is revoked, and event consumers.

use futures::StreamExt;
use std::{sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use contracts::Root;
use devstack::NatsServer;
use domain::ApiKey;
use messaging::{Bus, BusOptions, Provision, Topology, TopologyLimits, User};
use reqwest::{Method, StatusCode, header::HeaderMap};
use runtime::{Context, Settings, Shutdown};
use serde_json::{Value, json};
use storage::Role;
use testkit::{Proxy, TestDatabase, Way, eventually};
use tokio::{sync::mpsc, time::timeout};

const LIMIT: Duration = Duration::from_secs(20);
const TOKEN: &str = "the-operators-own-token";

struct Installation {
    nats: NatsServer,
    _test: TestDatabase,
    /// In front of the database.
    postgres: Proxy,
    database_url: String,
    http: reqwest::Client,
    /// Of the first orchestrator.
    address: String,
    running: Vec<Shutdown>,
}

impl Installation {
    async fn start() -> Installation {
        testkit::install_tls_provider();
        let nats = NatsServer::start_temporary_with(testkit::nats_users_and_keys())
            .await
            .unwrap();
        let options = BusOptions {
            keys: testkit::keyring(),
            ..BusOptions::new(nats.url_of("operator"), Root::default(), "test")
        };
        let topology = Topology {
            limits: TopologyLimits::default(),
            provision: Provision::Update,
            scope: User::Operator,
        };
        topology.ensure(&Bus::connect(options).await.unwrap()).await.unwrap();
        let test = TestDatabase::fresh().await;
        let authority = test.url.split('@').nth(1).unwrap().split('/').next().unwrap();
        let postgres = Proxy::postgres(authority.parse().unwrap()).await;
        let database_url = postgres.url(&test.url);
        let mut installation = Installation {
            nats,
            postgres,
            database_url,
            _test: test,
            http: reqwest::Client::new(),
            address: String::new(),
            running: Vec::new(),
        };
        installation.address = installation.orchestrator().await;
        for account in ["acme", "beta"] {
            let new = json!({"id": account, "name": account});
            assert_eq!(installation.post("/api/accounts", new).await.0, StatusCode::CREATED);
        }
        installation
    }

    /// Starts one more.
    async fn orchestrator(&mut self) -> String {
        let url = self.nats.url_of("orchestrator");
        let variables = [
            ("DATABASE_URL", self.database_url.as_str()),
            ("NATS_URL", url.as_str()),
            testkit::ENVELOPE,
            ("SIGNALBOX_OPERATOR_TOKEN", TOKEN),
            testkit::CALLOUT[0],
            testkit::CALLOUT[1],
        ];
        let settings = Settings::load_from("[orchestrator]\nlisten = \"127.0.0.1:0\"\n", variables).unwrap();
        let shutdown = Shutdown::new();
        let context = Context::connect(Role::Orchestrator, Arc::new(settings), shutdown.clone())
            .await
            .unwrap();
        self.running.push(shutdown);
        orchestrator::start(context).await.unwrap().to_string()
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, HeaderMap, Value) {
        let request = self
            .http
            .request(method, format!("http://{}{path}", self.address))
            .bearer_auth(TOKEN);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        (status, headers, answer.json().await.unwrap_or_default())
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, _, body) = self.ask(Method::POST, path, Some(body)).await;
        (status, body)
    }

    /// Its id and the key itself.
    async fn key(&self, account: &str, role: &str) -> (String, String) {
        let (status, made) = self
            .post(
                &format!("/api/orgs/{account}/keys"),
                json!({"name": role, "role": role}),
            )
            .await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("id"), text("key"))
    }

    async fn connect(&self, user: &str, password: &str) -> Option<(Client, mpsc::UnboundedReceiver<Event>)> {
        let (tx, events) = mpsc::unbounded_channel();
        let address: ServerAddr = format!("nats://127.0.0.1:{}", self.nats.port()).parse().unwrap();
        let inbox =
            ApiKey::parse(password).map_or("_INBOX".to_owned(), |key| format!("_I.{}.{}", key.account(), key.id()));
        let connecting = ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
            .custom_inbox_prefix(inbox)
            .event_callback(move |event| {
                let _ = tx.send(event);
                async {}
            })
            .connect(address);
        Some((connecting.await.ok()?, events))
    }

    async fn publishes(&self, client: &Client, account: &str) {
        let jetstream = async_nats::jetstream::new(client.clone());
        let sent = jetstream.publish(format!("signalbox.notification.{account}.T-1"), "{}".into());
        assert_eq!(sent.await.unwrap().await.unwrap().stream, "SIGNALBOX_NOTIFICATION");
    }
}

async fn is_disconnected(events: &mut mpsc::UnboundedReceiver<Event>) {
    let gone = async { while !matches!(events.recv().await, Some(Event::Disconnected) | None) {} };
    timeout(LIMIT, gone).await.expect("a disconnection");
}

#[tokio::test]
async fn a_key_opens_its_own_account_until_it_is_revoked() {
    let installation = Installation::start().await;
    let (id, key) = installation.key("acme", "publisher").await;
    let (_, gateway) = installation.key("acme", "gateway").await;
    let (_, other) = installation.key("beta", "service").await;
    let (client, mut events) = installation.connect("acme", &key).await.expect("a connection");
    installation.publishes(&client, "acme").await;
    // One character of the secret is another; its checksum is right.
    let wrong = {
        let parsed = ApiKey::parse(&key).unwrap();
        ApiKey::from_random(parsed.account(), [7; 40]).expose().to_owned()
    };
    let refused = [
        ("acme", wrong.as_str()),
        ("acme", "nonsense"),
        ("acme", &other),
        ("beta", &key),
        ("ghost", &key),
        ("acme", &gateway),
    ];
    for (user, password) in refused {
        let asked = std::time::Instant::now();
        assert!(installation.connect(user, password).await.is_none(), "{user}");
        let took = asked.elapsed().as_millis();
        assert!((450..1_800).contains(&took), "{user} {took} ms");
    }
    let (status, headers, _) = installation
        .ask(Method::DELETE, &format!("/api/orgs/acme/keys/{id}"), None)
        .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(headers["signalbox-nats-disconnected"], "true");
    is_disconnected(&mut events).await;
    assert!(installation.connect("acme", &key).await.is_none());
}

#[tokio::test]
async fn a_host_that_guesses_is_refused_for_a_while() {
    let installation = Installation::start().await;
    let (_, key) = installation.key("acme", "publisher").await;
    let guesses = (0..20).map(|_| installation.connect("acme", "guess"));
    let guessed = futures::future::join_all(guesses).await;
    assert!(guessed.iter().all(Option::is_none));
    assert!(installation.connect("acme", &key).await.is_none());
}

#[tokio::test]
async fn another_orchestrator_answers_and_without_one_open_connections_stay() {
    let mut installation = Installation::start().await;
    let (_, key) = installation.key("acme", "service").await;
    installation.orchestrator().await;
    installation.running[0].begin_stop();
    let connected = eventually("a connection", || async { installation.connect("acme", &key).await }).await;
    installation.running[1].begin_stop();
    eventually("refusals", || async {
        installation.connect("acme", &key).await.is_none().then_some(())
    })
    .await;
    installation.publishes(&connected.0, "acme").await;
}

#[tokio::test]
async fn without_the_database_nobody_new_comes_in() {
    let installation = Installation::start().await;
    let (_, key) = installation.key("acme", "service").await;
    let (client, _events) = installation.connect("acme", &key).await.expect("a connection");
    installation.postgres.stall(&[Way::ToServer, Way::ToClient]);
    let asked = std::time::Instant::now();
    assert!(installation.connect("acme", &key).await.is_none());
    // Refused before the server's own time-out.
    assert!(asked.elapsed() < Duration::from_millis(1_950), "{:?}", asked.elapsed());
    installation.publishes(&client, "acme").await;
    installation.postgres.heal();
    eventually("a connection", || async { installation.connect("acme", &key).await }).await;
}

#[tokio::test]
async fn a_client_comes_back_after_the_server_was_away() {
    let mut installation = Installation::start().await;
    let (_, key) = installation.key("acme", "service").await;
    let (client, _events) = installation.connect("acme", &key).await.expect("a connection");
    installation.nats.restart().await.unwrap();
    let again = async { while client.flush().await.is_err() {} };
    timeout(LIMIT, again).await.expect("a connection");
    eventually("the orchestrator's own connection", || async {
        installation.connect("acme", &key).await.is_some().then_some(())
    })
    .await;
    installation.publishes(&client, "acme").await;
}

#[tokio::test]
async fn event_consumers_are_an_account_s_and_at_most_eight() {
    let installation = Installation::start().await;
    let path = "/api/orgs/acme/event-consumers";
    let (status, made) = installation.post(path, json!({"name": "ci"})).await;
    let ci = json!({"name": "ci", "stream": "SIGNALBOX_EVENT", "consumer": "outside_acme_ci", "filter": "signalbox.event.acme.>"});
    assert_eq!((status, &made), (StatusCode::CREATED, &ci));
    // Again: the same.
    assert_eq!(
        installation.post(path, json!({"name": "ci"})).await,
        (StatusCode::CREATED, ci.clone())
    );
    for n in 1..8 {
        let (status, _) = installation.post(path, json!({"name": format!("n-{n}")})).await;
        assert_eq!(status, StatusCode::CREATED);
    }
    let (status, full) = installation.post(path, json!({"name": "n-8"})).await;
    assert_eq!(
        (status, &full["code"]),
        (StatusCode::CONFLICT, &json!("event_consumer_limit"))
    );
    for bad in ["", "A", "a_b", "a.b", &"a".repeat(33)] {
        assert_eq!(
            installation.post(path, json!({"name": bad})).await.0,
            StatusCode::BAD_REQUEST,
            "{bad}"
        );
    }
    let (_, _, listed) = installation.ask(Method::GET, path, None).await;
    assert_eq!(
        (listed["items"].as_array().unwrap().len(), &listed["items"][0]),
        (8, &ci)
    );

    let (_, key) = installation.key("acme", "service").await;
    let (client, _events) = installation.connect("acme", &key).await.expect("a connection");
    // Making a key was an event.
    let next = "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_acme_ci";
    // The event arrives with its own subject, by which a client finds no request.
    let inbox = client.new_inbox();
    let mut pulls = client.subscribe(inbox.clone()).await.unwrap();
    client
        .publish_with_reply(next, inbox, r#"{"batch":1}"#.into())
        .await
        .unwrap();
    let pulled = timeout(LIMIT, pulls.next()).await.unwrap().unwrap();
    assert!(
        pulled.subject.starts_with("signalbox.event.acme.-."),
        "{}",
        pulled.subject
    );

    let (status, _, _) = installation.ask(Method::DELETE, &format!("{path}/ci"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _, _) = installation.ask(Method::DELETE, &format!("{path}/ci"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        installation.post(path, json!({"name": "n-8"})).await.0,
        StatusCode::CREATED
    );
}
