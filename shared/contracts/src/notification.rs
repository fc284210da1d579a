//! The notification: what publishers may send, how it is parsed, and why it may be refused. Parsing is pure and
//! bounded; the resolver checks account, task, agent and message against each other, since that needs the database.

use std::fmt;

use domain::{
    AccountId, Actor, ActorKind, AgentRef, Inadmissible, MessageId, NotificationId, QueueMode, SessionAddress, UserId,
    session_key::SESSION_KEY_BYTES_MAX,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Headers, header,
    json::{self, NotJson},
    message::Message,
    storable::holds_nul,
};

pub const BODY_BYTES_MAX: usize = 256 * 1024;
pub const TITLE_BYTES_MAX: usize = 1024;
pub const METADATA_BYTES_MAX: usize = 64 * 1024;
pub const AGENTS_MAX: usize = 64;
/// Of `metadata.collect_debounce_ms`: how long an item with queue mode `collect` waits for more of its kind.
pub const COLLECT_DEBOUNCE_MS_MAX: u64 = 60_000;
/// Longer messages are refused unparsed. This is the broker's own limit: an accepted message is parsed, since its parts
/// are measured as texts and some JSON encoders escape every letter beyond ASCII, which makes a body three times as
/// long.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// A notification as published on `{root}.notification.{account}.{task}`. Only `body` has to be there; unknown fields
/// are kept in `metadata`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NotificationMessage {
    /// The publisher's idempotency key, unique in the account; else `Nats-Msg-Id`, else `ce-id`, else generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<NotificationId>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub kind: Option<String>,
    /// Id or slug. Without `agent`, `agents` and `session`, the task's assignees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub agents: Vec<String>,
    /// Instead of agents: the key of any generation of a session, or `orchestrator:{user}`, `orchestrator:org:{account}`. The session of
    /// a task needs its task in the subject; every other one `-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 384))]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub title: Option<String>,
    /// At most 256 KiB.
    pub body: String,
    /// The thread message that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Actor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mode: Option<QueueMode>,
    /// At most 64 KiB. `reopen: true`: a person wants to reopen a finished task. `collect_debounce_ms`: 0 to 60,000, for queue
    /// mode `collect`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl NotificationMessage {
    /// Signalbox's own: for one conversation, of one type.
    pub fn new(kind: &str, sender: Actor, title: String, body: String) -> NotificationMessage {
        NotificationMessage {
            id: None,
            kind: Some(kind.to_owned()),
            agent: None,
            agents: Vec::new(),
            session: None,
            title: Some(title),
            body,
            message_id: None,
            sender: Some(sender),
            queue_mode: None,
            metadata: Map::new(),
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> NotificationMessage {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }
}

impl Message for NotificationMessage {
    const KIND: &'static str = "notification";
}

/// Id of the message. It contains the account, since publishers choose notification ids and the broker's deduplication
/// does not consider accounts.
pub fn message_id(account: &AccountId, id: &NotificationId) -> String {
    format!("{account}:{id}")
}

/// Why a notification is not delivered. The word is for programs, [`Refusal::detail`] for people.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RefusalReason {
    Malformed,
    InvalidField,
    TooLarge,
    InvalidSubject,
    UnknownAccount,
    UnknownTask,
    UnknownAgent,
    NoAgent,
    /// A person's orchestrator is addressed, and no member has the id.
    UnknownUser,
    /// The account's orchestrator is addressed, and no admin has enabled it.
    OrchestratorOff,
    /// The addressed session is of another task or account, or of a kind that takes no notifications.
    SessionMismatch,
    IdConflict,
    MessageMismatch,
    /// The task is the coordinator's chat, and the agent is not the coordinator (S6).
    NotCoordinator,
    HopLimit,
    /// The session's queue is full.
    QueueFull,
    /// The database accepts it in no form. No known cause; it keeps an unknown one from blocking the rest.
    Unprocessable,
}

impl RefusalReason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A refusal with its sentence: the error, and what the publisher can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub reason: RefusalReason,
    pub detail: String,
}

