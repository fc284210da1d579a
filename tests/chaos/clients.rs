//! The clients: publishers on NATS, and programs that use the HTTP API with a key of their account. They behave correctly: they
//! repeat the same id and idempotency key until they get an answer.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail};
use async_nats::jetstream;
use bytes::Bytes;
use domain::{HoldScope, Verdict};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    book::Book,
    dice::Dice,
    plan::{
        ACCOUNTS, AGENTS, APPROVED, ASSIGNED, JUDGED, OF_PERSONS, ORCHESTRATORS, PLANNED, REVIEWED, TASKS, account_id,
        canary,
    },
    provider::word,
    records::{Agent, Aim, Answer, ApiAnswer, Author, EditOp, Offered, Tenant, Try, Via, Work},
    system::{OPERATOR_TOKEN, System},
};

const PUBLISH_LIMIT: Duration = Duration::from_millis(1_500);
const REQUEST_LIMIT: Duration = Duration::from_secs(6);
/// Time limit of the setup.
const FURNISH_LIMIT: Duration = Duration::from_secs(60);
/// Headers of an oversized request.
const HEADERS: usize = 200;
const HEADER_BYTES: usize = 2_000;
/// Doubled with every attempt: immediate retries would overload a service that has just started.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
const AGAIN_DOUBLED_MAX: usize = 4;
/// Looks for a turn to stop, or for the end of one.
const AIMS_MAX: usize = 8;

/// A person may only say so with a key of their own.
const REACHABLE: &str = "update orchestrator_identity set reachable = 'answer' where account_id = $1";
/// As many as there may be: one more takes the place of another one.
const REMEMBERED: &str = "
    insert into memory (account_id, id, owner, key, category, content, relevance, touched_at, fades_at, created_at)
    select $1, gen_random_uuid(), 'user:ann', 'k' || n, 'general', 'memory ' || n, 1, now(), now() + n * interval '1 day', now()
    from generate_series(1, 200) n";
const LINKS: &str = "/api/sign-in-links";
const LINKS_MAX: usize = 5;
/// The file of each account's default persona.
pub(crate) const TONE: &str = "TONE.md";

pub(crate) struct Clients {
    pub(crate) tenants: Vec<Tenant>,
    /// An `admin` key of each account.
    keys: Vec<String>,
    /// A `service` key of each account, which publishes for a person.
    publishing: Vec<String>,
    /// A `gateway` key of each account, with which agents call tools themselves.
    gateways: Vec<String>,
    /// For accounts that there are not.
    jetstream: jetstream::Context,
    /// With a key of each account.
    outside: BTreeMap<String, jetstream::Context>,
    http: reqwest::Client,
    /// Addresses of the orchestrators.
    urls: Vec<String>,
    /// Address of a tool-gateway.
    tools_url: String,
    /// Time limit of an offer.
    pub(crate) over: CancellationToken,
}

impl Clients {
    /// Creates accounts, agents and tasks over the API of a running system.
    pub(crate) async fn furnish(system: &System, seed: u64) -> anyhow::Result<Clients> {
        let http = reqwest::Client::builder().no_proxy().timeout(REQUEST_LIMIT).build()?;
        let urls = system
            .of_role(storage::Role::Orchestrator)
            .map(|service| service.url())
            .collect();
        let mut gateways = system.of_role(storage::Role::ToolGateway).map(|service| service.url());
        let mut clients = Clients {
            tenants: Vec::new(),
            keys: Vec::new(),
            publishing: Vec::new(),
            gateways: Vec::new(),
            jetstream: jetstream::new(publisher(&system.nats_url).await?),
            outside: BTreeMap::new(),
            http,
            urls,
            tools_url: gateways.next().context("a tool-gateway")?,
            over: CancellationToken::new(),
        };
        for account in 0..ACCOUNTS {
            let (tenant, [key, publishing, gateway]) = clients.account(account, canary(seed, account)).await?;
            let connected = outside(&system.nats_url, &publishing).await?;
            clients.outside.insert(account_id(account), jetstream::new(connected));
            clients.tenants.push(tenant);
            clients.keys.push(key);
            clients.publishing.push(publishing);
            clients.gateways.push(gateway);
        }
        for sql in [REACHABLE, REMEMBERED] {
            let furnishing = sqlx::query(sql).bind(account_id(OF_PERSONS));
            furnishing.execute(&system.observer).await?;
        }
        Ok(clients)
    }

