//! The driver of Signalbox: starts it (`process.rs`) and speaks its public HTTP API, one request for each verb. A case's task is a
//! task, its sessions are agents of that task, and its authors have a key each.

mod process;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::process::{Endpoints, QUEUE_ITEMS_MAX, Replicas};
use crate::{
    http,
    protocol::{
        Answer, Author, AuthorKind, EditOp, Feature, Gate, Hello, ItemState, Mode, Op, Outcome, PROTOCOL, QueueItem,
        QueueState, Request, RunningTurn, Stopping, Tool, Verb, Victim,
    },
};

const OPS: [Op; 10] = [
    Op::Stop,
    Op::Resume,
    Op::Hold,
    Op::Queue,
    Op::Order,
    Op::Replace,
    Op::Withdraw,
    Op::Promote,
    Op::Steer,
    Op::Inject,
];
const MODES: [Mode; 4] = [Mode::Followup, Mode::Collect, Mode::Steer, Mode::Inject];
/// Cases that fail on purpose, and why.
const DIFFERS: [(&str, &str); 0] = [];

const ACCOUNT: &str = "conformance";
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// How long a notification may take to reach its session.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub struct Signalbox {
    program: PathBuf,
    count: usize,
    replicas: Option<Replicas>,
    sessions: BTreeMap<String, Session>,
    /// Key of each author.
    keys: BTreeMap<String, String>,
}

struct Session {
    task: String,
    agent: String,
    /// Known once an item has reached it.
    id: Option<String>,
    /// The hold that pauses it.
    hold: Option<String>,
}

impl Signalbox {
    pub fn new(program: PathBuf, count: usize) -> Signalbox {
        let (replicas, sessions, keys) = Default::default();
        Signalbox {
            program,
            count,
            replicas,
            sessions,
            keys,
        }
    }

    /// Ends what was started.
    pub async fn end(self) -> anyhow::Result<()> {
        match self.replicas {
            Some(replicas) => replicas.end().await,
            None => Ok(()),
        }
    }

    pub async fn answer(&mut self, request: Request) -> anyhow::Result<Answer> {
        let Request { session, by, verb } = request;
        let (name, by) = (session.unwrap_or_default(), by.as_ref());
        match verb {
            Verb::Hello { protocol, agent_url } => {
                ensure!(protocol == PROTOCOL, "the protocol is {PROTOCOL} here");
                self.start(&agent_url).await?;
                Ok(Answer::ok(self.hello()))
            }
            Verb::Session { task, agent } => {
                self.create("tasks", json!({"id": task, "title": task})).await?;
                self.create("agents", json!({"slug": agent, "name": agent})).await?;
                let (id, hold) = (None, None);
                self.sessions.insert(name, Session { task, agent, id, hold });
                Ok(Answer::done())
            }
            Verb::Crash { what, path } => {
                let replicas = self.replicas.as_mut().context("hello comes first")?;
                replicas.crash((what == Victim::Replica).then_some(&path)).await?;
                Ok(Answer::done())
            }
            Verb::Outcome { item } => self.notification(&item).await?.try_map(|found| outcome_of(&found)),
            Verb::Send(new) => {
                let Session { task, agent, .. } = self.session(&name)?;
                let body = json!({"id": new.item, "task": task, "agent": agent, "body": new.text, "queue_mode": new.mode,
                    "type": new.kind});
                match self.send(Method::POST, "notifications", by, Some(body)).await? {
                    Answer::Ok(_) => self.arrival(&name, &new.item).await,
                    refused => Ok(refused),
                }
            }
            Verb::Hold { running } => {
                // Of the task: a session exists only once an item has reached it.
                let body = json!({"scope": {"kind": "task", "id": self.session(&name)?.task}, "running": running});
                let answer = self.send(Method::POST, "holds", by, Some(body)).await?;
                if let Answer::Ok(hold) = &answer {
                    self.session(&name)?.hold = hold["id"].as_str().map(str::to_owned);
                }
                Ok(answer)
            }
            Verb::Resume { gate: Gate::Pause } => {
                let hold = self.session(&name)?.hold.take().context("nothing was paused")?;
                self.send(Method::DELETE, &format!("holds/{hold}"), by, None).await
            }
            verb => {
                let id = self.session(&name)?.id.clone();
                let id = id.with_context(|| format!("no item has reached {name}"))?;
                self.of_session(&id, by, verb).await
            }
        }
    }

