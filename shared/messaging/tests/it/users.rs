//! The users of the broker against a real server: each can do its work, and the server refuses everything else.

use std::{collections::BTreeSet, fmt::Write as _};

use async_nats::{Client, ConnectOptions, ServerAddr};
use contracts::Root;
use devstack::{NatsServer, NatsUsers};
use futures::{StreamExt, TryStreamExt};
use messaging::{Bus, BusOptions, Durable, Stream, User, streams_read, users};

use crate::support::{keyring, next_batch, until, updating, verifying, within};

const LONG: std::time::Duration = std::time::Duration::from_secs(20);

pub(crate) fn nats_users() -> NatsUsers {
    NatsUsers {
        config: users::accounts(&Root::default()),
        account: Some(users::jetstream_account(&Root::default())),
        names: User::ALL
            .map(|user| (user.name().to_owned(), users::password_variable(user)))
            .into(),
    }
}

async fn server() -> NatsServer {
    let server = NatsServer::start_temporary_with(nats_users()).await.unwrap();
    let bus = bus(&server, User::Operator).await;
    updating(Default::default()).ensure(&bus).await.unwrap();
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

/// A plain client, and the server's log of its refusals.
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

    /// The subjects that the server lets pass. It answers in order, so the refusal of the last one ends the list.
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

/// Every subject that an attacker might send to.
pub(crate) fn sendable() -> BTreeSet<String> {
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
        "event.acme.t.session.reset",
        "event.acme.t.provider.session_mismatched",
        "event.acme.t.provider.thread_lost",
        "event.acme.t.provider.thread_unconfirmed",
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
        subjects.insert(format!("$JS.API.DIRECT.GET.{name}.{root}.partition.0.acme.t"));
        let durables = Durable::all().iter().filter(|durable| durable.stream == stream);
        for consumer in durables.map(|durable| durable.name()).chain(["someone"]) {
            let verbs = [
                "INFO",
                "DELETE",
                "MSG.NEXT",
                "CREATE",
                "durable().CREATE",
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
    for durable in Durable::all() {
        let (stream, name) = (durable.stream.name(&root), durable.name());
        subjects.insert(format!(
            "$JS.API.CONSUMER.CREATE.{stream}.{name}.{}",
            durable.filter(&root)
        ));
        // The shorter form of one consumer's acknowledgement, with the name of another consumer at its place in the
        // longer form: with `+NXT` as its payload it would be a pull from the first.
        for other in Durable::all() {
            let (other_stream, other) = (other.stream.name(&root), other.name());
            subjects.insert(format!("$JS.ACK.{stream}.{name}.{other_stream}.{other}.1.2.3"));
        }
    }
    let notifications = Stream::Notification.name(&root);
    subjects.insert(format!(
        "$JS.API.CONSUMER.CREATE.{notifications}.reader.{root}.partition.3.>"
    ));
    let imported: Vec<String> = subjects
        .iter()
        .filter_map(|subject| Some(format!("JS.API.{}", subject.strip_prefix("$JS.API.")?)))
        .collect();
    subjects.extend(imported);
    subjects.extend(
        [
            "$JS.FC.SIGNALBOX_TOOL.tool_gateway_tool_requested.x",
            "_R_.made.up",
            "signalbox.stored.0",
            "$JS.API.INFO",
            "$JS.API.STREAM.LIST",
            "$JS.API.STREAM.NAMES",
            "$JS.API.ACCOUNT.PURGE.x",
            "$JS.EVENT.ADVISORY.made.up",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.USER.INFO",
            "$SYS.REQ.USER.AUTH",
            "$SYS._INBOX.a.b",
            "SYS.CONNZ",
            "SYS.KICK.x",
            "_INBOX.somebody.1",
            "elsewhere",
        ]
        .map(str::to_owned),
    );
    subjects.extend(User::ALL.map(|user| format!("{}.somebody.1", users::inbox_prefix(user))));
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
        "stored.*",
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
            "$JS.EVENT.ADVISORY.STREAM.DELETED.*",
            "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*",
            "$JS.EVENT.ADVISORY.API",
            "$JS.FC.>",
            "_R_.>",
            "$SYS.>",
            "$SYS.REQ.USER.AUTH",
        ]
        .map(str::to_owned),
    );
    subjects.extend(User::ALL.map(|user| format!("{}.>", users::inbox_prefix(user))));
    subjects
}

/// The server's complete answers, for review: a line that allows a user more than its work is an error.
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

/// No message of any user, with any effective reply subject, changes existing state: no stream and no consumer is
/// created, changed or deleted, no message is lost except by the resolver's purge, and none is stored except where the
/// user may publish.
#[tokio::test]
async fn no_reply_subject_reaches_what_its_user_may_not_send() {
    // A pulled message is a request to its reader.
    let hostile = serde_json::json!({
        "name": "SIGNALBOX_DEAD", "subjects": ["signalbox.dead.*.*"], "seq": 1,
        "republish": {"src": ">", "dest": "signalbox.live.>"}, "sources": [{"name": "SIGNALBOX_SESSION"}],
        "stream_name": "SIGNALBOX_SESSION", "config": {"deliver_subject": "signalbox.live.acme.t", "durable_name": "thief"},
    });
    let replies: Vec<String> = sendable()
        .into_iter()
        .filter(|subject| !subject.contains(".INFO"))
        .collect();
    for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
        // A server for each user: a pull waits, and its messages must not count as the next user's.
        let server = server().await;
        let operator = bus(&server, User::Operator).await;
        for durable in Durable::all() {
            let subject = durable
                .filter(operator.root())
                .replace('>', "acme.t")
                .replace('*', "acme");
            let messages: Vec<_> = (0..400)
                .map(|n| crate::support::message(&subject, &format!("{subject}-{n}"), hostile.to_string()))
                .collect();
            crate::support::publish(&operator, &messages).await;
        }
        for subject in ["signalbox.notification.acme.t", "signalbox.dead.acme.t"] {
            let message = crate::support::message(subject, subject, hostile.to_string());
            crate::support::publish(&operator, &[message]).await;
        }
        let before = everything(&operator).await;
        let party = Party::connect(&server, user).await;
        for subject in users::permissions(user, &Root::default()).publish {
            if subject.starts_with("JS.API.STREAM.PURGE") {
                continue; // The resolver's right, whatever it asks.
            }
            let subject = subject.replace('*', "acme").replace('>', "1.2.3.4.5.6");
            for reply in &replies {
                for payload in [r#"{"batch":1,"no_wait":true}"#, ""] {
                    let asked = party
                        .client
                        .publish_with_reply(subject.clone(), reply.clone(), payload.into());
                    asked.await.unwrap();
                }
                // The server can deliver a message to any subject, too.
                let mut headers = async_nats::HeaderMap::new();
                headers.insert("Nats-Trace-Dest", reply.as_str());
                headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
                let traced = party.client.publish_with_headers(subject.clone(), headers, "".into());
                traced.await.unwrap();
            }
            for (name, value) in [
                ("Nats-Rollup", "all"),
                ("Nats-Rollup", "sub"),
                ("Nats-TTL", "1s"),
                ("Nats-Schedule", "@every 1s"),
                ("Nats-Batch-Id", "x"),
                ("Nats-Incr", "1"),
                ("Nats-Stream-Source", "SIGNALBOX_DEAD 1 > >"),
            ] {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert(name, value);
                headers.insert("Nats-Schedule-Target", "signalbox.tool.requested.acme.t");
                headers.insert("Nats-Batch-Sequence", "1");
                headers.insert("Nats-Batch-Commit", "1");
                let sent = party.client.publish_with_headers(subject.clone(), headers, "".into());
                sent.await.unwrap();
            }
            party.client.flush().await.unwrap();
        }
        let mut after = everything(&operator).await;
        for (stream, state) in &mut after {
            if user != User::Resolver || !stream.ends_with("NOTIFICATION") {
                assert_eq!(
                    state.messages.get(..before[stream].messages.len()),
                    Some(&before[stream].messages[..]),
                    "{user:?} {stream}"
                );
            }
            state.messages.clone_from(&before[stream].messages);
            // More may have been stored, by a user with the right to publish there.
            let branch = state.config.subjects[0].trim_end_matches(['.', '*', '>']);
            for (subject, count) in &state.subjects {
                let had = before[stream].subjects.get(subject).copied().unwrap_or_default();
                let published = operator.root().notification_published(subject);
                let may_publish = if published.starts_with(branch) {
                    users::publishes(user, operator.root(), &published)
                } else {
                    // A message that the server took from another stream keeps its subject; the stream has to be one of
                    // the user's.
                    replies
                        .iter()
                        .any(|reply| reply.starts_with(branch) && users::publishes(user, operator.root(), reply))
                };
                assert!(*count <= had || may_publish, "{user:?} {stream} {subject}");
            }
            state.subjects.clone_from(&before[stream].subjects);
        }
        assert_eq!(after, before, "{user:?}");
        // The server accepts no reply for some subjects; the user was permitted to send the request.
        let asked = users::permissions(user, &Root::default()).publish;
        let refused = party.refused();
        let is_refused = |subject: &String| {
            refused
                .iter()
                .any(|line| line.contains(&format!("Subject \"{subject}\"")))
        };
        assert!(!asked.iter().any(is_refused), "{refused:?}");
    }
}

