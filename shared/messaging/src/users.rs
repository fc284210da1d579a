//! The permissions on the broker: a user for each service, one for publishers outside, one for the operator. The table
//! is an allow-list and follows from the topology; [`accounts`] prints it as server configuration.
//!
//! One NATS account holds JetStream, and only the operator is in it. Each other user has an account of its own, which
//! imports the subjects that the user may send to and listen to, one by one. The server replies to any subject that a
//! request names, and does not check whether the requester may publish there; but it resolves that subject in the
//! requester's account, and a subject that is not imported there does not exist. So a reply reaches no subject that its
//! user could not have sent to directly. Therefore each user has an account, and services do not share one.
//!
//! No service creates, changes or deletes a stream or a consumer: the creator of a consumer names the subject that
//! stored messages are delivered to, in the account of the stream. `signalbox migrate` does all of it, as the operator.
//!
//! Limits of this: several users may publish on one subject, and a server without these users accepts every client. So
//! a subject proves nothing, and services sign their messages (see [`crate::envelope`]).

use std::collections::BTreeMap;

pub use contracts::User;
use contracts::{
    Root, Stream,
    message::{self, Hop, Message, SERVICES, is_match},
    session::SessionStopRequested,
};

use crate::{
    Durable,
    prefix::{self, API, API_IMPORTED},
    topology::{self, streams_read},
};

/// The server drops the mapping of missing or multiple replies after this long. Longer than a pull waits, and short,
/// since each mapping costs some hundred bytes.
const ANSWERS_WITHIN: &str = "10s";

/// Subjects, with wildcards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
}

/// A subject on which a user sends to the account that holds JetStream.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Service {
    /// The subject in that account.
    subject: String,
    /// The subject in the user's account.
    imported_as: String,
    /// A request may get more than one reply.
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

/// The variable of a user's password in the server's configuration. Its value must not look like a number.
pub fn password_variable(user: User) -> String {
    format!("SIGNALBOX_NATS_{}", user.name().to_uppercase().replace('-', "_"))
}

/// Whether a user publishes on this subject of ours.
pub fn publishes(user: User, root: &Root, subject: &str) -> bool {
    published(user).any(|hop| is_match(&format!("{root}.{}", hop.pattern()), subject))
}

/// Whether a dead letter of this service may be about a message on this subject: the service reads it, or publishes
/// it.
pub fn buries(service: User, root: &Root, subject: &str) -> bool {
    // Delivery buries notifications of failed turns from their rows.
    let reads_notifications = matches!(service, User::Resolver | User::Delivery);
    let is_notification = is_match(&Stream::Notification.subject(root), subject);
    let is_read = |durable: &Durable| is_match(&durable.filter(root), subject);
    service.is_service()
        && (reads_notifications && is_notification
            || Durable::read_by(service).into_iter().any(is_read)
            || publishes(service, root, subject))
}

/// The prefix of a user's reply subjects: no other user may listen there.
pub fn inbox_prefix(user: User) -> String {
    prefix::inbox_prefix(user.name())
}

/// The permissions of a user. Derived from the tables of [`contracts::message`].
pub fn permissions(user: User, root: &Root) -> Permissions {
    if user == User::Operator {
        let everything = || vec![">".to_owned()];
        return Permissions {
            publish: everything(),
            subscribe: everything(),
        };
    }
    let sent = services(user, root).into_iter().map(|service| service.imported_as);
    let mut subscribe = vec![format!("{}.>", inbox_prefix(user))];
    if user == User::Publisher {
        subscribe.extend([
            format!("{root}.>"),
            // The default reply subjects of clients. No service listens there.
            "_INBOX.>".to_owned(),
        ]);
    } else {
        subscribe.extend(hears(user, root).into_iter().map(|(_, subject)| subject));
    }
    Permissions {
        publish: sent
            .chain(unstored(user).map(|said| format!("{root}.{said}")))
            .collect(),
        subscribe,
    }
}

/// The NATS account that a user is in.
pub fn account(user: User, root: &Root) -> String {
    let jetstream = jetstream_account(root);
    match user {
        User::Operator => jetstream,
        _ => format!("{jetstream}_{}", user.name().replace('-', "_").to_uppercase()),
    }
}

/// The messages that a user publishes. The operator, who may publish anything, publishes none in normal operation.
fn published(user: User) -> impl Iterator<Item = &'static Hop> {
    message::hops().filter(move |hop| hop.is_published_by(user))
}

/// Messages that no stream stores, below the root. They stay in the user's account; listeners import them from there.
fn unstored(user: User) -> impl Iterator<Item = String> {
    published(user).filter(|hop| hop.stream.is_none()).map(Hop::pattern)
}

