//! The users of the broker against a real server: each does what it needs, and the server refuses it everything else.

use std::{collections::BTreeSet, fmt::Write as _};

use async_nats::{Client, ConnectOptions, ServerAddr};
use contracts::Root;
use devstack::{NatsServer, NatsUsers};
use messaging::{Bus, BusOptions, Durable, Stream, User, users};

use crate::support::{creating, keyring, until};

pub(crate) fn nats_users() -> NatsUsers {
    NatsUsers {
        authorization: users::authorization(&Root::default()),
        names: User::ALL
            .map(|user| (user.name().to_owned(), user.password_variable()))
            .into(),
    }
}

async fn server() -> NatsServer {
    let server = NatsServer::start_temporary_with(nats_users()).await.unwrap();
    let bus = bus(&server, User::Operator).await;
    creating(Default::default()).ensure(&bus).await.unwrap();
    server
}

async fn bus(server: &NatsServer, user: User) -> Bus {
    let options = BusOptions {
        request_timeout_ms: 1_000,
        keys: keyring(),
        ..BusOptions::new(server.url_of(user.name()), Root::default(), "test")
    };
    Bus::connect(options).await.unwrap()
}

/// A plain client, and what the server's log says that it was refused.
struct Party<'a> {
    server: &'a NatsServer,
    user: User,
    client: Client,
}

