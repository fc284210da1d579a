//! Passes one batch through a handler and settles each message: publishes the handler's outgoing messages, then
//! acknowledges, redelivers later, or buries.
//!
//! A handler that panics on one message must not fail the others: its batch is retried one message at a time, and only
//! the failing message counts a failed attempt. A message that has failed too often is buried, so that an operator sees
//! it and it causes no further work.

use domain::error_chain;
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    error::Error,
    future::Future,
    panic::AssertUnwindSafe,
    time::Duration,
};

use async_nats::jetstream::{AckKind, message::Acker};
use contracts::Outgoing;
use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};

use crate::{Bus, ConsumerOptions, Incoming, PublishError, delay, envelope::Forgery, postponed::Postponed};

/// The reason of a dead letter whose message no service of this installation signed for its subject. Its content is
/// unverified, the account in its subject included: it belongs to the operator, and is never redriven.
pub const UNAUTHENTICATED: &str = "unauthenticated";

/// A handler's decision about a message.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Its effects are committed, or it had none. Publish the outgoing messages, then acknowledge.
    Done(Vec<Outgoing>),
    /// This message failed; a retry may succeed. Counts as an attempt, and the last attempt buries it.
    Retry { after: Duration, why: String },
    /// A dependency of every message is unavailable (Postgres, say). Counts no attempt: an outage buries no messages.
    Postpone { after: Duration, why: String },
    /// It can never succeed. `reason` is one word for programs, `detail` a sentence for people.
    Dead { reason: String, detail: String },
}

/// Handles batches.
pub trait BatchHandler: Send + Sync + 'static {
    /// The group of a message. Messages of one group are handled and settled together, each group independently of the
    /// others. By default a batch is one group.
    fn group(&self, _: &Incoming) -> String {
        String::new()
    }

    /// Returns one verdict per message, in their order. May receive a message again after a crash or a lost
    /// acknowledgement, and a batch again after a panic; runs to its end on shutdown.
    fn handle(&self, batch: &[Incoming]) -> impl Future<Output = Vec<Verdict>> + Send;

    /// Called between two steps of the loop: the outgoing messages of a batch are published, and no message is
    /// acknowledged yet.
    fn published(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A message that cannot be processed.
#[derive(Clone, Debug)]
pub struct DeadMessage {
    pub incoming: Incoming,
    pub reason: String,
    pub detail: String,
    /// Failed attempts, this one included.
    pub attempts: i64,
}

pub type BuryError = Box<dyn Error + Send + Sync>;

/// Stores dead messages. Must be idempotent: a message is acknowledged only after it is stored.
pub trait DeadLetterSink: Send + Sync + 'static {
    fn bury(&self, dead: DeadMessage) -> BoxFuture<'_, Result<(), BuryError>>;
}

/// A delivered message and the handle to settle it.
pub(crate) struct Delivery {
    pub(crate) incoming: Incoming,
    pub(crate) acker: Acker,
}

/// Processes batches of a pull loop up to their settlement. Shared by the loops of a consumer.
pub(crate) struct Processor<H> {
    pub(crate) bus: Bus,
    pub(crate) consumer: &'static str,
    pub(crate) options: ConsumerOptions,
    pub(crate) ack_wait: Duration,
    pub(crate) handler: H,
    pub(crate) dead_letters: Box<dyn DeadLetterSink>,
    pub(crate) postponed: Postponed,
    /// A permit for each group that may be handled at one time, in all loops.
    pub(crate) handling: Semaphore,
}

impl<H: BatchHandler> Processor<H> {
    /// Splits a batch into its groups, in the order of their first messages.
    pub(crate) fn groups(&self, deliveries: Vec<Delivery>) -> Vec<Vec<Delivery>> {
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut groups: Vec<Vec<Delivery>> = Vec::new();
        for delivery in deliveries {
            let place = *places
                .entry(self.handler.group(&delivery.incoming))
                .or_insert(groups.len());
            if place == groups.len() {
                groups.push(Vec::new());
            }
            groups[place].push(delivery);
        }
        groups
    }