impl Refusal {
    pub fn new(reason: RefusalReason, detail: impl Into<String>) -> Refusal {
        Refusal {
            reason,
            detail: detail.into(),
        }
    }

    /// `cause` is the id of the message or turn that woke the sender.
    pub fn inadmissible(why: Inadmissible, cause: Option<&str>) -> Refusal {
        match why {
            Inadmissible::HopLimit { hops, max } => Refusal::new(
                RefusalReason::HopLimit,
                format!(
                    "{hops} wake-ups of agents by agents lie behind this one, at most {max} may: follow `cause` from {} back to \
                     see the chain; redrive to let it go on",
                    cause.unwrap_or("unknown")
                ),
            ),
            Inadmissible::QueueFull { waiting, max } => Refusal::new(
                RefusalReason::QueueFull,
                format!(
                    "{waiting} notifications wait in the session, at most {max} may for this sender \
                     (resolver.queue_items_max): redrive when the agent has worked on some of them"
                ),
            ),
        }
    }

    pub fn id_conflict(id: &NotificationId) -> Refusal {
        Refusal::new(
            RefusalReason::IdConflict,
            format!(
                "the id {id} was used before for other content, task or agent: give the new notification its own id"
            ),
        )
    }
}

/// As the row of a refused notification holds it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.detail)
    }
}

/// A refused message and the parts of it that could be parsed.
#[derive(Clone, PartialEq, Debug)]
pub struct Unreadable {
    pub id: Option<NotificationId>,
    pub refusal: Refusal,
}

/// The recipients: named agents, the task's assignees, or a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recipients {
    One(AgentRef),
    /// Fans out to one notification each, ids suffixed with `:{agent_id}`.
    Many(Vec<AgentRef>),
    Assignees,
    Session(SessionAddress),
}

impl Recipients {
    /// The person whose own session it is for.
    pub fn user(&self) -> Option<UserId> {
        match self {
            Self::Session(address) => address.person().cloned(),
            Self::One(_) | Self::Many(_) | Self::Assignees => None,
        }
    }
}

/// A parsed notification: within its limits, its names well-formed.
#[derive(Clone, PartialEq, Debug)]
pub struct Notification {
    /// The publisher's id; `None` means that one is generated.
    pub id: Option<NotificationId>,
    pub kind: String,
    pub recipients: Recipients,
    pub title: Option<String>,
    pub body: String,
    pub message_id: Option<MessageId>,
    pub sender: Actor,
    pub queue_mode: Option<QueueMode>,
    pub metadata: Map<String, Value>,
}

impl Notification {
    /// The mode in which it enters its queue. What is published in an agent's name ends no turn.
    pub fn mode(&self) -> QueueMode {
        let asked = self.queue_mode.unwrap_or(QueueMode::Followup);
        match self.sender.kind {
            ActorKind::Agent => asked.of_agent(),
            ActorKind::User | ActorKind::Service => asked,
        }
    }
}

/// The type of a notification that names none.
pub const KIND_DEFAULT: &str = "notification";

