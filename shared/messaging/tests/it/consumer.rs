//! The consumer loop: what each verdict leads to, what a failing handler costs, and what outages do.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::consumer::{self, PullConsumer};
use contracts::Outgoing;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use messaging::{
    BatchHandler, BuryError, Bus, Consumer, ConsumerOptions, DeadLetterSink, DeadMessage, Durable, Incoming, Stream,
    Topology, TopologyLimits, Verdict,
};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Broker, broker, broker_with, creating, message, publish, raw, stream_info, until, verifying, within,
};

const DURABLE: Durable = Durable::DeliverySessionResolved;
const SOON: Duration = Duration::from_millis(20);

/// A handler made of a function per message; remembers what it was given.
#[derive(Clone)]
struct Scripted {
    decide: Arc<dyn Fn(&Incoming) -> Verdict + Send + Sync>,
    seen: Arc<Mutex<Vec<Incoming>>>,
    batches: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(decide: impl Fn(&Incoming) -> Verdict + Send + Sync + 'static) -> Scripted {
        Scripted {
            decide: Arc::new(decide),
            seen: Arc::default(),
            batches: Arc::default(),
        }
    }

    fn done() -> Scripted {
        Scripted::new(|_| Verdict::Done(Vec::new()))
    }

    fn seen(&self) -> Vec<Incoming> {
        self.seen.lock().unwrap().clone()
    }

    /// How often each payload was given to the handler.
    fn counts(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for incoming in self.seen() {
            *counts.entry(text(&incoming)).or_default() += 1;
        }
        counts
    }
}

impl BatchHandler for Scripted {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.seen.lock().unwrap().extend_from_slice(batch);
        batch.iter().map(|incoming| (self.decide)(incoming)).collect()
    }
}

fn text(incoming: &Incoming) -> String {
    String::from_utf8(incoming.payload.to_vec()).unwrap()
}

/// A grave that refuses the first ones.
#[derive(Clone, Default)]
struct Grave {
    refusals: Arc<AtomicUsize>,
    buried: Arc<Mutex<Vec<DeadMessage>>>,
}

impl Grave {
    fn refusing(refusals: usize) -> Grave {
        Grave {
            refusals: Arc::new(AtomicUsize::new(refusals)),
            ..Grave::default()
        }
    }

    fn buried(&self) -> Vec<DeadMessage> {
        self.buried.lock().unwrap().clone()
    }
}

impl DeadLetterSink for Grave {
    fn bury(&self, dead: DeadMessage) -> BoxFuture<'_, Result<(), BuryError>> {
        async move {
            let refused = self
                .refusals
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if refused.is_ok() {
                return Err("the grave is closed".into());
            }
            self.buried.lock().unwrap().push(dead);
            Ok(())
        }
        .boxed()
    }
}

struct Running {
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        within("the consumer stops", self.worker).await.unwrap();
    }
}

fn options() -> ConsumerOptions {
    ConsumerOptions {
        retry_delay: SOON,
        retry_delay_max: SOON,
        ..ConsumerOptions::default()
    }
}

fn start_with<H: BatchHandler>(
    bus: &Bus,
    topology: Topology,
    options: ConsumerOptions,
    handler: H,
    grave: &Grave,
) -> Running {
    let stop = CancellationToken::new();
    let consumer = Consumer {
        bus: bus.clone(),
        topology,
        durable: DURABLE,
        options,
        handler,
        dead_letters: Box::new(grave.clone()),
    };
    let worker = tokio::spawn(consumer.run(stop.clone()));
    Running { stop, worker }
}

fn start(broker: &Broker, handler: &Scripted, grave: &Grave) -> Running {
    start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        options(),
        handler.clone(),
        grave,
    )
}

fn wake_up(payload: &str) -> Outgoing {
    message("signalbox.session.resolved.acme.t-1", &format!("id-{payload}"), payload)
}

async fn publish_payloads(broker: &Broker, payloads: &[&str]) {
    let messages: Vec<Outgoing> = payloads.iter().map(|payload| wake_up(payload)).collect();
    publish(&broker.bus, &messages).await;
}

async fn consumer_info(broker: &Broker) -> Option<consumer::Info> {
    let stream = DURABLE.stream().name(broker.bus.root());
    let found: Result<PullConsumer, _> = raw(&broker.bus).get_consumer_from_stream(DURABLE.name(), stream).await;
    found.ok().map(|consumer| consumer.cached_info().clone())
}

/// Waits until the server has no message left that is new or unsettled.
async fn until_settled(broker: &Broker) {
    until("everything is settled", async || {
        let info = consumer_info(broker).await?;
        (info.num_pending == 0 && info.num_ack_pending == 0).then_some(())
    })
    .await;
}

