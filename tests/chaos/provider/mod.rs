//! The stub provider: answers every turn by the words in its input, fails as the schedule says, and records every request from its
//! first byte to its last. It speaks OpenResponses over real HTTP and keeps no conversation: the request alone decides the answer,
//! so that a repeated call gets the same answer.

mod answer;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, header},
    response::Response,
    routing::post,
};
use domain::{SessionKey, ThreadName};
use prompt::manifest::Hash;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    dice::Dice,
    plan::{ASKED, ProviderFailure},
    records::{CallEnd, ProviderCall, SentText, TextOf, WorkKind},
};
use answer::Said;

pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    seed: u64,
    /// Account id → canary.
    canaries: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    /// Time of an answer, spread evenly; some take the second range.
    think_ms: (u64, u64),
    think_long_ms: (u64, u64),
    log: Mutex<Vec<ProviderCall>>,
    /// Scheduled failures of the next requests: the fault and its kind.
    failures: Mutex<VecDeque<(usize, ProviderFailure)>>,
    /// Fault → times served.
    served: Mutex<BTreeMap<usize, usize>>,
}

/// Times of answers.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) think_ms: (u64, u64),
    pub(crate) think_long_ms: (u64, u64),
}

/// Faults must hit turns in flight, so answers take a while, and one in twelve about as long as a lease.
pub(crate) const PACE: Pace = Pace {
    think_ms: (0, 400),
    think_long_ms: (1_500, 3_000),
};

/// Each answer of [`WorkKind::Slow`].
const HOLD_MS: (u64, u64) = (1_200, 3_200);

