//! One batch through a handler, and what becomes of each message: publish what follows, then acknowledge, redeliver
//! later, or bury.
//!
//! A handler that panics must not take its neighbours down: its batch is handed to it again one message at a time, and
//! only the culprit counts a failed attempt. What failed too often is buried, so that it is seen and stops costing.

use std::{collections::HashMap, error::Error, future::Future, panic::AssertUnwindSafe, sync::Mutex, time::Duration};

use async_nats::jetstream::{AckKind, message::Acker};
use contracts::Outgoing;
use futures::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::{Bus, ConsumerOptions, Incoming, PublishError, delay};

/// What shall become of a message.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Its effects are committed, or it needed none. Publish what follows, then acknowledge.
    Done(Vec<Outgoing>),
    /// This message failed; perhaps it works later. Counts as an attempt, and the last one buries it.
    Retry { after: Duration, why: String },
    /// Something that every message needs is away (Postgres, say). Counts nothing: an outage buries no messages.
    Postpone { after: Duration, why: String },
    /// It will never work. `reason` is one word for programs, `detail` a sentence for people.
    Dead { reason: String, detail: String },
}

/// Decides on batches.
pub trait BatchHandler: Send + Sync + 'static {
    /// One verdict per message, in their order. May see a message again after a crash or a lost acknowledgement, and a
    /// batch again after a panic; runs to its end on shutdown.
    fn handle(&self, batch: &[Incoming]) -> impl Future<Output = Vec<Verdict>> + Send;
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

/// Where dead messages go. Must be safe to call twice for the same message: the acknowledgement comes after it.
pub trait DeadLetterSink: Send + Sync + 'static {
    fn bury(&self, dead: DeadMessage) -> BoxFuture<'_, Result<(), BuryError>>;
}

/// A message in hand and the means to settle it.
pub(crate) struct Delivery {
    pub(crate) incoming: Incoming,
    pub(crate) acker: Acker,
}

/// Takes batches from a pull loop to their settlement. Shared by the loops of a consumer.
pub(crate) struct Processor<H> {
    pub(crate) bus: Bus,
    pub(crate) consumer: &'static str,
    pub(crate) options: ConsumerOptions,
    pub(crate) ack_wait: Duration,
    pub(crate) handler: H,
    pub(crate) dead_letters: Box<dyn DeadLetterSink>,
    pub(crate) postponed: Postponed,
}

impl<H: BatchHandler> Processor<H> {
    pub(crate) async fn process(&self, deliveries: Vec<Delivery>) {
        let (started, size) = (Instant::now(), deliveries.len());
        let (messages, ackers): (Vec<_>, Vec<_>) = deliveries.into_iter().map(|one| (one.incoming, one.acker)).unzip();
        let verdicts = self.decide(&messages, &ackers).await;
        let verdicts = self.publish_outgoing(verdicts).await;
        let mut counts = Counts::default();
        for ((incoming, acker), verdict) in messages.into_iter().zip(&ackers).zip(verdicts) {
            self.settle(incoming, acker, verdict, &mut counts).await;
        }
        let meters = self.bus.meters();
        meters.consumed(self.consumer, "done", counts.done);
        meters.consumed(self.consumer, "retry", counts.retry);
        meters.consumed(self.consumer, "postponed", counts.postponed);
        meters.consumed(self.consumer, "dead", counts.dead);
        meters.batch(self.consumer, size, started.elapsed().as_secs_f64());
    }

    /// The handler's verdicts, one per message whatever the handler does.
    async fn decide(&self, messages: &[Incoming], ackers: &[Acker]) -> Vec<Verdict> {
        match self.handle_guarded(messages, ackers).await {
            Ok(verdicts) => verdicts,
            Err(why) if messages.len() == 1 => vec![self.failed(&messages[0], why)],
            Err(why) => {
                tracing::error!(
                    consumer = self.consumer,
                    messages = messages.len(),
                    why,
                    "the handler failed on a batch; handing it over one message at a time"
                );
                let mut verdicts = Vec::with_capacity(messages.len());
                for (message, acker) in messages.iter().zip(ackers) {
                    let (message, acker) = (std::slice::from_ref(message), std::slice::from_ref(acker));
                    match self.handle_guarded(message, acker).await {
                        Ok(one) => verdicts.extend(one),
                        Err(why) => verdicts.push(self.failed(&message[0], why)),
                    }
                }
                verdicts
            }
        }
    }

