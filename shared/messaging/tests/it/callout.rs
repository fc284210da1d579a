//! Holders of API keys on a real server: the auth callout, what each role may do, and the walls between accounts. Who a
//! client is, the test's own answerer decides; the orchestrator's is in its own tests.

use std::{collections::BTreeSet, time::Duration};

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use contracts::Root;
use devstack::{NatsServer, NatsUsers};
use domain::{AccountId, KeyId, KeyRole};
use futures::StreamExt;
use messaging::{
    Bus, Stream, User,
    callout::{Admitted, Issuer},
    connections_count, disconnect,
    event_consumer::{event_consumer_make, event_consumer_remove, stored_name},
    users::{self, Permissions, of_key, outside_account},
};
use time::OffsetDateTime;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    support::{keyring, raw, until, updating, within},
    users::{nats_users, sendable},
};

const KEY: &str = "0011223344556677";
/// Longer than the server waits for an answer.
const REFUSED_WITHIN: Duration = Duration::from_secs(4);

fn issuer() -> Issuer {
    // Seeds of bytes 1 and 2.
    Issuer::from_seeds(
        "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I",
        "SXAAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAT5QQ",
    )
    .unwrap()
}

async fn server() -> NatsServer {
    let (root, (issuer, xkey)) = (Root::default(), issuer().public_keys());
    let users = nats_users();
    let users = NatsUsers {
        config: format!(
            "{}: \"{issuer}\"\n{}: \"{xkey}\"\n{}{}",
            users::ISSUER_VARIABLE,
            users::XKEY_VARIABLE,
            users.config,
            users::callout(&root)
        ),
        ..users
    };
    let server = NatsServer::start_temporary_with(users).await.unwrap();
    updating(Default::default())
        .ensure(&bus(&server, User::Operator).await)
        .await
        .unwrap();
    server
}

async fn bus(server: &NatsServer, user: User) -> Bus {
    let options = messaging::BusOptions {
        request_timeout_ms: 1_000,
        keys: keyring(),
        ..messaging::BusOptions::new(server.url_of(user.name()), Root::default(), "test")
    };
    Bus::connect(options).await.unwrap()
}

/// Lets in whose password is a role, as that role's key of the user's account, for so long.
async fn answering(server: &NatsServer, admitted_s: i64) -> JoinHandle<()> {
    let (bus, issuer) = (bus(server, User::Orchestrator).await, issuer());
    let mut questions = Issuer::questions(&bus).await.unwrap();
    bus.flush(REFUSED_WITHIN).await.unwrap();
    tokio::spawn(async move {
        while let Some(message) = questions.next().await {
            let question = issuer.open(&message).unwrap();
            let permissions = question
                .password
                .as_ref()
                .and_then(|password| permissions(&question.user, password.0.parse().ok()?));
            let (account, now) = (outside_account(bus.root()), OffsetDateTime::now_utc().unix_timestamp());
            let name = format!("{}/{KEY}", question.user);
            let admitted = permissions.as_ref().map(|permissions| Admitted {
                name: &name,
                account: &account,
                permissions,
                until: now + admitted_s,
            });
            issuer
                .answer(bus.client(), &question, admitted.as_ref(), now)
                .await
                .unwrap();
        }
    })
}

fn permissions(account: &str, role: KeyRole) -> Option<Permissions> {
    let (account, key) = (AccountId::parse(account).unwrap(), KeyId::parse(KEY).unwrap());
    of_key(&Root::default(), &account, (&key, role), &["ci".to_owned()])
}

/// A client with a key, and what happens to its connection.
struct Holder {
    client: Client,
    events: mpsc::UnboundedReceiver<Event>,
}

