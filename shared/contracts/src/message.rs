//! Every message on the broker, declared once: a message has its line in [`MESSAGES`], and [`Message`] beside its
//! payload; an event has a line in [`crate::event`]. Streams, consumers, permissions on the broker, JSON Schemas,
//! AsyncAPI, and the services that may bury and redrive a message follow from these tables.

use domain::{AccountId, TaskId};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Root,
    dead::DeadLetter,
    event::{EVENTS, EventMessage},
    live::LiveText,
    notification::NotificationMessage,
    session::{SessionClosed, SessionResolved, SessionStopRequested},
    tool::{ToolApproved, ToolFinished, ToolRequested},
};

/// A user of the NATS server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum User {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
    /// A program of the operator's, for all accounts: it sends notifications and listens to events and dead letters. Programs
    /// of one account connect with an API key.
    Publisher,
    /// `signalbox migrate`, `signalbox doctor` and the `nats` command.
    Operator,
}

impl User {
    pub const ALL: [User; 6] = [
        User::Resolver,
        User::Delivery,
        User::ToolGateway,
        User::Orchestrator,
        User::Publisher,
        User::Operator,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            User::Resolver => "resolver",
            User::Delivery => "delivery",
            User::ToolGateway => "tool-gateway",
            User::Orchestrator => "orchestrator",
            User::Publisher => "publisher",
            User::Operator => "operator",
        }
    }

    pub fn named(name: &str) -> Option<User> {
        User::ALL.into_iter().find(|user| user.name() == name)
    }

    pub fn is_service(self) -> bool {
        SERVICES.contains(&self)
    }
}

pub const SERVICES: &[User] = &[User::Resolver, User::Delivery, User::ToolGateway, User::Orchestrator];
const PUBLISHER_AND_SERVICES: &[User] = &[
    User::Publisher,
    User::Resolver,
    User::Delivery,
    User::ToolGateway,
    User::Orchestrator,
];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    Notification,
    Session,
    Tool,
    Event,
    Dead,
}

impl Stream {
    /// In the order of their creation: the stream of notifications has the dead letters as its source.
    pub const ALL: [Stream; 5] = [
        Stream::Dead,
        Stream::Notification,
        Stream::Session,
        Stream::Tool,
        Stream::Event,
    ];

    fn branch(self) -> &'static str {
        match self {
            Stream::Notification => "notification",
            Stream::Session => "session",
            Stream::Tool => "tool",
            Stream::Event => "event",
            Stream::Dead => "dead",
        }
    }

    /// The subjects that it stores.
    pub fn subject(self, root: &Root) -> String {
        let below = match self {
            Stream::Notification | Stream::Dead => "*.*",
            Stream::Session | Stream::Tool | Stream::Event => ">",
        };
        format!("{root}.{}.{below}", self.branch())
    }

    /// `SIGNALBOX_NOTIFICATION`. Two installations on one NATS account need roots that differ in more than case.
    pub fn name(self, root: &Root) -> String {
        format!("{root}_{}", self.branch()).to_uppercase()
    }
}

/// A payload with its address on the broker: the subject is `{root}.{KIND}.{account}.{task}`.
pub trait Message: Serialize + JsonSchema {
    /// Also the name of the JSON Schema.
    const KIND: &'static str;

    /// The end of the CloudEvents type, without a version: fields are only ever added.
    fn fact(&self) -> &'static str {
        Self::KIND
    }
}

/// A message whose payload also names its account and task. The subject routes and permits; the payload is processed. A
/// reader compares the two ([`crate::addressed::read`]).
pub trait Addressed: Message + DeserializeOwned {
    /// No account: an event of the installation.
    fn about(&self) -> (Option<&AccountId>, Option<&TaskId>);

    fn subject(&self, root: &Root) -> String {
        let (account, task) = self.about();
        root.address(Self::KIND, account, task)
    }
}

macro_rules! addressed {
    ($($message:ident)+) => {
        $(impl Addressed for $message {
            fn about(&self) -> (Option<&AccountId>, Option<&TaskId>) {
                (Some(&self.account), self.task.as_ref())
            }
        })+
    };
}
addressed!(SessionResolved SessionClosed SessionStopRequested ToolRequested ToolApproved ToolFinished);

/// The publishers and the consumers of a message, or of one fact of [`EVENTS`].
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    pub kind: &'static str,
    /// None: core NATS, not stored, may be lost.
    pub stream: Option<Stream>,
    pub is_event: bool,
    pub publishers: &'static [User],
    pub consumers: &'static [User],
    /// Whether the message is the only record for its consumer; then its outbox row is kept until it is read. Any other
    /// message is a wake-up, which a sweep replaces, or information.
    pub is_awaited: bool,
}

/// A line of [`MESSAGES`].
#[derive(Clone, Copy, Debug)]
pub struct MessageType {
    pub hop: Hop,
    /// One sentence for AsyncAPI.
    pub carries: &'static str,
    /// JSON Schema of the payload.
    pub schema: fn() -> Value,
}

/// A message a line: its payload, its stream, its publishers and consumers, whether it is awaited, and what it carries.
macro_rules! messages {
    ($($message:ident in $stream:expr, from $publishers:expr, to [$($consumer:ident)+], awaited $awaited:literal: $carries:literal;)+) => {
        /// Every message, in the order in which a notification causes them.
        pub const MESSAGES: &[MessageType] = &[
            $(MessageType {
                hop: Hop {
                    kind: <$message>::KIND,
                    stream: $stream,
                    is_event: false,
                    publishers: $publishers,
                    consumers: &[$(User::$consumer),+],
                    is_awaited: $awaited,
                },
                carries: $carries,
                schema: schema::<$message>,
            }),+
        ];
    };
}

