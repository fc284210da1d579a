//! Who may do what on the broker: a user for each service, one for publishers outside, one for the operator. The table
//! is an allow-list and follows from the topology; [`accounts`] writes it in the server's language.
//!
//! One NATS account holds JetStream, and only the operator is in it. Each other user has an account of its own, which
//! imports the subjects that the user may send to and those that it may hear, one by one. The server answers to whatever
//! reply subject a request names, and does not ask whether the requester may publish there; but it looks for that subject
//! in the requester's account, and what is not imported there does not exist. So a reply reaches nothing that its user
//! could not have sent to directly. That is why there is an account for each user and not one for all services.
//!
//! No service makes, changes or deletes a stream or a consumer: who may make a consumer names the subject that stored
//! messages are delivered to, in the account of the stream. `signalbox migrate` does all of it, as the operator.
//!
//! What this cannot do: several users may publish on one subject, and a server without these users lets anyone. So a subject
//! proves nothing, and services sign what they send each other (see [`crate::envelope`]).

use std::{collections::BTreeMap, fmt::Write as _};

use contracts::Root;

use crate::{Durable, Stream, topology};

/// Where the accounts of services have the JetStream API. Not at `$JS.API`: there each account, those without JetStream
/// too, has the server's own import, and would be answered twice.
const API_IMPORTED: &str = "JS.API";
/// The API where JetStream is.
const API: &str = "$JS.API";
/// The server forgets after this long where answers go that never came, or that come in any number. Longer than a pull
/// waits, and short, since each costs it some hundred bytes.
const ANSWERS_WITHIN: &str = "10s";

/// A user of the NATS server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum User {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
    /// Anyone who sends notifications and listens to what becomes of them. It may see everything and say nothing else.
    Publisher,
    /// `signalbox migrate`, `signalbox doctor` and the `nats` command.
    Operator,
}

/// Subjects, with wildcards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
}

/// Something that a user sends to the account that holds JetStream.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Service {
    /// In that account.
    subject: String,
    /// In the user's.
    imported_as: String,
    /// More than one answer may come to a request.
    has_many_answers: bool,
}

impl Service {
    fn message(subject: String) -> Service {
        Service {
            imported_as: subject.clone(),
            subject,
            has_many_answers: false,
        }
    }

    fn api(request: &str) -> Service {
        Service {
            subject: format!("{API}.{request}"),
            imported_as: format!("{API_IMPORTED}.{request}"),
            has_many_answers: false,
        }
    }

    fn api_with_many_answers(request: &str) -> Service {
        Service {
            has_many_answers: true,
            ..Service::api(request)
        }
    }
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