async fn connect(server: &NatsServer, account: &str, password: &str) -> Result<Holder, async_nats::ConnectError> {
    let (tx, events) = mpsc::unbounded_channel();
    let address: ServerAddr = format!("nats://127.0.0.1:{}", server.port()).parse().unwrap();
    let client = ConnectOptions::with_user_and_password(account.to_owned(), password.to_owned())
        .custom_inbox_prefix(format!("_I.{account}.{KEY}"))
        .connection_timeout(REFUSED_WITHIN)
        .event_callback(move |event| {
            let _ = tx.send(event);
            async {}
        })
        .connect(address)
        .await?;
    Ok(Holder { client, events })
}

/// The subjects that the server has refused to keys of `acme`, by what they tried, from its log: a client library drops errors that come
/// too fast. Waits for the refusal of a last subject, as the server answers in order.
async fn refused(server: &NatsServer, client: &Client, verb: &str, last: &str) -> BTreeSet<String> {
    client.publish(last.to_owned(), "".into()).await.unwrap();
    client.flush().await.unwrap();
    let whose = format!("user:acme/{KEY}\"");
    let lines = until(last, async || {
        let lines = server.violations().unwrap().into_iter();
        let lines: Vec<String> = lines.filter(|line| line.contains(&whose)).collect();
        let is_last = |line: &String| line.contains(&format!("Subject \"{last}\""));
        lines.iter().any(is_last).then_some(lines)
    })
    .await;
    let tried = lines.iter().filter(|line| line.contains(verb));
    let subjects = tried.filter_map(|line| line.split("Subject \"").nth(1)?.split('"').next());
    let of_test = |subject: &&str| !subject.starts_with("nobody.may");
    subjects.filter(of_test).map(str::to_owned).collect()
}

async fn stored(operator: &Bus, stream: Stream) -> u64 {
    crate::support::stream_info(operator, stream).await.state.messages
}