/// Parses a published message. Never panics; reads at most [`MESSAGE_BYTES_MAX`] bytes.
pub fn read(headers: &Headers, payload: &[u8]) -> Result<Notification, Unreadable> {
    let header_id = header_id(headers);
    let refuse = |reason, detail: String| Unreadable {
        id: header_id.clone().unwrap_or_default(),
        refusal: Refusal::new(reason, detail),
    };
    if payload.len() > MESSAGE_BYTES_MAX {
        return Err(refuse(
            RefusalReason::TooLarge,
            format!(
                "the message has {} bytes; at most {MESSAGE_BYTES_MAX} are read",
                payload.len()
            ),
        ));
    }
    let value = json::read(payload).map_err(|error| {
        let reason = match error {
            NotJson::Syntax(_) | NotJson::TooDeep { .. } => RefusalReason::Malformed,
            NotJson::TooManyValues { .. } => RefusalReason::TooLarge,
        };
        refuse(reason, format!("the payload is {error}"))
    })?;
    let Value::Object(mut fields) = value else {
        return Err(refuse(
            RefusalReason::Malformed,
            "the payload is JSON, but not an object".to_owned(),
        ));
    };
    // Postgres cannot store a NUL in a text. Checked here, where the publisher can be told, rather than at the insert.
    if fields
        .iter()
        .any(|(name, value)| name.contains('\0') || holds_nul(value))
    {
        return Err(refuse(
            RefusalReason::InvalidField,
            "a text holds the character U+0000".to_owned(),
        ));
    }
    let id = match fields.remove("id") {
        None | Some(Value::Null) => header_id
            .clone()
            .map_err(|detail| refuse(RefusalReason::InvalidField, detail))?,
        Some(Value::String(text)) => Some(
            NotificationId::parse(&text)
                .map_err(|error| refuse(RefusalReason::InvalidField, format!("id: {error}")))?,
        ),
        Some(_) => return Err(refuse(RefusalReason::InvalidField, "id: not a text".to_owned())),
    };
    fields_read(fields, id.clone()).map_err(|refusal| Unreadable { id, refusal })
}

/// The notification id of a redriven message is in `ce-id`, since the message has a message id of its own.
///
/// An invalid id is an error: if it counted as absent, the publisher's repetitions would each become a new
/// notification.
fn header_id(headers: &Headers) -> Result<Option<NotificationId>, String> {
    let names = match headers.get(header::REDRIVE) {
        None => [header::MESSAGE_ID, header::CE_ID],
        Some(_) => [header::CE_ID, header::MESSAGE_ID],
    };
    let given = names
        .iter()
        .find_map(|name| headers.0.get(*name).map(|text| (name, text)));
    given
        .map(|(name, text)| NotificationId::parse(text).map_err(|error| format!("header {name}: {error}")))
        .transpose()
}

fn fields_read(mut fields: Map<String, Value>, id: Option<NotificationId>) -> Result<Notification, Refusal> {
    let kind = text(&mut fields, "type", 64)?.unwrap_or_else(|| KIND_DEFAULT.to_owned());
    if kind.is_empty() || !kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b)) {
        return Err(invalid("type", "1-64 characters of A-Z, a-z, 0-9, _, -, . and :"));
    }
    let agent = text(&mut fields, "agent", 64)?;
    let agents = agents(&mut fields)?;
    let session = text(&mut fields, "session", SESSION_KEY_BYTES_MAX)?;
    let recipients = match (agent, agents, session) {
        (Some(one), None, None) => Recipients::One(agent_ref("agent", &one)?),
        (None, Some(many), None) => Recipients::Many(many),
        (None, None, Some(session)) => Recipients::Session(session_address(&session)?),
        (None, None, None) => Recipients::Assignees,
        (_, Some(_), None) => return Err(invalid("agents", "name either agent or agents, not both")),
        (_, _, Some(_)) => return Err(invalid("session", "name either a session or agents, not both")),
    };
    let title = text(&mut fields, "title", TITLE_BYTES_MAX)?;
    let body = match fields.remove("body") {
        Some(Value::String(body)) if body.len() <= BODY_BYTES_MAX => body,
        Some(Value::String(body)) => {
            return Err(Refusal::new(
                RefusalReason::TooLarge,
                format!(
                    "body has {} bytes; at most {BODY_BYTES_MAX} are taken: put the rest where the agent can fetch it",
                    body.len()
                ),
            ));
        }
        Some(_) => return Err(invalid("body", "not a text")),
        None => return Err(invalid("body", "missing")),
    };
    let message_id = text(&mut fields, "message_id", 64)?
        .map(|text| MessageId::parse(&text).map_err(|error| invalid("message_id", &error.to_string())))
        .transpose()?;
    let sender = sender(&mut fields)?;
    let queue_mode = text(&mut fields, "queue_mode", 32)?
        .map(|text| text.parse::<QueueMode>().map_err(|error| invalid("queue_mode", &error)))
        .transpose()?;
    let mut metadata = match fields.remove("metadata") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err(invalid("metadata", "not an object")),
    };
    // Unknown fields are kept; a name that is in metadata already keeps its value.
    for (name, value) in fields {
        metadata.entry(name).or_insert(value);
    }
    let debounce = metadata.get("collect_debounce_ms").filter(|value| !value.is_null());
    if debounce.is_some_and(|value| value.as_u64().is_none_or(|ms| ms > COLLECT_DEBOUNCE_MS_MAX)) {
        let most = format!("a number from 0 to {COLLECT_DEBOUNCE_MS_MAX}");
        return Err(invalid("metadata.collect_debounce_ms", &most));
    }
    let written = serde_json::to_vec(&metadata).expect("JSON that was read can be written");
    // Unknown fields move a level down, and a program that writes the notification again must be able to have it
    // parsed.
    if !json::fits_within(&written, 1) {
        return Err(invalid("metadata", "nested too deep, unknown fields included"));
    }
    let metadata_bytes = written.len();
    if metadata_bytes > METADATA_BYTES_MAX {
        return Err(Refusal::new(
            RefusalReason::TooLarge,
            format!("metadata and unknown fields have {metadata_bytes} bytes; at most {METADATA_BYTES_MAX} are kept"),
        ));
    }
    Ok(Notification {
        id,
        kind,
        recipients,
        title,
        body,
        message_id,
        sender,
        queue_mode,
        metadata,
    })
}

