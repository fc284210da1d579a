//! A publisher over plain NATS, as the user that may publish notifications and subscribe to events and dead letters.

use std::time::Duration;

use async_nats::{ConnectOptions, Subscriber, jetstream};
use futures::StreamExt;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::wait::eventually;

/// Far longer than any step takes.
const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Bus {
    client: async_nats::Client,
    stream: jetstream::Context,
}

impl Bus {
    /// `nats://user:password@host:port`.
    pub(crate) async fn connect(url: &str) -> Bus {
        let (credentials, server) = url.trim_start_matches("nats://").split_once('@').expect("a user");
        let (user, password) = credentials.split_once(':').expect("a password");
        let options = ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
        // The user's replies may arrive on its own prefix only.
        let options = options.custom_inbox_prefix(format!("_I.{user}"));
        // A broker that was just restarted may not listen yet.
        let client = eventually("the broker lets a publisher in", || async {
            options.clone().connect(server).await.ok()
        })
        .await;
        let stream = jetstream::new(client.clone());
        Bus { client, stream }
    }

    /// Returns when the broker has stored the message. Retries while the broker is unavailable: the message has an id.
    pub(crate) async fn publish(&self, account: &str, task: &str, notification: &Value) {
        let subject = format!("signalbox.notification.{account}.{task}");
        let payload = notification.to_string();
        timeout(LIMIT, async {
            loop {
                if let Ok(stored) = self.stream.publish(subject.clone(), payload.clone().into()).await
                    && stored.await.is_ok()
                {
                    return;
                }
                sleep(POLL).await;
            }
        })
        .await
        .expect("the broker stores a notification");
    }

    /// Receives messages from the time of its return.
    pub(crate) async fn listen(&self, subject: &str) -> Subscriber {
        let listener = self.client.subscribe(subject.to_owned()).await.unwrap();
        self.client.flush().await.unwrap();
        listener
    }
}

/// The next message, as JSON.
pub(crate) async fn next(listener: &mut Subscriber) -> Value {
    let heard = timeout(LIMIT, listener.next()).await.expect("something is said");
    serde_json::from_slice(&heard.expect("the connection stays").payload).unwrap_or_default()
}