    /// Verbs that need the session's id.
    async fn of_session(&mut self, session: &str, by: Option<&Author>, verb: Verb) -> anyhow::Result<Answer> {
        let path = format!("sessions/{session}");
        let (method, path, body) = match verb {
            Verb::Queue => {
                let queue = self.send(Method::GET, &(path + "/queue"), None, None).await?;
                return queue.try_map(|queue| queue_of(&queue));
            }
            Verb::Stop { then, turn } => {
                let body = json!({"then": then, "turn_id": turn});
                let answer = self.send(Method::POST, &(path + "/stop"), by, Some(body)).await?;
                return answer.try_map(|answer| Ok(serde_json::from_value::<Stopping>(answer)?));
            }
            Verb::Resume { .. } => (Method::POST, path + "/resume", Some(json!({}))),
            Verb::Order { items, revision } => (
                Method::PUT,
                path + "/queue/order",
                Some(json!({"items": items, "revision": revision})),
            ),
            Verb::Edit(edit) => {
                let path = format!("{path}/queue/{}", edit.item);
                // Revisions of items are numbers, those of queues are texts.
                let number = edit.revision.as_ref().and_then(|revision| revision.parse::<u64>().ok());
                let turn = json!({"turn_id": edit.turn});
                match edit.op {
                    EditOp::Replace => (
                        Method::PATCH,
                        path,
                        // It must name one: the first, if the case has none.
                        Some(json!({"revision": number.unwrap_or(1), "body": edit.text})),
                    ),
                    EditOp::Withdraw => {
                        let query = number.map_or(String::new(), |revision| format!("?revision={revision}"));
                        (Method::DELETE, path + &query, None)
                    }
                    EditOp::Promote => (
                        Method::POST,
                        path + "/promote",
                        Some(json!({"revision": edit.revision})),
                    ),
                    EditOp::Steer => (Method::POST, path + "/steer", Some(turn)),
                    EditOp::Inject => (Method::POST, path + "/inject", Some(turn)),
                }
            }
            verb => anyhow::bail!("{verb:?} is not of a session"),
        };
        self.send(method, &path, by, body).await
    }

    async fn start(&mut self, agent_url: &str) -> anyhow::Result<()> {
        ensure!(self.replicas.is_none(), "hello comes once");
        self.replicas = Some(Replicas::start(&self.program, self.count, agent_url).await?);
        let account = json!({"id": ACCOUNT, "name": "Conformance"});
        let made = self.exchange(Method::POST, "accounts", None, Some(account)).await?;
        ensure!(matches!(made, Answer::Ok(_)), "the account: {made}");
        Ok(())
    }

    fn hello(&self) -> Hello {
        let mut features = vec![Feature::Authors, Feature::Restart, Feature::Revision];
        features.extend((self.count > 1).then_some(Feature::Replicas));
        let differs = DIFFERS.map(|(case, why)| (case.to_owned(), why.to_owned()));
        Hello {
            name: format!("signalbox, {} replica(s)", self.count),
            modes: MODES.to_vec(),
            ops: OPS.to_vec(),
            features,
            differs: differs.into(),
            tool: Some(Tool {
                name: "task_history".to_owned(),
                ..Tool::default()
            }),
            queue_items_max: Some(QUEUE_ITEMS_MAX),
        }
    }

    // Sessions and items.

    fn session(&mut self, name: &str) -> anyhow::Result<&mut Session> {
        let session = self.sessions.get_mut(name);
        session.with_context(|| format!("no session {name}"))
    }

    async fn notification(&mut self, item: &str) -> anyhow::Result<Answer> {
        let path = format!("notifications/{item}");
        self.send(Method::GET, &path, None, None).await
    }