fn invalid(field: &str, what: &str) -> Refusal {
    Refusal::new(RefusalReason::InvalidField, format!("{field}: {what}"))
}

/// Takes an optional text; `null` counts as absent.
fn text(fields: &mut Map<String, Value>, name: &str, bytes_max: usize) -> Result<Option<String>, Refusal> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text)),
        Some(Value::String(_)) => Err(invalid(name, &format!("longer than {bytes_max} bytes"))),
        Some(_) => Err(invalid(name, "not a text")),
    }
}

fn agents(fields: &mut Map<String, Value>) -> Result<Option<Vec<AgentRef>>, Refusal> {
    let list = match fields.remove("agents") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(invalid("agents", "not a list")),
    };
    if list.is_empty() || list.len() > AGENTS_MAX {
        return Err(invalid("agents", &format!("1-{AGENTS_MAX} agents")));
    }
    let agents = list.iter().map(|value| match value {
        Value::String(text) => agent_ref("agents", text),
        _ => Err(invalid("agents", "not a list of texts")),
    });
    agents.collect::<Result<_, _>>().map(Some)
}

fn agent_ref(field: &str, text: &str) -> Result<AgentRef, Refusal> {
    AgentRef::parse(text).map_err(|error| invalid(field, &error.to_string()))
}

fn session_address(text: &str) -> Result<SessionAddress, Refusal> {
    SessionAddress::parse(text).map_err(|_| {
        let forms = "the key of a session, orchestrator:{user} or orchestrator:org:{account}";
        invalid("session", &format!("not {forms}"))
    })
}

/// A publisher that names no sender is an unnamed service.
fn sender(fields: &mut Map<String, Value>) -> Result<Actor, Refusal> {
    let mut sender = match fields.remove("sender") {
        None | Some(Value::Null) => {
            return Ok(Actor::publisher());
        }
        Some(Value::Object(sender)) => sender,
        Some(_) => return Err(invalid("sender", "not an object")),
    };
    let kind = text(&mut sender, "kind", 16)?
        .ok_or_else(|| invalid("sender", "kind is missing"))?
        .parse()
        .map_err(|error: String| invalid("sender", &format!("kind is {error}")))?;
    let id = text(&mut sender, "id", 128)?
        .filter(|id| !id.is_empty())
        .ok_or_else(|| invalid("sender", "id is missing"))?;
    let name = text(&mut sender, "name", 128)?.unwrap_or_else(|| id.clone());
    let via = text(&mut sender, "via", 128)?;
    Ok(Actor { kind, id, name, via })
}

