//! Hears a message on core NATS: every replica of a service, where a consumer delivers a stored message to one of them. May miss
//! messages while the process is disconnected: for hints only.

use async_nats::Message;
use contracts::{
    addressed,
    message::{Addressed, Hop, hops},
};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::{Bus, incoming::read_headers};

/// Passes on each message of this kind that a service of this installation signed, until `stop`.
pub async fn hear<M: Addressed>(bus: Bus, heard: impl Fn(M) + Send, stop: CancellationToken) {
    let hop: &Hop = hops()
        .find(|hop| hop.kind == M::KIND)
        .expect("every message is declared");
    let subject = format!("{}.{}", bus.root(), hop.pattern());
    let mut messages = match bus.client().subscribe(subject).await {
        Ok(messages) => messages,
        // The client is closing.
        Err(error) => return tracing::warn!(%error, kind = M::KIND, "could not subscribe to hints"),
    };
    loop {
        tokio::select! {
            // A message that is not received stays in the subscription.
            message = messages.next() => match message {
                Some(message) => read(&bus, &message).into_iter().for_each(&heard),
                None => return,
            },
            () = stop.cancelled() => return,
        }
    }
}

fn read<M: Addressed>(bus: &Bus, message: &Message) -> Option<M> {
    let headers = message.headers.as_ref().map(read_headers).unwrap_or_default();
    bus.is_signed(&message.subject, &headers, &message.payload)
        .then(|| addressed::read::<M>(bus.root(), &message.subject, &message.payload).ok())
        .flatten()
}
