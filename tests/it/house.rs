//! All four services, which can be stopped one by one, and a client that knows only the public contract: HTTP with JSON, and plain
//! NATS.

use std::{net::SocketAddr, time::Duration};

use contracts::{Root, outgoing::Origin};
use domain::{AccountId, Actor, AgentId, Conversation, NotificationId, QueueLimits, SessionScope};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use storage::{
    Accounts, Role, Setting,
    outbox::outbox_insert,
    session::item_enter::{Entered, NewEntry, item_enter},
};
use testkit::{OPERATOR_TOKEN, Reply, Running, Seen, StubProvider, World, eventually};
use time::OffsetDateTime;

pub(crate) struct House {
    pub(crate) world: World,
    pub(crate) provider: StubProvider,
    pub(crate) resolver: Option<Running<SocketAddr>>,
    pub(crate) delivery: Option<Running<SocketAddr>>,
    pub(crate) tool_gateway: Option<Running<SocketAddr>>,
    pub(crate) orchestrator: Option<Running<SocketAddr>>,
    http: Client,
}

impl House {
    /// Starts everything, with a scripted provider.
    pub(crate) async fn open(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> House {
        House::open_with(script, &[]).await
    }

    pub(crate) async fn open_with(
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
        settings: &[(&str, &str)],
    ) -> House {
        let provider = StubProvider::start(script).await;
        let mut world = World::start().await;
        world.provider(&provider);
        for (setting, value) in settings {
            world.set(setting, value);
        }
        House::open_in(world, provider).await
    }

    /// In a prepared world.
    pub(crate) async fn open_in(world: World, provider: StubProvider) -> House {
        let http = Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        let mut house = House {
            world,
            provider,
            resolver: None,
            delivery: None,
            tool_gateway: None,
            orchestrator: None,
            http,
        };
        // Boxed, since the future of four starting services is large.
        Box::pin(house.up()).await;
        house
    }

    /// An item for `coder` without a task.
    pub(crate) async fn enter(&self, role: Role, account: &str, id: &str) -> Entered {
        let account = AccountId::parse(account).unwrap();
        let agent = sqlx::query_scalar("select id::text from agent where account_id = $1 and slug = 'coder'")
            .bind(account.as_str())
            .fetch_one(&self.world.database.owner);
        let agent: String = agent.await.unwrap();
        let database = self.world.database.connect(role).await;
        let tx = database.begin(&Accounts::one(&account)).await.unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/test",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let agent = AgentId::parse(&agent).unwrap();
        let conversation = Conversation::of(&account, SessionScope::Task, None, agent);
        let item = NewEntry {
            id: &NotificationId::parse(id).unwrap(),
            task: None,
            message: serde_json::from_value(json!({"body": "x", "sender": Actor::system()})).unwrap(),
        };
        let limits = QueueLimits {
            hops_max: 8,
            items_max: 100,
        };
        let (entered, messages) = item_enter(&tx, &conversation, item, &limits, &setting).await.unwrap();
        outbox_insert(&tx, messages).await.unwrap();
        tx.commit().await.unwrap();
        entered
    }

    /// Starts the stopped services.
    pub(crate) async fn up(&mut self) {
        if self.resolver.is_none() {
            self.resolver = Some(self.world.run(Role::Resolver, resolver::start).await);
        }
        if self.delivery.is_none() {
            self.delivery = Some(self.world.run(Role::Delivery, delivery::start).await);
        }
        if self.tool_gateway.is_none() {
            self.tool_gateway = Some(self.world.run(Role::ToolGateway, tool_gateway::start).await);
        }
        if self.orchestrator.is_none() {
            self.orchestrator = Some(self.world.run(Role::Orchestrator, orchestrator::start).await);
        }
    }

    /// Kills one service as SIGKILL would.
    pub(crate) fn kill(&mut self, role: Role) {
        let service = match role {
            Role::Resolver => &mut self.resolver,
            Role::Delivery => &mut self.delivery,
            Role::ToolGateway => &mut self.tool_gateway,
            Role::Orchestrator => &mut self.orchestrator,
            Role::Owner => panic!("not a service"),
        };
        if let Some(running) = service.take() {
            running.cut_off();
        }
    }

    pub(crate) fn running(&self, role: Role) -> &Running<SocketAddr> {
        let service = match role {
            Role::Resolver => &self.resolver,
            Role::Delivery => &self.delivery,
            Role::ToolGateway => &self.tool_gateway,
            Role::Orchestrator => &self.orchestrator,
            Role::Owner => panic!("not a service"),
        };
        service.as_ref().expect("the service is up")
    }

    /// Stops in order, after every committed message was sent.
    pub(crate) async fn close(mut self) {
        let world = &self.world;
        eventually("the relays send what was committed", || async {
            (world.database.count("select count(*) from outbox").await == 0).then_some(())
        })
        .await;
        let violations = world.nats.violations().expect("the broker's log");
        assert_eq!(violations, Vec::<String>::new(), "a user was refused what it needs");
        for running in [
            self.resolver.take(),
            self.delivery.take(),
            self.tool_gateway.take(),
            self.orchestrator.take(),
        ]
        .into_iter()
        .flatten()
        {
            assert_eq!(running.failure(), None, "a worker failed");
            running.stop().await;
        }
    }

    // ---- the public contract ----------------------------------------------------------------------------------

    pub(crate) fn api(&self) -> String {
        format!(
            "http://{}",
            self.orchestrator.as_ref().expect("the orchestrator is up").started
        )
    }

    pub(crate) fn agent_api(&self) -> String {
        format!(
            "http://{}",
            self.tool_gateway.as_ref().expect("the tool-gateway is up").started
        )
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        url: String,
        token: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request = self.http.request(method, url).bearer_auth(token);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self
            .call(Method::GET, format!("{}{path}", self.api()), OPERATOR_TOKEN, &[], None)
            .await;
        assert_eq!(status, StatusCode::OK, "GET {path}: {body}");
        body
    }

    pub(crate) async fn try_get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::GET, format!("{}{path}", self.api()), OPERATOR_TOKEN, &[], None)
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self
            .call(
                Method::POST,
                format!("{}{path}", self.api()),
                OPERATOR_TOKEN,
                &[],
                Some(body),
            )
            .await;
        assert!(status.is_success(), "POST {path}: {status} {answer}");
        answer
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self
            .call(
                Method::PATCH,
                format!("{}{path}", self.api()),
                OPERATOR_TOKEN,
                &[],
                Some(body),
            )
            .await;
        assert!(status.is_success(), "PATCH {path}: {status} {answer}");
        answer
    }

    pub(crate) async fn account(&self, id: &str) {
        self.post("/api/accounts", json!({"id": id, "name": id})).await;
    }

    /// Its id.
    pub(crate) async fn agent(&self, account: &str, slug: &str) -> String {
        let agent = self
            .post(
                &format!("/api/orgs/{account}/agents"),
                json!({"slug": slug, "name": slug}),
            )
            .await;
        agent["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn task(&self, account: &str, id: &str, assignees: &[&str]) {
        self.post(
            &format!("/api/orgs/{account}/tasks"),
            json!({"id": id, "title": id, "assignees": assignees}),
        )
        .await;
    }

    pub(crate) async fn status(&self, account: &str, task: &str, status: &str) {
        self.patch(&format!("/api/orgs/{account}/tasks/{task}"), json!({"status": status}))
            .await;
    }

    /// A key of the account, shown once.
    pub(crate) async fn key(&self, account: &str, role: &str) -> String {
        let key = self
            .post(
                &format!("/api/orgs/{account}/keys"),
                json!({"name": role, "role": role}),
            )
            .await;
        key["key"].as_str().unwrap().to_owned()
    }

    /// Publishes with plain NATS.
    pub(crate) async fn publish(&self, account: &str, task: &str, payload: Value) {
        self.world
            .publish_raw(
                format!("signalbox.notification.{account}.{task}"),
                payload.to_string().into(),
            )
            .await;
    }

    pub(crate) async fn notify(&self, account: &str, task: &str, agent: &str, id: &str, body: &str) {
        let person = json!({"kind": "user", "id": "u-1", "name": "A person"});
        self.publish(
            account,
            task,
            json!({"id": id, "agent": agent, "body": body, "sender": person}),
        )
        .await;
    }

    pub(crate) async fn notification(&self, account: &str, id: &str) -> Value {
        let (status, body) = self.try_get(&format!("/api/orgs/{account}/notifications/{id}")).await;
        if status == StatusCode::OK { body } else { Value::Null }
    }

    /// Waits until the notification has the state; gives the notification.
    pub(crate) async fn until(&self, account: &str, id: &str, state: &str) -> Value {
        eventually(&format!("notification {id} becomes {state}"), || async {
            let notification = self.notification(account, id).await;
            (notification["state"] == state).then_some(notification)
        })
        .await
    }

    pub(crate) async fn sessions(&self, account: &str, query: &str) -> Vec<Value> {
        self.get(&format!("/api/orgs/{account}/sessions?{query}")).await["items"]
            .as_array()
            .unwrap()
            .clone()
    }
}
