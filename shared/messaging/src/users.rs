//! The permissions on the broker: a user for each service, one for programs of the operator, one for the operator, and
//! those of an API key. The table is an allow-list and follows from the topology; [`accounts`] prints it as server
//! configuration.
//!
//! One NATS account holds JetStream, and only the operator is in it. Each other user has an account of its own, which
//! imports the subjects that the user may send to and listen to, one by one. The server replies to any subject that a
//! request names, and does not check whether the requester may publish there; but it resolves that subject in the
//! requester's account, and a subject that is not imported there does not exist. So a reply reaches no subject that its
//! user could not have sent to directly. Therefore each user has an account, and services do not share one.
//!
//! No service creates, changes or deletes a stream, or a consumer of another service: the creator of a consumer names
//! the subject that stored messages are delivered to, in the account of the stream. `signalbox migrate` does all of it,
//! as the operator. The orchestrator creates and deletes the event consumers of accounts (ADR 94).
//!
//! Holders of API keys share one account, in which each has the permissions of [`of_key`]. The server asks the
//! orchestrator who they are ([`crate::callout`]). A request of one of them can name a subject of another as its reply
//! subject; so events and live text that are published or answered *in* this account, and not imported into it, are
//! moved to subjects that no holder may subscribe to (`mappings`). Inboxes have the key's id in their prefix: 64 random
//! bits that another account does not know. No reply of a service comes back into the account of that service: so a
//! reply subject publishes no notification.
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

use domain::{AccountId, KeyId, KeyRole};

use crate::{
    Durable,
    event_consumer::stored_name,
    prefix::{self, API, API_IMPORTED},
    topology::{self, streams_read},
};

/// The server drops the mapping of missing or multiple replies after this long. Longer than a pull waits, and short,
/// since each mapping costs some hundred bytes.
const ANSWERS_WITHIN: &str = "10s";

/// Connections of all holders of API keys to all servers: fewer than the limit of one (65,536), so that services always
/// get in.
const OUTSIDE_CONNECTIONS_MAX: u32 = 8_192;
/// Subscriptions of one such connection.
const OUTSIDE_SUBSCRIPTIONS_MAX: u32 = 64;

/// The server's question about a client that is none of its users.
pub(crate) const CALLOUT: &str = "$SYS.REQ.USER.AUTH";
/// Where the server awaits the answer.
const CALLOUT_ANSWERS: &str = "$SYS._INBOX.*.*";
const SYSTEM_ACCOUNT: &str = "$SYS";
/// The connections of a server, of every server; and the end of a connection.
pub(crate) const CONNECTIONS: &str = "SYS.CONNZ";
pub(crate) const DISCONNECT: &str = "SYS.KICK";

/// Subjects, with wildcards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
    /// What the server leaves out of a subscription that `subscribe` allows.
    pub unheard: Vec<String>,
}

/// A subject on which an account sends to another: to the one that holds JetStream, or to the server's own.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Service {
    /// Of the server's own account.
    is_system: bool,
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
            is_system: false,
            has_many_answers: false,
        }
    }

    fn api(request: &str) -> Service {
        Service {
            subject: format!("{API}.{request}"),
            imported_as: format!("{API_IMPORTED}.{request}"),
            is_system: false,
            has_many_answers: false,
        }
    }

    fn api_with_many_answers(request: &str) -> Service {
        Service {
            has_many_answers: true,
            ..Service::api(request)
        }
    }

    fn system(request: &str, imported_as: String) -> Service {
        Service {
            is_system: true,
            subject: format!("$SYS.REQ.SERVER.{request}"),
            imported_as,
            has_many_answers: false,
        }
    }

    /// Both forms of acknowledgement: servers may send either. Each with the number of tokens of its form: the longer
    /// form with any number of tokens would match the shorter form of another consumer, with that consumer's name in its
    /// wildcards.
    fn acknowledgements(stream: &str, consumer: &str) -> [Service; 2] {
        [
            Service::message(format!("$JS.ACK.{stream}.{consumer}.*.*.*.*.*")),
            Service::message(format!("$JS.ACK.*.*.{stream}.{consumer}.*.*.*.*.>")),
        ]
    }
}

