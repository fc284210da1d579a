//! The pull loop of a durable consumer: pulls one batch after the other, for as long as the process runs, across
//! outages of the broker.
//!
//! A request returns all messages that the server has, or waits for the first one and returns it. So a single message
//! is never delayed to fill a batch, and batches grow only under load.
//!
//! No message is requested in advance. A long-lived subscription would save a round trip per batch. But the
//! acknowledgement deadline of buffered messages runs, other replicas get them only after that deadline when the
//! process stops, and a dead subscription goes unnoticed. Here each request is independent, so a bad connection costs
//! at most one of them.

use domain::error_chain;
use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subject, Subscriber,
    jetstream::{
        Message,
        consumer::{PullConsumer, pull},
        message::Acker,
    },
};
use futures::StreamExt;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    BatchHandler, Bus, DeadLetterSink, Durable, Incoming, Topology,
    batch::{Delivery, Processor},
    delay,
    error::Cause,
    one_message::message_from,
    postponed::Postponed,
    topology,
};

/// Limits of a consumer's loops.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerOptions {
    pub batch_messages_max: NonZeroUsize,
    /// At least the size of the largest message; a larger one would never be delivered.
    pub batch_bytes_max: usize,
    /// Loops in this process.
    pub loops: NonZeroUsize,
    /// Groups ([`BatchHandler::group`]) that a loop handles at one time. It pulls no further batch while it handles so
    /// many; a handler without groups handles one batch in each loop.
    pub groups_in_flight_max: NonZeroUsize,
    /// Failed attempts after which a message is buried.
    pub attempts_max: i64,
    /// First delay if the loop chooses one (a panic, an unavailable broker); doubled with each attempt.
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
    /// How long to wait for more messages after a batch of several: under load each batch costs as much as many of its
    /// messages. A batch of one is processed immediately.
    pub gather: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        ConsumerOptions {
            batch_messages_max: NonZeroUsize::new(256).expect("256 is not zero"),
            batch_bytes_max: 8 * 1024 * 1024,
            loops: NonZeroUsize::MIN,
            groups_in_flight_max: NonZeroUsize::MIN,
            attempts_max: 10,
            retry_delay: Duration::from_secs(1),
            retry_delay_max: Duration::from_secs(60),
            gather: Duration::ZERO,
        }
    }
}

/// The server ends an unanswered request after this long.
const REQUEST_EXPIRES: Duration = Duration::from_secs(5);
/// A batch's messages arrive in a row, then its end. A longer pause means that the rest is lost.
const REST_WAIT: Duration = Duration::from_millis(500);
/// The time for the reply to a request that has expired.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The server may refuse a request at once, while others wait or too many messages are unsettled. The next request
/// waits this long.
const TURNED_AWAY_PAUSE: Duration = Duration::from_millis(20);
/// How many sequences are scanned at one time for messages with unreadable headers.
const UNREADABLE_LOOK_MAX: usize = 10_000;
const ATTACH_DELAY: Duration = Duration::from_millis(100);
const ATTACH_DELAY_MAX: Duration = Duration::from_secs(5);

/// A durable consumer and the handler of its messages.
pub struct Consumer<H> {
    pub bus: Bus,
    pub topology: Topology,
    pub durable: &'static Durable,
    pub options: ConsumerOptions,
    pub handler: H,
    pub dead_letters: Box<dyn DeadLetterSink>,
}

impl<H: BatchHandler> Consumer<H> {
    /// Consumes until `stop`. Then each loop settles its current batch and ends; this works while the broker is down.
    ///
    /// Dropping this future aborts the loops, as a crash would: the current batch is not settled, and is redelivered
    /// after its deadline. A panic of a loop is propagated.
    pub async fn run(self, stop: CancellationToken) {
        let loops = self.options.loops.get();
        let worker = Arc::new(Worker {
            durable: self.durable,
            processor: Processor {
                bus: self.bus,
                consumer: self.durable.name(),
                handling: Semaphore::new(loops * self.options.groups_in_flight_max.get()),
                options: self.options,
                ack_wait: self.topology.limits.ack_wait_ms.duration(),
                handler: self.handler,
                dead_letters: self.dead_letters,
                postponed: Postponed::default(),
            },
        });
        let mut running = JoinSet::new();
        for number in 0..loops {
            let (worker, stop) = (Arc::clone(&worker), stop.clone());
            let span = tracing::info_span!("consumer", name = worker.durable.name(), number);
            running.spawn(async move { worker.run(&stop).await }.instrument(span));
        }
        running.join_all().await;
    }
}

