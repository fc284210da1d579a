//! A database, a broker and tool-gateways on them; accounts with sessions and turns; and all published messages.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::jetstream::consumer::PullConsumer;
use contracts::{
    Headers, Outgoing, Root, header,
    message::Addressed as _,
    tool::{ToolFinished, ToolRequested},
    tools::OfferContext,
};
use devstack::NatsServer;
use domain::{
    AccountId, AgentId, ApiKey, CallId, Conversation, Fence, Generation, ModelKinds, SessionId, SessionScope, TaskId,
    ToolCallState, TurnId,
};
use futures::StreamExt;
use messaging::{Bus, BusOptions, Provision, Topology, TopologyLimits, User};
use runtime::{Context, Settings, Shutdown};
use serde_json::{Value, json};
use sqlx::Row;
use storage::Role;
use testkit::{Fixture, TestDatabase, enqueued, eventually, rows};
use uuid::Uuid;

/// The item that an orchestrator's first turn answers.
pub(crate) const ITEM: &str = "the-item";

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub nats: NatsServer,
    pub database: TestDatabase,
    /// The test's own connection.
    pub bus: Bus,
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// A message as published on the bus.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub subject: String,
    pub headers: Headers,
    pub payload: Value,
}

/// One running tool-gateway.
pub(crate) struct Gateway {
    pub address: SocketAddr,
    shutdown: Shutdown,
}

impl Gateway {
    pub(crate) async fn stop(&self) {
        assert!(self.shutdown.stop(LIMIT).await.is_empty(), "all workers end in time");
        assert_eq!(self.shutdown.failure(), None);
    }

    /// Ends it as a crash does.
    pub(crate) fn cut_off(&self) {
        self.shutdown.abort();
    }
}

/// A session with a turn that awaits its tools.
#[derive(Clone, Debug)]
pub(crate) struct TestSession {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub agent: AgentId,
    pub id: SessionId,
    pub key: String,
    pub turn: TurnId,
}

