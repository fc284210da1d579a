//! The pull loop of a durable consumer: one batch at a time, for as long as the process runs, whatever the broker does.
//!
//! A message waits for nothing: the server sends what there is, and a batch is whatever has arrived by then, so batches
//! are small when idle and full under load. Whatever goes wrong with the subscription (missed heartbeats, an ended
//! stream, a deleted consumer), the answer is the same: drop it, make sure that the consumer exists, attach again.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use async_nats::jetstream::{
    self, AckKind, ErrorCode,
    consumer::{PullConsumer, pull},
    stream::{ConsumerError, ConsumerErrorKind},
};
use futures::{FutureExt, StreamExt, stream::ReadyChunks};
use tokio::{task::unconstrained, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    BatchHandler, Bus, DeadLetterSink, Durable, Incoming, Topology,
    batch::{Delivery, Postponed, Processor, with_causes},
    delay,
    error::Cause,
};

/// Limits of a consumer's loops.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerOptions {
    pub batch_messages_max: NonZeroUsize,
    /// Loops in this process, each with one batch in hand.
    pub loops: NonZeroUsize,
    /// Failed attempts after which a message is buried.
    pub attempts_max: i64,
    /// First delay where the loop chooses one (a panic, a broker that is away); doubled with each attempt.
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
    /// Nothing came for this long: ask the server whether there is something after all.
    pub watchdog: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        ConsumerOptions {
            batch_messages_max: NonZeroUsize::new(256).expect("256 is not zero"),
            loops: NonZeroUsize::MIN,
            attempts_max: 10,
            retry_delay: Duration::from_secs(1),
            retry_delay_max: Duration::from_secs(60),
            watchdog: Duration::from_secs(30),
        }
    }
}

/// A pull request lives this long at the server; then the client sends the next.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// Two of these missed, and the subscription counts as lost.
const PULL_HEARTBEAT: Duration = Duration::from_secs(2);
const REBUILD_DELAY: Duration = Duration::from_millis(100);
const REBUILD_DELAY_MAX: Duration = Duration::from_secs(5);

/// A durable consumer and what handles its messages.
pub struct Consumer<H> {
    pub bus: Bus,
    /// Makes the consumer again when somebody deleted it.
    pub topology: Topology,
    pub durable: Durable,
    pub options: ConsumerOptions,
    pub handler: H,
    pub dead_letters: Box<dyn DeadLetterSink>,
}

impl<H: BatchHandler> Consumer<H> {
    /// Consumes until `stop`. Then each loop settles the batch in hand, gives back what it has not begun, and ends.
    ///
    /// Dropping this future does not stop the loops; only the token does, since a handler may hold a transaction.
    pub async fn run(self, stop: CancellationToken) {
        let loops = self.options.loops.get();
        let worker = Arc::new(Worker {
            topology: self.topology.clone(),
            durable: self.durable,
            processor: Processor {
                bus: self.bus,
                consumer: self.durable.name(),
                options: self.options,
                ack_wait: Duration::from_millis(self.topology.limits.ack_wait_ms),
                handler: self.handler,
                dead_letters: self.dead_letters,
                postponed: Postponed::default(),
            },
        });
        let tracker = TaskTracker::new();
        for number in 0..loops {
            let (worker, stop) = (Arc::clone(&worker), stop.clone());
            let span = tracing::info_span!("consumer", name = worker.durable.name(), number);
            tracker.spawn(async move { worker.run(&stop).await }.instrument(span));
        }
        tracker.close();
        tracker.wait().await;
    }
}

type Chunks = ReadyChunks<pull::Stream>;

/// Why a loop stopped reading a subscription.
enum Ended {
    Stopped,
    Lost { cause: Option<Cause> },
}

struct Worker<H> {
    topology: Topology,
    durable: Durable,
    processor: Processor<H>,
}

impl<H: BatchHandler> Worker<H> {
    async fn run(&self, stop: &CancellationToken) {
        // Attempts to attach since messages last could come. The first failure is worth a warning, the rest is not.
        let mut failures: u32 = 0;
        loop {
            let attached = tokio::select! {
                // Attaching holds nothing but a request to the broker: safe to drop.
                () = stop.cancelled() => return,
                attached = self.attach() => attached,
            };
            let cause = match attached {
                Ok((consumer, mut chunks)) => {
                    if failures > 0 {
                        tracing::info!(consumer = self.durable.name(), "attached to the consumer again");
                    }
                    match self.read(&consumer, &mut chunks, stop, &mut failures).await {
                        Ended::Stopped => return give_back(chunks).await,
                        Ended::Lost { cause } => cause,
                    }
                }
                Err(cause) => Some(cause),
            };
            failures += 1;
            self.processor.bus.meters().rebuilt(self.durable.name());
            let error = cause.map_or_else(
                || "the subscription ended".to_owned(),
                |cause| with_causes(cause.as_ref()),
            );
            if failures == 1 {
                tracing::warn!(
                    consumer = self.durable.name(),
                    error,
                    "lost the consumer; attaching again until it works"
                );
            } else {
                tracing::debug!(consumer = self.durable.name(), error, failures, "not attached yet");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(delay::backoff(failures, REBUILD_DELAY, REBUILD_DELAY_MAX)) => {}
            }
        }
    }