struct Worker<H> {
    durable: &'static Durable,
    processor: Processor<H>,
}

impl<H: BatchHandler> Worker<H> {
    async fn run(self: Arc<Self>, stop: &CancellationToken) {
        // Failures since the last answer of the server. The first one is logged as a warning, the others are not.
        let mut failures: u32 = 0;
        loop {
            let lost = tokio::select! {
                // The lookup holds no more than a request to the broker, so it may be dropped. The operator has to
                // recreate a missing consumer.
                () = stop.cancelled() => return,
                attached = topology::consumer_found(&self.processor.bus, self.durable) => match attached {
                    Ok(consumer) => self.consume(&consumer, stop, &mut failures).await,
                    Err(error) => Some(error.into()),
                },
            };
            let Some(error) = lost else {
                return;
            };
            failures += 1;
            self.processor.bus.meters().rebuilt(self.durable.name());
            let error = error_chain(error.as_ref());
            if failures == 1 {
                tracing::warn!(consumer = self.durable.name(), error, "lost the consumer; will retry");
            } else {
                tracing::debug!(
                    consumer = self.durable.name(),
                    error,
                    failures,
                    "could not attach to the consumer; will retry"
                );
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(delay::backoff(failures, ATTACH_DELAY, ATTACH_DELAY_MAX)) => {}
            }
        }
    }

    /// Processes batches until told to stop (none) or until the consumer is lost (the cause). Settles the current
    /// batches before it returns.
    async fn consume(
        self: &Arc<Self>,
        consumer: &PullConsumer,
        stop: &CancellationToken,
        failures: &mut u32,
    ) -> Option<Cause> {
        let mut in_hand = JoinSet::new();
        let lost = self.take_batches(consumer, stop, failures, &mut in_hand).await;
        wait_until_at_most(0, &mut in_hand).await;
        lost
    }