    /// Waits until a published item has its place, or was refused.
    async fn arrival(&mut self, session: &str, item: &str) -> anyhow::Result<Answer> {
        let deadline = Instant::now() + ARRIVAL_LIMIT;
        loop {
            if let Answer::Ok(found) = self.notification(item).await? {
                if found["state"] == "refused" {
                    let reason = found["reason"].as_str().unwrap_or_default();
                    let (code, detail) = reason.split_once(": ").unwrap_or((reason, ""));
                    return Ok(Answer::refused(code, detail));
                }
                if let Some(id) = found["session_id"].as_str() {
                    self.session(session)?.id = Some(id.to_owned());
                    return Ok(Answer::done());
                }
            }
            ensure!(Instant::now() < deadline, "{item} did not reach its session");
            sleep(LOOK_EVERY).await;
        }
    }

    // The API.

    /// Creates a thing of the account, or finds it.
    async fn create(&mut self, path: &str, body: Value) -> anyhow::Result<()> {
        let made = self.send(Method::POST, path, None, Some(body)).await?;
        ensure!(!matches!(made, Answer::Refused(_)), "{path}: {made}");
        Ok(())
    }

    /// `path` is below the account. `by`: none is the operator.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        by: Option<&Author>,
        body: Option<Value>,
    ) -> anyhow::Result<Answer> {
        let key = match by {
            Some(by) => Some(self.key(by).await?),
            None => None,
        };
        let path = format!("orgs/{ACCOUNT}/{path}");
        self.exchange(method, &path, key.as_deref(), body).await
    }

    /// The author's key, made when it is first needed.
    async fn key(&mut self, by: &Author) -> anyhow::Result<String> {
        if let Some(key) = self.keys.get(&by.name) {
            return Ok(key.clone());
        }
        let role = match by.kind {
            AuthorKind::Person => "member",
            AuthorKind::Service => "service",
        };
        let body = json!({"name": by.name, "role": role});
        let path = format!("orgs/{ACCOUNT}/keys");
        let made = match self.exchange(Method::POST, &path, None, Some(body)).await? {
            Answer::Ok(made) => made,
            refused => anyhow::bail!("the key of {}: {refused}", by.name),
        };
        let key = made["key"].as_str().context("a key without its secret")?.to_owned();
        self.keys.insert(by.name.clone(), key.clone());
        Ok(key)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
    ) -> anyhow::Result<Answer> {
        let Endpoints {
            http_url,
            operator_token,
            ..
        } = self.replicas.as_ref().context("hello comes first")?.endpoints();
        let (url, token) = (format!("{http_url}/api/{path}"), key.unwrap_or(operator_token));
        let (status, answer) = http::send(method, &url, Some(token), body.as_ref(), REQUEST_LIMIT).await?;
        let code = answer["code"].as_str().unwrap_or("unknown");
        let detail = format!("{status} {}", answer["detail"].as_str().unwrap_or_default());
        Ok(match status {
            200..=299 => Answer::Ok(answer),
            409 => Answer::conflict(code, detail),
            _ => Answer::refused(code, detail),
        })
    }
}

fn queue_of(queue: &Value) -> anyhow::Result<QueueState> {
    let text = |value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .or(value.as_u64().map(|number| number.to_string()))
    };
    let id = |item: &Value| {
        text(item)
            .or_else(|| text(&item["id"]))
            .context("an item without an id")
    };
    let list = |items: &Value| items.as_array().cloned().unwrap_or_default();
    let item = |item: &Value| {
        anyhow::Ok(QueueItem {
            item: id(item)?,
            revision: text(&item["revision"]),
        })
    };
    let running = &queue["running"];
    let in_turn: Vec<String> = list(&running["items"]).iter().map(id).collect::<anyhow::Result<_>>()?;
    Ok(QueueState {
        revision: text(&queue["revision"]),
        gate: text(&queue["gate"]),
        running: text(&running["turn_id"]).map(|turn| RunningTurn { turn, items: in_turn }),
        items: list(&queue["items"]).iter().map(item).collect::<anyhow::Result<_>>()?,
    })
}

fn outcome_of(notification: &Value) -> anyhow::Result<Outcome> {
    let state = notification["state"].as_str().unwrap_or_default();
    let state = match ItemState::parse(state) {
        Some(state) => state,
        // An accepted item that could not be placed.
        None if state == "refused" => ItemState::Failed,
        None => anyhow::bail!("a notification in state {state}"),
    };
    let reason = notification["reason"].as_str().unwrap_or_default().to_owned();
    Ok(Outcome { state, reason })
}