    /// Processes one group up to its settlement.
    pub(crate) async fn process(&self, deliveries: Vec<Delivery>) {
        let (started, size) = (Instant::now(), deliveries.len());
        let (mut messages, mut ackers) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let mut dying = Vec::new();
        for Delivery { incoming, acker } in deliveries {
            match self.authenticated(&incoming) {
                Ok(()) => {
                    messages.push(incoming);
                    ackers.push(acker);
                }
                Err(forgery) => {
                    let dead = self.dead_message(incoming, UNAUTHENTICATED.to_owned(), forgery.to_string());
                    dying.push((acker, dead));
                }
            }
        }
        let mut verdicts = Vec::new();
        if !messages.is_empty() {
            verdicts = self.decide(&messages, &ackers).await;
            self.publish_outgoing(&mut verdicts).await;
            self.handler.published().await;
        }

        self.note_postponed(&verdicts);
        let mut settled = Vec::with_capacity(size);
        for ((incoming, acker), verdict) in messages.into_iter().zip(ackers).zip(verdicts) {
            match self.outcome(incoming, verdict) {
                Ok(outcome) => settled.push((acker, outcome)),
                Err(dead) => dying.push((acker, *dead)),
            }
        }
        // Burials may be slow; the other messages are acknowledged before.
        self.acknowledge(&settled).await;
        let buried = self.bury_all(dying).await;
        self.acknowledge(&buried).await;
        self.count(settled.iter().chain(&buried).map(|(_, outcome)| outcome.label));
        let seconds = started.elapsed().as_secs_f64();
        self.bus.meters().batch(self.consumer, size, seconds);
    }

    /// Checks the signature before a handler sees the message: the subject does not prove who published it.
    fn authenticated(&self, incoming: &Incoming) -> Result<(), Forgery> {
        let verified = self
            .bus
            .keys()
            .verify(&incoming.subject, &incoming.headers, &incoming.payload);
        if let Err(forgery) = verified {
            self.bus.meters().unauthenticated(self.consumer, forgery.word());
        }
        verified
    }

    /// The handler's verdicts: one per message, even if the handler returns another number or panics.
    async fn decide(&self, messages: &[Incoming], ackers: &[Acker]) -> Vec<Verdict> {
        match self.handle_guarded(messages, ackers).await {
            Ok(verdicts) => verdicts,
            Err(why) if messages.len() == 1 => vec![self.failed(&messages[0], why)],
            Err(why) => {
                tracing::error!(
                    consumer = self.consumer,
                    messages = messages.len(),
                    why,
                    "batch failed; retrying its messages one by one"
                );
                let mut verdicts = Vec::with_capacity(messages.len());
                for (message, acker) in messages.chunks(1).zip(ackers.chunks(1)) {
                    verdicts.extend(Box::pin(self.decide(message, acker)).await);
                }
                verdicts
            }
        }
    }

    /// Runs the handler and catches its panic; meanwhile extends the batch's acknowledgement deadline.
    async fn handle_guarded(&self, messages: &[Incoming], ackers: &[Acker]) -> Result<Vec<Verdict>, String> {
        let handling = AssertUnwindSafe(async {
            let _place = self.handling.acquire().await.expect("it is never closed");
            self.handler.handle(messages).await
        })
        .catch_unwind();
        let result = tokio::select! {
            biased;
            result = handling => result,
            // Runs concurrently with the handler, which must not wait for a congested connection. It may be dropped
            // half-way: the messages not yet extended are about to be settled.
            never = self.extend_deadlines(ackers) => match never {},
        };
        match result {
            Ok(verdicts) if verdicts.len() == messages.len() => Ok(verdicts),
            Ok(verdicts) => Err(format!(
                "the handler gave {} verdicts on {} messages",
                verdicts.len(),
                messages.len()
            )),
            Err(panic) => Err(format!("the handler panicked: {}", panic_text(panic.as_ref()))),
        }
    }