#[derive(Clone, PartialEq, Debug)]
struct State {
    config: async_nats::jetstream::stream::Config,
    created: time::OffsetDateTime,
    consumers: Vec<(String, async_nats::jetstream::consumer::Config)>,
    /// Sequence and payload.
    messages: Vec<(u64, bytes::Bytes)>,
    /// How many messages each subject has.
    subjects: std::collections::BTreeMap<String, usize>,
}

/// The server's whole content: streams by their names.
async fn everything(operator: &Bus) -> std::collections::BTreeMap<String, State> {
    let jetstream = crate::support::raw(operator);
    let mut names: Vec<String> = jetstream.stream_names().try_collect().await.unwrap();
    names.sort();
    let mut all = std::collections::BTreeMap::new();
    for name in names {
        let stream = jetstream.get_stream(&name).await.unwrap();
        let info = stream.cached_info().clone();
        let consumers = stream.consumers().map_ok(|info| (info.name, info.config));
        let mut consumers: Vec<_> = consumers.try_collect().await.unwrap();
        consumers.sort_by(|one, other| one.0.cmp(&other.0));
        // The first ones existed before the attack.
        let count = info.state.last_sequence.min(400);
        let messages = (1..=count).map(|sequence| {
            let stream = &stream;
            async move { Some((sequence, stream.get_raw_message(sequence).await.ok()?.payload)) }
        });
        let messages: Vec<_> = futures::stream::iter(messages).buffered(50).collect().await;
        let subjects = stream.info_with_subjects(">").await.unwrap();
        let state = State {
            config: info.config,
            created: info.created,
            consumers,
            messages: messages.into_iter().flatten().collect(),
            subjects: subjects.try_collect().await.unwrap(),
        };
        all.insert(name, state);
    }
    all
}