    pub fn name(self) -> &'static str {
        match self {
            User::Resolver => "resolver",
            User::Delivery => "delivery",
            User::ToolGateway => "tool-gateway",
            User::Orchestrator => "orchestrator",
            User::Publisher => "publisher",
            User::Operator => "operator",
        }
    }

    /// The variable that the server reads the user's password from. It wants values that do not look like numbers.
    pub fn password_variable(self) -> String {
        format!("SIGNALBOX_NATS_{}", self.name().to_uppercase().replace('-', "_"))
    }

    pub fn named(name: &str) -> Option<User> {
        User::ALL.into_iter().find(|user| user.name() == name)
    }

    /// Streams that it looks for at its start, and cannot do without: those it reads from.
    pub fn streams(self) -> &'static [Stream] {
        match self {
            // It says how full the dead letters are, which no service reads.
            User::Resolver => &[Stream::Dead, Stream::Notification],
            User::Delivery => &[Stream::Session, Stream::Tool],
            User::ToolGateway => &[Stream::Tool],
            User::Orchestrator => &[Stream::Event],
            User::Publisher => &[],
            User::Operator => &Stream::ALL,
        }
    }

    /// Its durable consumers.
    pub fn durables(self) -> &'static [Durable] {
        match self {
            User::Delivery => &[
                Durable::DeliverySessionResolved,
                Durable::DeliverySessionClosed,
                Durable::DeliveryToolFinished,
            ],
            User::ToolGateway => &[Durable::ToolGatewayToolRequested],
            User::Orchestrator => &[Durable::OrchestratorTurnFinished],
            User::Resolver | User::Publisher => &[],
            User::Operator => &Durable::ALL,
        }
    }

    /// Messages that it publishes, below the root.
    fn messages(self) -> &'static [&'static str] {
        match self {
            User::Resolver => &["session.resolved.*.*", "dead.*.*"],
            User::Delivery => &["tool.requested.*.*", "dead.*.*"],
            // It closes sessions with the tasks whose status agents change, and opens the next generation.
            User::ToolGateway => &[
                "tool.finished.*.*",
                "session.resolved.*.*",
                "session.closed.*.*",
                "notification.*.*",
                "dead.*.*",
            ],
            // It sends dead letters again, whichever service they were for.
            User::Orchestrator => &[
                "notification.*.*",
                "session.resolved.*.*",
                "session.closed.*.*",
                "tool.requested.*.*",
                "tool.finished.*.*",
                "event.*.*.turn.finished",
                "dead.*.*",
            ],
            User::Publisher => &["notification.*.*"],
            User::Operator => &[],
        }
    }

    /// Messages that no stream stores, below the root. They stay in the user's account; listeners import them from there.
    fn unstored(self) -> &'static [&'static str] {
        match self {
            User::Delivery => &["live.*.*"],
            User::Resolver | User::ToolGateway | User::Orchestrator | User::Publisher | User::Operator => &[],
        }
    }

    /// Events that it publishes, by noun and fact. Only delivery says that a turn is finished: somebody acts on that.
    fn events(self) -> &'static [&'static str] {
        match self {
            User::Resolver => &["task.created", "notification.refused", "session.opened", "message.died"],
            User::Delivery => &[
                "turn.started",
                "turn.finished",
                "notification.cancelled",
                "notification.failed",
                "provider.session_mismatched",
                "message.died",
            ],
            User::ToolGateway => &[
                "task.status_changed",
                "message.posted",
                "notification.cancelled",
                "session.opened",
                "session.closed",
                "message.died",
            ],
            User::Orchestrator => &[
                "task.created",
                "task.status_changed",
                "message.posted",
                "notification.cancelled",
                "session.opened",
                "session.closed",
                "agent.removed",
                "message.died",
            ],
            User::Publisher | User::Operator => &[],
        }
    }

    /// Streams that it asks whether they still have what it has published and nobody has read yet (ADR 23).
    fn looked_after(self) -> &'static [Stream] {
        match self {
            User::Delivery => &[Stream::Event],
            User::ToolGateway => &[Stream::Notification],
            User::Orchestrator => &[Stream::Notification, Stream::Event],
            User::Resolver | User::Publisher | User::Operator => &[],
        }
    }

    /// Whether it publishes on this subject of ours.
    pub fn publishes(self, root: &Root, subject: &str) -> bool {
        let events = self.events().iter().map(|event| format!("event.*.*.{event}"));
        let messages = self.messages().iter().chain(self.unstored());
        messages
            .map(|message| (*message).to_owned())
            .chain(events)
            .any(|pattern| is_match(&format!("{root}.{pattern}"), subject))
    }

    /// Whether a dead letter of this service may be of a message that was published on this subject: the service reads it, or
    /// publishes it.
    pub fn buries(self, root: &Root, subject: &str) -> bool {
        let notifications = match self {
            // Delivery: those of a turn that failed.
            User::Resolver | User::Delivery => is_match(&format!("{root}.notification.*.*"), subject),
            User::ToolGateway | User::Orchestrator => false,
            User::Publisher | User::Operator => return false,
        };
        let reads = |durable: &Durable| is_match(&durable.filter(root), subject);
        notifications || self.durables().iter().any(reads) || self.publishes(root, subject)
    }

    /// Where answers come in: nobody else may listen there.
    pub fn inbox_prefix(self) -> String {
        inbox_prefix(self.name())
    }

    /// What it may send: exactly what its account imports.
    fn services(self, root: &Root) -> Vec<Service> {
        let messages = self.messages().iter().map(|message| format!("{root}.{message}"));
        let events = self.events().iter().map(|event| format!("{root}.event.*.*.{event}"));
        let mut services: Vec<Service> = messages.chain(events).map(Service::message).collect();
        for stream in self.streams() {
            services.push(Service::api(&format!("STREAM.INFO.{}", stream.name(root))));
        }
        for durable in self.durables() {
            let (stream, name) = (durable.stream().name(root), durable.name());
            services.extend([
                Service::api(&format!("CONSUMER.INFO.{stream}.{name}")),
                Service::api_with_many_answers(&format!("CONSUMER.MSG.NEXT.{stream}.{name}")),
                // Both forms of acknowledgement: servers may send either. Each with as many tokens as its form has: the longer form
                // with any number of them matches the shorter form of another consumer, whose name then stands in its wildcards.
                Service::message(format!("$JS.ACK.{stream}.{name}.*.*.*.*.*")),
                Service::message(format!("$JS.ACK.*.*.{stream}.{name}.*.*.*.*.>")),
            ]);
        }
        // What ended the connection is read again without its headers.
        let read = self.durables().iter().map(|durable| durable.stream());
        let asked: Vec<Stream> = self.looked_after().iter().copied().chain(read).collect();
        for stream in Stream::ALL.into_iter().filter(|stream| asked.contains(stream)) {
            services.push(Service::api(&format!("STREAM.MSG.GET.{}", stream.name(root))));
        }
        if self == User::Resolver {
            // It reads partitions from a stored place, and removes what every partition has read. What is unread it asks the
            // stream's leader: a replica may lag behind.
            let stream = Stream::Notification.name(root);
            services.push(Service::api(&format!("STREAM.MSG.GET.{stream}")));
            services.push(Service::api_with_many_answers(&format!("DIRECT.GET.{stream}")));
            services.push(Service::api(&format!("STREAM.PURGE.{stream}")));
        }
        services
    }

    /// What publishers may hear of it, below the root: every subject of the contract may be watched.
    fn says(self) -> Vec<&'static str> {
        let messages = self.messages().iter().filter(|message| !message.starts_with("event."));
        let events = (!self.events().is_empty()).then_some("event.>");
        match self {
            // Publishers are the operator's, no tenant is one.
            User::Operator => vec![
                "notification.*.*",
                "session.>",
                "tool.>",
                "event.>",
                "dead.*.*",
                "live.*.*",
            ],
            User::Publisher => Vec::new(),
            _ => messages.chain(self.unstored()).copied().chain(events).collect(),
        }
    }

    /// What it may listen to beside its answers, and in whose account that is said. A server passes on to listeners in other
    /// accounts what is said in an account itself, and not what came into it from another: so publishers hear each service
    /// directly.
    fn hears(self, root: &Root) -> Vec<(User, String)> {
        match self {
            User::Resolver => vec![(User::Operator, topology::doorbell(root, "*"))],
            User::Orchestrator => topology::DELETIONS
                .map(|subject| (User::Operator, subject.to_owned()))
                .into(),
            User::Publisher => {
                let of = |user: User| {
                    user.says()
                        .into_iter()
                        .map(move |said| (user, format!("{root}.{said}")))
                };
                User::ALL.into_iter().flat_map(of).collect()
            }
            // All other messages arrive in the operator's account.
            User::Operator => {
                let of = |user: User| user.unstored().iter().map(move |said| (user, format!("{root}.{said}")));
                User::ALL.into_iter().flat_map(of).collect()
            }
            User::Delivery | User::ToolGateway => Vec::new(),
        }
    }

    pub fn permissions(self, root: &Root) -> Permissions {
        let everything = || vec![">".to_owned()];
        let (publish, mut subscribe) = match self {
            User::Operator => (everything(), everything()),
            _ => (
                self.services(root)
                    .into_iter()
                    .map(|service| service.imported_as)
                    .chain(self.unstored().iter().map(|said| format!("{root}.{said}")))
                    .collect(),
                vec![format!("{}.>", self.inbox_prefix())],
            ),
        };
        if self == User::Publisher {
            subscribe.extend([
                format!("{root}.>"),
                // Where answers come in for clients that were not told otherwise. No service listens there.
                "_INBOX.>".to_owned(),
            ]);
        } else if self != User::Operator {
            subscribe.extend(self.hears(root).into_iter().map(|(_, subject)| subject));
        }
        Permissions { publish, subscribe }
    }

    /// The NATS account that the user is in.
    pub fn account(self, root: &Root) -> String {
        match self {
            User::Operator => jetstream_account(root),
            _ => format!(
                "{}_{}",
                jetstream_account(root),
                self.name().replace('-', "_").to_uppercase()
            ),
        }
    }

    /// Where this user finds the JetStream API. A user of no service is one of a server without accounts.
    pub(crate) fn api_prefix(user: Option<User>) -> &'static str {
        match user {
            Some(User::Operator) | None => API,
            Some(_) => API_IMPORTED,
        }
    }
}

