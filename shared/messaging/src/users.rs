//! Who may do what on the broker: a user for each service, one for publishers outside, one for the operator. The table
//! is an allow-list and follows from the topology; [`authorization`] writes it in the server's language.
//!
//! A service makes what it reads from when it is missing, so that a broker that lost its store is whole again as soon
//! as its services are there. It changes and deletes nothing that is there: `signalbox migrate` does, as the operator.
//!
//! What this cannot do: who may pull from a consumer, or make one, can have the server deliver a stored message to any
//! subject. So a subject proves nothing, and services sign what they send each other (see [`crate::envelope`]). For the
//! same reason no user has `allow_responses`, and nobody's answers come in on a prefix that another may read.

use std::fmt::Write as _;

use contracts::{Root, subject::PARTITION_TOKEN};

use crate::{Durable, Stream};

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

    /// Streams that it makes when they are missing, and checks at its start: those it reads from.
    pub fn streams(self) -> &'static [Stream] {
        match self {
            // The notifications have the dead letters as their source.
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
            User::Delivery => &["tool.requested.*.*", "dead.*.*", "live.*.*"],
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

    /// Where answers come in: nobody else may listen there.
    pub fn inbox_prefix(self) -> String {
        inbox_prefix(self.name())
    }

    pub fn permissions(self, root: &Root) -> Permissions {
        if self == User::Operator {
            let everything = vec![">".to_owned()];
            return Permissions {
                publish: everything.clone(),
                subscribe: everything,
            };
        }
        let mut publish: Vec<String> = self
            .messages()
            .iter()
            .map(|message| format!("{root}.{message}"))
            .collect();
        publish.extend(self.events().iter().map(|event| format!("{root}.event.*.*.{event}")));
        for stream in self.streams() {
            let name = stream.name(root);
            publish.push(format!("$JS.API.STREAM.INFO.{name}"));
            publish.push(format!("$JS.API.STREAM.CREATE.{name}"));
        }
        for durable in self.durables() {
            let (stream, name) = (durable.stream().name(root), durable.name());
            publish.extend([
                format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
                format!("$JS.API.CONSUMER.CREATE.{stream}.{name}.{}", durable.filter(root)),
                format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
                // Both forms of acknowledgement: servers before 2.15 send the first.
                format!("$JS.ACK.{stream}.{name}.>"),
                format!("$JS.ACK.*.*.{stream}.{name}.>"),
            ]);
        }
        let looked_after = self.looked_after().iter();
        publish.extend(looked_after.map(|stream| format!("$JS.API.STREAM.MSG.GET.{}", stream.name(root))));
        if self == User::Resolver {
            publish.extend(partition_readers(root));
        }
        let mut subscribe = vec![format!("{}.>", self.inbox_prefix())];
        if self == User::Publisher {
            // Every subject of the contract may be watched. Publishers are the operator's, no tenant is one.
            subscribe.push(format!("{root}.>"));
            // Where answers come in for clients that were not told otherwise. No service listens there.
            subscribe.push("_INBOX.>".to_owned());
        }
        Permissions { publish, subscribe }
    }
}

/// What reading partitions from a stored place takes: short-lived consumers, looks at single messages, and removing
/// what every partition has read.
fn partition_readers(root: &Root) -> Vec<String> {
    let stream = Stream::Notification.name(root);
    vec![
        format!("$JS.API.CONSUMER.CREATE.{stream}.*.{root}.{PARTITION_TOKEN}.*.>"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.*"),
        format!("$JS.API.STREAM.MSG.GET.{stream}"),
        format!("$JS.API.STREAM.PURGE.{stream}"),
    ]
}

/// The inboxes of a user.
pub(crate) fn inbox_prefix(user: &str) -> String {
    format!("_I.{user}")
}

/// `authorization { … }` for the server's configuration. Passwords come from variables, which the server takes from its
/// environment or from lines `NAME: "value"` above this one.
pub fn authorization(root: &Root) -> String {
    let mut text = String::from("authorization {\n  users: [\n");
    for user in User::ALL {
        let Permissions { publish, subscribe } = user.permissions(root);
        writeln!(
            text,
            "    {{\n      user: {}\n      password: ${}\n      permissions: {{\n        publish: {{ allow: {} }}\n        \
             subscribe: {{ allow: {} }}\n      }}\n    }}",
            user.name(),
            user.password_variable(),
            list(&publish),
            list(&subscribe),
        )
        .expect("a String takes all that is written to it");
    }
    text.push_str("  ]\n}\n");
    text
}

/// In quotes, which keep `$` from being a variable.
fn list(subjects: &[String]) -> String {
    let mut text = String::from("[\n");
    for subject in subjects {
        writeln!(text, "          \"{subject}\"").expect("a String takes all that is written to it");
    }
    text.push_str("        ]");
    text
}

/// `schemas/nats-users.conf`: the same with a word to the reader.
pub fn config_file(root: &Root) -> String {
    let variables = User::ALL.map(User::password_variable).join(", ");
    format!(
        "# Users of the NATS server and what each may do. Generated from shared/messaging/src/users.rs for the root\n\
         # `{root}`; `signalbox nats-users` writes it for another. Include it in the server's configuration:\n\
         #     include ./nats-users.conf\n\
         # Passwords come from the server's environment: {variables}.\n\
         # Let them begin with a letter other than e: the server reads what looks like a number as one.\n\
         # Never set no_auth_user beside it.\n\n{}",
        authorization(root)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_and_consumer_has_a_service_that_makes_it() {
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
    fn services_may_neither_change_nor_delete_streams_nor_list_anything() {
        let root = Root::parse("box").unwrap();
        for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
            let Permissions { publish, subscribe } = user.permissions(&root);
            // To the server, an empty list allows everything.
            assert!(!publish.is_empty() && !subscribe.is_empty(), "{user:?}");
            for subject in &publish {
                let tokens: Vec<&str> = subject.split('.').collect();
                assert!(tokens[0] == "box" || tokens[0] == "$JS", "{user:?} {subject}");
                if let ["$JS", "API", "STREAM", verb, ..] = tokens[..] {
                    // The resolver alone purges, and only what it has read.
                    let purges =
                        verb == "PURGE" && user == User::Resolver && tokens.last() == Some(&"BOX_NOTIFICATION");
                    let looks = tokens[3..5] == ["MSG", "GET"];
                    assert!(
                        ["INFO", "CREATE"].contains(&verb) || purges || looks,
                        "{user:?} {subject}"
                    );
                }
            }
            // An answer to one is nobody else's to read.
            for other in User::ALL.into_iter().filter(|other| *other != user) {
                assert!(!subscribe.contains(&format!("{}.>", other.inbox_prefix())), "{user:?}");
            }
            assert!(
                !subscribe
                    .iter()
                    .any(|subject| subject == ">" || subject.starts_with("$")),
                "{user:?}"
            );
        }
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
        assert!(file.contains("\"$JS.ACK.*.*.BOX_TOOL.tool_gateway_tool_requested.>\""));
        assert!(!file.contains("allow_responses") && !file.contains("SIGNALBOX_TOOL\""));
    }
}
