//! A client that knows only the public names: raw HTTP and raw NATS, every name and field written out. Other programs rely on this
//! contract; changing this test means breaking it.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, eventually};

use crate::house::House;

const NOTIFICATION: [&str; 11] = [
    "id",
    "task",
    "agent",
    "type",
    "state",
    "session_id",
    "session_key",
    "turn_id",
    "attempts",
    "reason",
    "created_at",
];
const SESSION: [&str; 11] = [
    "id",
    "kind",
    "task",
    "agent",
    "generation",
    "key",
    "state",
    "opened_at",
    "closed_at",
    "close_reason",
    "queued",
];
const TURN: [&str; 16] = [
    "id",
    "session_id",
    "generation",
    "number",
    "state",
    "notifications",
    "profile",
    "instructions",
    "input",
    "reply",
    "tool_calls",
    "usage",
    "error",
    "started_at",
    "finished_at",
    "manifest",
];
const TOOL_CALL: [&str; 5] = ["call_id", "name", "arguments", "state", "result"];
const MESSAGE: [&str; 4] = ["id", "author", "body", "created_at"];
const DEAD_LETTER: [&str; 8] = [
    "id",
    "subject",
    "reason",
    "detail",
    "payload",
    "attempts",
    "created_at",
    "redriven_at",
];
/// Headers of every message that Signalbox publishes. `traceparent` is on consequences of a message that had one.
const HEADERS: [&str; 9] = [
    "Nats-Msg-Id",
    "Signalbox-Cause",
    "Signalbox-Hops",
    "ce-specversion",
    "ce-id",
    "ce-type",
    "ce-source",
    "ce-subject",
    "ce-time",
];

/// Every field is present, also if it is null.
fn has(value: &Value, fields: &[&str]) {
    for field in fields {
        assert!(value.get(field).is_some(), "{field} is missing in {value}");
    }
}

/// A message as a plain client receives it.
struct Heard {
    subject: String,
    headers: async_nats::HeaderMap,
}

impl Heard {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.as_str())
    }
}