    async fn account(&self, account: usize, canary: String) -> anyhow::Result<(Tenant, [String; 3])> {
        let id = account_id(account);
        let post = Method::POST;
        self.made(
            (&post, "/api/accounts"),
            json!({"id": id, "name": format!("{id} {canary}")}),
        )
        .await?;
        let mut keys: [String; 3] = Default::default();
        for (key, role) in keys.iter_mut().zip(["admin", "service", "gateway"]) {
            let body = json!({"name": format!("chaos {role}"), "role": role});
            let made = self.made((&post, &format!("/api/orgs/{id}/keys")), body).await?;
            made["key"].as_str().context("a key is shown once")?.clone_into(key);
        }
        if account == OF_PERSONS {
            keys[0] = self.persons_key(&id).await?;
        }
        let persona = json!({"slug": "tone", "name": "Tone", "visibility": "shared", "is_default": true,
            "files": [{"filename": TONE, "content": format!("Tone. {canary}")}]});
        self.made((&post, &format!("/api/orgs/{id}/personas")), persona).await?;
        let mut agents = Vec::new();
        for slug in AGENTS {
            // One of them has prompts that are assembled from the record.
            let policy = (slug == AGENTS[1]).then_some("assembled");
            let role = format!("Works for {canary}.");
            let body = json!({"slug": slug, "name": slug, "role": role, "context_policy": policy});
            let agent = self.made((&post, &format!("/api/orgs/{id}/agents")), body).await?;
            agents.push(Agent {
                id: agent["id"].as_str().context("an agent has an id")?.to_owned(),
                slug: slug.to_owned(),
            });
        }
        for (place, task) in TASKS.iter().chain(&JUDGED).enumerate() {
            let assignees: &[&str] = if place < ASSIGNED { &AGENTS[..2] } else { &[] };
            let body = json!({"id": task, "title": format!("{task} {canary}"), "assignees": assignees, "task_context": "optional"});
            self.made((&post, &format!("/api/orgs/{id}/tasks")), body).await?;
        }
        // Every answer of the stub counts 53 tokens; a client whose account has no such limit keeps its generations.
        let limits = [
            json!({}),
            json!({"tokens_max": 250}),
            json!({"tokens_max": 1_000, "failures_max": 1}),
        ];
        let asks = json!({"scope": {"kind": "task", "id": APPROVED}, "tool": "task_message", "verdict": "ask"});
        let stages = json!({"stages": [{"name": "looked at"}]});
        for (method, path, body) in [
            (Method::POST, "tool-policies".to_owned(), asks),
            (
                Method::PATCH,
                format!("tasks/{PLANNED}"),
                json!({"plan_gate": {"mode": "required"}}),
            ),
            (Method::PUT, format!("tasks/{REVIEWED}/stages"), stages),
            (
                Method::PATCH,
                String::new(),
                json!({"rotation": limits[account % limits.len()]}),
            ),
        ] {
            let path = format!("/api/orgs/{id}/{path}");
            self.made((&method, path.trim_end_matches('/')), body).await?;
        }
        let tenant = Tenant {
            id,
            canary,
            agents,
            tasks: TASKS.iter().chain(&JUDGED).map(|&task| task.to_owned()).collect(),
        };
        Ok((tenant, keys))
    }

    /// The own key of a person who has opened a link.
    async fn persons_key(&self, account: &str) -> anyhow::Result<String> {
        let post = Method::POST;
        for (user, role) in [("ann", "admin"), ("bob", "member")] {
            let person = json!({"user_id": user, "name": user, "role": role});
            self.made((&post, &format!("/api/orgs/{account}/members")), person)
                .await?;
        }
        // An answer that is lost has used its link.
        for _ in 0..LINKS_MAX {
            let asked = json!({"account": account, "user_id": "ann"});
            let made = self.made((&post, LINKS), asked).await?;
            let link = made["sign_in_link"].as_str().context("a link is shown once")?;
            let (_, token) = link.rsplit_once('/').context("a link ends with its token")?;
            let opening = self.http.post(format!("{}/sign-in/{token}", self.urls[0]));
            let Ok(answer) = opening.send().await else { continue };
            let opened: Value = answer.json().await.unwrap_or_default();
            if let Some(key) = opened["key"]["key"].as_str() {
                return Ok(key.to_owned());
            }
        }
        bail!("no link of {account} gave a key");
    }