    /// Runs the handler and catches its panic; meanwhile tells the server that the batch is being worked on.
    async fn handle_guarded(&self, messages: &[Incoming], ackers: &[Acker]) -> Result<Vec<Verdict>, String> {
        let mut handling = std::pin::pin!(AssertUnwindSafe(self.handler.handle(messages)).catch_unwind());
        let third = self.ack_wait / 3;
        let mut progress = interval_at(Instant::now() + third, third);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let result = loop {
            tokio::select! {
                // Only this branch has state, and it is polled through a reference: a tick drops nothing.
                result = &mut handling => break result,
                _ = progress.tick() => {
                    for acker in ackers {
                        // Lost, it costs a redelivery.
                        acker.ack_with(AckKind::Progress).await.ok();
                    }
                }
            }
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

    fn failed(&self, incoming: &Incoming, why: String) -> Verdict {
        let attempt = u32::try_from(incoming.deliveries).unwrap_or(u32::MAX);
        Verdict::Retry {
            after: delay::backoff(attempt, self.options.retry_delay, self.options.retry_delay_max),
            why,
        }
    }

    /// Publishes what follows from the whole batch at once. What cannot be published turns its cause's verdict.
    async fn publish_outgoing(&self, mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
        let mut outgoing = Vec::new();
        let mut owners = Vec::new();
        for (index, verdict) in verdicts.iter_mut().enumerate() {
            if let Verdict::Done(messages) = verdict {
                owners.extend(std::iter::repeat_n(index, messages.len()));
                outgoing.append(messages);
            }
        }
        if outgoing.is_empty() {
            return verdicts;
        }
        let results = self.bus.publish_all(&outgoing).await;
        for (owner, result) in owners.into_iter().zip(results) {
            if let Err(error) = result {
                let verdict = &mut verdicts[owner];
                // The first failure speaks for the message, unless a later one says that it is hopeless.
                if matches!(verdict, Verdict::Done(_)) || !error.is_retriable() {
                    *verdict = self.unpublished(&error);
                }
            }
        }
        verdicts
    }

    fn unpublished(&self, error: &PublishError) -> Verdict {
        if error.is_retriable() {
            Verdict::Postpone {
                after: self.options.retry_delay,
                why: with_causes(error),
            }
        } else {
            Verdict::Dead {
                reason: "unpublishable".to_owned(),
                detail: format!(
                    "What follows from this message cannot be published: {}",
                    with_causes(error)
                ),
            }
        }
    }

    async fn settle(&self, incoming: Incoming, acker: &Acker, verdict: Verdict, counts: &mut Counts) {
        let sequence = incoming.stream_sequence;
        let attempts = incoming.deliveries - self.postponed.count(sequence);
        let (reason, detail) = match verdict {
            Verdict::Done(_) => {
                counts.done += 1;
                self.postponed.forget(sequence);
                return self.acknowledge(acker).await;
            }
            Verdict::Postpone { after, why } => {
                counts.postponed += 1;
                self.postponed.note(sequence);
                tracing::debug!(consumer = self.consumer, sequence, why, "message postponed");
                return self.redeliver(acker, after).await;
            }
            Verdict::Retry { after, why } if attempts < self.options.attempts_max => {
                counts.retry += 1;
                tracing::warn!(
                    consumer = self.consumer,
                    sequence,
                    attempts,
                    why,
                    "message failed; trying again later"
                );
                return self.redeliver(acker, after).await;
            }
            Verdict::Retry { after: _, why } => (
                "attempts_exhausted".to_owned(),
                format!("Given up after {attempts} attempts: {why}"),
            ),
            Verdict::Dead { reason, detail } => (reason, detail),
        };
        tracing::warn!(
            consumer = self.consumer,
            sequence,
            attempts,
            reason,
            detail,
            "message buried"
        );
        let dead = DeadMessage {
            incoming,
            reason,
            detail,
            attempts,
        };
        match AssertUnwindSafe(self.dead_letters.bury(dead)).catch_unwind().await {
            Ok(Ok(())) => {
                counts.dead += 1;
                self.postponed.forget(sequence);
                self.acknowledge(acker).await;
            }
            Ok(Err(error)) => {
                counts.postponed += 1;
                self.postponed.note(sequence);
                tracing::warn!(
                    consumer = self.consumer,
                    sequence,
                    error = with_causes(error.as_ref()),
                    "a dead letter could not be recorded; trying again later"
                );
                self.redeliver(acker, self.options.retry_delay).await;
            }
            Err(panic) => {
                counts.postponed += 1;
                self.postponed.note(sequence);
                let why = panic_text(panic.as_ref());
                tracing::error!(
                    consumer = self.consumer,
                    sequence,
                    why,
                    "recording a dead letter panicked"
                );
                self.redeliver(acker, self.options.retry_delay).await;
            }
        }
    }

    async fn acknowledge(&self, acker: &Acker) {
        // Not confirmed by the server: a lost one costs a redelivery, which handlers stand.
        if let Err(error) = acker.ack().await {
            tracing::debug!(consumer = self.consumer, %error, "acknowledgement not sent");
        }
    }

    async fn redeliver(&self, acker: &Acker, after: Duration) {
        if let Err(error) = acker.ack_with(AckKind::Nak(Some(delay::spread(after)))).await {
            tracing::debug!(consumer = self.consumer, %error, "request for redelivery not sent");
        }
    }
}

#[derive(Default)]
struct Counts {
    done: u64,
    retry: u64,
    postponed: u64,
    dead: u64,
}

/// How many deliveries of a message did not count as attempts. In memory: a restart forgets, and a message may then be
/// buried some attempts early, which an operator can undo; the server's own count survives, so that a message that
/// kills the process is buried all the same.
#[derive(Default)]
pub(crate) struct Postponed(Mutex<HashMap<u64, i64>>);

/// Another replica may settle what was noted here; forgotten entries must not pile up.
const POSTPONED_ENTRIES_MAX: usize = 65_536;

impl Postponed {
    fn count(&self, sequence: u64) -> i64 {
        self.entries().get(&sequence).copied().unwrap_or(0)
    }

    fn note(&self, sequence: u64) {
        let mut entries = self.entries();
        if entries.len() >= POSTPONED_ENTRIES_MAX {
            entries.clear();
        }
        *entries.entry(sequence).or_default() += 1;
    }

    fn forget(&self, sequence: u64) {
        self.entries().remove(&sequence);
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<u64, i64>> {
        self.0.lock().expect("nobody panics while holding this lock")
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

/// An error and its causes on one line, for a dead letter or a log line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