messages! {
    NotificationMessage in Some(Stream::Notification), from PUBLISHER_AND_SERVICES, to [Resolver], awaited true:
        "A reason for an agent to act.";
    SessionResolved in Some(Stream::Session), from SERVICES, to [Delivery], awaited false:
        "A session has work waiting. A wake-up: the work itself is in Postgres.";
    SessionClosed in Some(Stream::Session), from &[User::Delivery, User::ToolGateway, User::Orchestrator], to [Delivery], awaited false:
        "A generation of a session ended.";
    SessionStopRequested in Some(Stream::Session), from SERVICES, to [Delivery], awaited false:
        "A turn is to end before its agent has finished. A hint: the request is in Postgres.";
    ToolRequested in Some(Stream::Tool), from &[User::Delivery], to [ToolGateway], awaited false:
        "An agent asks for a tool.";
    ToolApproved in Some(Stream::Tool), from &[User::Delivery, User::ToolGateway, User::Orchestrator], to [ToolGateway], awaited false:
        "The question about a tool call has ended. A wake-up: the call and the answer are in Postgres.";
    ToolFinished in Some(Stream::Tool), from &[User::ToolGateway], to [Delivery], awaited false:
        "The one result of a tool call.";
    EventMessage in Some(Stream::Event), from SERVICES, to [Publisher], awaited false:
        "Something happened. The last two tokens are the event's `type`.";
    DeadLetter in Some(Stream::Dead), from SERVICES, to [Operator], awaited false:
        "A message that cannot be processed, with the reason. What belongs to no account has `-` for both tokens.";
    LiveText in None, from &[User::Delivery], to [Publisher], awaited false:
        "Text as it is generated. Core NATS: not stored, may be lost.";
}

fn schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Every message, with each event separately.
pub fn hops() -> impl Iterator<Item = &'static Hop> {
    let messages = MESSAGES.iter().map(|message| &message.hop);
    messages.filter(|hop| hop.kind != EventMessage::KIND).chain(EVENTS)
}

impl Hop {
    /// Its subjects below the root, for any account and task.
    pub fn pattern(&self) -> String {
        if self.is_event {
            format!("event.*.*.{}", self.kind)
        } else {
            format!("{}.*.*", self.kind)
        }
    }

    /// Whether this user may publish it. The orchestrator redrives dead letters, so it may publish every message that a
    /// service consumes.
    pub fn is_published_by(&self, user: User) -> bool {
        let is_redriven = user == User::Orchestrator && self.consumers.iter().any(|consumer| consumer.is_service());
        self.publishers.contains(&user) || is_redriven
    }

    pub fn is_consumed_by(&self, user: User) -> bool {
        self.consumers.contains(&user)
    }
}

/// The stream of an awaited message, by its subject, whatever its root.
pub fn awaited(subject: &str) -> Option<Stream> {
    let below = subject.split_once('.').map_or("", |(_root, below)| below);
    hops()
        .find(|hop| hop.is_awaited && is_match(&hop.pattern(), below))
        .and_then(|hop| hop.stream)
}

/// Whether a subject matches a pattern, by the server's rules.
pub fn is_match(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            (_, Some(token)) if wanted == "*" || wanted == token => {}
            (_, _) => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_a_schema_that_compiles() {
        for message in MESSAGES {
            let kind = message.hop.kind;
            jsonschema::validator_for(&(message.schema)()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
    }

    #[test]
    fn a_subject_is_declared_once_and_begins_with_its_stream() {
        let mut patterns: Vec<String> = hops().map(Hop::pattern).collect();
        for message in MESSAGES {
            let (branch, kind) = (message.hop.stream.map(Stream::branch), message.hop.kind);
            assert!(
                branch.is_none_or(|branch| kind.split('.').next() == Some(branch)),
                "{kind}"
            );
        }
        let declared = patterns.len();
        patterns.sort_unstable();
        patterns.dedup();
        assert_eq!(patterns.len(), declared, "{patterns:?}");
    }

    #[test]
    fn a_message_without_another_row_is_awaited() {
        let (root, account) = (Root::parse("box").unwrap(), AccountId::parse("acme").unwrap());
        let task = TaskId::parse("PROJ-7").unwrap();
        for task in [Some(&task), None] {
            let check = |subject: String, stream| assert_eq!(awaited(&subject), stream, "{subject}");
            check(
                root.subject::<NotificationMessage>(&account, task),
                Some(Stream::Notification),
            );
            check(root.event(Some(&account), task, "turn.finished"), Some(Stream::Event));
            check(root.event(Some(&account), task, "turn.started"), None);
            check(root.event(Some(&account), task, "notification.refused"), None);
            check(root.subject::<SessionResolved>(&account, task), None);
            check(root.subject::<SessionClosed>(&account, task), None);
            check(root.subject::<SessionStopRequested>(&account, task), None);
            check(root.subject::<ToolRequested>(&account, task), None);
            check(root.subject::<ToolFinished>(&account, task), None);
            check(root.dead(Some(&account), task), None);
            check(root.subject::<LiveText>(&account, task), None);
        }
        assert_eq!(awaited("notification.acme.T"), None);
    }
}