impl World {
    pub(crate) async fn new() -> World {
        testkit::install_tls_provider();
        let database = TestDatabase::fresh().await;
        let nats = NatsServer::start_temporary().await.expect("a broker");
        let options = BusOptions {
            keys: testkit::keyring(),
            ..BusOptions::new(nats.url(), Root::default(), "test")
        };
        let bus = Bus::connect(options).await.expect("a connection");
        // As `signalbox migrate` does: a service alone creates only what it reads from.
        let topology = Topology {
            limits: TopologyLimits::default(),
            provision: Provision::Update,
            scope: User::Operator,
        };
        topology.ensure(&bus).await.expect("streams");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut messages = bus.client().subscribe("signalbox.>").await.expect("a subscription");
        let listening = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                let mut headers = Headers::default();
                for (name, values) in message.headers.iter().flat_map(|map| map.iter()) {
                    let name: &str = name.as_ref();
                    headers.set(name, values[0].as_str());
                }
                let payload = serde_json::from_slice(&message.payload).unwrap_or(Value::Null);
                listening.lock().expect("no holder of the lock panics").push(Heard {
                    subject: message.subject.to_string(),
                    headers,
                    payload,
                });
            }
        });
        World {
            nats,
            database,
            bus,
            heard,
        }
    }

    pub(crate) async fn gateway(&self) -> Gateway {
        self.gateway_with("").await
    }

    /// A tool-gateway with further lines in its section.
    pub(crate) async fn gateway_with(&self, section: &str) -> Gateway {
        let urls = [
            ("DATABASE_URL", self.database.url.as_str()),
            ("NATS_URL", self.nats.url()),
            testkit::ENVELOPE,
        ];
        let toml = format!("[tool_gateway]\nlisten = \"127.0.0.1:0\"\n{section}");
        let settings = Arc::new(Settings::load_from(&toml, urls).expect("settings"));
        let shutdown = Shutdown::new();
        let context = Context::connect(Role::ToolGateway, settings, shutdown.clone())
            .await
            .expect("both answer");
        let address = tool_gateway::start(context).await.expect("a free port");
        Gateway { address, shutdown }
    }

    /// Waits until all messages are published, except those that only a resolver would read.
    pub(crate) async fn told(&self) {
        eventually("the outbox is empty", async || {
            let left = "select count(*) from outbox where stored_at is null or subject not like '%.notification.%'";
            (self.database.count(left).await == 0).then_some(())
        })
        .await;
    }

    /// Checks the state after an orderly end: only notifications are left, since no resolver reads them here.
    pub(crate) async fn end(&self, gateways: &[&Gateway]) {
        self.told().await;
        for gateway in gateways {
            gateway.stop().await;
        }
        assert_eq!(
            self.database
                .texts("select reason || ': ' || detail from dead_letter")
                .await,
            Vec::<String>::new()
        );
    }

    /// Until the transaction ends, calls of the account that post a message wait between their checks and their effect.
    pub(crate) async fn hold_messages(&self, account: &str) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let sql = format!(
            "create function held() returns trigger language plpgsql set search_path = public, pg_temp as $$
                 begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
             create trigger held before insert on message for each row when (new.account_id = '{account}')
                 execute function held()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&self.database.owner)
            .await
            .expect("the database is available");
        let mut held = self.database.owner.begin().await.expect("the database is available");
        sqlx::query("select pg_advisory_xact_lock(1)")
            .execute(&mut *held)
            .await
            .expect("the database is available");
        held
    }

    pub(crate) fn fixture(&self) -> Fixture<'_> {
        Fixture(&self.database)
    }

    /// Generation 1 of the agent's session on the task (or of its taskless one), and a turn in it.
    pub(crate) async fn session(&self, account: &AccountId, task: Option<&TaskId>, agent: AgentId) -> TestSession {
        let conversation = Conversation::of(account, SessionScope::Task, task, agent);
        let key = conversation.key(Generation::FIRST);
        let session = TestSession {
            account: account.clone(),
            task: task.cloned(),
            agent,
            id: SessionId(Uuid::now_v7()),
            key: key.to_string(),
            turn: TurnId(Uuid::now_v7()),
        };
        let mut row = rows("session")
            .with("account_id", account)
            .with("id", session.id)
            .with("agent_id", agent);
        if let Some(task) = task {
            row = row.with("task_id", task.key());
        }
        let row = row
            .with("phase", "waiting")
            .with("fence", 1)
            .with("active_turn_id", session.turn);
        row.insert(&self.database.owner).await;
        self.turn(&session, 1).await;
        session
    }

    /// A person's orchestrator, whose first turn calls tools.
    pub(crate) async fn orchestrator(&self, account: &AccountId, user: &str) -> TestSession {
        let key = format!("orchestrator:{account}:{user}:v1");
        self.orchestrator_of(account, key, Some(user)).await
    }

    /// The account's own.
    pub(crate) async fn account_orchestrator(&self, account: &AccountId) -> TestSession {
        self.orchestrator_of(account, format!("orchestrator:org:{account}:v1"), None)
            .await
    }

    /// The one that runs all orchestrators of the account.
    async fn hidden_agent(&self, account: &AccountId) -> Uuid {
        let found = "select id from agent where account_id = $1 and kind = 'orchestrator'";
        let found = sqlx::query_scalar(found).bind(account.as_str());
        if let Some(agent) = found.fetch_optional(&self.database.owner).await.unwrap() {
            return agent;
        }
        let agent = Uuid::now_v7();
        let hidden = rows("agent").with("id", agent).with("slug", agent);
        let hidden = hidden.with("account_id", account).with("kind", "orchestrator");
        hidden.set("removed_at", "now()").insert(&self.database.owner).await;
        agent
    }

    async fn orchestrator_of(&self, account: &AccountId, key: String, user: Option<&str>) -> TestSession {
        let agent = self.hidden_agent(account).await;
        let session = TestSession {
            account: account.clone(),
            task: None,
            agent: AgentId(agent),
            id: SessionId(Uuid::now_v7()),
            key,
            turn: TurnId(Uuid::now_v7()),
        };
        let row = rows("session").with("id", session.id).with("agent_id", agent);
        let row = row.with("kind", "orchestrator");
        let row = match user {
            Some(user) => row.with("user_id", user),
            None => row,
        };
        let row = row.with("key", &session.key).with("phase", "waiting").with("fence", 1);
        let row = row.with("account_id", account).with("active_turn_id", session.turn);
        row.insert(&self.database.owner).await;
        self.turn(&session, 1).await;
        session
    }

    /// A session in which the orchestrator of `owner` answers `guest`, in a turn on what the guest wrote. The hidden agent is there.
    pub(crate) async fn guest(&self, of: &TestSession, (owner, guest): (&str, &str)) -> TestSession {
        let session = TestSession {
            id: SessionId(Uuid::now_v7()),
            key: format!("orchestrator:{}:{owner}:guest:{guest}:v1", of.account),
            turn: TurnId(Uuid::now_v7()),
            ..of.clone()
        };
        let row = rows("session").with("id", session.id).with("agent_id", session.agent.0);
        let row = row
            .with("kind", "guest")
            .with("user_id", owner)
            .with("guest_user_id", guest);
        let row = row.with("key", &session.key).with("phase", "waiting").with("fence", 1);
        let row = row
            .with("account_id", &session.account)
            .with("active_turn_id", session.turn);
        row.insert(&self.database.owner).await;
        self.turn(&session, 1).await;
        session
    }

    /// The turn of the session, awaiting tools under fence 1: all tools of its task are offered, and time is left.
    pub(crate) async fn turn(&self, session: &TestSession, number: i64) {
        let row = rows("turn")
            .with("id", session.turn)
            .with("number", number)
            .with("state", "awaiting_tools");
        let is_orchestrator = session.key.starts_with("orchestrator:");
        let tools = names_of(OfferContext {
            is_orchestrator,
            // A call is held to whose orchestrator it is.
            is_account: is_orchestrator,
            has_mail: true,
            ..context(session.task.is_some())
        });
        let mut row = row.with("tools", format!("{{{}}}", tools.join(",")));
        if is_orchestrator {
            row = row.with("notification_ids", format!("{{{ITEM}}}"));
        }
        let row = row
            .with("hops", 2)
            .set("waiting_since", "now()")
            .with("tools_wait_ms", 600_000);
        let of_session = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            session.account, session.id
        );
        row.from(of_session).insert(&self.database.owner).await;
    }

    /// An account with an agent `coder` on task PROJ-7.
    pub(crate) async fn coder(&self, account: &str) -> TestSession {
        let fixture = self.fixture();
        let account = fixture.account(account).await;
        let agent = fixture.agent(&account, "coder").await;
        let task = fixture.task(&account, "PROJ-7", &[agent]).await;
        self.session(&account, Some(&task), agent).await
    }

    /// A key of the account.
    pub(crate) async fn api_key(&self, account: &AccountId, role: &str) -> String {
        self.api_key_of(account, role, None).await
    }

    /// A key of the account for one agent.
    pub(crate) async fn api_key_of(&self, account: &AccountId, role: &str, agent: Option<AgentId>) -> String {
        let mut random = [0; 40];
        random[..16].copy_from_slice(Uuid::now_v7().as_bytes());
        random[16..32].copy_from_slice(Uuid::now_v7().as_bytes());
        // The id is the first eight bytes, and the first bytes of a v7 UUID are the time.
        random[..8].copy_from_slice(&Uuid::now_v7().as_bytes()[8..]);
        let key = ApiKey::from_random(account, random);
        let mut row = rows("api_key")
            .with("account_id", account)
            .with("id", key.id())
            .with("role", role);
        if let Some(agent) = agent {
            row = row.with("agent_id", agent);
        }
        let digest: String = key.digest().iter().map(|byte| format!("{byte:02x}")).collect();
        row.with("digest", format!("\\x{digest}"))
            .insert(&self.database.owner)
            .await;
        key.expose().to_owned()
    }

    /// A notification that is queued in the session.
    pub(crate) async fn waiting(&self, session: &TestSession, id: &str, sender: &str) {
        let row = enqueued(&session.account, session.id)
            .with("id", id)
            .with("sender_kind", sender);
        row.insert(&self.database.owner).await;
    }

    /// Waits for this number of dead letters, and returns the account and reason of each.
    pub(crate) async fn dead_letters(&self, count: i64) -> Vec<String> {
        eventually("dead letters", async || {
            (self.database.count("select count(*) from dead_letter").await == count).then_some(())
        })
        .await;
        let letters = "select account_id || ' ' || reason from dead_letter order by created_at, id";
        self.database.texts(letters).await
    }

    pub(crate) async fn run(&self, query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>) {
        query.execute(&self.database.owner).await.expect("a row");
    }

    /// The consumer of requests, as the server sees it.
    pub(crate) async fn consumer(&self) -> async_nats::jetstream::consumer::Info {
        let jetstream = async_nats::jetstream::new(self.bus.client().clone());
        let consumer = jetstream.get_consumer_from_stream("tool_gateway_tool_requested", "SIGNALBOX_TOOL");
        let mut consumer: PullConsumer = consumer.await.expect("a consumer");
        consumer.info().await.expect("a look at it").clone()
    }

    /// Waits for this number of deliveries of requests, redeliveries included.
    pub(crate) async fn delivered(&self, times: u64) {
        eventually("deliveries", async || {
            (self.consumer().await.delivered.consumer_sequence >= times).then_some(())
        })
        .await;
    }

    /// Records the call with its turn and publishes the request, as delivery does.
    pub(crate) async fn ask(&self, request: &ToolRequested) {
        self.ask_as(request, &request.message_id()).await;
    }

    /// The same under another message id, which the broker treats as another message. The record stays.
    pub(crate) async fn ask_as(&self, request: &ToolRequested, id: &str) {
        self.record(request).await;
        self.forge(request, id).await;
    }

    /// Records the call in the turn's last round, as the agent requested it.
    pub(crate) async fn record(&self, request: &ToolRequested) {
        let call = json!({
            "call_id": request.call_id,
            "ordinal": request.ordinal,
            "name": request.name,
            "arguments": request.arguments,
        });
        self.run(
            sqlx::query(
                "update turn set journal = jsonb_build_array(jsonb_build_object(
                     'response_id', null, 'text', '', 'usage', null,
                     'calls', coalesce(journal -> 0 -> 'calls', '[]') || $3))
                 where account_id = $1 and id = $2
                   and not jsonb_path_exists(journal, '$[*].calls[*] ? (@.ordinal == $n)', jsonb_build_object('n', $4))",
            )
            .bind(request.account.as_str())
            .bind(request.turn_id.uuid())
            .bind(call)
            .bind(request.ordinal),
        )
        .await;
    }

    /// Publishes a request that no turn made, with the signature of a service.
    pub(crate) async fn forge(&self, request: &ToolRequested, id: &str) {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, id);
        self.publish(Outgoing {
            subject: request.subject(&Root::default()),
            headers,
            payload: serde_json::to_vec(request).expect("texts and numbers"),
        })
        .await;
    }

    pub(crate) async fn publish(&self, message: Outgoing) {
        for result in self.bus.publish_all(&[message]).await {
            result.expect("stored");
        }
    }

    /// Publishes the request and waits for the result.
    pub(crate) async fn call(&self, request: &ToolRequested) -> Answer {
        self.ask(request).await;
        self.answer(request).await
    }

    /// Waits for the result of a request.
    pub(crate) async fn answer(&self, request: &ToolRequested) -> Answer {
        let finished = eventually("tool.finished", async || self.finished(request).into_iter().next()).await;
        let id = request.tool_call_id();
        let row = sqlx::query("select state, late, result from tool_call where account_id = $1 and id = $2")
            .bind(request.account.as_str())
            .bind(id)
            .fetch_one(&self.database.owner)
            .await
            .expect("the call is recorded");
        let (state, late, result): (String, bool, String) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(state, finished.state.as_str());
        assert_eq!(Some(&result), finished.result.as_ref());
        assert_eq!(
            (finished.fence, finished.turn_id, &finished.call_id, finished.ordinal),
            (request.fence, request.turn_id, &request.call_id, request.ordinal)
        );
        Answer {
            state: finished.state,
            late,
            result: serde_json::from_str(&result).expect("results are JSON"),
        }
    }

    /// Every published result of the request.
    pub(crate) fn finished(&self, request: &ToolRequested) -> Vec<ToolFinished> {
        self.heard("signalbox.tool.finished.")
            .into_iter()
            .filter(|heard| heard.headers.get(header::MESSAGE_ID) == Some(&finished_id(request)))
            .map(|heard| serde_json::from_value(heard.payload).expect("a tool.finished"))
            .collect()
    }

    /// Messages published on subjects with this prefix.
    pub(crate) fn heard(&self, prefix: &str) -> Vec<Heard> {
        let heard = self.heard.lock().expect("no holder of the lock panics");
        heard
            .iter()
            .filter(|heard| heard.subject.starts_with(prefix))
            .cloned()
            .collect()
    }
}

