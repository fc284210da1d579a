//! The pull loop of a durable consumer: one batch after the other, for as long as the process runs, whatever the broker does.
//!
//! A batch is what the server has when it is asked: it answers at once with all of that, or waits for the first message
//! and answers with it. So no message waits for company, and batches grow only when messages pile up.
//!
//! Nothing is asked for in advance. A long-lived subscription would save a round trip per batch, but messages in a
//! client's buffer have a clock running, are lost to everybody else until it runs out when the process stops, and hide
//! a subscription that went deaf. Here each request stands for itself, so that the worst that an odd connection can do
//! is to cost one of them.

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
    /// At least the size of the largest message, or that one would never come.
    pub batch_bytes_max: usize,
    /// Loops in this process.
    pub loops: NonZeroUsize,
    /// Groups ([`BatchHandler::group`]) that a loop handles at one time. It takes no further batch while it has so many in
    /// hand; a handler without groups has one batch in hand in each loop.
    pub groups_in_flight_max: NonZeroUsize,
    /// Failed attempts after which a message is buried.
    pub attempts_max: i64,
    /// First delay where the loop chooses one (a panic, a broker that is away); doubled with each attempt.
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
    /// How long to let messages come together after a batch of several: under load each batch costs as much as many of
    /// its messages. A message that comes alone waits for nothing.
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

/// The server answers a request with nothing after this long.
const REQUEST_EXPIRES: Duration = Duration::from_secs(5);
/// A batch's messages come one right behind the other, and then its end. A longer pause means that the rest is lost.
const REST_WAIT: Duration = Duration::from_millis(500);
/// For the answer to a request that has expired.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The server may turn a request away at once, when others wait or too much is unsettled: no reason to ask in a rush.
const TURNED_AWAY_PAUSE: Duration = Duration::from_millis(20);
/// What is looked through at one time for messages with headers that cannot be read.
const UNREADABLE_LOOK_MAX: usize = 10_000;
const ATTACH_DELAY: Duration = Duration::from_millis(100);
const ATTACH_DELAY_MAX: Duration = Duration::from_secs(5);

/// A durable consumer and what handles its messages.
pub struct Consumer<H> {
    pub bus: Bus,
    pub topology: Topology,
    pub durable: &'static Durable,
    pub options: ConsumerOptions,
    pub handler: H,
    pub dead_letters: Box<dyn DeadLetterSink>,
}

