//! Messages without a valid signature for their subject are buried before a handler sees them.

use std::sync::{Arc, Mutex};

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use contracts::{Headers, Outgoing, header};
use futures::{FutureExt, future::BoxFuture};
use messaging::{
    BatchHandler, BuryError, Bus, BusOptions, Consumer, ConsumerOptions, DeadLetterSink, DeadMessage, Durable,
    Incoming, Keyring, TopologyLimits, User, Verdict, envelope::Forgery,
};
use tokio_util::sync::CancellationToken;

use crate::support::{Broker, broker, keyring, message, options, publish, raw, until, updating};

const SUBJECT: &str = "signalbox.tool.requested.acme.t-1";

/// The messages that a consumer of tool requests handled and buried.
#[derive(Clone, Default)]
struct Seen {
    handled: Arc<Mutex<Vec<String>>>,
    buried: Arc<Mutex<Vec<(String, String)>>>,
}

impl BatchHandler for Seen {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let mut handled = self.handled.lock().unwrap();
        handled.extend(
            batch
                .iter()
                .map(|one| String::from_utf8_lossy(&one.payload).into_owned()),
        );
        batch.iter().map(|_| Verdict::Done(Vec::new())).collect()
    }
}

impl DeadLetterSink for Seen {
    fn bury(&self, dead: DeadMessage) -> BoxFuture<'_, Result<(), BuryError>> {
        self.buried.lock().unwrap().push((dead.reason, dead.detail));
        async { Ok(()) }.boxed()
    }
}

impl Seen {
    fn handled(&self) -> Vec<String> {
        self.handled.lock().unwrap().clone()
    }

    fn buried(&self) -> Vec<(String, String)> {
        self.buried.lock().unwrap().clone()
    }
}

/// Consumes tool requests with these keys until the test ends.
fn consume(bus: &Bus) -> Seen {
    let seen = Seen::default();
    let consumer = Consumer {
        bus: bus.clone(),
        topology: updating(TopologyLimits::default()),
        durable: Durable::of(User::ToolGateway, "tool.requested"),
        options: ConsumerOptions::default(),
        handler: seen.clone(),
        dead_letters: Box::new(seen.clone()),
    };
    tokio::spawn(consumer.run(CancellationToken::new()));
    seen
}

async fn bus_with(broker: &Broker, keys: Keyring) -> Bus {
    let options = BusOptions {
        keys,
        ..options(&broker.server)
    };
    Bus::connect(options).await.unwrap()
}

fn ring(keys: &[(&str, u8)], signs: &str) -> Keyring {
    Keyring::new(keys.iter().map(|(id, byte)| (*id, [*byte; 32])), signs).unwrap()
}

/// Publishes as an unauthorised client would.
async fn publish_as_it_is(broker: &Broker, message: &Outgoing) {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers.0 {
        let name: HeaderName = name.parse().unwrap();
        headers.insert(name, value.parse::<HeaderValue>().unwrap());
    }
    let published = raw(&broker.bus)
        .publish_with_headers(message.subject.clone(), headers, message.payload.clone().into())
        .await;
    published.unwrap().await.unwrap();
}

fn signed(keys: &Keyring, id: &str) -> Outgoing {
    let mut message = message(SUBJECT, id, id);
    message.headers.set(header::HOPS, "1");
    let signature = keys.sign(&message.subject, &message.headers, &message.payload).unwrap();
    message.headers.set(header::SIGNATURE, signature);
    message
}

#[tokio::test]
async fn a_forged_message_never_reaches_a_handler() {
    let broker = broker().await;
    let seen = consume(&broker.bus);
    let altered = |id: &str, change: &dyn Fn(&mut Outgoing)| {
        let mut message = signed(&keyring(), id);
        change(&mut message);
        message
    };
    let unknown = ring(&[("stranger", 9)], "stranger");
    let same_id = ring(&[("test", 9)], "test");
    let elsewhere = |subject: &'static str| move |message: &mut Outgoing| message.subject = subject.to_owned();
    let forged = [
        altered("unsigned", &|message| drop(message.headers.0.remove(header::SIGNATURE))),
        altered("body", &|message| message.payload.push(b'!')),
        altered("header", &|message| message.headers.set(header::HOPS, "0")),
        altered("more headers", &|message| message.headers.set(header::CAUSE, "me")),
        altered("id", &|message| message.headers.set(header::MESSAGE_ID, "id-2")),
        altered("other account", &elsewhere("signalbox.tool.requested.other.t-1")),
        altered("other task", &elsewhere("signalbox.tool.requested.acme.t-2")),
        altered("nonsense", &|message| {
            message.headers.set(header::SIGNATURE, "v1.test.00");
        }),
        signed(&unknown, "unknown key"),
        signed(&same_id, "wrong key under a known id"),
    ];
    for message in &forged {
        publish_as_it_is(&broker, message).await;
    }
    publish_as_it_is(&broker, &signed(&keyring(), "genuine")).await;
    let buried = until("all of them are buried", async || {
        let buried = seen.buried();
        (buried.len() >= forged.len() && !seen.handled().is_empty()).then_some(buried)
    })
    .await;
    assert_eq!(seen.handled(), ["genuine"]);
    assert_eq!(buried.len(), forged.len());
    assert!(
        buried.iter().all(|(reason, _)| reason == "unauthenticated"),
        "{buried:?}"
    );
    let count = |of: &str| buried.iter().filter(|(_, detail)| detail.contains(of)).count();
    assert_eq!(
        (
            count("no signature"),
            count("not have the form"),
            count("names a key"),
            count("does not match this message")
        ),
        (1, 1, 1, 7)
    );
}