/// The tools of a turn outside of the coordinator's chat, in an account without members.
pub(crate) fn offered(has_task: bool) -> Vec<&'static str> {
    names_of(context(has_task))
}

fn context(has_task: bool) -> OfferContext {
    OfferContext {
        has_task,
        is_coordinator: false,
        is_asked: true,
        is_orchestrator: false,
        is_account: false,
        guest: None,
        has_mail: false,
        is_branch: false,
        may_branch: true,
        models: ModelKinds::default(),
    }
}

fn names_of(context: OfferContext) -> Vec<&'static str> {
    let tools = contracts::tools::offered(context);
    tools.into_iter().map(|tool| tool.name).collect()
}

fn finished_id(request: &ToolRequested) -> String {
    format!("tool.finished:{}:{}", request.turn_id, request.ordinal)
}

/// A result as delivery gets it and as it is recorded; both must agree.
#[derive(Debug)]
pub(crate) struct Answer {
    pub state: ToolCallState,
    pub late: bool,
    pub result: Value,
}

impl Answer {
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.state, ToolCallState::Finished, "{}", self.result);
        assert_eq!(self.result["ok"], true);
        assert!(!self.late);
        self.result
    }

    /// The code of an error.
    pub(crate) fn code(&self, state: ToolCallState) -> &str {
        assert_eq!(self.state, state, "{}", self.result);
        for part in ["code", "message", "hint"] {
            assert!(
                self.result["error"][part].as_str().is_some_and(|text| !text.is_empty()),
                "{}",
                self.result
            );
        }
        self.result["error"]["code"].as_str().expect("checked above")
    }
}

impl TestSession {
    /// The turn's call of this number.
    pub(crate) fn request(&self, ordinal: i32, name: &str, arguments: &Value) -> ToolRequested {
        ToolRequested {
            account: self.account.clone(),
            task: self.task.clone(),
            session_id: self.id,
            session_key: self.key.clone(),
            generation: Generation::FIRST,
            fence: Fence(1),
            turn_id: self.turn,
            agent_id: self.agent,
            call_id: CallId(format!("call_{ordinal}")),
            ordinal,
            name: name.to_owned(),
            arguments: match arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        }
    }
}