/// An account with what it takes from others.
struct Importer {
    account: String,
    services: Vec<Service>,
    hears: Vec<(User, String)>,
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
            ..Permissions::default()
        };
    }
    let sent = services(user, root).into_iter().map(|service| service.imported_as);
    let mut subscribe = vec![format!("{}.>", inbox_prefix(user))];
    subscribe.extend(match user {
        // `_INBOX`: the default reply subjects of clients. No service listens there.
        User::Publisher => vec![
            format!("{root}.event.>"),
            format!("{root}.dead.>"),
            "_INBOX.>".to_owned(),
        ],
        User::Orchestrator => vec![CALLOUT.to_owned()],
        User::Resolver | User::Delivery | User::ToolGateway | User::Operator => Vec::new(),
    });
    if user != User::Publisher {
        subscribe.extend(hears(user, root).into_iter().map(|(_, subject)| subject));
    }
    let answers = (user == User::Orchestrator).then(|| CALLOUT_ANSWERS.to_owned());
    Permissions {
        publish: sent
            .chain(unstored(user).map(|said| format!("{root}.{said}")))
            .chain(answers)
            .collect(),
        subscribe,
        ..Permissions::default()
    }
}

/// The permissions of an API key's holder, in the account [`outside_account`]; `None` for a role that has nothing to do
/// on the broker. `consumers`: the event consumers of the key's account.
pub fn of_key(
    root: &Root,
    account: &AccountId,
    (key, role): (&KeyId, KeyRole),
    consumers: &[String],
) -> Option<Permissions> {
    let notification = format!("{root}.notification.{account}.*");
    let inbox = format!("{}.>", prefix::inbox_prefix(&format!("{account}.{key}")));
    match role {
        KeyRole::Gateway => None,
        KeyRole::Publisher => Some(Permissions {
            publish: vec![notification],
            subscribe: vec![inbox, format!("{root}.event.{account}.*.notification.>")],
            ..Permissions::default()
        }),
        KeyRole::Admin | KeyRole::Member | KeyRole::Service => {
            let stream = Stream::Event.name(root);
            let read = |name: &String| {
                let name = stored_name(account, name);
                let acknowledgements = Service::acknowledgements(&stream, &name).map(|service| service.subject);
                [format!("{API}.CONSUMER.MSG.NEXT.{stream}.{name}")]
                    .into_iter()
                    .chain(acknowledgements)
            };
            Some(Permissions {
                publish: [notification]
                    .into_iter()
                    .chain(consumers.iter().flat_map(read))
                    .collect(),
                subscribe: vec![
                    inbox,
                    format!("{root}.event.{account}.>"),
                    format!("{root}.live.{account}.*"),
                ],
                // Of no task: a person's own.
                unheard: vec![format!("{root}.live.{account}.-")],
            })
        }
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
        ]);
        services.extend(Service::acknowledgements(&stream, name));
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
    if user == User::Orchestrator {
        let stream = Stream::Event.name(root);
        services.extend([
            // Of one account's events: the filter is part of the subject.
            Service::api(&format!("CONSUMER.CREATE.{stream}.*.{root}.event.*.>")),
            Service::api(&format!("CONSUMER.DELETE.{stream}.*")),
            Service {
                has_many_answers: true,
                ..Service::system("PING.CONNZ", CONNECTIONS.to_owned())
            },
            Service::system("*.KICK", format!("{DISCONNECT}.*")),
        ]);
    }
    services
}

/// What holders of API keys send to: notifications, and reads of their event consumers. At its usual subject, as their
/// client libraries have it: the server's own import of the API answers no pull.
fn outside_services(root: &Root) -> Vec<Service> {
    let stream = Stream::Event.name(root);
    let pull = Service {
        has_many_answers: true,
        ..Service::message(format!("{API}.CONSUMER.MSG.NEXT.{stream}.*"))
    };
    let notification = Service::message(format!("{root}.notification.*.*"));
    [notification, pull]
        .into_iter()
        .chain(Service::acknowledgements(&stream, "*"))
        .collect()
}

