//! Latency from publication to the recorded outcome, by Signalbox's `turn.finished` events, which are published after the commit.
//! The floor reports its own latencies, measured right after its commit.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use contracts::{
    Root,
    event::{Event, EventMessage},
};
use futures::StreamExt;
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    figures::{Latency, histogram},
    load::{Moments, now_us},
};

/// Time limit without an event.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn listen(
    client: &async_nats::Client,
    notifications: u32,
    moments: Arc<Moments>,
) -> anyhow::Result<JoinHandle<anyhow::Result<Latency>>> {
    let events = format!("{}.event.*.*.turn.finished", Root::default());
    let mut events = client
        .subscribe(events)
        .await
        .context("could not subscribe to events")?;
    client.flush().await.context("could not subscribe")?;
    Ok(tokio::spawn(async move {
        let mut histogram = histogram();
        while histogram.len() < u64::from(notifications) {
            let Ok(Some(message)) = timeout(SILENCE_LIMIT, events.next()).await else {
                bail!("events of {} turns of {notifications} came", histogram.len());
            };
            let now = now_us();
            let event: EventMessage = serde_json::from_slice(&message.payload).context("could not parse an event")?;
            let Event::TurnFinished(turn) = event.event else {
                continue;
            };
            for id in &turn.notifications {
                let at = moments
                    .us_of(id.as_str())
                    .context("an event of an unknown notification")?;
                histogram.saturating_record(now.saturating_sub(at));
            }
        }
        Ok(Latency::of(&histogram))
    }))
}