    /// Creates an object once, however often it is repeated: a busy machine may not answer in time.
    async fn made(&self, (method, path): (&Method, &str), body: Value) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.urls[0]);
        let key: String = format!("furnish {path} {body}").chars().take(200).collect();
        let deadline = Instant::now() + FURNISH_LIMIT;
        loop {
            let asking = async {
                let request = self.http.request(method.clone(), &url);
                let mut request = request.bearer_auth(OPERATOR_TOKEN).json(&body);
                // The stored answer has no secret; a second key does no harm, and a second link ends the first.
                if method == Method::POST && !path.ends_with("/keys") && path != LINKS {
                    request = request.header("idempotency-key", &key);
                }
                let answer = request.send().await?;
                let status = answer.status();
                Ok::<_, reqwest::Error>((status, answer.json::<Value>().await?))
            };
            match asking.await {
                Ok((status, body)) if status.is_success() => return Ok(body),
                Ok((status, body))
                    if read(status, &body.to_string())
                        != (Answer::Unknown {
                            why: status.to_string(),
                        }) =>
                {
                    bail!("{method} {path}: {status} {body}");
                }
                Ok((status, body)) if Instant::now() > deadline => bail!("{method} {path}: {status} {body}"),
                Err(error) if Instant::now() > deadline => return Err(error).context(format!("{method} {path}")),
                Ok(_) | Err(_) => sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// Keys that only their owner may see.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (String, String)> {
        let all = [
            ("admin", &self.keys),
            ("service", &self.publishing),
            ("gateway", &self.gateways),
        ];
        all.into_iter().flat_map(|(role, keys)| {
            let named =
                move |(account, key): (usize, &String)| (format!("{role} key of {}", account_id(account)), key.clone());
            keys.iter().enumerate().map(named)
        })
    }

    /// Sends an offer until there is an answer; records every attempt. Gives the offer's number.
    pub(crate) async fn offer(&self, book: &Book, account: usize, via: Via, what: Offered) -> usize {
        let number = book.offer(account_id(account), what);
        self.pursue(book, number, account, via).await;
        number
    }

    /// Repeats a recorded offer until there is an answer.
    pub(crate) async fn pursue(&self, book: &Book, number: usize, account: usize, via: Via) {
        let message = match book.find(number).what {
            Offered::Stop { .. }
            | Offered::Resume { .. }
            | Offered::Reset { .. }
            | Offered::Replay { .. }
            | Offered::Hold { .. }
            | Offered::Edit { .. }
            | Offered::EndBranch { .. }
            | Offered::Answer { .. } => self.aim(book, number, account).await,
            _ => self.message(book, number, account, via),
        };
        let Some(message) = message else { return };
        for place in 0.. {
            let (answer, said) = self.attempt(book, number, &message, place).await;
            if let (Offered::Hold { for_ms, .. }, Some(hold)) = (book.find(number).what, said["id"].as_str()) {
                self.release_after(book, (number, account), hold, for_ms).await;
            }
            if !matches!(answer, Answer::Unknown { .. }) {
                break;
            }
            if self.is_over_after(place).await {
                return;
            }
        }
        match book.find(number).what {
            // A repeated request is no second answer.
            Offered::Answer { .. } => drop(self.attempt(book, number, &message, number).await),
            _ => self.write_late(book, number, account).await,
        }
    }

    async fn release_after(&self, book: &Book, (of, account): (usize, usize), hold: &str, for_ms: u64) {
        book.aimed(Aim {
            offer: of,
            target: hold.to_owned(),
            named: None,
        });
        sleep(Duration::from_millis(for_ms)).await;
        Box::pin(self.offer(book, account, Via::Http, Offered::Release { of })).await;
    }

    /// Waits before the next attempt; whether the campaign has ended.
    async fn is_over_after(&self, place: usize) -> bool {
        tokio::select! {
            () = self.over.cancelled() => true,
            () = sleep(AGAIN_AFTER * (1 << place.min(AGAIN_DOUBLED_MAX))) => false,
        }
    }

    /// The request of a stop, a resumption or an answer, for the session or the question that its client sees. None: there is none,
    /// which answers the offer.
    async fn aim(&self, book: &Book, number: usize, account: usize) -> Option<Message> {
        let whose = format!("/api/orgs/{}", account_id(account));
        let (path, stop) = match book.find(number).what {
            Offered::Stop {
                task,
                agent,
                then,
                named,
                after_ms,
            } => (seen_at(&task, &agent), Some((then, named, after_ms))),
            Offered::Resume { task, agent }
            | Offered::Reset { task, agent, .. }
            | Offered::Replay { task, agent }
            | Offered::Hold { task, agent, .. }
            | Offered::Edit { task, agent, .. } => (seen_at(&task, &agent), None),
            Offered::Answer { .. } => ("/questions?state=open&limit=100".to_owned(), None),
            Offered::EndBranch { task } => (format!("/tasks/{task}/branches?state=live&limit=100"), None),
            _ => return None,
        };
        let path = format!("{whose}{path}");
        let sent_at = OffsetDateTime::now_utc();
        let mut seen = Value::Null;
        for place in 0.. {
            let (answer, body) = self
                .asked(book, number + place, account, (Method::GET, &path), None)
                .await;
            if !matches!(answer, Answer::Unknown { .. }) {
                let found = body["items"].as_array();
                seen = found.and_then(|found| found.last()).cloned().unwrap_or_default();
                // A turn is likely to begin soon, and so is a question to be asked or a branch to be made.
                let is_there = match (&stop, &book.find(number).what) {
                    (Some(_), _) => seen["active_turn_id"].is_string(),
                    (None, Offered::Answer { .. } | Offered::EndBranch { .. }) => seen.is_object(),
                    (None, _) => true,
                };
                if is_there || place >= AIMS_MAX {
                    break;
                }
            }
            if self.is_over_after(0).await {
                return None;
            }
        }
        let Some(target) = seen["id"].as_str() else {
            book.tried(number, nothing_to_do(sent_at));
            return None;
        };
        let (mut body, mut named, mut method) = (json!({}), None, Method::POST);
        let verb = match (book.find(number).what, stop) {
            (
                Offered::Hold {
                    scope,
                    task,
                    agent,
                    running,
                    ..
                },
                _,
            ) => {
                let id = match scope {
                    HoldScope::Account => account_id(account),
                    HoldScope::Task => task,
                    HoldScope::Agent => agent,
                    HoldScope::Session => target.to_owned(),
                };
                body = json!({"scope": {"kind": scope, "id": id}, "running": running});
                "holds".to_owned()
            }
            (Offered::Edit { op, .. }, _) => {
                let queue = format!("sessions/{target}/queue");
                let path = format!("{whose}/{queue}");
                let (_, seen) = self.asked(book, number, account, (Method::GET, &path), None).await;
                let items = seen["items"].as_array();
                let item = items.and_then(|items| items.iter().rfind(|item| item["editable"] == true));
                let id = item.and_then(|item| item["id"].as_str());
                let (Some(item), Some(id)) = (item, id) else {
                    book.tried(number, nothing_to_do(sent_at));
                    return None;
                };
                named = Some(id.to_owned());
                let revision = &item["revision"];
                match op {
                    EditOp::Withdraw => {
                        method = Method::DELETE;
                        format!("{queue}/{id}?revision={revision}")
                    }
                    EditOp::Replace => {
                        method = Method::PATCH;
                        let text = item["body"].as_str().unwrap_or_default();
                        body = json!({"revision": revision, "body": format!("{text} {}", edited(number))});
                        format!("{queue}/{id}")
                    }
                    EditOp::Promote => {
                        body = json!({"revision": seen["revision"]});
                        format!("{queue}/{id}/promote")
                    }
                }
            }
            (Offered::EndBranch { .. }, _) => format!("branches/{target}/cancel"),
            (Offered::Replay { .. }, _) => {
                let path = format!("{whose}/sessions/{target}/turns");
                let (_, seen) = self.asked(book, number, account, (Method::GET, &path), None).await;
                let turns = seen["items"].as_array();
                let ended = turns.and_then(|turns| turns.iter().find(|turn| turn["finished_at"].is_string()));
                let Some(turn) = ended.and_then(|turn| turn["id"].as_str()) else {
                    book.tried(number, nothing_to_do(sent_at));
                    return None;
                };
                named = Some(turn.to_owned());
                format!("turns/{turn}/replays")
            }
            (Offered::Answer { withdraws: true }, _) => format!("questions/{target}/withdraw"),
            (Offered::Answer { withdraws: false }, _) => {
                body["text"] = json!(answer(&self.tenants[account].canary, number));
                let kind = seen["kind"].as_str().unwrap_or_default();
                if let Some(verdict) = verdict(kind, number) {
                    body["verdict"] = json!(verdict);
                    match kind {
                        "tool" => body["arguments_hash"].clone_from(&seen["arguments_hash"]),
                        "review" => body["accept_stale"] = json!(true),
                        _ => {}
                    }
                }
                format!("questions/{target}/answer")
            }
            (
                Offered::Reset {
                    queue,
                    in_flight,
                    after_ms,
                    ..
                },
                _,
            ) => {
                body = json!({"reason": "the campaign", "queue": queue, "in_flight": in_flight});
                sleep(Duration::from_millis(after_ms)).await;
                format!("sessions/{target}/reset")
            }
            (_, None) => format!("sessions/{target}/resume"),
            (_, Some((then, is_named, after_ms))) => {
                body["then"] = json!(then);
                let turn = seen["active_turn_id"].as_str().filter(|_| is_named);
                named = turn.map(str::to_owned);
                if let Some(turn) = turn {
                    body["turn_id"] = json!(turn);
                }
                sleep(Duration::from_millis(after_ms)).await;
                format!("sessions/{target}/stop")
            }
        };
        // A hold has its id when it is set.
        if verb != "holds" {
            book.aimed(Aim {
                offer: number,
                target: target.to_owned(),
                named,
            });
        }
        Some(Message::Request {
            account,
            method,
            path: format!("{whose}/{verb}"),
            body: Bytes::from(body.to_string()),
            key: format!("offer-{number}"),
        })
    }

    /// After a stop: its agent, which may still run, writes when its turn has ended. That is refused until its next turn. Nobody
    /// waits for the answer: the checker finds what was written.
    async fn write_late(&self, book: &Book, number: usize, account: usize) {
        let Offered::Stop { task, .. } = book.find(number).what else {
            return;
        };
        let Some(aim) = book.aims().into_iter().find(|aim| aim.offer == number) else {
            return;
        };
        let path = format!("/api/orgs/{}/sessions/{}", account_id(account), aim.target);
        for _ in 0..AIMS_MAX {
            let (_, session) = self.asked(book, number, account, (Method::GET, &path), None).await;
            if session["id"].is_string() && session["stopping"] == false {
                let body =
                    json!({"task_id": task, "body": format!("effect late-{number}; {}", self.tenants[account].canary)});
                let writing = self
                    .http
                    .post(format!("{}/agent/task-message", self.tools_url))
                    .bearer_auth(&self.gateways[account])
                    .header("x-openclaw-session-key", session["key"].as_str().unwrap_or_default())
                    .header("idempotency-key", format!("late-{number}"))
                    .json(&body);
                let _ = writing.send().await;
                return;
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    /// The answer with its body.
    async fn attempt(&self, book: &Book, number: usize, message: &Message, place: usize) -> (Answer, Value) {
        let sent_at = OffsetDateTime::now_utc();
        let (via, (answer, said)) = match message {
            Message::Publish { subject, payload } => {
                let answer = self.publish(subject.clone(), payload.clone()).await;
                (Via::Nats, (answer, Value::Null))
            }
            Message::Request {
                account,
                method,
                path,
                body,
                key,
            } => {
                let place = number + place;
                let told = (method.clone(), path.as_str());
                (
                    Via::Http,
                    self.asked(book, place, *account, told, Some((body, key))).await,
                )
            }
        };
        book.tried(
            number,
            Try {
                via,
                sent_at,
                ended_at: OffsetDateTime::now_utc(),
                answer: answer.clone(),
            },
        );
        (answer, said)
    }

    pub(crate) async fn publish(&self, subject: String, payload: Bytes) -> Answer {
        // {root}.notification.{account}.{task}
        let account = subject.split('.').nth(2).unwrap_or_default();
        let jetstream = self.outside.get(account).unwrap_or(&self.jetstream);
        let publishing = async {
            jetstream
                .publish(subject, payload)
                .await
                .map_err(|error| error.to_string())?
                .await
                .map_err(|error| error.to_string())
        };
        match timeout(PUBLISH_LIMIT, publishing).await {
            Ok(Ok(_)) => Answer::Accepted,
            Ok(Err(why)) => Answer::Unknown { why },
            Err(_) => Answer::Unknown {
                why: "no acknowledgement".to_owned(),
            },
        }
    }

    /// Sends with the account's key to one of the orchestrators.
    pub(crate) async fn request(
        &self,
        book: &Book,
        place: usize,
        account: usize,
        (method, path): (Method, &str),
        body: Option<(&Bytes, &str)>,
    ) -> Answer {
        self.asked(book, place, account, (method, path), body).await.0
    }

    /// The same; with the answer's body.
    async fn asked(
        &self,
        book: &Book,
        place: usize,
        account: usize,
        (method, path): (Method, &str),
        body: Option<(&Bytes, &str)>,
    ) -> (Answer, Value) {
        let of_service = method == Method::POST && path.ends_with("/notifications");
        let bearer = if of_service { &self.publishing } else { &self.keys };
        self.asked_with(
            book,
            place,
            (account, &bearer[account], of_service),
            (method, path),
            body,
        )
        .await
    }

    /// The same, as a service.
    pub(crate) async fn look_as_service(&self, book: &Book, dice: &mut Dice, account: usize, path: &str) {
        let key = (account, &self.publishing[account], true);
        self.asked_with(book, dice.below(2), key, (Method::GET, path), None)
            .await;
    }

    async fn asked_with(
        &self,
        book: &Book,
        place: usize,
        (account, bearer, of_service): (usize, &String, bool),
        (method, path): (Method, &str),
        body: Option<(&Bytes, &str)>,
    ) -> (Answer, Value) {
        let url = format!("{}{path}", self.urls[place % self.urls.len()]);
        let key = body.filter(|_| method == Method::POST).map(|(_, key)| key.to_owned());
        let mut request = self.http.request(method, url).bearer_auth(bearer);
        if let Some((body, key)) = body {
            request = request
                .header("content-type", "application/json")
                .header("idempotency-key", key)
                .body(body.clone());
        }
        let answered = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status(), answer.text().await?))
        };
        match answered.await {
            Ok((status, body)) => {
                let answer = (read(status, &body), serde_json::from_str(&body).unwrap_or_default());
                book.answered(ApiAnswer {
                    account: Some(account_id(account)),
                    path: path.to_owned(),
                    of_service,
                    key,
                    status: status.as_u16(),
                    body,
                });
                answer
            }
            Err(error) => (Answer::Unknown { why: error.to_string() }, Value::Null),
        }
    }

    /// Sends the same request and disconnects before the answer.
    pub(crate) async fn request_and_leave(&self, number: usize, book: &Book, account: usize, after: Duration) {
        if let Some(message) = self.message(book, number, account, Via::Http) {
            // Dropping it closes the connection during the request.
            let _ = timeout(after, self.attempt(book, number, &message, number)).await;
        }
    }

    /// Sends a request with too many headers. Gives whether it was refused.
    pub(crate) async fn too_many_headers(&self, place: usize) -> bool {
        let mut request = self
            .http
            .get(format!("{}/api/orgs", self.urls[place % self.urls.len()]));
        for nth in 0..HEADERS {
            request = request.header(format!("x-flood-{nth}"), "x".repeat(HEADER_BYTES));
        }
        match request.send().await {
            Ok(answer) => answer.status().is_client_error(),
            Err(_) => false,
        }
    }

    pub(crate) async fn look(&self, book: &Book, dice: &mut Dice, account: usize, path: &str) -> Answer {
        self.request(book, dice.below(2), account, (Method::GET, path), None)
            .await
    }

    /// Reads with the account's own key.
    pub(crate) async fn read(&self, book: &Book, account: usize, path: &str) -> (Answer, Value) {
        self.asked(book, 0, account, (Method::GET, path), None).await
    }

    /// The request of an offer; for a repetition, that of the original.
    fn message(&self, book: &Book, number: usize, account: usize, via: Via) -> Option<Message> {
        let (id, canary) = (account_id(account), &self.tenants[account].canary);
        let key = format!("offer-{number}");
        let request = |method: Method, path: String, body: Value| Message::Request {
            account,
            method,
            path: format!("/api/orgs/{id}{path}"),
            body: Bytes::from(body.to_string()),
            key: key.clone(),
        };
        Some(match book.find(number).what {
            Offered::Notification {
                id: notification,
                task,
                agents,
                work,
                mode,
                author,
            } => {
                let (kind, name) = match author {
                    Author::Ann => ("user", "ann"),
                    Author::Bob => ("user", "bob"),
                    Author::Ci => ("service", "ci"),
                };
                let mut payload = json!({"id": notification, "body": words(canary, &work), "queue_mode": mode,
                    "sender": {"kind": kind, "id": name, "name": name}});
                let (field, to) = recipients(&agents);
                payload[field] = to;
                match via {
                    Via::Nats => publish(&id, task.as_deref(), &payload),
                    Via::Http => {
                        payload["task"] = json!(task);
                        request(Method::POST, "/notifications".to_owned(), payload)
                    }
                }
            }
            Offered::Repeat { of } => self.message(book, of, account, via)?,
            Offered::Conflict { of, id: notification } => {
                let Offered::Notification { task, agents, .. } = book.find(of).what else {
                    return None;
                };
                let (field, to) = recipients(&agents[..1]);
                let mut payload = json!({"id": notification, "body": format!("{canary} something else")});
                payload[field] = to;
                publish(&id, task.as_deref(), &payload)
            }
            Offered::Message { task, work } => {
                let body = json!({"body": words(canary, &work)});
                request(Method::POST, format!("/tasks/{task}/messages"), body)
            }
            Offered::Handover { task, from, to } => request(
                Method::POST,
                format!("/tasks/{task}/handover"),
                json!({"from": from, "to": to}),
            ),
            Offered::Release { of } => {
                let hold = book.aims().into_iter().rfind(|aim| aim.offer == of)?.target;
                request(Method::DELETE, format!("/holds/{hold}"), json!({}))
            }
            Offered::Mail { to, work } => Message::Request {
                account,
                method: Method::POST,
                path: "/api/messages".to_owned(),
                body: Bytes::from(json!({"to": to, "content": words(canary, &work)}).to_string()),
                key,
            },
            Offered::Task {
                id: task,
                blocked_by,
                agent,
                effect,
            } => {
                // Nobody is told of a task without an agent.
                let title = match agent {
                    Some(_) => format!("{canary} work=reply effect={effect}-asked;"),
                    None => canary.clone(),
                };
                let assignees: Vec<String> = agent.into_iter().collect();
                let blocked_by: Vec<String> = blocked_by.into_iter().collect();
                let body = json!({"id": task, "title": title, "assignees": assignees, "blocked_by": blocked_by});
                request(Method::POST, "/tasks".to_owned(), body)
            }
            Offered::Remember => Message::Request {
                account,
                method: Method::POST,
                path: "/api/me/memories".to_owned(),
                body: Bytes::from(json!({"content": format!("{canary} memory {number}")}).to_string()),
                key,
            },
            Offered::Persona => {
                let file = json!({"filename": TONE, "content": format!("{} {canary}", tone(number))});
                request(Method::PUT, "/personas/tone/files".to_owned(), json!({"files": [file]}))
            }
            Offered::Status { task, status } => {
                request(Method::PATCH, format!("/tasks/{task}"), json!({"status": status}))
            }
            Offered::KeyReused { of } => {
                let Message::Request { path, key, .. } = self.message(book, of, account, Via::Http)? else {
                    return None;
                };
                let body = match book.find(of).what {
                    Offered::Message { .. } => json!({"body": format!("{canary} something else")}),
                    _ => json!({"id": format!("reused-{number}"), "agent": AGENTS[0], "body": "something else"}),
                };
                Message::Request {
                    account,
                    method: Method::POST,
                    path,
                    body: Bytes::from(body.to_string()),
                    key,
                }
            }
            // The fault creates this request itself, and the client aims the others first.
            Offered::Poison { .. }
            | Offered::Stop { .. }
            | Offered::Resume { .. }
            | Offered::Reset { .. }
            | Offered::Replay { .. }
            | Offered::Hold { .. }
            | Offered::Edit { .. }
            | Offered::EndBranch { .. }
            | Offered::Answer { .. } => return None,
        })
    }
}