#[tokio::test]
async fn each_role_publishes_and_hears_what_it_is_for() {
    let server = server().await;
    let _answering = answering(&server, 60).await;
    let (orchestrator, delivery) = (
        bus(&server, User::Orchestrator).await,
        bus(&server, User::Delivery).await,
    );
    let account = AccountId::parse("acme").unwrap();
    event_consumer_make(&orchestrator, &account, "ci").await.unwrap();
    // Again: it stays.
    event_consumer_make(&orchestrator, &account, "ci").await.unwrap();
    for role in ["admin", "member", "service", "publisher"] {
        let holder = connect(&server, "acme", role).await.unwrap();
        let client = holder.client.clone();
        let is_reader = role != "publisher";
        let mut news = client.subscribe("signalbox.event.acme.*.notification.>").await.unwrap();
        let mut all = client.subscribe("signalbox.event.acme.>").await.unwrap();
        let mut live = client.subscribe("signalbox.live.acme.*").await.unwrap();
        client.flush().await.unwrap();
        let jetstream = async_nats::jetstream::new(client.clone());
        let sent = jetstream.publish("signalbox.notification.acme.t", "{}".into()).await;
        assert_eq!(sent.unwrap().await.unwrap().stream, "SIGNALBOX_NOTIFICATION", "{role}");
        for subject in [
            "signalbox.live.acme.-",
            "signalbox.live.acme.t",
            "signalbox.live.beta.t",
        ] {
            delivery.client().publish(subject, "text".into()).await.unwrap();
        }
        let failed = "signalbox.event.acme.t.notification.failed";
        let events = ["signalbox.event.beta.t.notification.failed", failed];
        let events = events.map(|subject| crate::support::message(subject, &format!("{role} {subject}"), "{}"));
        crate::support::publish(&delivery, &events).await;
        assert_eq!(
            within("news", news.next()).await.unwrap().subject.as_str(),
            failed,
            "{role}"
        );
        if is_reader {
            assert_eq!(
                within("all", all.next()).await.unwrap().subject.as_str(),
                failed,
                "{role}"
            );
            // A person's own text, of no task, is left out.
            let heard = within("live text", live.next()).await.unwrap();
            assert_eq!(heard.subject.as_str(), "signalbox.live.acme.t", "{role}");
            // Without asking for the consumer first, which no key may.
            let next = format!(
                "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.{}",
                stored_name(&account, "ci")
            );
            // The event arrives with its own subject, by which a client finds no request.
            let inbox = client.new_inbox();
            let mut pulls = client.subscribe(inbox.clone()).await.unwrap();
            client
                .publish_with_reply(next, inbox, r#"{"batch":1}"#.into())
                .await
                .unwrap();
            let pulled = within("a pull", pulls.next()).await.unwrap();
            assert_eq!(pulled.subject.as_str(), failed, "{role}");
            let acknowledged = client.request(pulled.reply.unwrap(), "+ACK".into());
            within("its acknowledgement", acknowledged).await.unwrap();
            assert_eq!(
                refused(&server, &client, "Violation", &format!("nobody.may.{role}")).await,
                BTreeSet::new(),
                "{role}"
            );
        } else {
            let refused = ["signalbox.event.acme.>", "signalbox.live.acme.*"].map(str::to_owned);
            assert_eq!(
                self::refused(&server, &client, "Subscription", "nobody.may").await,
                refused.into(),
                "{role}"
            );
        }
    }
    for (account, password) in [("acme", "gateway"), ("acme", "wrong"), ("acme", "")] {
        assert!(connect(&server, account, password).await.is_err(), "{password}");
    }
    event_consumer_remove(&orchestrator, &account, "ci").await.unwrap();
    event_consumer_remove(&orchestrator, &account, "ci").await.unwrap();
}

/// Some 400 attempts, each refused by the server itself.
#[tokio::test]
async fn the_server_refuses_what_is_another_account_s_or_the_installation_s() {
    let server = server().await;
    let _answering = answering(&server, 60).await;
    let holder = connect(&server, "acme", "service").await.unwrap();
    let own = permissions("acme", KeyRole::Service).unwrap();
    let is_own = |subject: &String| own.publish.iter().any(|own| contracts::message::is_match(own, subject));
    let mut sent: BTreeSet<String> = sendable().into_iter().filter(|subject| !is_own(subject)).collect();
    sent.extend(
        [
            "signalbox.notification.beta.t",
            "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_beta_ci",
            "$JS.ACK.SIGNALBOX_EVENT.outside_beta_ci.1.2.3.4.5",
            "$JS.ACK.SIGNALBOX_EVENT.outside_acme_ci.SIGNALBOX_EVENT.outside_beta_ci.1.2.3.4",
            "_I.beta.0011223344556677.1",
            "_I.acme.0011223344556677.1",
            "$SYS.REQ.SERVER.PING.CONNZ",
            "$SYS.REQ.ACCOUNT.PING.CONNZ",
            "$SYS.DEBUG.SUBSCRIBERS",
            "unheard.event.acme.t.turn.started",
        ]
        .map(str::to_owned),
    );
    for subject in &sent {
        holder.client.publish(subject.clone(), "{}".into()).await.unwrap();
    }
    let refused = self::refused(&server, &holder.client, "Publish", "nobody.may").await;
    // Events and live text are moved before the server looks.
    let moved = |subject: &String| {
        let branches = ["signalbox.event.", "signalbox.live."];
        match branches.iter().any(|branch| subject.starts_with(branch)) {
            true => subject.replacen("signalbox", "unheard", 1),
            false => subject.clone(),
        }
    };
    let passed: Vec<_> = sent
        .iter()
        .filter(|subject| !refused.contains(&moved(subject)))
        .collect();
    assert_eq!(passed, Vec::<&String>::new());
    assert!(sent.len() > 200, "{}", sent.len());
    let heard = [
        ">",
        "*",
        "signalbox.>",
        "signalbox.event.>",
        "signalbox.event.*.>",
        "signalbox.event.beta.>",
        "signalbox.event.acm*.>",
        "signalbox.*.acme.t",
        "signalbox.live.*.*",
        "signalbox.live.beta.*",
        "signalbox.live.acme.-",
        "signalbox.notification.>",
        "signalbox.notification.acme.*",
        "signalbox.dead.>",
        "signalbox.dead.acme.*",
        "signalbox.session.>",
        "signalbox.tool.>",
        "signalbox.stored.*",
        "_I.>",
        "_I.acme.>",
        "_I.beta.>",
        "_I.beta.0011223344556677.>",
        "_I.acme.7766554433221100.>",
        "_I.orchestrator.>",
        "_INBOX.>",
        "$SYS.>",
        "$SYS.REQ.USER.AUTH",
        "$JS.>",
        "$JS.API.>",
        "$JS.ACK.>",
        "$JS.EVENT.>",
        "JS.API.>",
        "SYS.>",
        "_R_.>",
        "unheard.>",
    ];
    for subject in heard {
        // Of one queue group: a subscription to a shared queue is one, too.
        let _ = holder
            .client
            .queue_subscribe(subject, "callout".to_owned())
            .await
            .unwrap();
    }
    let refused = self::refused(&server, &holder.client, "Subscription", "nobody.may.either").await;
    let passed: Vec<_> = heard.iter().filter(|subject| !refused.contains(**subject)).collect();
    assert_eq!(passed, Vec::<&&str>::new());
}

/// The server's answers to a holder's requests go to any subject in the account of all holders: none of them is heard by
/// another account, and none is a request.
#[tokio::test]
async fn a_reply_subject_reaches_nobody_else() {
    let server = server().await;
    let _answering = answering(&server, 60).await;
    let (operator, delivery) = (bus(&server, User::Operator).await, bus(&server, User::Delivery).await);
    let orchestrator = bus(&server, User::Orchestrator).await;
    let platform = bus(&server, User::Publisher).await;
    for account in ["acme", "beta"] {
        event_consumer_make(&orchestrator, &AccountId::parse(account).unwrap(), "ci")
            .await
            .unwrap();
    }
    let events: Vec<_> = (0..1_000)
        .map(|n| {
            crate::support::message(
                "signalbox.event.acme.t.turn.started",
                &format!("e-{n}"),
                "{\"agent\":\"a\",\"body\":\"b\"}",
            )
        })
        .collect();
    crate::support::publish(&delivery, &events).await;
    let (acme, beta) = (
        connect(&server, "acme", "service").await.unwrap(),
        connect(&server, "beta", "service").await.unwrap(),
    );
    let mut heard = futures::stream::select_all([
        beta.client.subscribe("signalbox.event.beta.>").await.unwrap(),
        beta.client.subscribe("signalbox.live.beta.*").await.unwrap(),
        platform.client().subscribe("signalbox.event.>").await.unwrap(),
        platform.client().subscribe("signalbox.dead.>").await.unwrap(),
    ]);
    beta.client.flush().await.unwrap();
    platform.client().flush().await.unwrap();
    let mut replies = sendable();
    replies.extend(
        [
            "signalbox.notification.beta.t",
            "signalbox.event.beta.t.turn.finished",
            "signalbox.live.beta.t",
            "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_beta_ci",
        ]
        .map(str::to_owned),
    );
    let before = (
        stored(&operator, Stream::Event).await,
        stored(&operator, Stream::Dead).await,
    );
    for reply in &replies {
        // For some the server ends the request instead.
        for (subject, payload) in [
            ("signalbox.notification.acme.t", "{}"),
            (
                "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_acme_ci",
                r#"{"batch":1,"no_wait":true}"#,
            ),
            ("$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_EVENT.outside_acme_ci", "1"),
        ] {
            let asked = acme.client.publish_with_reply(subject, reply.clone(), payload.into());
            asked.await.unwrap();
        }
        // The server can deliver a message to any subject, too.
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Trace-Dest", reply.as_str());
        let traced = acme
            .client
            .publish_with_headers("signalbox.notification.acme.t", headers, "{}".into());
        traced.await.unwrap();
    }
    acme.client.flush().await.unwrap();
    // What was said after it arrives, and nothing before.
    let last = crate::support::message("signalbox.event.beta.t.turn.started", "last", "{}");
    crate::support::publish(&delivery, &[last]).await;
    for _ in 0..2 {
        let message = within("the last event", heard.next()).await.unwrap();
        assert_eq!(message.subject.as_str(), "signalbox.event.beta.t.turn.started");
    }
    assert_eq!(
        (
            stored(&operator, Stream::Event).await,
            stored(&operator, Stream::Dead).await
        ),
        (before.0 + 1, before.1)
    );
    let notifications = raw(&operator).get_stream("SIGNALBOX_NOTIFICATION").await.unwrap();
    let mut subjects = notifications.info_with_subjects(">").await.unwrap();
    while let Some(subject) = subjects.next().await {
        let (subject, _) = subject.unwrap();
        assert!(subject.ends_with(".acme.t"), "{subject}");
    }
    let events = raw(&operator).get_stream("SIGNALBOX_EVENT").await.unwrap();
    assert_eq!(events.cached_info().state.consumer_count, 3);
}

#[tokio::test]
async fn a_key_s_connections_are_counted_and_closed_and_others_stay() {
    let server = server().await;
    let _answering = answering(&server, 60).await;
    let orchestrator = bus(&server, User::Orchestrator).await;
    let name = format!("acme/{KEY}");
    assert_eq!(connections_count(&orchestrator, &name).await, Some(0));
    let mut ones = Vec::new();
    for account in ["acme", "acme", "beta"] {
        ones.push(connect(&server, account, "publisher").await.unwrap());
    }
    assert_eq!(connections_count(&orchestrator, &name).await, Some(2));
    assert!(disconnect(&orchestrator, &name).await);
    for one in &mut ones[..2] {
        let event = async { while !matches!(one.events.recv().await, Some(Event::Disconnected) | None) {} };
        within("a disconnection", event).await;
    }
    assert_eq!(connections_count(&orchestrator, &format!("beta/{KEY}")).await, Some(1));
    // A service without the right learns nothing.
    assert_eq!(
        connections_count(&bus(&server, User::Delivery).await, &name).await,
        None
    );
}

#[tokio::test]
async fn a_client_is_asked_about_again_when_its_time_is_over() {
    let server = server().await;
    let answering = answering(&server, 1).await;
    let mut holder = connect(&server, "acme", "publisher").await.unwrap();
    answering.abort();
    let gone = async { while !matches!(holder.events.recv().await, Some(Event::Disconnected) | None) {} };
    within("the end of its time", gone).await;
}

/// One of two answerers ends while a hundred clients connect; then the other.
#[tokio::test]
async fn clients_get_in_while_one_answers_and_services_work_while_none_does() {
    let server = server().await;
    let (one, other) = (answering(&server, 60).await, answering(&server, 60).await);
    let connecting = futures::stream::iter(0..100).map(|n| {
        let (server, one) = (&server, &one);
        async move {
            if n == 50 {
                one.abort();
            }
            // A question that the ended one had is not answered: the client tries again.
            until("a connection", async || connect(server, "acme", "publisher").await.ok()).await
        }
    });
    let holders: Vec<Holder> = connecting.buffer_unordered(10).collect().await;
    other.abort();
    let _ = other.await;
    assert!(connect(&server, "acme", "publisher").await.is_err());
    // Open connections stay.
    let jetstream = async_nats::jetstream::new(holders[0].client.clone());
    let sent = jetstream.publish("signalbox.notification.acme.t", "{}".into()).await;
    sent.unwrap().await.unwrap();
    let delivery = bus(&server, User::Delivery).await;
    let event = crate::support::message("signalbox.event.acme.t.turn.started", "id-1", "{}");
    crate::support::publish(&delivery, &[event]).await;
}