/// Messages below these branches, in the account of each user that publishes there.
fn said(root: &Root, branches: &[&str]) -> Vec<(User, String)> {
    let publishes = |user: User, branch: &str| {
        user == User::Operator || published(user).any(|hop| is_match(branch, &hop.pattern()))
    };
    let in_account = |user: User| {
        let said = branches.iter().filter(move |branch| publishes(user, branch));
        said.map(move |branch| (user, format!("{root}.{branch}")))
    };
    User::ALL.into_iter().flat_map(in_account).collect()
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
        User::Publisher => said(root, &["event.>", "dead.*.*"]),
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

/// The NATS account of all holders of API keys.
pub fn outside_account(root: &Root) -> String {
    format!("{}_OUTSIDE", jetstream_account(root))
}

fn importers(root: &Root) -> Vec<Importer> {
    let of = |user: User| Importer {
        account: account(user, root),
        services: services(user, root),
        hears: heard_elsewhere(user, root).collect(),
    };
    let outside = Importer {
        account: outside_account(root),
        services: outside_services(root),
        hears: said(root, &["event.>", "live.*.*"]),
    };
    User::ALL.into_iter().map(of).chain([outside]).collect()
}

/// The NATS account that holds JetStream, and with it all stored messages.
pub fn jetstream_account(root: &Root) -> String {
    root.to_string().to_uppercase()
}

/// `accounts { … }` for the server's configuration. Passwords come from variables, which the server takes from its
/// environment or from lines `NAME: "value"` above this one.
pub fn accounts(root: &Root) -> String {
    let importers = importers(root);
    let mut text = format!(
        "accounts {{\n  \"{SYSTEM_ACCOUNT}\": {{\n    exports: {}\n  }}\n",
        exports(&importers, None)
    );
    for (user, importer) in User::ALL.into_iter().zip(&importers) {
        let jetstream = if user == User::Operator {
            "\n    jetstream: enabled"
        } else {
            ""
        };
        text += &format!(
            "  \"{}\": {{{jetstream}\n    users: [{}]\n    exports: {}\n    imports: {}\n  }}\n",
            importer.account,
            entry(root, user),
            exports(&importers, Some(user)),
            imports(root, importer),
        );
    }
    let outside = importers.last().expect("the account of API keys");
    let unheard = ["event", "live"].map(|branch| format!("      \"{root}.{branch}.>\": \"unheard.{branch}.>\"\n"));
    text + &format!(
        "  \"{}\": {{\n    limits: {{ max_connections: {OUTSIDE_CONNECTIONS_MAX}, max_subscriptions: \
         {OUTSIDE_SUBSCRIPTIONS_MAX} }}\n    mappings: {{\n{}    }}\n    imports: {}\n  }}\n}}\n",
        outside.account,
        unheard.concat(),
        imports(root, outside),
    )
}

/// `authorization { auth_callout { … } }`: the server asks the orchestrator about every client that is none of its users.
/// The question arrives in the orchestrator's account, where only the orchestrator and the server are.
pub fn callout(root: &Root) -> String {
    let users = User::ALL.map(User::name).join(", ");
    format!(
        "authorization {{\n  auth_callout {{\n    issuer: ${ISSUER_VARIABLE}\n    xkey: ${XKEY_VARIABLE}\n    \
         account: \"{}\"\n    auth_users: [{users}]\n  }}\n}}\n",
        account(User::Orchestrator, root),
    )
}

/// The variables of the callout's public keys in the server's configuration.
pub const ISSUER_VARIABLE: &str = "SIGNALBOX_NATS_CALLOUT_ISSUER";
pub const XKEY_VARIABLE: &str = "SIGNALBOX_NATS_CALLOUT_XKEY";

fn entry(root: &Root, user: User) -> String {
    let Permissions { publish, subscribe, .. } = permissions(user, root);
    format!(
        "{{\n      user: {}\n      password: ${}\n      permissions: {{\n        publish: {{ allow: {} }}\n        \
         subscribe: {{ allow: {} }}\n      }}\n    }}",
        user.name(),
        password_variable(user),
        list(&publish),
        list(&subscribe),
    )
}

/// The exports of a user's account, or of the server's own, each with the accounts that may import it.
fn exports(importers: &[Importer], owner: Option<User>) -> String {
    let (mut taken, mut streams) = (BTreeMap::new(), BTreeMap::new());
    for importer in importers {
        let account = format!("\"{}\"", importer.account);
        for service in &importer.services {
            // No user sends to the account of another, but to the operator's.
            if owner == (!service.is_system).then_some(User::Operator) {
                let exported = taken.entry(&service.subject);
                let (_, accounts) = exported.or_insert_with(|| (service.has_many_answers, Vec::new()));
                accounts.push(account.clone());
            }
        }
        for (_, subject) in importer.hears.iter().filter(|(source, _)| owner == Some(*source)) {
            let accounts: &mut Vec<String> = streams.entry(subject).or_default();
            if !accounts.contains(&account) {
                accounts.push(account.clone());
            }
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

fn imports(root: &Root, importer: &Importer) -> String {
    let mut text = String::from("[\n");
    let jetstream = jetstream_account(root);
    for Service {
        subject,
        imported_as,
        is_system,
        ..
    } in &importer.services
    {
        let from = if *is_system { SYSTEM_ACCOUNT } else { &jetstream };
        text +=
            &format!("      {{ service: {{ account: \"{from}\", subject: \"{subject}\" }}, to: \"{imported_as}\" }}\n");
    }
    for (source, subject) in &importer.hears {
        let from = account(*source, root);
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
         # The public keys of the callout come from there, too: {ISSUER_VARIABLE}, {XKEY_VARIABLE}\n\
         # (`signalbox nats-keys`).\n\
         # Never set no_auth_user beside it. JetStream keeps what is stored below `{{store_dir}}/jetstream/{}`.\n\n{}",
        jetstream_account(root),
        accounts(root) + "\n" + &callout(root)
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
    fn services_make_change_and_delete_no_stream_and_list_nothing() {
        let root = Root::parse("box").unwrap();
        for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
            let Permissions { publish, subscribe, .. } = permissions(user, &root);
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
                    // Event consumers of accounts, and the connections of their keys.
                    [
                        "$JS",
                        "API",
                        "CONSUMER",
                        "CREATE",
                        "BOX_EVENT",
                        "*",
                        "box",
                        "event",
                        "*",
                        ">",
                    ]
                    | ["$JS", "API", "CONSUMER", "DELETE", "BOX_EVENT", "*"]
                    | ["$SYS", "REQ", "SERVER", "PING", "CONNZ"]
                    | ["$SYS", "REQ", "SERVER", "*", "KICK"] => user == User::Orchestrator,
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
    fn a_key_has_what_its_role_is_for_in_its_account_alone() {
        let (root, account) = (Root::default(), AccountId::parse("acme").unwrap());
        let key = KeyId::parse("0011223344556677").unwrap();
        let of = |role| of_key(&root, &account, (&key, role), &["ci".to_owned()]);
        assert_eq!(of(KeyRole::Gateway), None);
        let publisher = of(KeyRole::Publisher).unwrap();
        assert_eq!(publisher.publish, ["signalbox.notification.acme.*"]);
        assert_eq!(
            publisher.subscribe,
            ["_I.acme.0011223344556677.>", "signalbox.event.acme.*.notification.>"]
        );
        let service = of(KeyRole::Service).unwrap();
        assert_eq!(
            service.publish,
            [
                "signalbox.notification.acme.*",
                "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_acme_ci",
                "$JS.ACK.SIGNALBOX_EVENT.outside_acme_ci.*.*.*.*.*",
                "$JS.ACK.*.*.SIGNALBOX_EVENT.outside_acme_ci.*.*.*.*.>",
            ]
        );
        assert_eq!(
            service.subscribe,
            [
                "_I.acme.0011223344556677.>",
                "signalbox.event.acme.>",
                "signalbox.live.acme.*"
            ]
        );
        assert_eq!(service.unheard, ["signalbox.live.acme.-"]);
        assert_eq!(of(KeyRole::Admin).unwrap(), service);
        assert_eq!(of(KeyRole::Member).unwrap(), service);
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