impl Stub {
    pub(crate) async fn start(
        seed: u64,
        pace: Pace,
        canaries: BTreeMap<String, String>,
        secrets: BTreeMap<String, String>,
    ) -> anyhow::Result<Stub> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            seed,
            canaries,
            secrets,
            think_ms: pace.think_ms,
            think_long_ms: pace.think_long_ms,
            log: Mutex::default(),
            failures: Mutex::default(),
            served: Mutex::default(),
        });
        let router = Router::new()
            .route("/{caller}/v1/responses", post(respond))
            .layer(DefaultBodyLimit::max(16 * 1024 * 1024))
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                panic!("the stub provider ended: {error}");
            }
        });
        Ok(Stub {
            address,
            shared,
            server,
        })
    }

    /// The next `count` requests fail like this.
    pub(crate) fn fail(&self, fault: usize, failure: ProviderFailure, count: usize) {
        let mut failures = lock(&self.shared.failures);
        failures.extend(std::iter::repeat_n((fault, failure), count));
    }

    /// Removes the rest of a fault.
    pub(crate) fn heal(&self, fault: usize) {
        lock(&self.shared.failures).retain(|(of, _)| *of != fault);
    }

    pub(crate) fn heal_all(&self) {
        lock(&self.shared.failures).clear();
    }

    /// Times that this fault was served.
    pub(crate) fn served(&self, fault: usize) -> usize {
        lock(&self.shared.served).get(&fault).copied().unwrap_or_default()
    }

    pub(crate) fn calls(&self) -> Vec<ProviderCall> {
        lock(&self.shared.log).clone()
    }

    /// Session keys with an open call of this process.
    pub(crate) fn in_flight_of(&self, caller: &str) -> Vec<String> {
        let log = lock(&self.shared.log);
        let open = log
            .iter()
            .filter(|call| call.end == CallEnd::Open && call.caller == caller);
        open.map(|call| call.session_key.clone()).collect()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// No code panics while it holds this lock, and the guarded data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call in progress. If it is dropped without [`Flight::land`], its caller disconnected.
struct Flight {
    shared: Arc<Shared>,
    order: usize,
}

impl Flight {
    fn land(&self, end: CallEnd) {
        let mut log = lock(&self.shared.log);
        let call = &mut log[self.order];
        if call.end == CallEnd::Open {
            call.end = end;
            call.ended_at = Some(OffsetDateTime::now_utc());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.land(CallEnd::Aborted);
    }
}

async fn respond(
    State(shared): State<Arc<Shared>>,
    Path(caller): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = Request::read(&headers, &body);
    let flight = shared.begin(caller, &request, &headers, &body);
    let failure = lock(&shared.failures).pop_front();
    let mut dice = Dice::new(shared.seed, &format!("{} {}", request.session_key, flight.order));
    let think = match dice.below(12) {
        _ if request.work == Some(WorkKind::Slow) => HOLD_MS,
        0 => shared.think_long_ms,
        _ => shared.think_ms,
    };
    tokio::time::sleep(Duration::from_millis(dice.between(think.0, think.1))).await;
    let said = shared.answer(&request, flight.order);
    match failure {
        Some((fault, failure)) => {
            *lock(&shared.served).entry(fault).or_default() += 1;
            answer::failed(failure, said, flight).await
        }
        None if request.is_endless() => answer::endless(flight),
        None => answer::whole(said, flight),
    }
}

impl Shared {
    fn begin(self: &Arc<Self>, caller: String, request: &Request, headers: &HeaderMap, body: &[u8]) -> Flight {
        let text = String::from_utf8_lossy(body);
        let mut elsewhere = headers.clone();
        // The only place of the provider's own credential.
        elsewhere.remove(header::AUTHORIZATION);
        let header_text = format!("{elsewhere:?}");
        let names_in = |named: &BTreeMap<String, String>| -> Vec<String> {
            let found = named
                .iter()
                .filter(|(_, word)| text.contains(*word) || header_text.contains(*word));
            found.map(|(name, _)| name.clone()).collect()
        };
        let mut log = lock(&self.log);
        let order = log.len();
        log.push(ProviderCall {
            order,
            caller,
            session_key: request.session_key.clone(),
            idempotency_key: request.idempotency_key.clone(),
            effect: request.effect.clone(),
            results: request.results.clone(),
            canaries: names_in(&self.canaries),
            secrets: names_in(&self.secrets),
            words: effects(&text),
            texts: request.texts.clone(),
            begun_at: OffsetDateTime::now_utc(),
            ended_at: None,
            end: CallEnd::Open,
        });
        Flight {
            shared: Arc::clone(self),
            order,
        }
    }

    /// The answer that the input's words request. Call ids carry the effect and the round, and end with a number of their own: a
    /// model that is called again creates new ids.
    fn answer(&self, request: &Request, order: usize) -> Said {
        let effect = request.effect.as_deref().unwrap_or("nothing");
        let account = request.account();
        let canary = self.canaries.get(&account).map_or("", String::as_str);
        let reply = Said::Text(format!("reply {effect}; {canary}"));
        let Some(kind) = request.work else { return reply };
        let round = request.round;
        let id = format!("{}.{effect}.{round}.{order}", word(kind));
        let call = |tool: &str, arguments: Value| Said::Calls(vec![(id.clone(), tool.to_owned(), arguments)]);
        let task = request.task();
        let message = |suffix: &str| {
            let body = format!("effect {effect}{suffix}; {canary}");
            serde_json::json!({"task_id": task, "body": body})
        };
        let two = |(tool, arguments): (&str, Value)| {
            Said::Calls(vec![
                (format!("first.{order}"), "task_message".to_owned(), message("")),
                (id.clone(), tool.to_owned(), arguments),
            ])
        };
        let post = |suffix: &str| call("task_message", message(suffix));
        let done = serde_json::json!({"task_id": task, "status": "done"});
        match (kind, round) {
            (WorkKind::Message | WorkKind::TwoMessages | WorkKind::Slow, 0) => post(""),
            (WorkKind::TwoMessages, 1) => post("-2"),
            (WorkKind::History, 0) => call("task_history", serde_json::json!({"task_id": task})),
            (WorkKind::Context, 0) => {
                let body = format!("effect {effect}; {canary}");
                call("task_context_write", serde_json::json!({"body": body}))
            }
            (WorkKind::Ask, 0) => {
                let body = format!("{canary} work=reply effect={effect}-asked;");
                call("response_request", serde_json::json!({"agents": [ASKED], "body": body}))
            }
            (WorkKind::Question, 0) => {
                let question = format!("{canary} effect {effect}: which one?");
                call("ask_question", serde_json::json!({"question": question}))
            }
            (WorkKind::Later, 0) => {
                let note = format!("{canary} work=reply effect={effect}-asked;");
                call("check_later", serde_json::json!({"after_minutes": 1, "note": note}))
            }
            (WorkKind::Plan, 0) => {
                let plan =
                    serde_json::json!({"task_id": task, "plan": format!("{canary} first this"), "summary": "this"});
                call("submit_plan", plan)
            }
            (WorkKind::Split, 0) => {
                let part = |n: usize, kind: WorkKind| {
                    let request = format!("{canary} work={} effect={effect}-{n}-asked;", word(kind));
                    serde_json::json!({"request": request, "label": format!("part {n}")})
                };
                let sum: usize = effect.bytes().map(usize::from).sum();
                let join = if sum.is_multiple_of(2) { "all" } else { "each" };
                // Some end at about the same time.
                let second = if sum % 4 < 2 { WorkKind::Reply } else { WorkKind::Slow };
                let parts = [part(1, WorkKind::Reply), part(2, second)];
                call("subagent_spawn", serde_json::json!({"subagents": parts, "join": join}))
            }
            (WorkKind::Child, 0) => {
                let prompt = format!("{canary} work=reply effect={effect}-asked;");
                call("create_session", serde_json::json!({"prompt": prompt, "agent": ASKED}))
            }
            (WorkKind::Mail, 0) => {
                let content = format!("{canary} work=reply effect={effect}-asked;");
                let to = if request.session_key.contains(":bob:") {
                    "@ann"
                } else {
                    "@bob"
                };
                call("send_message", serde_json::json!({"to": to, "content": content}))
            }
            (WorkKind::Done, 0) => call("task_status", done),
            // The last id names the work when the results come back; every id ends with the answer's number.
            (WorkKind::TwoAtOnce, 0) => two(("task_message", message("-2"))),
            (WorkKind::Finish, 0) => two(("task_status", done)),
            (WorkKind::Silent, 0) => call("no_reply", serde_json::json!({})),
            _ => reply,
        }
    }
}

const WORDS: &[(WorkKind, &str)] = &[
    (WorkKind::Reply, "reply"),
    (WorkKind::Message, "message"),
    (WorkKind::TwoMessages, "two_messages"),
    (WorkKind::TwoAtOnce, "two_at_once"),
    (WorkKind::History, "history"),
    (WorkKind::Context, "context"),
    (WorkKind::Ask, "ask"),
    (WorkKind::Done, "done"),
    (WorkKind::Finish, "finish"),
    (WorkKind::Silent, "silent"),
    (WorkKind::Question, "question"),
    (WorkKind::Plan, "plan"),
    (WorkKind::Later, "later"),
    (WorkKind::Slow, "slow"),
    (WorkKind::Split, "split"),
    (WorkKind::Child, "child"),
    (WorkKind::Mail, "mail"),
];

/// As it stands in a notification's body.
pub(crate) fn word(kind: WorkKind) -> &'static str {
    WORDS
        .iter()
        .find(|(of, _)| *of == kind)
        .expect("every kind has a word")
        .1
}

/// The used parts of a request.
struct Request {
    session_key: String,
    idempotency_key: String,
    named_task: Option<String>,
    work: Option<WorkKind>,
    effect: Option<String>,
    /// Rounds of tool calls before it.
    round: usize,
    results: Vec<String>,
    texts: Vec<SentText>,
}

impl Request {
    fn read(headers: &HeaderMap, body: &[u8]) -> Request {
        let text = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let items = body["input"].as_array().cloned().unwrap_or_default();
        let results: Vec<String> = items
            .iter()
            .filter(|item| item["type"] == "function_call_output")
            .map(|item| item["call_id"].as_str().unwrap_or_default().to_owned())
            .collect();
        // An assembled prompt has earlier turns before its own: the last item is the turn's.
        let last = items.iter().rfind(|item| item["role"] == "user");
        let input = last.unwrap_or(&body["input"]).to_string();
        // `<work>.<effect>.<round>.<number>`
        let carried = results.last().map(|id| id.split('.').collect::<Vec<_>>());
        let (work, effect, round) = match carried.as_deref() {
            Some([work, effect, round, _]) => (
                kind_of(work),
                Some((*effect).to_owned()),
                round.parse().map_or(1, |round: usize| round + 1),
            ),
            // What is told of a stopped turn precedes the notification, and the excerpt of its thread follows: the first marks
            // from the notification on are its own. Of a run, its first item decides.
            _ => {
                let own = &input[input.find("Notification").unwrap_or(0)..];
                (
                    after(own, "work=").and_then(kind_of),
                    after(own, "effect=").map(str::to_owned),
                    0,
                )
            }
        };
        let thread = text("x-openclaw-session-key");
        Request {
            session_key: ThreadName::parse(&thread).map_or(thread, |name| name.key.to_string()),
            idempotency_key: text("idempotency-key"),
            named_task: after(&input, "Task: ").map(str::to_owned),
            work,
            effect,
            round,
            results,
            texts: texts(&body),
        }
    }

    fn account(&self) -> String {
        account_of(&self.session_key)
    }

    /// It brings the result of a repeated call.
    fn is_endless(&self) -> bool {
        self.results.iter().any(|id| id.starts_with(answer::ENDLESS))
    }

    /// From the session key; of a replay, whose key does not say it, from the input of its first round.
    fn task(&self) -> String {
        let of = |prefix: &str| Some(self.session_key.strip_prefix(prefix)?.split(':').next()?.to_uppercase());
        of("task:").or_else(|| self.named_task.clone()).unwrap_or_default()
    }
}

/// The texts that a model is given.
fn texts(body: &Value) -> Vec<SentText> {
    let sent = |of: TextOf, text: &str| SentText {
        of,
        sha256: Hash::of(text).to_string(),
    };
    let instructions = body["instructions"]
        .as_str()
        .map(|text| sent(TextOf::Instructions, text));
    let input = body["input"].as_str().map(|text| sent(TextOf::User, text));
    let items = body["input"].as_array().into_iter().flatten().filter_map(|item| {
        let content = item["content"].as_str();
        match (item["type"].as_str(), item["role"].as_str()) {
            (Some("function_call_output"), _) => {
                let id = item["call_id"].as_str().unwrap_or_default();
                Some(sent(TextOf::Result(id.to_owned()), item["output"].as_str()?))
            }
            (_, Some("user")) => Some(sent(TextOf::User, content?)),
            (_, Some("assistant")) => Some(sent(TextOf::Assistant, content?)),
            (_, _) => None,
        }
    });
    instructions.into_iter().chain(input).chain(items).collect()
}

/// The effects in a text, each once.
fn effects(text: &str) -> Vec<String> {
    let marks = ["effect=", "effect ", "reply "];
    let found = marks
        .iter()
        .flat_map(|mark| text.match_indices(mark).map(|(at, mark)| &text[at + mark.len()..]));
    let words = found.map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    words
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
        .collect::<BTreeSet<String>>()
        .into_iter()
        .collect()
}

/// The account of a session, by its key.
pub(crate) fn account_of(session_key: &str) -> String {
    SessionKey::parse(session_key).map_or_else(|_| String::new(), |key| key.account.to_string())
}

fn kind_of(text: &str) -> Option<WorkKind> {
    WORDS.iter().find(|(_, word)| *word == text).map(|(kind, _)| *kind)
}

/// The word after a mark: letters, digits, `_` and `-`.
fn after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    let rest = &text[text.find(mark)? + mark.len()..];
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
    Some(&rest[..end.unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Request {
        Request::read(&HeaderMap::new(), body.to_string().as_bytes())
    }

    #[test]
    fn the_first_words_decide() {
        let input =
            "Notification: n-1\nBody:\n[begin]\nx work=two_messages effect=e000001;\n[end]\nwork=reply effect=e2;";
        let told = format!("Your previous turn was stopped. It was about this:\nwork=slow effect=e0;\n\n{input}");
        assert_eq!(
            read(&serde_json::json!({ "input": told })).work,
            Some(WorkKind::TwoMessages)
        );
        let request = read(&serde_json::json!({ "input": input }));
        assert_eq!(request.work, Some(WorkKind::TwoMessages));
        assert_eq!((request.effect.as_deref(), request.round), (Some("e000001"), 0));
    }

    #[test]
    fn of_an_assembled_prompt_its_own_item_decides() {
        let item = |role: &str, text: &str| serde_json::json!({"type": "message", "role": role, "content": text});
        let items = [
            item("user", "Notification: n-1\nwork=done effect=e000001;"),
            item("assistant", "reply e000001; canary"),
            item("user", "Notification: n-2\nwork=ask effect=e000002;"),
        ];
        let body = serde_json::json!({"input": items, "instructions": "Be brief."});
        let request = read(&body);
        assert_eq!(
            (request.work, request.effect.as_deref()),
            (Some(WorkKind::Ask), Some("e000002"))
        );
        let kinds: Vec<&TextOf> = request.texts.iter().map(|text| &text.of).collect();
        assert_eq!(
            kinds,
            [&TextOf::Instructions, &TextOf::User, &TextOf::Assistant, &TextOf::User]
        );
        assert_eq!(effects(&body.to_string()), ["e000001", "e000002"]);
        assert_eq!(
            effects("effect e000003-asked: which; effect is effect= and reply to"),
            ["e000003-asked"]
        );
    }

    #[test]
    fn results_carry_the_work_on() {
        let item = serde_json::json!({"type": "function_call_output", "call_id": "two_messages.e000001-asked.0.17",
            "output": "work=done effect=e9;"});
        let request = read(&serde_json::json!({ "input": [item] }));
        assert_eq!(request.work, Some(WorkKind::TwoMessages));
        assert_eq!((request.effect.as_deref(), request.round), (Some("e000001-asked"), 1));
    }
}
