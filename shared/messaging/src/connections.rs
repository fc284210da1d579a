//! The connections of an API key, on every server: how many there are, and their end.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::{
    Bus,
    users::{CONNECTIONS, DISCONNECT, outside_account},
};

/// Every server answers at once; how many servers there are is not known.
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);
/// Connections that one server names.
const LISTED_MAX: usize = 1_024;

#[derive(Deserialize)]
struct Listed {
    server: Server,
    data: Connections,
}

#[derive(Deserialize)]
struct Server {
    id: String,
}

#[derive(Deserialize)]
struct Connections {
    connections: Vec<Connection>,
}

#[derive(Deserialize)]
struct Connection {
    cid: u64,
}

#[derive(Deserialize)]
struct Ended {
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    description: String,
}

impl Ended {
    /// The client may have gone by itself.
    fn is_over(&self) -> bool {
        let gone = |error: &Failure| error.description.starts_with("no such client");
        self.error.as_ref().is_none_or(gone)
    }
}

/// The open connections of this name ([`crate::callout::Admitted`]); `None` if no server answers: the rights are missing.
pub async fn connections_count(bus: &Bus, name: &str) -> Option<usize> {
    let listed = listed(bus, name).await;
    let answered = !listed.is_empty();
    answered.then(|| listed.iter().map(|listed| listed.data.connections.len()).sum())
}

/// Ends the connections of this name. Whether all are over; `false` too if no server answers.
pub async fn disconnect(bus: &Bus, name: &str) -> bool {
    let listed = listed(bus, name).await;
    let mut is_done = !listed.is_empty();
    for Listed { server, data } in listed {
        is_done &= data.connections.len() < LISTED_MAX;
        for Connection { cid } in data.connections {
            let subject = format!("{DISCONNECT}.{}", server.id);
            let answers: Vec<Ended> = ask(bus, subject, json!({"cid": cid}).to_string().into(), 1).await;
            is_done &= answers.first().is_some_and(Ended::is_over);
        }
    }
    is_done
}

async fn listed(bus: &Bus, name: &str) -> Vec<Listed> {
    let account = outside_account(bus.root());
    let query = json!({"acc": account, "user": name, "auth": true, "limit": LISTED_MAX});
    ask(bus, CONNECTIONS.to_owned(), query.to_string().into(), usize::MAX).await
}

/// The answers that come in time, at most so many. An answer that cannot be read counts as none.
async fn ask<T: DeserializeOwned>(bus: &Bus, subject: String, query: Bytes, answers_max: usize) -> Vec<T> {
    let client = bus.client();
    let (inbox, mut found) = (client.new_inbox(), Vec::new());
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else {
        return found;
    };
    if client.publish_with_reply(subject, inbox, query).await.is_err() {
        return found;
    }
    let deadline = Instant::now() + ANSWERS_WITHIN;
    while found.len() < answers_max {
        let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await else {
            break;
        };
        match serde_json::from_slice(&answer.payload) {
            Ok(answer) => found.push(answer),
            Err(error) => tracing::debug!(%error, "an answer of the NATS server could not be read"),
        }
    }
    found
}