/// The field that names whom a notification is for, and what it has.
fn recipients(agents: &[String]) -> (&'static str, Value) {
    match agents {
        [one] if ORCHESTRATORS.contains(&one.as_str()) => ("session", json!(one)),
        [one] => ("agent", json!(one)),
        several => ("agents", json!(several)),
    }
}

enum Message {
    Publish {
        subject: String,
        payload: Bytes,
    },
    Request {
        account: usize,
        method: Method,
        path: String,
        body: Bytes,
        key: String,
    },
}

fn publish(account: &str, task: Option<&str>, payload: &Value) -> Message {
    Message::Publish {
        subject: format!("signalbox.notification.{account}.{}", task.unwrap_or("-")),
        payload: Bytes::from(payload.to_string()),
    }
}

/// The answer of an offer that has found nothing to aim at.
fn nothing_to_do(sent_at: OffsetDateTime) -> Try {
    Try {
        via: Via::Http,
        sent_at,
        ended_at: OffsetDateTime::now_utc(),
        answer: Answer::Accepted,
    }
}

/// The first words of the persona that this offer writes.
pub(crate) fn tone(offer: usize) -> String {
    format!("Tone {offer}.")
}

/// What this offer adds to an item's text.
pub(crate) fn edited(offer: usize) -> String {
    format!("(edited {offer})")
}

