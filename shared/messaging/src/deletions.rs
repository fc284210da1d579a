//! Watches the server's advisories of deleted streams and consumers. No service deletes any: a deletion was made by the
//! operator, or by an intruder.

use async_nats::Message;
use futures::{StreamExt, stream::select_all};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{Bus, topology::DELETIONS};

/// One of several replicas receives each advisory.
const QUEUE_GROUP: &str = "deletions";

#[derive(Deserialize)]
struct Advisory {
    stream: String,
    consumer: Option<String>,
}

/// Counts and logs deletions until `stop`. Deletions while the process is disconnected are missed.
pub async fn watch_deletions(bus: Bus, stop: CancellationToken) {
    let mut subscriptions = Vec::new();
    for subject in DELETIONS {
        match bus.client().queue_subscribe(subject, QUEUE_GROUP.to_owned()).await {
            Ok(subscription) => subscriptions.push(subscription),
            // The client is closing.
            Err(error) => return tracing::warn!(%error, "could not subscribe to deletions of streams and consumers"),
        }
    }
    let mut advisories = select_all(subscriptions);
    loop {
        tokio::select! {
            Some(advisory) = advisories.next() => note(&bus, &advisory),
            () = stop.cancelled() => return,
        }
    }
}

/// Logs, then counts: whoever sees the count finds the line in the log.
fn note(bus: &Bus, advisory: &Message) {
    match serde_json::from_slice(&advisory.payload) {
        Ok(Advisory { stream, consumer: None }) => {
            tracing::warn!(stream, "a stream was deleted from the NATS server");
            bus.meters().deleted("stream");
        }
        Ok(Advisory {
            stream,
            consumer: Some(consumer),
        }) => {
            tracing::warn!(stream, consumer, "a consumer was deleted from the NATS server");
            bus.meters().deleted("consumer");
        }
        Err(error) => tracing::warn!(subject = %advisory.subject, %error, "could not parse an advisory"),
    }
}