    /// Extends the deadline repeatedly, so that slow work is not redelivered meanwhile.
    async fn extend_deadlines(&self, ackers: &[Acker]) -> Infallible {
        let third = self.ack_wait / 3;
        let mut progress = interval_at(Instant::now() + third, third);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            progress.tick().await;
            for acker in ackers {
                // A lost extension costs a redelivery.
                acker.ack_with(AckKind::Progress).await.ok();
            }
        }
    }

    fn failed(&self, incoming: &Incoming, why: String) -> Verdict {
        let attempt = u32::try_from(incoming.deliveries).unwrap_or(u32::MAX);
        Verdict::Retry {
            after: delay::backoff(attempt, self.options.retry_delay, self.options.retry_delay_max),
            why,
        }
    }

    /// Publishes the outgoing messages of the whole batch at once. A failed publish changes the verdict of the message
    /// that caused it.
    async fn publish_outgoing(&self, verdicts: &mut [Verdict]) {
        let mut outgoing = Vec::new();
        let mut owners = Vec::new();
        for (index, verdict) in verdicts.iter_mut().enumerate() {
            if let Verdict::Done(messages) = verdict {
                owners.extend(std::iter::repeat_n(index, messages.len()));
                outgoing.append(messages);
            }
        }
        if outgoing.is_empty() {
            return;
        }
        let results = self.bus.publish_all(&outgoing).await;
        for (owner, result) in owners.into_iter().zip(results) {
            if let Err(error) = result {
                let verdict = &mut verdicts[owner];
                // The first failure decides, unless a later one is permanent.
                if matches!(verdict, Verdict::Done(_)) || !error.is_retryable() {
                    *verdict = self.unpublished(&error);
                }
            }
        }
    }

    fn unpublished(&self, error: &PublishError) -> Verdict {
        if error.is_retryable() {
            Verdict::Postpone {
                after: self.options.retry_delay,
                why: error_chain(error),
            }
        } else {
            Verdict::Dead {
                reason: "unpublishable".to_owned(),
                detail: format!(
                    "A message that follows from this one could not be published: {}",
                    error_chain(error)
                ),
            }
        }
    }

    /// Logs one line per batch: all its messages are postponed for the same reason.
    fn note_postponed(&self, verdicts: &[Verdict]) {
        let mut reasons = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Postpone { why, .. } => Some(why),
            Verdict::Done(_) | Verdict::Retry { .. } | Verdict::Dead { .. } => None,
        });
        if let Some(first_why) = reasons.next() {
            let messages = 1 + reasons.count();
            tracing::warn!(consumer = self.consumer, messages, first_why, "messages postponed");
        }
    }

    /// The outcome of a verdict, given the attempts so far; as an error, the message that is to be buried.
    fn outcome(&self, incoming: Incoming, verdict: Verdict) -> Result<MessageOutcome, Box<DeadMessage>> {
        let (consumer, sequence) = (self.consumer, incoming.stream_sequence);
        let bury = |incoming, reason, detail| Err(Box::new(self.dead_message(incoming, reason, detail)));
        match verdict {
            Verdict::Done(_) => Ok(self.settled(sequence, "done")),
            Verdict::Postpone { after, why: _ } => Ok(self.postponed(sequence, after)),
            Verdict::Retry { after, why } => {
                let attempts = self.attempts(&incoming);
                if attempts < self.options.attempts_max {
                    tracing::warn!(consumer, sequence, attempts, why, "message failed; will retry");
                    return Ok(MessageOutcome {
                        label: "retry",
                        again_after: Some(after),
                    });
                }
                let detail = format!("Failed after {attempts} attempts: {why}");
                bury(incoming, "attempts_exhausted".to_owned(), detail)
            }
            Verdict::Dead { reason, detail } => bury(incoming, reason, detail),
        }
    }

    fn settled(&self, sequence: u64, label: &'static str) -> MessageOutcome {
        self.postponed.forget(sequence);
        MessageOutcome {
            label,
            again_after: None,
        }
    }

    fn postponed(&self, sequence: u64, after: Duration) -> MessageOutcome {
        self.postponed.note(sequence);
        MessageOutcome {
            label: "postponed",
            again_after: Some(after),
        }
    }

    fn attempts(&self, incoming: &Incoming) -> i64 {
        incoming.deliveries - self.postponed.count(incoming.stream_sequence)
    }

    fn dead_message(&self, incoming: Incoming, reason: String, detail: String) -> DeadMessage {
        let attempts = self.attempts(&incoming);
        DeadMessage {
            incoming,
            reason,
            detail,
            attempts,
        }
    }

    /// Buries one message after the other. After a failure the others are not tried: the store is unavailable.
    async fn bury_all(&self, dying: Vec<(Acker, DeadMessage)>) -> Vec<(Acker, MessageOutcome)> {
        let mut outcomes = Vec::with_capacity(dying.len());
        let mut is_sink_available = true;
        for (acker, dead) in dying {
            let sequence = dead.incoming.stream_sequence;
            is_sink_available = is_sink_available && self.bury(dead).await;
            let outcome = match is_sink_available {
                true => self.settled(sequence, "dead"),
                false => self.postponed(sequence, self.options.retry_delay),
            };
            outcomes.push((acker, outcome));
        }
        outcomes
    }

    async fn bury(&self, dead: DeadMessage) -> bool {
        let (consumer, sequence, attempts) = (self.consumer, dead.incoming.stream_sequence, dead.attempts);
        // The detail may quote the message: it is stored in the dead letter and not logged.
        let reason = dead.reason.clone();
        match AssertUnwindSafe(async { self.dead_letters.bury(dead).await })
            .catch_unwind()
            .await
        {
            Ok(Ok(())) => {
                tracing::warn!(consumer, sequence, attempts, reason, "message buried");
                true
            }
            Ok(Err(error)) => {
                let error = error_chain(error.as_ref());
                tracing::warn!(consumer, sequence, reason, error, "could not bury message; will retry");
                false
            }
            Err(panic) => {
                let why = panic_text(panic.as_ref());
                tracing::error!(
                    consumer,
                    sequence,
                    reason,
                    why,
                    "burying a message panicked; will retry"
                );
                false
            }
        }
    }

    /// Sends the settlements to the server, unconfirmed. A lost acknowledgement costs a redelivery. So does one that a
    /// congested connection does not accept in time, since a stop must not wait for the broker.
    async fn acknowledge(&self, outcomes: &[(Acker, MessageOutcome)]) {
        let acknowledging = async {
            for (acker, outcome) in outcomes {
                let told = match outcome.again_after {
                    None => acker.ack().await,
                    Some(after) => acker.ack_with(AckKind::Nak(Some(delay::spread(after)))).await,
                };
                if let Err(error) = told {
                    tracing::debug!(consumer = self.consumer, %error, "an acknowledgement was not sent");
                }
            }
        };
        if timeout(ACK_WAIT, acknowledging).await.is_err() {
            tracing::debug!(
                consumer = self.consumer,
                "acknowledgements were not sent: the connection is congested"
            );
        }
    }

    fn count(&self, labels: impl Iterator<Item = &'static str>) {
        let mut counts = BTreeMap::new();
        for label in labels {
            *counts.entry(label).or_default() += 1;
        }
        for (label, count) in counts {
            self.bus.meters().consumed(self.consumer, label, count);
        }
    }
}

/// How long sending the acknowledgements of a batch may take.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// The result of one delivery of a message.
struct MessageOutcome {
    /// Its name in the metric.
    label: &'static str,
    /// When the server shall deliver the message again. None: never.
    again_after: Option<Duration>,
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}
