//! The connections of an API key, on every server: how many there are, and their end.

use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;
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
/// How often the connections are listed and ended until none is left.
const ROUNDS_MAX: usize = 3;

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

/// The open connections of this name ([`crate::callout::Admitted`]); `None` if no server answers: the rights are missing.
pub async fn connections_count(bus: &Bus, name: &str) -> Option<usize> {
    let listed = listed(bus, name).await;
    let answered = !listed.is_empty();
    answered.then(|| listed.iter().map(|listed| listed.data.connections.len()).sum())
}

/// Ends the connections of this name, those that open meanwhile included. Whether none is left; `false` too if no server
/// answers.
pub async fn disconnect(bus: &Bus, name: &str) -> bool {
    for _ in 0..ROUNDS_MAX {
        let listed = listed(bus, name).await;
        if listed.iter().all(|listed| listed.data.connections.is_empty()) {
            return !listed.is_empty();
        }
        for Listed { server, data } in listed {
            for Connection { cid } in data.connections {
                let subject = format!("{DISCONNECT}.{}", server.id);
                let kick = json!({"cid": cid}).to_string();
                // The server does nothing for a request without a reply subject; the next list has the answer.
                let inbox = bus.client().new_inbox();
                if let Err(error) = bus.client().publish_with_reply(subject, inbox, kick.into()).await {
                    tracing::debug!(%error, "a connection could not be ended");
                }
            }
        }
    }
    false
}

/// What the servers answer in time. An answer that cannot be read counts as none.
async fn listed(bus: &Bus, name: &str) -> Vec<Listed> {
    let account = outside_account(bus.root());
    let query = json!({"acc": account, "user": name, "auth": true, "limit": LISTED_MAX}).to_string();
    let client = bus.client();
    let (inbox, mut found) = (client.new_inbox(), Vec::new());
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else {
        return found;
    };
    if client
        .publish_with_reply(CONNECTIONS, inbox, query.into())
        .await
        .is_err()
    {
        return found;
    }
    let deadline = Instant::now() + ANSWERS_WITHIN;
    while let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await {
        match serde_json::from_slice(&answer.payload) {
            Ok(answer) => found.push(answer),
            Err(error) => tracing::debug!(%error, "an answer of the NATS server could not be read"),
        }
    }
    found
}