    async fn take_batches(
        self: &Arc<Self>,
        consumer: &PullConsumer,
        stop: &CancellationToken,
        failures: &mut u32,
        in_hand: &mut JoinSet<()>,
    ) -> Option<Cause> {
        loop {
            let asked = Instant::now();
            let fetched = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                // A request that is dropped before its first message ends at the server too. A message that arrives at
                // that moment is redelivered after its deadline.
                fetched = self.fetch(consumer) => fetched,
            };
            let deliveries = match fetched {
                Ok(deliveries) => deliveries,
                Err(cause) => return Some(cause),
            };
            if *failures > 0 {
                *failures = 0;
                tracing::info!(consumer = self.durable.name(), "reattached to the consumer");
            }
            let pause = match deliveries.len() {
                0 if asked.elapsed() < REQUEST_EXPIRES / 2 => TURNED_AWAY_PAUSE,
                0 | 1 => Duration::ZERO,
                _ => self.processor.options.gather,
            };
            for group in self.processor.groups(deliveries) {
                let worker = Arc::clone(self);
                in_hand.spawn(async move { worker.processor.process(group).await }.in_current_span());
            }
            wait_until_at_most(self.processor.options.groups_in_flight_max.get() - 1, in_hand).await;
            if !pause.is_zero() {
                tokio::select! {
                    () = stop.cancelled() => return None,
                    () = sleep(pause) => {}
                }
            }
        }
    }

    /// One request: all messages that the server has, else the first that arrives, else none after the timeout.
    ///
    /// Does not use the library's batch, which ends at a message that was stored with a status.
    async fn fetch(&self, consumer: &PullConsumer) -> Result<Vec<Delivery>, Cause> {
        let (bus, options) = (&self.processor.bus, &self.processor.options);
        let connections = bus.connections_made();
        let inbox = Subject::from(bus.client().new_inbox());
        let mut answers = bus.client().subscribe(inbox.clone()).await?;
        let request = pull::BatchConfig {
            batch: options.batch_messages_max.get(),
            max_bytes: options.batch_bytes_max,
            expires: Some(REQUEST_EXPIRES),
            // With an expiry, the request still ends with the first message.
            no_wait: true,
            ..pull::BatchConfig::default()
        };
        consumer.request_batch(request, inbox).await?;
        let mut deliveries = Vec::new();
        match self.first(&mut answers, connections).await {
            Some(answer) if is_delivered(&answer) => deliveries.extend(self.delivery(answer)),
            Some(end) => return turned_away(&end).map(|()| deliveries),
            None => {}
        }
        // A status after a message ends this batch (its size limit is reached, say); the batch is kept.
        while (1..options.batch_messages_max.get()).contains(&deliveries.len())
            && let Ok(Some(answer)) = timeout(REST_WAIT, answers.next()).await
            && is_delivered(&answer)
        {
            deliveries.extend(self.delivery(answer));
        }
        if bus.connections_made() != connections {
            match self.unreadable(consumer).await {
                Ok(unreadable) => deliveries.extend(unreadable),
                // The next lost connection triggers another attempt.
                Err(error) => {
                    tracing::debug!(
                        error = error_chain(error.as_ref()),
                        "could not read the unsettled messages after a lost connection; will retry after the next one"
                    );
                }
            }
        }
        Ok(deliveries)
    }

    /// Among the unsettled messages, those whose headers the client library cannot parse: each breaks the connection
    /// that delivers it, and would be redelivered for ever. They are read one at a time, without their headers, and
    /// settled like any unsigned message.
    async fn unreadable(&self, consumer: &PullConsumer) -> Result<Vec<Delivery>, Cause> {
        let (bus, stream, name) = (&self.processor.bus, self.durable.stream, self.durable.name());
        let state = consumer.get_info().await?;
        let (mut next, last) = (state.ack_floor.stream_sequence + 1, state.delivered.stream_sequence);
        let (subjects, mut unreadable) = (self.durable.filter(bus.root()), Vec::new());
        for _ in 0..UNREADABLE_LOOK_MAX {
            let Some(one) = message_from(bus, stream, &subjects, next).await? else {
                break;
            };
            let sequence = one.message.sequence;
            if sequence > last {
                break;
            }
            next = sequence + 1;
            if one.is_odd {
                // The server reads only the sequence.
                let reply = format!("$JS.ACK.{}.{name}.1.{sequence}.1.0.0", stream.name(bus.root()));
                unreadable.push(Delivery {
                    incoming: one.message.into(),
                    acker: Acker::new(bus.jetstream().clone(), Some(reply.into())),
                });
            }
        }
        if !unreadable.is_empty() {
            tracing::warn!(
                consumer = name,
                messages = unreadable.len(),
                "messages with unreadable headers ended the connection; they become dead letters"
            );
        }
        Ok(unreadable)
    }

    /// Waits for the first message. Stops waiting if the connection was lost, since the request was lost with it.
    async fn first(&self, answers: &mut Subscriber, connections: u64) -> Option<async_nats::Message> {
        tokio::select! {
            biased;
            // Cancel-safe: the message stays with the subscriber.
            first = timeout(REQUEST_EXPIRES + ANSWER_WAIT, answers.next()) => first.ok().flatten(),
            () = self.processor.bus.reconnected(connections) => None,
        }
    }

    fn delivery(&self, message: async_nats::Message) -> Option<Delivery> {
        let message = Message {
            message,
            context: self.processor.bus.jetstream().clone(),
        };
        let Ok(info) = message.info() else {
            // Not from a consumer: another client published into this process's inbox.
            tracing::warn!(subject = %message.subject, "ignored a message that no consumer delivered");
            return None;
        };
        let (sequence, deliveries, published) = (info.stream_sequence, info.delivered, info.published);
        let (message, acker) = message.split();
        let incoming = Incoming::new(message, sequence, deliveries, published);
        Some(Delivery { incoming, acker })
    }
}

/// A delivered message has an acknowledgement subject; a status of the request has none.
fn is_delivered(answer: &async_nats::Message) -> bool {
    answer.reply.is_some()
}

/// The end of a request without a message: none was available, or the consumer cannot deliver.
fn turned_away(end: &async_nats::Message) -> Result<(), Cause> {
    match end.status {
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Ok(()),
        status => Err(format!("the server ended a request: {status:?} {:?}", end.description).into()),
    }
}

/// Waits until at most `count` groups are in progress. A panic is propagated.
async fn wait_until_at_most(count: usize, in_hand: &mut JoinSet<()>) {
    while in_hand.len() > count {
        if let Some(Err(error)) = in_hand.join_next().await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