/// An outside program.
struct Program<'a> {
    house: &'a House,
    key: String,
    nats: async_nats::Client,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl<'a> Program<'a> {
    async fn start(house: &'a House) -> Program<'a> {
        let nats = house.world.client().await;
        // A publisher hears events and dead letters only.
        let operator = house.world.operator().await;
        let mut messages = operator.subscribe("signalbox.>").await.unwrap();
        operator.flush().await.unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listening = Arc::clone(&heard);
        tokio::spawn(async move {
            let _operator = operator;
            while let Some(message) = messages.next().await {
                if message.subject.starts_with("signalbox.stored.") {
                    continue; // Says only that something came.
                }
                let message = Heard {
                    subject: message.subject.to_string(),
                    headers: message.headers.unwrap_or_default(),
                };
                listening.lock().unwrap().push(message);
            }
        });
        Program {
            house,
            key: OPERATOR_TOKEN.to_owned(),
            nats,
            heard,
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let url = format!("{}{path}", self.house.api());
        self.house.call(method, url, &self.key, &[], body).await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.get(path).await;
        has(&list, &["items", "next_cursor"]);
        list["items"].as_array().unwrap().clone()
    }

    async fn make(&self, path: &str, body: Value) -> Value {
        let (status, made) = self.ask(Method::POST, path, Some(body)).await;
        assert_eq!(status, 201, "{path}: {made}");
        made
    }

    async fn publish(&self, subject: &str, headers: &[(&str, &str)], payload: impl Into<bytes::Bytes>) {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let sent = self
            .nats
            .publish_with_headers(subject.to_owned(), map, payload.into())
            .await;
        sent.unwrap();
        self.nats.flush().await.unwrap();
    }

    async fn outcome(&self, id: &str) -> Value {
        let id = id.replace('%', "%25").replace('/', "%2F").replace(' ', "%20");
        eventually(&format!("{id} has an outcome"), || async {
            let path = format!("/api/orgs/acme/notifications/{id}");
            let (_, found) = self.ask(Method::GET, &path, None).await;
            let over = ["delivered", "failed", "refused", "cancelled"].contains(&found["state"].as_str()?);
            over.then_some(found)
        })
        .await
    }
}

/// An account, a key, two agents and a task, created as the document says.
async fn tenant(program: &mut Program<'_>) -> (String, String) {
    let account = program
        .make("/api/accounts", json!({"id": "acme", "name": "Acme"}))
        .await;
    has(&account, &["id", "name"]);
    assert!(!program.list("/api/accounts").await.is_empty());
    for role in ["admin", "member", "service", "gateway"] {
        let made = program
            .make("/api/orgs/acme/keys", json!({"name": role, "role": role}))
            .await;
        assert!(made["key"].is_string(), "{made}");
    }
    let admin = program
        .make("/api/orgs/acme/keys", json!({"name": "me", "role": "admin"}))
        .await;
    program.key = admin["key"].as_str().unwrap().to_owned();
    let coder = program
        .make(
            "/api/orgs/acme/agents",
            json!({"slug": "coder", "name": "Coder", "role": "Writes code.", "provider": "default"}),
        )
        .await;
    has(&coder, &["id", "slug", "name", "role", "provider"]);
    let reviewer = program
        .make("/api/orgs/acme/agents", json!({"slug": "reviewer", "name": "Reviewer"}))
        .await;
    let task = program
        .make(
            "/api/orgs/acme/tasks",
            json!({"id": "PROJ-7", "title": "Mend the tests", "description": "All of them", "assignees": ["coder", reviewer["id"]]}),
        )
        .await;
    has(&task, &["id", "title", "description", "status", "assignees"]);
    let id = |agent: &Value| agent["id"].as_str().unwrap().to_owned();
    (id(&coder), id(&reviewer))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_knows_the_public_names_needs_nothing_else() {
    let house = House::open(|seen| match (seen.nth_of_key, seen.text().contains("PROJ-7")) {
        (0, true) => Reply::call("call-1", "task_history", json!({"task_id": "PROJ-7"})),
        _ => Reply::text("The tests pass again."),
    })
    .await;
    let mut program = Program::start(&house).await;
    let (coder, reviewer) = tenant(&mut program).await;

    // A notification with all fields, on a task; and the smallest, without a task.
    let full = r#"{"id": "ci-4711", "type": "ci_failed", "agent": "coder", "title": "CI", "body": "Tests fail on main",
        "message_id": null, "sender": {"kind": "service", "id": "ci", "name": "CI"},
        "queue_mode": "followup", "metadata": {"run": 4711}, "branch": "main"}"#;
    let trace = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    program
        .publish("signalbox.notification.acme.PROJ-7", &[trace], full)
        .await;
    let notification = program.outcome("ci-4711").await;
    has(&notification, &NOTIFICATION);
    let key = format!("task:proj-7:agent:{coder}:acme:v1");
    for (field, value) in [
        ("task", "PROJ-7"),
        ("agent", "coder"),
        ("type", "ci_failed"),
        ("state", "delivered"),
        ("session_key", &key),
    ] {
        assert_eq!(notification[field], value, "{field}");
    }
    assert_eq!(
        notification["metadata"],
        json!({"run": 4711, "branch": "main"}),
        "unknown fields are kept"
    );
    let smallest = r#"{"agent": "coder", "body": "Tests fail on main"}"#;
    let named = ("Nats-Msg-Id", "by-header");
    program
        .publish("signalbox.notification.acme.-", &[named], smallest)
        .await;
    let taskless = program.outcome("by-header").await;
    assert_eq!(taskless["state"], "delivered", "{taskless}");
    assert_eq!(taskless["task"], Value::Null);
    assert_eq!(taskless["session_key"], format!("system:agent:{coder}:acme:v1"));

    // Its state.
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let session = program
        .get(&format!(
            "/api/orgs/acme/sessions/{}",
            text(&notification["session_id"])
        ))
        .await;
    has(&session, &SESSION);
    assert_eq!(session["agent"], json!({"id": coder, "slug": "coder"}));
    assert_eq!(
        (&session["state"], &session["kind"], &session["key"]),
        (&json!("active"), &json!("task"), &json!(key))
    );
    for query in ["task=proj-7", "agent=coder&active=true", "task=PROJ-7&agent=&active="] {
        let found = program.list(&format!("/api/orgs/acme/sessions?{query}")).await;
        assert!(found.contains(&session), "{query}: {found:?}");
    }
    let turn = program
        .get(&format!("/api/orgs/acme/turns/{}", text(&notification["turn_id"])))
        .await;
    has(&turn, &TURN);
    has(&turn["profile"], &["version", "hash"]);
    has(&turn["tool_calls"][0], &TOOL_CALL);
    assert_eq!(turn["tool_calls"][0]["arguments"], json!({"task_id": "PROJ-7"}));
    assert_eq!(
        (&turn["state"], &turn["reply"]),
        (&json!("finished"), &json!("The tests pass again."))
    );
    let turns = program
        .list(&format!("/api/orgs/acme/sessions/{}/turns", text(&session["id"])))
        .await;
    assert_eq!(turns, std::slice::from_ref(&turn));
    let message = eventually("the reply is in the thread", || async {
        program
            .list("/api/orgs/acme/tasks/PROJ-7/messages")
            .await
            .first()
            .cloned()
    })
    .await;
    has(&message, &MESSAGE);
    assert_eq!(
        message["author"],
        json!({"kind": "agent", "id": coder, "name": "Coder"})
    );
    assert!(!program.list("/api/orgs/acme/tasks/proj-7/activities").await.is_empty());

    // The provider's request.
    let seen = house.provider.seen_of(&key);
    let first = &seen[0].body;
    for field in ["model", "instructions", "input", "tools", "user"] {
        assert!(!first[field].is_null(), "{field} is missing in {first}");
    }
    assert_eq!((&first["stream"], &first["user"]), (&json!(true), &json!(key)));
    assert_eq!(first["tools"][0]["type"], "function");
    assert_eq!(seen[0].idempotency_key, format!("{}:1", text(&turn["id"])));
    assert!(seen[0].traceparent.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
    let again = &seen[1].body;
    assert_eq!(again["input"][0]["type"], "function_call_output");
    assert_eq!(again["input"][0]["call_id"], "call-1");

    // One notification for each of several agents, and for the task's assignees.
    program
        .publish(
            "signalbox.notification.acme.PROJ-7",
            &[("ce-id", "several")],
            r#"{"agents": ["coder", "reviewer"], "body": "b"}"#,
        )
        .await;
    program
        .publish(
            "signalbox.notification.acme.proj-7",
            &[],
            r#"{"id": "assignees", "body": "b"}"#,
        )
        .await;
    for id in ["several", "assignees"] {
        for agent in [&coder, &reviewer] {
            assert_eq!(program.outcome(&format!("{id}:{agent}")).await["state"], "delivered");
        }
    }

    // Refused: in the dead letters and on NATS; fixed and redriven.
    program
        .publish(
            "signalbox.notification.acme.PROJ-7",
            &[trace],
            r#"{"id": "early", "agent": "tester", "body": "b"}"#,
        )
        .await;
    let refused = program.outcome("early").await;
    assert!(text(&refused["reason"]).starts_with("unknown_agent"), "{refused}");
    let letters = program.list("/api/orgs/acme/dead-letters").await;
    has(&letters[0], &DEAD_LETTER);
    assert_eq!(letters[0]["subject"], "signalbox.notification.acme.PROJ-7");
    program
        .make("/api/orgs/acme/agents", json!({"slug": "tester", "name": "Tester"}))
        .await;
    let redrive = format!("/api/orgs/acme/dead-letters/{}/redrive", text(&letters[0]["id"]));
    let (status, body) = program.ask(Method::POST, &redrive, None).await;
    assert!(status.is_success(), "{status} {body}");
    eventually("the redriven one is delivered", || async {
        (program.outcome("early").await["state"] == "delivered").then_some(())
    })
    .await;

    // `completed` is read as `done`; what comes later opens the next generation.
    let (status, task) = program
        .ask(
            Method::PATCH,
            "/api/orgs/acme/tasks/PROJ-7",
            Some(json!({"status": "completed"})),
        )
        .await;
    assert_eq!((status, &task["status"]), (StatusCode::OK, &json!("done")));
    let closed = program
        .get(&format!("/api/orgs/acme/sessions/{}", text(&session["id"])))
        .await;
    assert_eq!(closed["state"], "closed");
    assert!(closed["closed_at"].is_string() && closed["close_reason"].is_string());
    let (status, accepted) = program
        .ask(
            Method::POST,
            "/api/orgs/acme/notifications",
            Some(json!({"task": "PROJ-7", "id": "later", "agent": "coder", "body": "b"})),
        )
        .await;
    assert_eq!((status, accepted), (StatusCode::ACCEPTED, json!({"id": "later"})));
    let later = program.outcome("later").await;
    assert_eq!(later["session_key"], key.replace(":v1", ":v2"));

    every_message_has_every_header(&program).await;
    every_service_has_its_pages(&house).await;
    house.close().await;
}

/// The public document, on the API's own port.
async fn every_service_has_its_pages(house: &House) {
    let roles = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];
    for address in roles.map(|role| house.running(role).started) {
        for page in ["/healthz", "/readyz", "/metrics"] {
            let answer = reqwest::get(format!("http://{address}{page}")).await.unwrap();
            assert_eq!(answer.status(), 200, "{address}{page}");
            if page == "/metrics" {
                let kind = answer.headers()["content-type"].to_str().unwrap();
                assert!(kind.starts_with("text/plain"), "{kind}");
            }
        }
    }
}

/// A CloudEvent in binary mode on every public subject, with hops, cause and trace.
async fn every_message_has_every_header(program: &Program<'_>) {
    let traced = [
        "signalbox.session.resolved.acme.PROJ-7",
        "signalbox.tool.requested.acme.PROJ-7",
        "signalbox.tool.finished.acme.PROJ-7",
        "signalbox.event.acme.PROJ-7.turn.started",
        "signalbox.event.acme.PROJ-7.turn.finished",
        "signalbox.event.acme.PROJ-7.notification.refused",
        "signalbox.event.acme.PROJ-7.message.posted",
        "signalbox.dead.acme.PROJ-7",
        "signalbox.live.acme.PROJ-7",
    ];
    let more = [
        "signalbox.session.resolved.acme.-",
        "signalbox.session.closed.acme.PROJ-7",
        "signalbox.event.acme.PROJ-7.task.status_changed",
    ];
    for subject in traced.iter().chain(&more) {
        let trace = eventually(subject, || async {
            let heard = program.heard.lock().unwrap();
            let first = heard.iter().find(|message| message.subject == *subject)?;
            Some(first.header("traceparent").map(str::to_owned))
        })
        .await;
        let goes_on = trace.is_some_and(|trace| trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert!(goes_on || more.contains(subject), "{subject}");
    }
    let heard = program.heard.lock().unwrap();
    let redriven = |message: &Heard| message.header("Signalbox-Redrive").is_some();
    let ours = |message: &&Heard| !message.subject.starts_with("signalbox.notification.") || redriven(message);
    assert!(heard.iter().any(redriven));
    for message in heard.iter().filter(ours) {
        // A person's HTTP request has no causing message; a redrive has one.
        let by_person = redriven(message)
            || [
                "task.created",
                "task.status_changed",
                "session.closed",
                "account.changed",
                "agent.changed",
                "key.changed",
            ]
            .iter()
            .any(|fact| message.subject.contains(fact));
        for name in HEADERS {
            let may_lack = name == "Signalbox-Cause" && by_person;
            assert!(
                message.header(name).is_some() || may_lack,
                "{} lacks {name}",
                message.subject
            );
        }
        assert_eq!(message.header("ce-specversion"), Some("1.0"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_bodies_are_taken_up_to_their_last_character_and_no_further() {
    let house = House::open(|_| Reply::text("ok")).await;
    let mut program = Program::start(&house).await;
    tenant(&mut program).await;
    let subject = "signalbox.notification.acme.PROJ-7";

    // 1-128 printable characters, in every way an id can be given.
    for id in ["a/b c%d", "Lauf-ü", "実行-7", &"x".repeat(128)] {
        let payload = json!({"id": id, "agent": "coder", "body": "b"}).to_string();
        program.publish(subject, &[], payload).await;
        let outcome = program.outcome(id).await;
        assert_eq!((&outcome["id"], &outcome["state"]), (&json!(id), &json!("delivered")));
    }
    for bad in ["", "a\nb", &"x".repeat(129)] {
        let payload = json!({"id": bad, "agent": "coder", "body": "b"}).to_string();
        program.publish(subject, &[], payload).await;
    }
    let long = "y".repeat(129);
    let payload = r#"{"agent": "coder", "body": "b"}"#;
    program.publish(subject, &[("Nats-Msg-Id", &long)], payload).await;
    let refused = eventually("four refusals", || async {
        let letters = program.list("/api/orgs/acme/dead-letters").await;
        (letters.len() == 4).then_some(letters)
    })
    .await;
    assert!(
        refused.iter().all(|letter| letter["reason"] == "invalid_field"),
        "{refused:?}"
    );

    // 256 KiB of text, however its writer escapes it.
    let bytes_max = 256 * 1024;
    let body = |text: &str, count: usize| format!(r#""agent": "coder", "body": "{}""#, text.repeat(count));
    for (id, body, state) in [
        ("exact", body("x", bytes_max), "delivered"),
        ("escaped", body(r"\u00e9", bytes_max / 2), "delivered"),
        ("quotes", body(r#"\""#, bytes_max), "delivered"),
        ("over", body("x", bytes_max + 1), "refused"),
    ] {
        program
            .publish(subject, &[], format!(r#"{{"id": "{id}", {body}}}"#))
            .await;
        assert_eq!(program.outcome(id).await["state"], state, "{id}");
    }

    // Two spellings name one task; invalid names are refused.
    for task in ["PROJ-7", "proj-7", "Proj-7"] {
        let found = program.get(&format!("/api/orgs/acme/tasks/{task}")).await;
        assert_eq!(found["id"], "PROJ-7");
    }
    for (path, body) in [
        ("/api/orgs/acme/tasks", json!({"id": "proj-7", "title": "t"})),
        ("/api/orgs/acme/tasks", json!({"id": "_a", "title": "t"})),
        ("/api/orgs/acme/tasks", json!({"id": "t".repeat(65), "title": "t"})),
        ("/api/orgs/acme/agents", json!({"slug": "Coder", "name": "n"})),
        ("/api/orgs/acme/agents", json!({"slug": "a".repeat(64), "name": "n"})),
    ] {
        let (status, problem) = program.ask(Method::POST, path, Some(body.clone())).await;
        assert!(status.is_client_error(), "{body}: {status}");
        has(&problem, &["type", "title", "status", "detail"]);
        assert_eq!(problem["status"], status.as_u16());
    }
    house.close().await;
}