#[cfg(test)]
mod tests {
    use domain::AgentSlug;
    use proptest::prelude::*;

    use super::*;

    fn read_json(json: &str) -> Result<Notification, Unreadable> {
        read(&Headers::default(), json.as_bytes())
    }

    #[test]
    fn the_smallest_message_is_enough() {
        let notification = read_json(r#"{"agent": "coder", "body": "Tests fail on main"}"#).unwrap();
        assert_eq!(
            notification.recipients,
            Recipients::One(AgentRef::Slug(AgentSlug::parse("coder").unwrap()))
        );
        assert_eq!(notification.kind, KIND_DEFAULT);
        assert_eq!(notification.sender.kind, ActorKind::Service);
        assert_eq!(notification.id, None);
    }

    #[test]
    fn the_full_message_is_read_and_unknown_fields_are_kept() {
        let notification = read_json(
            r#"{"id": "ci-4711", "type": "ci_failed", "agent": "coder", "title": "CI", "body": "b", "message_id": null,
                "sender": {"kind": "service", "id": "ci", "name": "CI"}, "queue_mode": "interrupt",
                "metadata": {"run": 4711}, "branch": "main"}"#,
        )
        .unwrap();
        assert_eq!(notification.id.unwrap().as_str(), "ci-4711");
        assert_eq!(notification.queue_mode, Some(QueueMode::Steer));
        assert_eq!(notification.metadata["branch"], "main");
        assert_eq!(notification.metadata["run"], 4711);
    }

