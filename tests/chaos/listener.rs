//! Subscribes to every message on the bus as the operator, and records secrets in headers and payloads, and which events of turns,
//! of parked sessions and of breakers there were. Stores no message, and misses messages that are published while it is disconnected: the stream of events has them,
//! unless it was wiped.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use async_nats::{HeaderMap, jetstream::consumer::pull::OrderedConfig};
use contracts::{Root, header, message::Stream};
use futures::StreamExt;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{task::JoinHandle, time::timeout};

use crate::{clients::publisher, records::Heard};

/// For one message of a stream at rest.
const READ_LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Listener {
    heard: Arc<Mutex<Heard>>,
    worker: JoinHandle<()>,
}

impl Listener {
    pub(crate) async fn start(nats_url: &str, secrets: BTreeMap<String, String>) -> anyhow::Result<Listener> {
        let client = publisher(nats_url).await?;
        let mut messages = client
            .subscribe("signalbox.>")
            .await
            .context("could not listen to the bus")?;
        client.flush().await.context("could not listen to the bus")?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let notes = Arc::clone(&heard);
        let worker = tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                let text = format!("{:?} {}", message.headers, String::from_utf8_lossy(&message.payload));
                let found = secrets.iter().filter(|(_, secret)| text.contains(*secret));
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                notes.messages += 1;
                note(&mut notes, &message.subject, message.headers.as_ref(), &message.payload);
                notes
                    .secrets
                    .extend(found.map(|(name, _)| (name.clone(), message.subject.to_string())));
            }
        });
        Ok(Listener { heard, worker })
    }

    /// Adds the events that the broker has.
    pub(crate) async fn read_stream(&self, nats_url: &str) -> anyhow::Result<()> {
        let jetstream = async_nats::jetstream::new(publisher(nats_url).await?);
        let stream = jetstream.get_stream(Stream::Event.name(&Root::default())).await?;
        for (events, headers_only) in [("turn.*", true), ("session.parked", false), ("provider.opened", false)] {
            let config = OrderedConfig {
                filter_subject: format!("signalbox.event.*.*.{events}"),
                headers_only,
                ..OrderedConfig::default()
            };
            let consumer = stream.create_consumer(config).await?;
            let left = usize::try_from(consumer.cached_info().num_pending)?;
            let mut messages = consumer.messages().await?.take(left);
            while let Some(message) = timeout(READ_LIMIT, messages.next())
                .await
                .context("could not read the stream of events")?
            {
                let message = message?;
                let mut notes = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
                note(&mut notes, &message.subject, message.headers.as_ref(), &message.payload);
            }
        }
        Ok(())
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn note(notes: &mut Heard, subject: &str, headers: Option<&HeaderMap>, payload: &[u8]) {
    let event = subject.strip_prefix("signalbox.event.").unwrap_or_default();
    let Some(id) = headers.and_then(|headers| headers.get(header::MESSAGE_ID)) else {
        return;
    };
    if event.contains(".turn.") {
        notes.turns.insert(id.to_string());
    }
    let gated: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
    if id.as_str().starts_with("provider.opened:") {
        let at = gated["at"]
            .as_str()
            .and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
        notes.opened.extend(at.map(|at| (id.to_string(), at)));
    }
    if let Some(turn) = id.as_str().strip_prefix("session.parked:") {
        let queued = gated["data"]["queued"]
            .as_u64()
            .and_then(|queued| usize::try_from(queued).ok());
        notes.parked.insert(turn.to_owned(), queued.unwrap_or_default());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.worker.abort();
    }
}
