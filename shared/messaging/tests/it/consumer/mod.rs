//! The consumer loop. Here: a scripted handler, a dead-letter sink in memory, a loop that can be stopped.

mod outages;
mod stopping;
mod verdicts;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::consumer::{self, PullConsumer};
use contracts::Outgoing;
use futures::{FutureExt, future::BoxFuture};
use messaging::{
    BatchHandler, BuryError, Bus, Consumer, ConsumerOptions, DeadLetterSink, DeadMessage, Durable, Incoming, Topology,
    TopologyLimits, User, Verdict,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Broker, message, publish, raw, stream_info, until, updating, within};

fn durable() -> &'static Durable {
    Durable::of(User::Delivery, "session.resolved")
}
const SOON: Duration = Duration::from_millis(20);

/// A handler made of a function per message; records its messages.
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

    /// How often the handler received each payload.
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

/// A dead-letter sink that fails the first times.
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
        durable: durable(),
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
        updating(TopologyLimits::default()),
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
    let stream = durable().stream.name(broker.bus.root());
    let found: Result<PullConsumer, _> = raw(&broker.bus)
        .get_consumer_from_stream(durable().name(), stream)
        .await;
    found.ok().map(|consumer| consumer.cached_info().clone())
}

/// Waits until the server has no new or unsettled message left. The server counts a stored message as pending some time after
/// the publisher has its acknowledgement: the place of the last delivery counts.
async fn until_settled(broker: &Broker) {
    until("everything is settled", async || {
        let stored = stream_info(&broker.bus, durable().stream).await.state.last_sequence;
        let info = consumer_info(broker).await?;
        let all = info.num_pending == 0 && info.delivered.stream_sequence >= stored;
        (all && info.num_ack_pending == 0).then_some(())
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