/// Whether a subject is one of a pattern's, as the server sees it.
fn is_match(pattern: &str, subject: &str) -> bool {
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

/// The NATS account that holds JetStream, and with it all that is stored.
pub fn jetstream_account(root: &Root) -> String {
    root.to_string().to_uppercase()
}

/// The inboxes of a user.
pub(crate) fn inbox_prefix(user: &str) -> String {
    format!("_I.{user}")
}

/// `accounts { … }` for the server's configuration. Passwords come from variables, which the server takes from its
/// environment or from lines `NAME: "value"` above this one.
pub fn accounts(root: &Root) -> String {
    let mut text = String::from("accounts {\n");
    for user in User::ALL {
        let jetstream = if user == User::Operator {
            "\n    jetstream: enabled"
        } else {
            ""
        };
        writeln!(
            text,
            "  \"{}\": {{{jetstream}\n    users: [{}]\n    exports: {}\n    imports: {}\n  }}",
            user.account(root),
            entry(root, user),
            exports(root, user),
            imports(root, user),
        )
        .expect(WRITES);
    }
    text.push_str("}\n");
    text
}

const WRITES: &str = "a String takes all that is written to it";

fn entry(root: &Root, user: User) -> String {
    let Permissions { publish, subscribe } = user.permissions(root);
    format!(
        "{{\n      user: {}\n      password: ${}\n      permissions: {{\n        publish: {{ allow: {} }}\n        \
         subscribe: {{ allow: {} }}\n      }}\n    }}",
        user.name(),
        user.password_variable(),
        list(&publish),
        list(&subscribe),
    )
}

/// What an account lets others send to it and hear of it, each with those that it is for.
fn exports(root: &Root, owner: User) -> String {
    let (mut services, mut streams) = (BTreeMap::new(), BTreeMap::new());
    for user in User::ALL {
        let account = format!("\"{}\"", user.account(root));
        // Nobody sends to any other.
        if owner == User::Operator && user != User::Operator {
            for service in user.services(root) {
                let exported = services.entry(service.subject);
                let (_, accounts) = exported.or_insert_with(|| (service.has_many_answers, Vec::new()));
                accounts.push(account.clone());
            }
        }
        for (_, subject) in user.hears(root).into_iter().filter(|(source, _)| *source == owner) {
            let accounts: &mut Vec<String> = streams.entry(subject).or_default();
            accounts.push(account.clone());
        }
    }
    let mut text = String::from("[\n");
    for (subject, (has_many_answers, accounts)) in services {
        let answers = if has_many_answers { "stream" } else { "singleton" };
        let accounts = accounts.join(", ");
        writeln!(
            text,
            "      {{ service: \"{subject}\", accounts: [{accounts}], response_type: {answers}, threshold: \
             \"{ANSWERS_WITHIN}\" }}"
        )
        .expect(WRITES);
    }
    for (subject, accounts) in streams {
        let accounts = accounts.join(", ");
        writeln!(text, "      {{ stream: \"{subject}\", accounts: [{accounts}] }}").expect(WRITES);
    }
    text.push_str("    ]");
    text
}

fn imports(root: &Root, user: User) -> String {
    let mut text = String::from("[\n");
    // The operator is where all of it is.
    let services = if user == User::Operator {
        Vec::new()
    } else {
        user.services(root)
    };
    let from = jetstream_account(root);
    for Service {
        subject, imported_as, ..
    } in services
    {
        writeln!(
            text,
            "      {{ service: {{ account: \"{from}\", subject: \"{subject}\" }}, to: \"{imported_as}\" }}"
        )
        .expect(WRITES);
    }
    for (source, subject) in user.hears(root) {
        let from = source.account(root);
        writeln!(
            text,
            "      {{ stream: {{ account: \"{from}\", subject: \"{subject}\" }} }}"
        )
        .expect(WRITES);
    }
    text.push_str("    ]");
    text
}

/// In quotes, which keep `$` from being a variable.
fn list(subjects: &[String]) -> String {
    let mut text = String::from("[\n");
    for subject in subjects {
        writeln!(text, "          \"{subject}\"").expect(WRITES);
    }
    text.push_str("        ]");
    text
}

/// `schemas/nats-users.conf`: the same with a word to the reader.
pub fn config_file(root: &Root) -> String {
    let variables = User::ALL.map(User::password_variable).join(", ");
    format!(
        "# Accounts and users of the NATS server and what each may do. Generated from shared/messaging/src/users.rs for\n\
         # the root `{root}`; `signalbox nats-users` writes it for another. Include it in the server's configuration:\n\
         #     include ./nats-users.conf\n\
         # Passwords come from the server's environment: {variables}.\n\
         # Let them begin with a letter other than e: the server reads what looks like a number as one.\n\
         # Never set no_auth_user beside it. JetStream keeps what is stored below `{{store_dir}}/jetstream/{}`.\n\n{}",
        jetstream_account(root),
        accounts(root)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_and_consumer_has_a_service_that_needs_it() {
        let services = [User::Resolver, User::Delivery, User::ToolGateway, User::Orchestrator];
        for stream in Stream::ALL {
            assert!(
                services.iter().any(|user| user.streams().contains(&stream)),
                "{stream:?}"
            );
        }
        for durable in Durable::ALL {
            let readers: Vec<_> = services
                .iter()
                .filter(|user| user.durables().contains(&durable))
                .collect();
            assert_eq!(readers.len(), 1, "{durable:?}");
            assert!(readers[0].streams().contains(&durable.stream()), "{durable:?}");
        }
    }

    #[test]
    fn services_make_change_and_delete_nothing_and_list_nothing() {
        let root = Root::parse("box").unwrap();
        for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
            let Permissions { publish, subscribe } = user.permissions(&root);
            // To the server, an empty list allows everything.
            assert!(!publish.is_empty() && !subscribe.is_empty(), "{user:?}");
            for service in user.services(&root) {
                let tokens: Vec<&str> = service.subject.split('.').collect();
                // The resolver alone purges, and only what it has read.
                let is_harmless = match tokens[..] {
                    ["box", ..] | ["$JS", "ACK", ..] => true,
                    ["$JS", "API", "STREAM", "INFO", _] | ["$JS", "API", "STREAM", "MSG", "GET", _] => true,
                    ["$JS", "API", "CONSUMER", "INFO", _, _] => true,
                    ["$JS", "API", "CONSUMER", "MSG", "NEXT", _, _] => true,
                    ["$JS", "API", "DIRECT", "GET", "BOX_NOTIFICATION"]
                    | ["$JS", "API", "STREAM", "PURGE", "BOX_NOTIFICATION"] => user == User::Resolver,
                    _ => false,
                };
                assert!(is_harmless, "{user:?} {service:?}");
            }
            // An answer to one is nobody else's to read.
            for other in User::ALL.into_iter().filter(|other| *other != user) {
                assert!(!subscribe.contains(&format!("{}.>", other.inbox_prefix())), "{user:?}");
            }
            assert!(!subscribe.iter().any(|subject| subject == ">"), "{user:?}");
        }
    }

    #[test]
    fn only_the_operator_is_where_jetstream_is() {
        let root = Root::parse("box").unwrap();
        let accounts = User::ALL.map(|user| user.account(&root));
        let each: std::collections::BTreeSet<_> = accounts.iter().collect();
        assert_eq!(each.len(), User::ALL.len(), "{accounts:?}");
        assert_eq!(User::Operator.account(&root), "BOX");
        assert_eq!(super::accounts(&root).matches("jetstream: enabled").count(), 1);
    }

    #[test]
    fn only_delivery_and_who_redrives_say_that_a_turn_is_finished() {
        let root = Root::default();
        let saying: Vec<User> = User::ALL
            .into_iter()
            .filter(|user| {
                let publish = user.permissions(&root).publish;
                publish.contains(&"signalbox.event.*.*.turn.finished".to_owned())
            })
            .collect();
        assert_eq!(saying, [User::Delivery, User::Orchestrator]);
    }

    #[test]
    fn the_file_names_every_user_and_holds_no_password() {
        let file = config_file(&Root::parse("box").unwrap());
        for user in User::ALL {
            let line = format!(
                "      user: {}\n      password: ${}\n",
                user.name(),
                user.password_variable()
            );
            assert!(file.contains(&line), "{line}");
        }
        assert!(file.contains("\"$JS.ACK.*.*.BOX_TOOL.tool_gateway_tool_requested.*.*.*.*.>\""));
        assert!(!file.contains("allow_responses") && !file.contains("SIGNALBOX_TOOL\""));
    }
}