impl<H: BatchHandler> Consumer<H> {
    /// Consumes until `stop`. Then each loop settles the batch in hand and ends; it works while the broker is down.
    ///
    /// Dropping this future ends the loops where they are, as a crash would: a batch in hand is not settled, and is
    /// delivered again when its time is over. A panic of a loop is passed on.
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
        // Since the last answer from the server. The first failure is worth a warning, the others are not.
        let mut failures: u32 = 0;
        loop {
            let lost = tokio::select! {
                // Looking holds nothing but a request to the broker: safe to drop. A consumer that is gone is the operator's to
                // make again.
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
                tracing::warn!(
                    consumer = self.durable.name(),
                    error,
                    "lost the consumer; attaching until it works"
                );
            } else {
                tracing::debug!(consumer = self.durable.name(), error, failures, "not attached yet");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(delay::backoff(failures, ATTACH_DELAY, ATTACH_DELAY_MAX)) => {}
            }
        }
    }

    /// Takes batch after batch until told to stop (none) or until the consumer is lost (the cause); what is in hand by then is
    /// settled first.
    async fn consume(
        self: &Arc<Self>,
        consumer: &PullConsumer,
        stop: &CancellationToken,
        failures: &mut u32,
    ) -> Option<Cause> {
        let mut in_hand = JoinSet::new();
        let lost = self.take_batches(consumer, stop, failures, &mut in_hand).await;
        settled_down_to(0, &mut in_hand).await;
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
                // Dropped before its first message came, a request ends at the server, too. One that comes in that very
                // moment is delivered again when its time is over.
                fetched = self.fetch(consumer) => fetched,
            };
            let deliveries = match fetched {
                Ok(deliveries) => deliveries,
                Err(cause) => return Some(cause),
            };
            if *failures > 0 {
                *failures = 0;
                tracing::info!(consumer = self.durable.name(), "attached to the consumer again");
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
            settled_down_to(self.processor.options.groups_in_flight_max.get() - 1, in_hand).await;
            if !pause.is_zero() {
                tokio::select! {
                    () = stop.cancelled() => return None,
                    () = sleep(pause) => {}
                }
            }
        }
    }

    /// One request: all that the server has, else the first that comes, else nothing after a while.
    ///
    /// Not by way of the library's own batch, which ends at a message that was stored under a status.
    async fn fetch(&self, consumer: &PullConsumer) -> Result<Vec<Delivery>, Cause> {
        let (bus, options) = (&self.processor.bus, &self.processor.options);
        let connections = bus.connections_made();
        let inbox = Subject::from(bus.client().new_inbox());
        let mut answers = bus.client().subscribe(inbox.clone()).await?;
        let request = pull::BatchConfig {
            batch: options.batch_messages_max.get(),
            max_bytes: options.batch_bytes_max,
            expires: Some(REQUEST_EXPIRES),
            // With a time to expire: nobody waits once there is a message.
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
        // A status after a message is the end of this batch (it is full by size, say) and no reason to lose it.
        while (1..options.batch_messages_max.get()).contains(&deliveries.len())
            && let Ok(Some(answer)) = timeout(REST_WAIT, answers.next()).await
            && is_delivered(&answer)
        {
            deliveries.extend(self.delivery(answer));
        }
        if bus.connections_made() != connections {
            match self.unreadable(consumer).await {
                Ok(unreadable) => deliveries.extend(unreadable),
                // The next connection that ends is followed by another look.
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

    /// Of what was delivered and not settled, the messages whose headers the client library cannot read: each ends the connection
    /// that it comes over, and would come again for ever. Read one at a time, without their headers, they are settled like any
    /// other that nobody signed.
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
                // To the server, the sequence is what counts.
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
                "messages with headers that cannot be read ended the connection; they become dead letters"
            );
        }
        Ok(unreadable)
    }

    /// Waits for the first message, but not for an answer to a request that went down with its connection.
    async fn first(&self, answers: &mut Subscriber, connections: u64) -> Option<async_nats::Message> {
        tokio::select! {
            biased;
            // Dropping `next` leaves the message with the subscriber.
            first = timeout(REQUEST_EXPIRES + ANSWER_WAIT, answers.next()) => first.ok().flatten(),
            () = self.processor.bus.reconnected(connections) => None,
        }
    }

    fn delivery(&self, message: async_nats::Message) -> Option<Delivery> {
        let message = Message {
            message,
            context: self.processor.bus.jetstream().clone(),
        };
        let Ok(place) = message.info().map(Into::into) else {
            // Not from a consumer: somebody published into our inbox.
            tracing::warn!(subject = %message.subject, "ignored a message that no consumer delivered");
            return None;
        };
        let (message, acker) = message.split();
        Some(Delivery {
            incoming: Incoming::new(message, place),
            acker,
        })
    }
}

/// What a consumer delivers wants to be acknowledged; what the server says of the request does not.
fn is_delivered(answer: &async_nats::Message) -> bool {
    answer.reply.is_some()
}

/// The end of a request without a message: there was none, or the consumer is in no state to give any.
fn turned_away(end: &async_nats::Message) -> Result<(), Cause> {
    match end.status {
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Ok(()),
        status => Err(format!("the server ended a request: {status:?} {:?}", end.description).into()),
    }
}

/// Waits until no more than so many are in hand. A panic is passed on.
async fn settled_down_to(count: usize, in_hand: &mut JoinSet<()>) {
    while in_hand.len() > count {
        if let Some(Err(error)) = in_hand.join_next().await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