/// The subjects that a user may send to: exactly the imports of its account. The operator imports none, since the
/// streams are in its account.
fn services(user: User, root: &Root) -> Vec<Service> {
    if user == User::Operator {
        return Vec::new();
    }
    let stored = published(user).filter(|hop| hop.stream.is_some());
    let mut services: Vec<Service> = stored
        .map(|hop| Service::message(format!("{root}.{}", hop.pattern())))
        .collect();
    for stream in streams_read(user) {
        services.push(Service::api(&format!("STREAM.INFO.{}", stream.name(root))));
    }
    for durable in Durable::read_by(user) {
        let (stream, name) = (durable.stream.name(root), durable.name());
        services.extend([
            Service::api(&format!("CONSUMER.INFO.{stream}.{name}")),
            Service::api_with_many_answers(&format!("CONSUMER.MSG.NEXT.{stream}.{name}")),
            // Both forms of acknowledgement: servers may send either. Each with the number of tokens of its form: the
            // longer form with any number of tokens would match the shorter form of another consumer, with that
            // consumer's name in its wildcards.
            Service::message(format!("$JS.ACK.{stream}.{name}.*.*.*.*.*")),
            Service::message(format!("$JS.ACK.*.*.{stream}.{name}.*.*.*.*.>")),
        ]);
    }
    // For messages that broke the connection and are read again without their headers; and for asking a stream whether
    // it still has an awaited message that this user published and no service has read yet (ADR 23).
    let is_asked = |stream: &Stream| {
        let awaits = |hop: &Hop| hop.is_awaited && hop.is_published_by(user) && hop.stream == Some(*stream);
        let reads = |durable: &&Durable| durable.stream == *stream;
        user.is_service() && (Durable::read_by(user).iter().any(reads) || message::hops().any(awaits))
    };
    for stream in Stream::ALL.into_iter().filter(is_asked) {
        services.push(Service::api(&format!("STREAM.MSG.GET.{}", stream.name(root))));
    }
    if user == User::Resolver {
        // It reads partitions from a stored offset, and purges messages that every partition has passed.
        let stream = Stream::Notification.name(root);
        services.push(Service::api_with_many_answers(&format!("DIRECT.GET.{stream}")));
        services.push(Service::api(&format!("STREAM.PURGE.{stream}")));
    }
    services
}

/// The subjects that publishers may listen to: every subject of the contract may be watched.
fn says(user: User, root: &Root) -> Vec<String> {
    let below = |pattern: String| format!("{root}.{pattern}");
    match user {
        // Publishers are trusted by the operator, and are no tenants.
        User::Operator => {
            let unstored = message::hops().filter(|hop| hop.stream.is_none());
            let stored = Stream::ALL.map(|stream| stream.subject(root));
            stored
                .into_iter()
                .chain(unstored.map(Hop::pattern).map(below))
                .collect()
        }
        User::Publisher => Vec::new(),
        _ => {
            let messages = published(user).filter(|hop| !hop.is_event).map(Hop::pattern);
            messages.chain(["event.>".to_owned()]).map(below).collect()
        }
    }
}

/// The subjects that a user may listen to besides its replies, each with the account in which it is published. A server
/// forwards to listeners in other accounts only messages that were published in the account itself, and not those
/// imported into it: so publishers listen to each service's account directly.
fn hears(user: User, root: &Root) -> Vec<(User, String)> {
    match user {
        User::Resolver => vec![(User::Operator, topology::doorbell(root, "*"))],
        User::Orchestrator => topology::DELETIONS
            .map(|subject| (User::Operator, subject.to_owned()))
            .into(),
        User::Publisher => {
            let of = |user: User| says(user, root).into_iter().map(move |said| (user, said));
            User::ALL.into_iter().flat_map(of).collect()
        }
        // All other messages arrive in the operator's account.
        User::Operator => {
            let of = |user: User| unstored(user).map(move |said| (user, format!("{root}.{said}")));
            User::ALL.into_iter().flat_map(of).collect()
        }
        User::Delivery => {
            let of = |user: User| published(user).filter(|hop| hop.kind == SessionStopRequested::KIND);
            let heard = SERVICES
                .iter()
                .flat_map(|user| of(*user).map(|hop| (*user, format!("{root}.{}", hop.pattern()))));
            heard.collect()
        }
        User::ToolGateway => Vec::new(),
    }
}

/// The subjects that a user's account imports: what the user publishes itself, it hears in its own account.
fn heard_elsewhere(user: User, root: &Root) -> impl Iterator<Item = (User, String)> {
    hears(user, root).into_iter().filter(move |(source, _)| *source != user)
}

/// The NATS account that holds JetStream, and with it all stored messages.
pub fn jetstream_account(root: &Root) -> String {
    root.to_string().to_uppercase()
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
        text += &format!(
            "  \"{}\": {{{jetstream}\n    users: [{}]\n    exports: {}\n    imports: {}\n  }}\n",
            account(user, root),
            entry(root, user),
            exports(root, user),
            imports(root, user),
        );
    }
    text + "}\n"
}

fn entry(root: &Root, user: User) -> String {
    let Permissions { publish, subscribe } = permissions(user, root);
    format!(
        "{{\n      user: {}\n      password: ${}\n      permissions: {{\n        publish: {{ allow: {} }}\n        \
         subscribe: {{ allow: {} }}\n      }}\n    }}",
        user.name(),
        password_variable(user),
        list(&publish),
        list(&subscribe),
    )
}