/// The query for the session of an agent on a task.
fn seen_at(task: &str, agent: &str) -> String {
    format!("/sessions?task={task}&agent={agent}&active=true")
}

/// What the client of this offer answers: words for the stub provider, whose agent is told them.
pub(crate) fn answer(canary: &str, offer: usize) -> String {
    format!("{canary} work=reply effect=a{offer}-asked;")
}

/// The verdict of this offer on a question of this kind.
pub(crate) fn verdict(kind: &str, offer: usize) -> Option<Verdict> {
    match (kind, offer % 4) {
        ("tool", 0) => Some(Verdict::Denied),
        ("plan" | "review", 0) => Some(Verdict::Changes),
        ("tool" | "plan" | "review", _) => Some(Verdict::Approved),
        _ => None,
    }
}

/// A notification's body that tells the stub provider the agent's action.
fn words(canary: &str, work: &Work) -> String {
    format!("{canary} work={} effect={};", word(work.kind), work.effect)
}

fn read(status: StatusCode, body: &str) -> Answer {
    let again = status.is_server_error()
        // A person's hour may be full.
        || (status == StatusCode::TOO_MANY_REQUESTS && !body.contains("too_many_messages"))
        || status == StatusCode::REQUEST_TIMEOUT
        || (status == StatusCode::CONFLICT && body.contains("request_in_flight"));
    if again {
        Answer::Unknown {
            why: status.to_string(),
        }
    } else if status.is_success() {
        Answer::Accepted
    } else {
        Answer::Refused {
            status: status.as_u16(),
        }
    }
}

/// A connection with an account's key.
async fn outside(nats_url: &str, key: &str) -> anyhow::Result<async_nats::Client> {
    let (_, address) = nats_url.rsplit_once('@').context("the URL of our own server")?;
    let known = domain::ApiKey::parse(key).context("a key")?;
    async_nats::ConnectOptions::with_user_and_password(known.account().to_string(), key.to_owned())
        .custom_inbox_prefix(format!("_I.{}.{}", known.account(), known.id()))
        .ping_interval(Duration::from_millis(500))
        .connect(format!("nats://{address}"))
        .await
        .context("could not connect with a key")
}

/// A plain connection, as a platform publisher has.
pub(crate) async fn publisher(nats_url: &str) -> anyhow::Result<async_nats::Client> {
    let address: async_nats::ServerAddr = nats_url.parse().context("the URL of our own server")?;
    let user = address.username().unwrap_or_default().to_owned();
    let password = address.password().unwrap_or_default().to_owned();
    async_nats::ConnectOptions::with_user_and_password(user, password)
        .ping_interval(Duration::from_millis(500))
        .connect(address)
        .await
        .context("could not connect to our own nats-server")
}
