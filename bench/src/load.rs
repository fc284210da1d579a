//! Publishes the work like an outside program: plain NATS, each message acknowledged by the stream.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use async_nats::{
    ConnectOptions, ServerAddr,
    jetstream::{self, context::PublishAckFuture},
};
use contracts::Root;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    figures::{Latency, histogram},
    stage::Provider,
    work::{AGENT, Pace, Work, body, notification_id, number_of, subject},
};

/// Unacknowledged messages at most.
const IN_FLIGHT: usize = 256;
const POLL: Duration = Duration::from_millis(2);
const AT: &str = "\"at_us\":";

/// Publication time of each notification, by its number.
pub(crate) struct Moments(Vec<AtomicU64>);

impl Moments {
    pub(crate) fn new(notifications: u32) -> Arc<Moments> {
        Arc::new(Moments((0..notifications).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn us_of(&self, notification_id: &str) -> Option<u64> {
        let moment = self.0.get(usize::try_from(number_of(notification_id)?).ok()?)?;
        Some(moment.load(Ordering::Relaxed))
    }

    fn set(&self, number: u32, us: u64) {
        if let Some(moment) = usize::try_from(number).ok().and_then(|number| self.0.get(number)) {
            moment.store(us, Ordering::Relaxed);
        }
    }
}

/// Publishes all notifications and waits for the stream's acknowledgements.
pub(crate) async fn publish(client: &async_nats::Client, work: &Work, moments: &Moments) -> anyhow::Result<()> {
    let jetstream = jetstream::new(client.clone());
    let root = Root::default();
    let begun = Instant::now();
    let mut on_their_way: VecDeque<PublishAckFuture> = VecDeque::with_capacity(IN_FLIGHT);
    for number in 0..work.notifications {
        if let Pace::Rate(rate) = work.pace {
            sleep_until(begun + Duration::from_secs(1) * number / rate).await;
        }
        on_their_way.push_back(publish_one(&jetstream, &root, work, number, moments).await?);
        if on_their_way.len() == IN_FLIGHT
            && let Some(oldest) = on_their_way.pop_front()
        {
            oldest.await.context("the stream did not take a notification")?;
        }
    }
    for sent in on_their_way {
        sent.await.context("the stream did not take a notification")?;
    }
    Ok(())
}

async fn publish_one(
    jetstream: &jetstream::Context,
    root: &Root,
    work: &Work,
    number: u32,
    moments: &Moments,
) -> anyhow::Result<PublishAckFuture> {
    let pair = work.pair(number);
    let at_us = now_us();
    moments.set(number, at_us);
    let steers = work.pace == Pace::Steers && number % 2 == 1;
    let payload = json!({
        "id": notification_id(number),
        "agent": AGENT,
        "body": body(pair, number, work.body_bytes),
        "queue_mode": if steers { "steer" } else { "followup" },
        "metadata": {"at_us": at_us},
    });
    let sent = jetstream.publish(subject(root, pair), payload.to_string().into()).await;
    sent.context("could not publish")
}

/// Publishes pairs of notifications, of which the second steers. Measures from its publication until the call of the first is dropped.
pub(crate) async fn steer(
    client: &async_nats::Client,
    work: &Work,
    moments: &Moments,
    provider: &Provider,
) -> anyhow::Result<Latency> {
    let (jetstream, root) = (jetstream::new(client.clone()), Root::default());
    let mut histogram = histogram();
    let deadline = Instant::now() + work.limit;
    for number in 0..work.notifications {
        let stored = publish_one(&jetstream, &root, work, number, moments).await?;
        stored.await.context("the stream did not take a notification")?;
        let seen = loop {
            let seen = provider.seen().await?;
            if seen.notifications > number.into() {
                break seen;
            }
            if Instant::now() > deadline {
                bail!(
                    "notification {number} was not sent to the provider within {:?}: {seen:?}",
                    work.limit
                );
            }
            sleep(POLL).await;
        };
        let Some(before) = number.checked_sub(1).filter(|before| before % 2 == 0) else {
            continue;
        };
        let Some(dropped) = seen.dropped.filter(|dropped| dropped.number == before) else {
            bail!("the call of notification {before} was not dropped before the steer's own: {seen:?}");
        };
        let steered = moments.us_of(&notification_id(number)).unwrap_or(dropped.at_us);
        histogram.record(dropped.at_us.saturating_sub(steered))?;
    }
    Ok(Latency::of(&histogram))
}

/// The publication time in a notification's payload.
pub(crate) fn published_at_us(payload: &str) -> Option<u64> {
    let digits = payload.split_once(AT)?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    digits[..end].parse().ok()
}

pub(crate) async fn connect(url: &str) -> anyhow::Result<async_nats::Client> {
    let address: ServerAddr = url.parse().context("invalid URL of NATS")?;
    let (user, password) = (
        address.username().unwrap_or_default(),
        address.password().unwrap_or_default(),
    );
    ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        .custom_inbox_prefix(format!("_I.{user}"))
        .subscription_capacity(1 << 20)
        .connect(address.clone())
        .await
        .context("could not connect to NATS")
}

pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_says_when_it_was_published() {
        let payload = json!({"id": "n-1", "metadata": {"at_us": 1_234_567_u64}}).to_string();
        assert_eq!(published_at_us(&payload), Some(1_234_567));
        assert_eq!(published_at_us("{}"), None);
    }
}