/// Since only the operator may create a stream, no user can have messages of others copied to a subject that it may
/// read.
#[tokio::test]
async fn no_user_copies_a_stream_that_it_may_not_read() {
    let server = server().await;
    let operator = bus(&server, User::Operator).await;
    crate::support::raw(&operator)
        .delete_stream("SIGNALBOX_DEAD")
        .await
        .unwrap();
    let config = serde_json::json!({
        "name": "SIGNALBOX_DEAD", "subjects": ["signalbox.dead.*.*"],
        "sources": [{"name": "SIGNALBOX_SESSION"}], "republish": {"src": ">", "dest": "_I.resolver.stolen"},
    });
    for user in User::ALL.into_iter().filter(|user| *user != User::Operator) {
        let party = Party::connect(&server, user).await;
        for prefix in ["$JS.API", "JS.API"] {
            let create = format!("{prefix}.STREAM.CREATE.SIGNALBOX_DEAD");
            party
                .client
                .publish(create.clone(), config.to_string().into())
                .await
                .unwrap();
            party.client.flush().await.unwrap();
            party.is_refused(&create).await;
        }
    }
    let found = crate::support::raw(&operator).get_stream("SIGNALBOX_DEAD").await;
    assert!(found.is_err());
}

/// A client that pulls from a consumer names the reply subject. The tool-gateway may not publish that a turn is
/// finished, and cannot make the server do so.
#[tokio::test]
async fn a_stored_message_is_not_put_where_its_reader_may_not_publish() {
    let server = server().await;
    let operator = bus(&server, User::Operator).await;
    let message = crate::support::message("signalbox.tool.requested.acme.t", "id-1", "{}");
    crate::support::publish(&operator, &[message]).await;
    let party = Party::connect(&server, User::ToolGateway).await;
    let inbox = format!("{}.here", users::inbox_prefix(User::ToolGateway));
    let mut answers = party.client.subscribe(inbox.clone()).await.unwrap();
    let next = "JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_TOOL.tool_gateway_tool_requested";
    for reply in ["signalbox.event.acme.t.turn.finished", inbox.as_str()] {
        let pull = party
            .client
            .publish_with_reply(next, reply.to_owned(), r#"{"batch": 1}"#.into());
        pull.await.unwrap();
    }
    // The second is answered after the first.
    let answer = within("an answer", answers.next()).await.unwrap();
    assert_eq!(&answer.payload[..], b"{}");
    let events = crate::support::stream_info(&operator, Stream::Event).await;
    assert_eq!(events.state.messages, 0);
}

#[tokio::test]
async fn a_publisher_sends_with_acknowledgement_and_listens_to_events() {
    let server = server().await;
    let publisher = Party::connect(&server, User::Publisher).await;
    let mut own = futures::stream::select(
        publisher.client.subscribe("signalbox.event.>").await.unwrap(),
        publisher.client.subscribe("signalbox.dead.*.*").await.unwrap(),
    );
    publisher.client.flush().await.unwrap();
    let jetstream = async_nats::jetstream::new(publisher.client.clone());
    let sent = jetstream
        .publish("signalbox.notification.acme.t", "{}".into())
        .await
        .unwrap();
    assert_eq!(sent.await.unwrap().stream, "SIGNALBOX_NOTIFICATION");
    let operator = bus(&server, User::Operator).await;
    // The operator receives everything, and unstored messages too, though they do not enter the account with the streams.
    let mut all = operator.client().subscribe("signalbox.>").await.unwrap();
    operator.client().flush().await.unwrap();
    let services = [
        (User::Resolver, "signalbox.session.resolved.acme.t", false),
        (User::Delivery, "signalbox.live.acme.t", false),
        (User::ToolGateway, "signalbox.tool.finished.acme.t", false),
        (User::Orchestrator, "signalbox.event.acme.t.turn.finished", true),
        (User::Orchestrator, "signalbox.notification.acme.t", false),
        (User::Delivery, "signalbox.dead.acme.t", true),
    ];
    // Every event and dead letter is received once, whoever says it, and nothing else.
    for (user, subject, is_heard) in services {
        let bus = bus(&server, user).await;
        for speaker in [&bus, &operator] {
            speaker.client().publish(subject, "{}".into()).await.unwrap();
            speaker.client().flush().await.unwrap();
            within(subject, async {
                while all.next().await.unwrap().subject.as_str() != subject {}
            })
            .await;
            if is_heard {
                assert_eq!(
                    within(subject, own.next()).await.unwrap().subject.as_str(),
                    subject,
                    "{user:?}"
                );
            }
        }
    }
    assert_eq!(publisher.refused(), Vec::<String>::new());
}

/// Each user finds its streams with its own rights, and reports missing ones.
#[tokio::test]
async fn a_service_finds_what_it_reads_from_with_its_own_rights() {
    let server = server().await;
    let operator = bus(&server, User::Operator).await;
    for scope in [User::Resolver, User::Delivery, User::ToolGateway, User::Orchestrator] {
        let topology = messaging::Topology {
            scope,
            ..verifying(Default::default())
        };
        let bus = bus(&server, scope).await;
        topology.ensure(&bus).await.unwrap();
        topology.find_missing(&bus).await.unwrap();
        messaging::consumer_backlogs(&bus, scope).await.unwrap();
        messaging::stream_fills(&bus, scope).await.unwrap();
        // A forbidden request is refused, and the connection stays.
        let making = messaging::Topology {
            provision: messaging::Provision::Update,
            ..topology.clone()
        };
        let stream = streams_read(scope)[0].name(operator.root());
        crate::support::raw(&operator).delete_stream(&stream).await.unwrap();
        assert!(making.ensure(&bus).await.is_err(), "{scope:?}");
        let missing = topology.find_missing(&bus).await.unwrap_err().to_string();
        assert!(missing.contains(&stream), "{missing}");
        updating(Default::default()).ensure(&operator).await.unwrap();
        topology.ensure(&bus).await.unwrap();
    }
}

/// A notification, from its publisher's account to the one that stores it, and to its reader's; with an announcement.
#[tokio::test]
async fn a_resolver_reads_new_messages_at_once_with_its_own_rights() {
    let server = server().await;
    let resolver = bus(&server, User::Resolver).await;
    let mut readers = Vec::new();
    for partition in 0..messaging::topology::PARTITIONS {
        let place = messaging::StreamOffset::default();
        readers.push(
            messaging::PartitionReader::open(&resolver, partition, place)
                .await
                .unwrap(),
        );
    }
    let publisher = Party::connect(&server, User::Publisher).await;
    let jetstream = async_nats::jetstream::new(publisher.client.clone());
    for n in 0..3 {
        let sent = jetstream
            .publish("signalbox.notification.acme.t", n.to_string().into())
            .await
            .unwrap();
        sent.await.unwrap();
        let read = readers.iter_mut().map(|reader| Box::pin(next_batch(reader, 10, LONG)));
        let (read, _, _) = within("a ring", futures::future::select_all(read)).await;
        let read = read.unwrap();
        assert_eq!((read.len(), &read[0].payload[..]), (1, n.to_string().as_bytes()));
    }
    let identity = messaging::notification_stream_identity(&resolver).await.unwrap();
    assert_eq!(identity.last_sequence, 3);
    assert_eq!(messaging::purge_consumed(&resolver, 3).await.unwrap(), 2);
}

/// Deletions are reported to the process that counts them, whoever made them.
#[tokio::test]
async fn the_orchestrator_hears_of_deletions() {
    let server = server().await;
    let orchestrator = Party::connect(&server, User::Orchestrator).await;
    let mut heard = orchestrator
        .client
        .subscribe("$JS.EVENT.ADVISORY.STREAM.DELETED.*")
        .await
        .unwrap();
    let mut consumers = orchestrator
        .client
        .subscribe("$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*")
        .await
        .unwrap();
    orchestrator.client.flush().await.unwrap();
    let operator = bus(&server, User::Operator).await;
    let jetstream = crate::support::raw(&operator);
    let durable = Durable::of(User::ToolGateway, "tool.requested");
    jetstream
        .delete_consumer_from_stream(durable.name(), "SIGNALBOX_TOOL")
        .await
        .unwrap();
    jetstream.delete_stream("SIGNALBOX_DEAD").await.unwrap();
    let consumer = within("a word on the consumer", consumers.next()).await.unwrap();
    assert!(
        consumer
            .subject
            .ends_with(&format!("SIGNALBOX_TOOL.{}", durable.name()))
    );
    let stream = within("a word on the stream", heard.next()).await.unwrap();
    assert!(stream.subject.ends_with(".SIGNALBOX_DEAD"));
}