async fn until_buried(grave: &Grave, count: usize) -> Vec<DeadMessage> {
    until("a burial", async || {
        let buried = grave.buried();
        (buried.len() >= count).then_some(buried)
    })
    .await
}

async fn until_seen(handler: &Scripted, count: usize) {
    until("the handler saw them", async || {
        (handler.seen().len() >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn done_publishes_what_follows_and_acknowledges() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        let id = format!("after-{}", text(incoming));
        Verdict::Done(vec![message("signalbox.tool.requested.acme.t-1", &id, text(incoming))])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a", "b", "c"]).await;
    let running = start(&broker, &handler, &grave);
    until_settled(&broker).await;
    running.stop().await;

    let tools = raw(&broker.bus).get_stream("SIGNALBOX_TOOL").await.unwrap();
    assert_eq!(tools.cached_info().state.messages, 3);
    for (sequence, payload) in [(1, "a"), (2, "b"), (3, "c")] {
        assert_eq!(tools.get_raw_message(sequence).await.unwrap().payload, payload);
    }
    assert!(grave.buried().is_empty());
    let seen = handler.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].subject, "signalbox.session.resolved.acme.t-1");
    assert_eq!(seen[0].id(), Some("id-a"));
    assert_eq!((seen[0].deliveries, seen[0].stream_sequence), (1, 1));
}

#[tokio::test]
async fn messages_come_in_order_and_in_full_batches_when_they_pile_up() {
    let broker = broker().await;
    let payloads: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    publish_payloads(&broker, &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    until_settled(&broker).await;
    running.stop().await;
    let seen: Vec<String> = handler.seen().iter().map(text).collect();
    assert_eq!(seen, payloads);
    assert!(handler.batches.load(Ordering::SeqCst) < 1000);
}

#[tokio::test]
async fn retry_comes_back_later_as_a_further_delivery() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match incoming.deliveries {
        1 | 2 => Verdict::Retry {
            after: SOON,
            why: "not yet".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let running = start(&broker, &handler, &grave);
    until_seen(&handler, 3).await;
    until_settled(&broker).await;
    running.stop().await;
    let deliveries: Vec<i64> = handler.seen().iter().map(|incoming| incoming.deliveries).collect();
    assert_eq!(deliveries, [1, 2, 3]);
    assert!(grave.buried().is_empty());
}

#[tokio::test]
async fn what_fails_too_often_is_buried_with_the_last_reason() {
    let broker = broker().await;
    let handler = Scripted::new(|_| Verdict::Retry {
        after: SOON,
        why: "the tool is broken".to_owned(),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 3,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(buried.len(), 1);
    assert_eq!(
        (buried[0].reason.as_str(), buried[0].attempts),
        ("attempts_exhausted", 3)
    );
    assert_eq!(buried[0].detail, "Given up after 3 attempts: the tool is broken");
    assert_eq!(text(&buried[0].incoming), "a");
    assert_eq!(handler.seen().len(), 3);
}

#[tokio::test]
async fn an_outage_counts_as_no_attempt() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match incoming.deliveries {
        1..=5 => Verdict::Postpone {
            after: SOON,
            why: "Postgres is away".to_owned(),
        },
        6 => Verdict::Retry {
            after: SOON,
            why: "a first real failure".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    until_seen(&handler, 7).await;
    until_settled(&broker).await;
    running.stop().await;
    assert!(grave.buried().is_empty(), "{:?}", grave.buried());
}

#[tokio::test]
async fn a_dead_message_is_acknowledged_only_once_it_is_buried() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match text(incoming).as_str() {
        "bad" => Verdict::Dead {
            reason: "malformed".to_owned(),
            detail: "The payload is no JSON.".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::refusing(2);
    publish_payloads(&broker, &["good", "bad", "better"]).await;
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(buried.len(), 1);
    assert_eq!((buried[0].reason.as_str(), buried[0].attempts), ("malformed", 1));
    // Twice refused, then taken; the others were not held up by it.
    assert_eq!(
        handler.counts(),
        HashMap::from([("good".into(), 1), ("bad".into(), 3), ("better".into(), 1)])
    );
}

#[tokio::test]
async fn a_panic_costs_the_neighbours_nothing_and_the_culprit_is_buried() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        assert_ne!(text(incoming), "poison", "cannot digest this");
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &format!("after-{}", text(incoming)),
            "{}",
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a", "b", "poison", "c", "d"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(text(&buried[0].incoming), "poison");
    assert!(buried[0].detail.contains("cannot digest this"), "{}", buried[0].detail);
    assert_eq!(buried[0].attempts, 2);
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 4);
}

#[tokio::test]
async fn a_handler_that_forgets_a_verdict_is_as_good_as_a_panic() {
    struct Forgetful;
    impl BatchHandler for Forgetful {
        async fn handle(&self, _batch: &[Incoming]) -> Vec<Verdict> {
            Vec::new()
        }
    }
    let broker = broker().await;
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        attempts,
        Forgetful,
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    running.stop().await;
    assert!(
        buried[0].detail.contains("0 verdicts on 1 messages"),
        "{}",
        buried[0].detail
    );
}

#[tokio::test]
async fn what_follows_but_cannot_be_published_buries_its_cause() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        let size = if text(incoming) == "large" { 2 * 1024 * 1024 } else { 1 };
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &text(incoming),
            vec![b'x'; size],
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["small", "large"]).await;
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(
        (text(&buried[0].incoming).as_str(), buried[0].reason.as_str()),
        ("large", "unpublishable")
    );
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 1);
}

#[tokio::test]
async fn what_follows_and_finds_no_stream_waits_for_one() {
    let broker = broker().await;
    raw(&broker.bus).delete_stream("SIGNALBOX_TOOL").await.unwrap();
    let handler = Scripted::new(|incoming| {
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &text(incoming),
            "{}",
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 1,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    until_seen(&handler, 3).await;
    creating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    until_settled(&broker).await;
    running.stop().await;
    assert!(grave.buried().is_empty());
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 1);
}

#[tokio::test]
async fn a_message_taken_by_a_process_that_died_comes_again() {
    let limits = TopologyLimits {
        ack_wait_ms: 300,
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits.clone()).await;
    publish_payloads(&broker, &["a"]).await;
    // A process that took the message and never said anything more.
    let dying: PullConsumer = raw(&broker.bus)
        .get_consumer_from_stream(DURABLE.name(), "SIGNALBOX_SESSION")
        .await
        .unwrap();
    let mut taken = dying
        .fetch()
        .max_messages(1)
        .expires(Duration::from_secs(5))
        .messages()
        .await
        .unwrap();
    within("the message", taken.next()).await.unwrap().unwrap();
    drop(taken);

    let handler = Scripted::done();
    let running = start_with(
        &broker.bus,
        creating(limits),
        options(),
        handler.clone(),
        &Grave::default(),
    );
    until_seen(&handler, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.seen()[0].deliveries, 2);
}

#[tokio::test]
async fn a_batch_that_takes_long_is_not_delivered_twice() {
    struct Slow(Scripted, Duration);
    impl BatchHandler for Slow {
        async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
            tokio::time::sleep(self.1).await; // the work
            self.0.handle(batch).await
        }
    }
    let limits = TopologyLimits {
        ack_wait_ms: 600,
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits.clone()).await;
    publish_payloads(&broker, &["a", "b"]).await;
    let handler = Scripted::done();
    let slow = Slow(handler.clone(), Duration::from_millis(600 * 4));
    let running = start_with(&broker.bus, creating(limits), options(), slow, &Grave::default());
    until_seen(&handler, 2).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.counts(), HashMap::from([("a".into(), 1), ("b".into(), 1)]));
}

#[tokio::test]
async fn several_loops_share_the_work() {
    let broker = broker().await;
    let payloads: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    publish_payloads(&broker, &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let handler = Scripted::done();
    let loops = ConsumerOptions {
        loops: NonZeroUsize::new(4).unwrap(),
        batch_messages_max: NonZeroUsize::new(10).unwrap(),
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        loops,
        handler.clone(),
        &Grave::default(),
    );
    until_settled(&broker).await;
    running.stop().await;
    let counts = handler.counts();
    assert_eq!(counts.len(), 500);
    assert!(counts.values().all(|count| *count == 1));
}

#[tokio::test]
async fn a_killed_server_interrupts_but_loses_nothing() {
    // Short, since an acknowledgement that died with the server is made good by a redelivery.
    let limits = TopologyLimits {
        ack_wait_ms: 1_000,
        ..TopologyLimits::default()
    };
    let mut broker = broker_with(limits.clone()).await;
    let handler = Scripted::done();
    let running = start_with(
        &broker.bus,
        creating(limits),
        options(),
        handler.clone(),
        &Grave::default(),
    );
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    for round in 0..3 {
        broker.server.kill().await.unwrap();
        broker.server.restart().await.unwrap();
        until("connected again", async || broker.bus.is_connected().then_some(())).await;
        publish_payloads(&broker, &[&format!("after {round}")]).await;
        until("the message arrives", async || {
            handler.counts().contains_key(&format!("after {round}")).then_some(())
        })
        .await;
    }
    until_settled(&broker).await;
    running.stop().await;
}

#[tokio::test]
async fn a_wiped_store_is_provisioned_again() {
    let mut broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    broker.server.wipe_store().await.unwrap();
    broker.server.restart().await.unwrap();
    until("the consumer is there again", async || consumer_info(&broker).await).await;
    publish_payloads(&broker, &["after"]).await;
    until_seen(&handler, 2).await;
    running.stop().await;
}

#[tokio::test]
async fn a_deleted_consumer_is_made_again() {
    let broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    until_settled(&broker).await;
    raw(&broker.bus)
        .delete_consumer_from_stream(DURABLE.name(), "SIGNALBOX_SESSION")
        .await
        .unwrap();
    publish_payloads(&broker, &["after"]).await;
    // The new consumer starts at the beginning: handlers stand repetition.
    until("the message arrives", async || {
        handler.counts().contains_key("after").then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_process_that_may_not_create_waits_until_somebody_does() {
    let broker = broker().await;
    let handler = Scripted::done();
    let topology = verifying(TopologyLimits::default());
    let running = start_with(&broker.bus, topology, options(), handler.clone(), &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    raw(&broker.bus).delete_stream("SIGNALBOX_SESSION").await.unwrap();
    creating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    publish_payloads(&broker, &["after"]).await;
    until_seen(&handler, 2).await;
    running.stop().await;
}

#[tokio::test]
async fn stopping_works_while_the_broker_is_down() {
    let mut broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["a"]).await;
    until_seen(&handler, 1).await;
    broker.server.kill().await.unwrap();
    running.stop().await;

    // And for one that never got hold of its consumer.
    let running = start(&broker, &handler, &Grave::default());
    running.stop().await;
}

/// Reports that it has a batch, and keeps it until it is allowed on.
#[derive(Clone)]
struct Held {
    handler: Scripted,
    begun: Arc<Notify>,
    allowed: Arc<Notify>,
}

impl Held {
    fn new(handler: &Scripted) -> Held {
        Held {
            handler: handler.clone(),
            begun: Arc::default(),
            allowed: Arc::default(),
        }
    }
}

impl BatchHandler for Held {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        self.begun.notify_one();
        self.allowed.notified().await;
        self.handler.handle(batch).await
    }
}

#[tokio::test]
async fn stopping_works_with_a_batch_in_hand_and_a_connection_that_takes_nothing_in() {
    let mut broker = broker().await;
    publish_payloads(&broker, &["1", "2", "3"]).await;
    let handler = Scripted::done();
    let held = Held::new(&handler);
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        options(),
        held.clone(),
        &Grave::default(),
    );
    within("a batch in hand", held.begun.notified()).await;
    broker.server.kill().await.unwrap();
    until("the loss shows", async || (!broker.bus.is_connected()).then_some(())).await;
    // Fill what the client holds back for a server that is away.
    let flood = async {
        loop {
            broker.bus.client().publish("flood", "".into()).await.unwrap();
        }
    };
    let flooding = tokio::time::timeout(Duration::from_millis(300), flood).await;
    assert!(flooding.is_err());
    held.allowed.notify_one();
    running.stop().await;
    assert!(!handler.seen().is_empty());
}

#[tokio::test]
async fn stopping_settles_the_batch_in_hand_and_leaves_the_rest_to_others() {
    let broker = broker().await;
    publish_payloads(&broker, &["1", "2", "3", "4", "5", "6"]).await;
    let handler = Scripted::done();
    let held = Held::new(&handler);
    let small = ConsumerOptions {
        batch_messages_max: NonZeroUsize::new(2).unwrap(),
        ..options()
    };
    let running = start_with(
        &broker.bus,
        creating(TopologyLimits::default()),
        small,
        held.clone(),
        &Grave::default(),
    );
    within("a batch in hand", held.begun.notified()).await;
    running.stop.cancel();
    held.allowed.notify_one();
    running.stop().await;
    let first = handler.seen().len();
    assert!((1..=2).contains(&first), "{first}");

    // Another replica gets the rest now and not after the server's thirty seconds.
    let other = Scripted::done();
    let running = start(&broker, &other, &Grave::default());
    until_seen(&other, 6 - first).await;
    until_settled(&broker).await;
    running.stop().await;
    let mut all: Vec<String> = handler.seen().iter().chain(&other.seen()).map(text).collect();
    all.sort();
    assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
}