impl<'a> Party<'a> {
    async fn connect(server: &'a NatsServer, user: User) -> Party<'a> {
        let address: ServerAddr = server.url_of(user.name()).parse().unwrap();
        let password = address.password().unwrap().to_owned();
        let options = ConnectOptions::with_user_and_password(user.name().to_owned(), password);
        let client = options.connect(address).await.unwrap();
        Party { server, user, client }
    }

    fn refused(&self) -> Vec<String> {
        let of = format!("user:{}\"", self.user.name());
        let violations = self.server.violations().unwrap().into_iter();
        violations.filter(|line| line.contains(&of)).collect()
    }

    async fn is_refused(&self, what: &str) {
        let quoted = format!("Subject \"{what}\"");
        until(&format!("{what} is refused"), async || {
            self.refused().iter().any(|line| line.contains(&quoted)).then_some(())
        })
        .await;
    }

    /// Which of them the server lets pass. It answers in order, so that the refusal of the last one ends the list.
    async fn may_publish(&self, subjects: &BTreeSet<String>) -> Vec<String> {
        let last = "nobody.may";
        for subject in subjects.iter().map(String::as_str).chain([last]) {
            self.client.publish(subject.to_owned(), "".into()).await.unwrap();
        }
        self.client.flush().await.unwrap();
        self.is_refused(last).await;
        self.passed(subjects, "Publish Violation")
    }

    async fn may_subscribe(&self, subjects: &BTreeSet<String>) -> Vec<String> {
        let last = "nobody.may.listen";
        let mut subscribed = Vec::new();
        for subject in subjects.iter().map(String::as_str).chain([last]) {
            subscribed.push(self.client.subscribe(subject.to_owned()).await.unwrap());
        }
        self.client.flush().await.unwrap();
        self.is_refused(last).await;
        self.passed(subjects, "Subscription Violation")
    }

    fn passed(&self, subjects: &BTreeSet<String>, verb: &str) -> Vec<String> {
        let refused = self.refused();
        let is_refused = |subject: &String| {
            let quoted = format!("Subject \"{subject}\"");
            refused.iter().any(|line| line.contains(verb) && line.contains(&quoted))
        };
        subjects
            .iter()
            .filter(|subject| !is_refused(subject))
            .cloned()
            .collect()
    }
}

/// Everything that somebody might want to send to this server.
fn sendable() -> BTreeSet<String> {
    let root = Root::default();
    let mut subjects: BTreeSet<String> = [
        "notification.acme.t",
        "session.resolved.acme.t",
        "session.closed.acme.t",
        "tool.requested.acme.t",
        "tool.finished.acme.t",
        "event.acme.t.turn.started",
        "event.acme.t.turn.finished",
        "event.acme.t.task.created",
        "event.acme.t.task.status_changed",
        "event.acme.t.message.posted",
        "event.acme.t.message.died",
        "event.acme.t.session.opened",
        "event.acme.t.session.closed",
        "event.acme.t.notification.refused",
        "event.acme.t.notification.cancelled",
        "event.acme.t.notification.failed",
        "event.acme.t.agent.removed",
        "event.acme.t.provider.session_mismatched",
        "event.acme.t.made.up",
        "dead.acme.t",
        "live.acme.t",
        "partition.0.acme.t",
    ]
    .map(|subject| format!("{root}.{subject}"))
    .into();
    for stream in Stream::ALL {
        let name = stream.name(&root);
        let verbs = [
            "INFO",
            "CREATE",
            "UPDATE",
            "DELETE",
            "PURGE",
            "SNAPSHOT",
            "RESTORE",
            "MSG.GET",
            "MSG.DELETE",
            "LEADER.STEPDOWN",
            "PEER.REMOVE",
        ];
        subjects.extend(verbs.map(|verb| format!("$JS.API.STREAM.{verb}.{name}")));
        subjects.extend(["LIST", "NAMES", "CREATE"].map(|verb| format!("$JS.API.CONSUMER.{verb}.{name}")));
        subjects.insert(format!("$JS.API.DIRECT.GET.{name}"));
        let durables = Durable::ALL.iter().filter(|durable| durable.stream() == stream);
        for consumer in durables.map(|durable| durable.name()).chain(["someone"]) {
            let verbs = [
                "INFO",
                "DELETE",
                "MSG.NEXT",
                "CREATE",
                "DURABLE.CREATE",
                "PAUSE",
                "RESET",
                "UNPIN",
            ];
            subjects.extend(verbs.map(|verb| format!("$JS.API.CONSUMER.{verb}.{name}.{consumer}")));
            subjects.insert(format!("$JS.API.CONSUMER.CREATE.{name}.{consumer}.{root}.>"));
            subjects.insert(format!("$JS.ACK.{name}.{consumer}.1.2.3.4.5"));
            subjects.insert(format!("$JS.ACK._.hash.{name}.{consumer}.1.2.3.4.5.6"));
        }
    }
    for durable in Durable::ALL {
        let (stream, name) = (durable.stream().name(&root), durable.name());
        subjects.insert(format!(
            "$JS.API.CONSUMER.CREATE.{stream}.{name}.{}",
            durable.filter(&root)
        ));
    }
    let notifications = Stream::Notification.name(&root);
    subjects.insert(format!(
        "$JS.API.CONSUMER.CREATE.{notifications}.reader.{root}.partition.3.>"
    ));
    subjects.extend(
        [
            "$JS.API.INFO",
            "$JS.API.STREAM.LIST",
            "$JS.API.STREAM.NAMES",
            "$JS.API.ACCOUNT.PURGE.x",
            "$JS.EVENT.ADVISORY.made.up",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.USER.INFO",
            "_INBOX.somebody.1",
            "elsewhere",
        ]
        .map(str::to_owned),
    );
    subjects.extend(User::ALL.map(|user| format!("{}.somebody.1", user.inbox_prefix())));
    subjects
}

fn readable() -> BTreeSet<String> {
    let branches = [
        ">",
        "notification.>",
        "partition.>",
        "session.>",
        "tool.>",
        "event.>",
        "dead.>",
        "live.>",
        "event.acme.>",
    ];
    let mut subjects: BTreeSet<String> = branches.map(|branch| format!("signalbox.{branch}")).into();
    subjects.extend(
        [
            ">",
            "*",
            "_INBOX.>",
            "_I.>",
            "$JS.>",
            "$JS.API.>",
            "$JS.ACK.>",
            "$JS.EVENT.>",
            "$SYS.>",
        ]
        .map(str::to_owned),
    );
    subjects.extend(User::ALL.map(|user| format!("{}.>", user.inbox_prefix())));
    subjects
}

/// The whole answer of the server, for review: whatever a user may do beyond its work is a line that should not be here.
#[tokio::test]
async fn the_server_refuses_what_a_user_need_not_do() {
    let server = server().await;
    let (sendable, readable) = (sendable(), readable());
    let mut allowed = String::new();
    for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
        let party = Party::connect(&server, user).await;
        for (verb, subjects) in [
            ("sends", party.may_publish(&sendable).await),
            ("hears", party.may_subscribe(&readable).await),
        ] {
            for subject in subjects {
                writeln!(allowed, "{} {verb} {subject}", user.name()).unwrap();
            }
        }
    }
    insta::assert_snapshot!(allowed);
}

