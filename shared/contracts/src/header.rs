//! Headers: their names, the trace context, and the map that holds them until the broker's own type does.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        $($(#[$doc])* pub const $name: &str = $text;)+

        /// Every name of this module.
        pub const NAMES: [&str; [$($text),+].len()] = [$($name),+];
    };
}

names! {
    MESSAGE_ID = "Nats-Msg-Id";
    TRACEPARENT = "traceparent";
    TRACESTATE = "tracestate";
    /// Id of the message that caused this one.
    CAUSE = "Signalbox-Cause";
    /// The number of wake-ups of agents by agents that led to this message.
    HOPS = "Signalbox-Hops";
    /// Id of the dead letter from which this message was redriven.
    REDRIVE = "Signalbox-Redrive";
    /// Id of the outbox row that is kept until this message was read: its reader deletes the row in its own transaction.
    RECEIPT = "Signalbox-Receipt";

    /// Proof that a service of this installation published the message on this subject: `v1.{key id}.{hex}`
    /// (`messaging::envelope`).
    SIGNATURE = "Signalbox-Signature";
    /// On a dead letter and its redrive: a service has verified the sender in the payload. Set by the service that wrote
    /// the letter; a publisher's header of this name is removed.
    VOUCHED = "Signalbox-Vouched";

    CE_SPECVERSION = "ce-specversion";
    CE_ID = "ce-id";
    CE_TYPE = "ce-type";
    CE_SOURCE = "ce-source";
    CE_SUBJECT = "ce-subject";
    CE_TIME = "ce-time";
}

/// A name in the form that [`Headers`] stores.
fn kept(name: &str) -> Cow<'static, str> {
    match NAMES.into_iter().find(|known| *known == name) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(name.to_owned()),
    }
}

/// Longer header values are not read: publishers may write anything.
pub const HEADER_BYTES_MAX: usize = 1024;

/// Header names and values, one value a name, sorted by name. The names above are not copied: every message has a dozen
/// of them.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<Cow<'static, str>, String>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| value.len() <= HEADER_BYTES_MAX)
    }

    /// Sets a header. An empty value is left out, since some readers would take it for a value.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.0.insert(kept(name), value);
        }
    }

    /// The number of hops; a header that is not a number counts as zero, as on a publisher's first message.
    pub fn hops(&self) -> u16 {
        self.get(HOPS).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    pub fn trace(&self) -> TraceContext {
        TraceContext {
            traceparent: self.get(TRACEPARENT).map(str::to_owned),
            tracestate: self.get(TRACESTATE).map(str::to_owned),
        }
    }
}

/// W3C trace context, as text: stored with rows, sent in headers.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceContext {
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}