#[tokio::test]
async fn keys_are_exchanged_while_work_goes_on() {
    let broker = broker().await;
    let (old, new) = ("k1", "k2");
    // The steps of the runbook, in order; at each, half of the services are a step behind.
    let steps = [
        ring(&[(old, 1)], old),
        ring(&[(old, 1), (new, 2)], old),
        ring(&[(old, 1), (new, 2)], new),
        ring(&[(new, 2)], new),
    ];
    for (number, pair) in steps.windows(2).enumerate() {
        for (reads, signs) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let (reader, writer) = (
                bus_with(&broker, reads.clone()).await,
                bus_with(&broker, signs.clone()).await,
            );
            let id = format!("{number} {signs:?}");
            publish(&writer, &[message(SUBJECT, &id, id.as_str())]).await;
            let seen = Seen::default();
            let stop = CancellationToken::new();
            let consumer = Consumer {
                bus: reader,
                topology: updating(TopologyLimits::default()),
                durable: Durable::of(User::ToolGateway, "tool.requested"),
                options: ConsumerOptions::default(),
                handler: seen.clone(),
                dead_letters: Box::new(seen.clone()),
            };
            let running = tokio::spawn(consumer.run(stop.clone()));
            until("the message is handled", async || {
                (!seen.handled().is_empty()).then_some(())
            })
            .await;
            assert_eq!((seen.handled(), seen.buried()), (vec![id], Vec::new()));
            stop.cancel();
            running.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_signature_survives_the_wire_whatever_the_headers_hold() {
    let broker = broker().await;
    let seen = consume(&broker.bus);
    let mut headers = Headers::default();
    let odd = [
        ("Nats-Msg-Id", "odd"),
        ("Signalbox-Cause", "  around  "),
        ("ce-subject", "acme/ü – 字"),
        ("ce-source", "a:b: c"),
        ("tracestate", "\u{a0}no-break\u{2003}"),
        ("X-Blank", "   "),
        ("Signalbox-Signature", "v1.test.of-another"),
    ];
    for (name, value) in odd {
        headers.set(name, value);
    }
    let odd = Outgoing {
        subject: SUBJECT.to_owned(),
        headers,
        payload: b"odd".to_vec(),
    };
    publish(&broker.bus, &[odd]).await;
    until("it is handled", async || (!seen.handled().is_empty()).then_some(())).await;
    assert!(seen.buried().is_empty(), "{:?}", seen.buried());
}

/// A client that pulls from a consumer names the reply subject: here, the subject of another stream. The server then
/// puts a genuine message into that stream, though no service published it there.
#[tokio::test]
async fn a_message_that_the_server_was_made_to_deliver_elsewhere_does_not_count() {
    let broker = broker().await;
    let seen = consume(&broker.bus);
    let genuine = "signalbox.session.resolved.acme.t-1";
    publish(&broker.bus, &[message(genuine, "id-1", "genuine elsewhere")]).await;
    let next = "$JS.API.CONSUMER.MSG.NEXT.SIGNALBOX_SESSION.delivery_session_resolved";
    let client = broker.bus.client();
    client
        .publish_with_reply(next, SUBJECT, r#"{"batch": 1}"#.into())
        .await
        .unwrap();
    let stored = until("the server has stored it for the victim", async || {
        let stream = raw(&broker.bus).get_stream("SIGNALBOX_TOOL").await.unwrap();
        stream.get_raw_message(1).await.ok()
    })
    .await;
    publish(&broker.bus, &[message(SUBJECT, "id-2", "asked for")]).await;
    until("the stream goes on", async || {
        (!seen.handled().is_empty()).then_some(())
    })
    .await;
    assert_eq!(seen.handled(), ["asked for"]);
    // This server keeps the original subject of a moved message, so that a consumer's filter skips it. If another
    // server stored it under the new subject, the signature would still be that of the original one.
    let mut headers = Headers::default();
    for (name, values) in stored.headers.iter() {
        headers.set(name.as_ref(), values[0].as_str());
    }
    let verify = |subject: &str| keyring().verify(subject, &headers, &stored.payload);
    assert_eq!((verify(genuine), verify(SUBJECT)), (Ok(()), Err(Forgery::Mismatch)));
    if stored.subject.as_str() != genuine {
        let buried = until("it is buried", async || seen.buried().into_iter().next()).await;
        assert_eq!(buried.0, "unauthenticated");
    }
}