    /// Finds the consumer, makes it when it is gone, and asks for messages.
    async fn attach(&self) -> Result<(PullConsumer, Chunks), Cause> {
        let bus = &self.processor.bus;
        let (name, stream) = (self.durable.name(), self.durable.stream().name(bus.root()));
        let consumer: PullConsumer = match bus.jetstream().get_consumer_from_stream(name, &stream).await {
            Ok(consumer) => consumer,
            Err(error) if is_gone(&error) => {
                tracing::warn!(
                    consumer = name,
                    stream,
                    "the consumer or its stream is gone from the NATS server"
                );
                self.topology.ensure(bus).await?;
                bus.jetstream().get_consumer_from_stream(name, &stream).await?
            }
            Err(error) => return Err(error.into()),
        };
        let batch = self.processor.options.batch_messages_max.get();
        let messages = consumer
            .stream()
            .max_messages_per_batch(batch)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT)
            .messages()
            .await?;
        Ok((consumer, messages.ready_chunks(batch)))
    }

    async fn read(
        &self,
        consumer: &PullConsumer,
        chunks: &mut Chunks,
        stop: &CancellationToken,
        failures: &mut u32,
    ) -> Ended {
        loop {
            let chunk = tokio::select! {
                biased;
                () = stop.cancelled() => return Ended::Stopped,
                // Dropping `next` leaves the messages in the stream.
                chunk = chunks.next() => chunk,
                () = sleep(self.processor.options.watchdog) => {
                    match self.is_starving(consumer).await {
                        false => continue,
                        true => return Ended::Lost { cause: Some("messages are pending and none arrive".into()) },
                    }
                }
            };
            let Some(chunk) = chunk else {
                return Ended::Lost { cause: None };
            };
            let (deliveries, lost) = sorted(chunk);
            if !deliveries.is_empty() {
                *failures = 0;
                self.processor.process(deliveries).await;
            }
            if let Some(cause) = lost {
                return Ended::Lost { cause: Some(cause) };
            }
        }
    }

    /// Whether the server has messages for us that do not come. Stalls like that have been seen with pull consumers.
    async fn is_starving(&self, consumer: &PullConsumer) -> bool {
        match consumer.get_info().await {
            Ok(info) => {
                let limit = usize::try_from(self.topology.limits.ack_pending_max).unwrap_or(usize::MAX);
                info.num_pending > 0 && info.num_ack_pending < limit
            }
            // No answer is the heartbeat's business.
            Err(_) => false,
        }
    }
}

/// Messages already sent to this client and not begun: asking for redelivery at once spares the others the wait until
/// the server takes them back.
async fn give_back(mut chunks: Chunks) {
    let mut unbegun = Vec::new();
    while let Some(Some(chunk)) = unconstrained(chunks.next()).now_or_never() {
        unbegun.extend(sorted(chunk).0);
    }
    // First the end of the subscription, or the server would send them here again. It goes out over the same
    // connection, so it comes first there, too.
    drop(chunks);
    for delivery in unbegun {
        delivery.acker.ack_with(AckKind::Nak(None)).await.ok();
    }
}

/// Messages, and the first error among them: what arrived before it is still worked on.
fn sorted<E: Into<Cause>>(chunk: Vec<Result<jetstream::Message, E>>) -> (Vec<Delivery>, Option<Cause>) {
    let (mut deliveries, mut lost) = (Vec::with_capacity(chunk.len()), None);
    for item in chunk {
        let message = match item {
            Ok(message) => message,
            Err(error) => {
                lost.get_or_insert(error.into());
                continue;
            }
        };
        let Ok(place) = message.info().map(Into::into) else {
            // Not from a consumer: somebody published into our inbox.
            tracing::warn!(subject = %message.subject, "ignored a message that no consumer delivered");
            continue;
        };
        let (message, acker) = message.split();
        deliveries.push(Delivery {
            incoming: Incoming::new(message, place),
            acker,
        });
    }
    (deliveries, lost)
}

fn is_gone(error: &ConsumerError) -> bool {
    match error.kind() {
        ConsumerErrorKind::JetStream(answer) => matches!(
            answer.error_code(),
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
        ),
        _ => false,
    }
}