    #[test]
    fn an_agent_ends_no_turn() {
        let check = |kind: &str, asked: &str, expected| {
            let json =
                format!(r#"{{"body": "b", "sender": {{"kind": "{kind}", "id": "x"}}, "queue_mode": "{asked}"}}"#);
            assert_eq!(read_json(&json).unwrap().mode(), expected, "{json}");
        };
        check("agent", "steer", QueueMode::Followup);
        check("agent", "inject", QueueMode::Followup);
        check("agent", "collect", QueueMode::Collect);
        check("user", "steer", QueueMode::Steer);
        check("service", "interrupt", QueueMode::Steer);
        check("service", "enqueue", QueueMode::Followup);
        for refused in ["reject", "rollback"] {
            let error = read_json(&format!(r#"{{"body": "b", "queue_mode": "{refused}"}}"#)).unwrap_err();
            let detail = "queue_mode: not one of followup, collect, steer, inject";
            assert_eq!(
                (error.refusal.reason, error.refusal.detail.as_str()),
                (RefusalReason::InvalidField, detail)
            );
        }
    }

    #[test]
    fn a_debounce_has_its_bounds() {
        let read = |value: &str| {
            read_json(&format!(
                r#"{{"body": "b", "metadata": {{"collect_debounce_ms": {value}}}}}"#
            ))
        };
        for good in ["0", "60000", "null"] {
            assert!(read(good).is_ok(), "{good}");
        }
        for bad in ["60001", "-1", "1.5", "\"100\"", "[]", "true"] {
            assert_eq!(
                read(bad).unwrap_err().refusal.reason,
                RefusalReason::InvalidField,
                "{bad}"
            );
        }
    }

    #[test]
    fn the_id_may_come_from_a_header() {
        let mut headers = Headers::default();
        headers.set(header::CE_ID, "from-ce");
        assert_eq!(
            read(&headers, br#"{"body": ""}"#).unwrap().id.unwrap().as_str(),
            "from-ce"
        );
        headers.set(header::MESSAGE_ID, "from-nats");
        assert_eq!(
            read(&headers, br#"{"body": ""}"#).unwrap().id.unwrap().as_str(),
            "from-nats"
        );
        assert_eq!(
            read(&headers, br#"{"id": "own", "body": ""}"#)
                .unwrap()
                .id
                .unwrap()
                .as_str(),
            "own"
        );
        assert_eq!(
            read(&headers, b"not json").unwrap_err().id.unwrap().as_str(),
            "from-nats"
        );
        headers.set(header::REDRIVE, "a letter");
        assert_eq!(
            read(&headers, br#"{"body": ""}"#).unwrap().id.unwrap().as_str(),
            "from-ce",
            "a redrive has a message id of its own"
        );
    }

    #[test]
    fn a_header_that_is_no_id_is_refused_unless_the_body_has_one() {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, "x".repeat(129));
        let refusal = read(&headers, br#"{"body": ""}"#).unwrap_err().refusal;
        assert_eq!(refusal.reason, RefusalReason::InvalidField);
        assert!(refusal.detail.starts_with("header Nats-Msg-Id: "), "{}", refusal.detail);
        assert!(read(&headers, br#"{"id": "own", "body": ""}"#).is_ok());
        headers.set(header::MESSAGE_ID, "x".repeat(5000));
        assert!(read(&headers, br#"{"body": ""}"#).is_err(), "however long it is");
    }

    #[test]
    fn a_body_is_measured_as_text_whatever_its_writer_escapes() {
        let escaped = |letters: usize| format!(r#"{{"body": "{}"}}"#, "\\u00e9".repeat(letters));
        let fits = read_json(&escaped(BODY_BYTES_MAX / 2)).unwrap();
        assert_eq!(fits.body.len(), BODY_BYTES_MAX);
        let refused = read_json(&escaped(BODY_BYTES_MAX / 2 + 1)).unwrap_err();
        assert!(refused.refusal.detail.starts_with("body has 262146 bytes"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |json: &str, reason: RefusalReason, words: &str| {
            let refusal = read_json(json).unwrap_err().refusal;
            assert_eq!(refusal.reason, reason, "{json}: {}", refusal.detail);
            assert!(refusal.detail.contains(words), "{json}: {}", refusal.detail);
        };
        check("nonsense", RefusalReason::Malformed, "not JSON");
        check("[1]", RefusalReason::Malformed, "not an object");
        check(r#"{"body": "a\u0000b"}"#, RefusalReason::InvalidField, "U+0000");
        check(
            r#"{"body": "", "x": [{"y": "\u0000"}]}"#,
            RefusalReason::InvalidField,
            "U+0000",
        );
        check(r#"{"agent": "coder"}"#, RefusalReason::InvalidField, "body: missing");
        check(r#"{"body": 7}"#, RefusalReason::InvalidField, "body");
        check(r#"{"body": "", "id": ""}"#, RefusalReason::InvalidField, "id");
        check(
            r#"{"body": "", "agent": "No Body"}"#,
            RefusalReason::InvalidField,
            "agent",
        );
        check(r#"{"body": "", "agents": []}"#, RefusalReason::InvalidField, "agents");
        check(
            r#"{"body": "", "agents": ["a"], "agent": "b"}"#,
            RefusalReason::InvalidField,
            "not both",
        );
        check(
            r#"{"body": "", "sender": {"kind": "ghost", "id": "x"}}"#,
            RefusalReason::InvalidField,
            "kind",
        );
        check(
            r#"{"body": "", "queue_mode": "never"}"#,
            RefusalReason::InvalidField,
            "queue_mode",
        );
        check(
            r#"{"body": "", "message_id": "7"}"#,
            RefusalReason::InvalidField,
            "message_id",
        );
        check(
            &format!(r#"{{"body": "{}"}}"#, "x".repeat(BODY_BYTES_MAX + 1)),
            RefusalReason::TooLarge,
            "body has",
        );
        check(
            &format!(r#"{{"body": "", "extra": "{}"}}"#, "x".repeat(METADATA_BYTES_MAX)),
            RefusalReason::TooLarge,
            "metadata",
        );
        check(
            &format!("{}1{}", "[".repeat(5000), "]".repeat(5000)),
            RefusalReason::Malformed,
            "nested deeper than 64",
        );
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&Headers::default(), &bytes);
        }
    }
}