/// The exports of an account, each with the accounts that may import it.
fn exports(root: &Root, owner: User) -> String {
    let (mut taken, mut streams) = (BTreeMap::new(), BTreeMap::new());
    for user in User::ALL {
        let account = format!("\"{}\"", account(user, root));
        // No user sends to any account but the operator's.
        if owner == User::Operator {
            for service in services(user, root) {
                let exported = taken.entry(service.subject);
                let (_, accounts) = exported.or_insert_with(|| (service.has_many_answers, Vec::new()));
                accounts.push(account.clone());
            }
        }
        for (_, subject) in heard_elsewhere(user, root).filter(|(source, _)| *source == owner) {
            let accounts: &mut Vec<String> = streams.entry(subject).or_default();
            accounts.push(account.clone());
        }
    }
    let mut text = String::from("[\n");
    for (subject, (has_many_answers, accounts)) in taken {
        let answers = if has_many_answers { "stream" } else { "singleton" };
        let accounts = accounts.join(", ");
        text += &format!(
            "      {{ service: \"{subject}\", accounts: [{accounts}], response_type: {answers}, threshold: \
             \"{ANSWERS_WITHIN}\" }}\n"
        );
    }
    for (subject, accounts) in streams {
        let accounts = accounts.join(", ");
        text += &format!("      {{ stream: \"{subject}\", accounts: [{accounts}] }}\n");
    }
    text + "    ]"
}

fn imports(root: &Root, user: User) -> String {
    let mut text = String::from("[\n");
    let from = jetstream_account(root);
    for Service {
        subject, imported_as, ..
    } in services(user, root)
    {
        text +=
            &format!("      {{ service: {{ account: \"{from}\", subject: \"{subject}\" }}, to: \"{imported_as}\" }}\n");
    }
    for (source, subject) in heard_elsewhere(user, root) {
        let from = account(source, root);
        text += &format!("      {{ stream: {{ account: \"{from}\", subject: \"{subject}\" }} }}\n");
    }
    text + "    ]"
}

/// In quotes, which keep `$` from being a variable.
fn list(subjects: &[String]) -> String {
    let quoted: String = subjects
        .iter()
        .map(|subject| format!("          \"{subject}\"\n"))
        .collect();
    format!("[\n{quoted}        ]")
}

/// `schemas/nats-users.conf`: the same with an introduction.
pub fn config_file(root: &Root) -> String {
    let variables = User::ALL.map(password_variable).join(", ");
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
                services.iter().any(|user| streams_read(*user).contains(&stream)),
                "{stream:?}"
            );
        }
        for durable in Durable::all() {
            let readers: Vec<_> = services
                .iter()
                .filter(|user| Durable::read_by(**user).contains(&durable))
                .collect();
            assert_eq!(readers.len(), 1, "{durable:?}");
            assert!(streams_read(*readers[0]).contains(&durable.stream), "{durable:?}");
        }
    }

    #[test]
    fn services_make_change_and_delete_nothing_and_list_nothing() {
        let root = Root::parse("box").unwrap();
        for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
            let Permissions { publish, subscribe } = permissions(user, &root);
            // To the server, an empty list allows everything.
            assert!(!publish.is_empty() && !subscribe.is_empty(), "{user:?}");
            for service in services(user, &root) {
                let tokens: Vec<&str> = service.subject.split('.').collect();
                // Only the resolver purges, and only messages that were read.
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
            // No other user may read its replies.
            for other in User::ALL.into_iter().filter(|other| *other != user) {
                assert!(!subscribe.contains(&format!("{}.>", inbox_prefix(other))), "{user:?}");
            }
            assert!(!subscribe.iter().any(|subject| subject == ">"), "{user:?}");
        }
    }

    #[test]
    fn only_the_operator_is_where_jetstream_is() {
        let root = Root::parse("box").unwrap();
        let accounts = User::ALL.map(|user| account(user, &root));
        let each: std::collections::BTreeSet<_> = accounts.iter().collect();
        assert_eq!(each.len(), User::ALL.len(), "{accounts:?}");
        assert_eq!(account(User::Operator, &root), "BOX");
        assert_eq!(super::accounts(&root).matches("jetstream: enabled").count(), 1);
    }

    #[test]
    fn only_delivery_and_the_redriver_publish_that_a_turn_is_finished() {
        let root = Root::default();
        let saying: Vec<User> = User::ALL
            .into_iter()
            .filter(|user| {
                let publish = permissions(*user, &root).publish;
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
                password_variable(user)
            );
            assert!(file.contains(&line), "{line}");
        }
        assert!(file.contains("\"$JS.ACK.*.*.BOX_TOOL.tool_gateway_tool_requested.*.*.*.*.>\""));
        assert!(!file.contains("allow_responses") && !file.contains("SIGNALBOX_TOOL\""));
    }
}
