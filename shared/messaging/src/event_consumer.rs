//! Event consumers of accounts: durable pull consumers on the stream of events, each with the events of one account, made
//! for programs of the account. The orchestrator makes and removes them; the holders of the account's keys read.

use std::time::Duration;

use async_nats::jetstream::{
    ErrorCode,
    consumer::{AckPolicy, DeliverPolicy, pull},
    stream::ConsumerErrorKind,
};
use contracts::{Root, Stream};
use domain::AccountId;

use crate::{Bus, TopologyError};

/// The server removes a consumer that nobody reads from for this long.
const UNUSED_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Events that were delivered and not acknowledged.
const ACK_PENDING_MAX: i64 = 1_000;

/// The server's name of it. Neither part has an underscore, and no service is called `outside`.
pub fn stored_name(account: &AccountId, name: &str) -> String {
    format!("outside_{account}_{name}")
}

/// The events that it delivers.
pub fn filter(root: &Root, account: &AccountId) -> String {
    format!("{root}.event.{account}.>")
}

/// Makes it, or makes it again where the server has removed it. An existing one stays where it is.
pub async fn event_consumer_make(bus: &Bus, account: &AccountId, name: &str) -> Result<(), TopologyError> {
    let stored = stored_name(account, name);
    let config = pull::Config {
        durable_name: Some(stored.clone()),
        name: Some(stored.clone()),
        filter_subject: filter(bus.root(), account),
        deliver_policy: DeliverPolicy::New,
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(30),
        max_ack_pending: ACK_PENDING_MAX,
        inactive_threshold: UNUSED_MAX,
        ..pull::Config::default()
    };
    let stream = Stream::Event.name(bus.root());
    match bus.jetstream().create_consumer_on_stream(config, stream).await {
        Ok(_) => Ok(()),
        Err(error) => Err(TopologyError::Create {
            what: format!("consumer {stored}"),
            source: error.into(),
        }),
    }
}

/// Removes it; whether it was there or not.
pub async fn event_consumer_remove(bus: &Bus, account: &AccountId, name: &str) -> Result<(), TopologyError> {
    let stored = stored_name(account, name);
    let stream = Stream::Event.name(bus.root());
    match bus.jetstream().delete_consumer_from_stream(&stored, stream).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ConsumerErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::CONSUMER_NOT_FOUND) => {
            Ok(())
        }
        Err(error) => Err(TopologyError::Lookup {
            what: format!("consumer {stored}"),
            source: error.into(),
        }),
    }
}
