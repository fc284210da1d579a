//! Subscribes to every message on the bus as the operator, and records secrets in headers and payloads. Stores no message, and
//! misses messages that are published while it is disconnected.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context;
use futures::StreamExt;
use tokio::task::JoinHandle;

use crate::{clients::publisher, records::Heard};

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
                notes
                    .secrets
                    .extend(found.map(|(name, _)| (name.clone(), message.subject.to_string())));
            }
        });
        Ok(Listener { heard, worker })
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.worker.abort();
    }
}
