//! Event consumers: durable consumers on the broker's stream of events, for programs of an account that read every event.

use domain::EventConsumerName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An account has at most 8.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEventConsumer {
    /// 1-32 characters of a-z, 0-9 and -. Making one of an existing name makes it again where the broker has removed it.
    pub name: EventConsumerName,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventConsumer {
    pub name: EventConsumerName,
    /// The stream that it reads, on NATS.
    pub stream: String,
    /// Its name there. Connect to NATS with a key of the account, after it is made, and pull from it.
    pub consumer: String,
    /// The subjects of the events that it delivers, from the time when it was made.
    pub filter: String,
}