/// Who may pull from a consumer names where the answer goes. The tool-gateway may not say that a turn is finished, and
/// makes the server put something into that stream all the same; no consumer of it counts that. This is why a subject
/// proves nothing.
#[tokio::test]
async fn a_user_can_make_the_server_store_what_it_may_not_publish_itself() {
    let server = server().await;
    let operator = bus(&server, User::Operator).await;
    let (asked, victim) = (
        "signalbox.tool.requested.acme.t",
        "signalbox.event.acme.t.turn.finished",
    );
    crate::support::publish(&operator, &[crate::support::message(asked, "id-1", "{}")]).await;
    let party = Party::connect(&server, User::ToolGateway).await;
    party.client.publish(victim, "{}".into()).await.unwrap();
    party.is_refused(victim).await;
    let next = "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_TOOL.tool_gateway_tool_requested";
    let pull = party.client.publish_with_reply(next, victim, r#"{"batch": 1}"#.into());
    pull.await.unwrap();
    let stored = until("the server has stored it for the victim", async || {
        let stream = crate::support::raw(&operator)
            .get_stream("SIGNALBOX_EVENT")
            .await
            .unwrap();
        stream.get_raw_message(1).await.ok()
    })
    .await;
    // Under its first subject, which the filter of the victim's consumer passes over.
    assert_eq!(stored.subject.as_str(), asked);
}

#[tokio::test]
async fn a_publisher_sends_with_acknowledgement_and_listens_to_what_becomes_of_it() {
    let server = server().await;
    let publisher = Party::connect(&server, User::Publisher).await;
    let mut news = publisher.client.subscribe("signalbox.event.>").await.unwrap();
    publisher.client.flush().await.unwrap();
    let jetstream = async_nats::jetstream::new(publisher.client.clone());
    let sent = jetstream
        .publish("signalbox.notification.acme.t", "{}".into())
        .await
        .unwrap();
    assert_eq!(sent.await.unwrap().stream, "SIGNALBOX_NOTIFICATION");
    let delivery = bus(&server, User::Delivery).await;
    let event = crate::support::message("signalbox.event.acme.t.turn.started", "id-1", "{}");
    crate::support::publish(&delivery, &[event]).await;
    let heard = futures::StreamExt::next(&mut news).await.unwrap();
    assert_eq!(heard.subject.as_str(), "signalbox.event.acme.t.turn.started");
    assert_eq!(publisher.refused(), Vec::<String>::new());
}

/// Each service, alone on an empty server, makes and finds what it reads from.
#[tokio::test]
async fn a_service_makes_what_it_reads_from_with_its_own_rights() {
    let server = NatsServer::start_temporary_with(nats_users()).await.unwrap();
    for scope in [User::Resolver, User::Delivery, User::ToolGateway, User::Orchestrator] {
        let topology = messaging::Topology {
            scope,
            ..creating(Default::default())
        };
        for _ in 0..2 {
            topology.ensure(&bus(&server, scope).await).await.unwrap();
        }
    }
    let everything = messaging::Topology {
        provision: messaging::Provision::VerifyOnly,
        ..creating(Default::default())
    };
    everything.ensure(&bus(&server, User::Operator).await).await.unwrap();
}
