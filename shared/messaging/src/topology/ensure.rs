//! Applies the table to the server. Only fields that the table sets are compared and changed: an operator's placement,
//! compression or metadata stays.

use async_nats::jetstream::{
    ErrorCode,
    consumer::{FromConsumer, PullConsumer, pull},
    context::{CreateStreamErrorKind, GetStreamErrorKind},
    stream::{self, ConsumerErrorKind, PersistenceMode},
};

use super::Provision;
use crate::{Bus, TopologyError};

/// Differing fields. Essential ones change the services' behaviour; the others are sizes, of which those that are
/// smaller than the settings are essential too.
#[derive(Default)]
struct Drift {
    essential: Vec<&'static str>,
    sizes: Vec<&'static str>,
    too_small: Vec<&'static str>,
}

impl Drift {
    fn is_empty(&self) -> bool {
        self.essential.is_empty() && self.sizes.is_empty()
    }

    fn fields(&self) -> String {
        let all: Vec<&str> = self.essential.iter().chain(&self.sizes).copied().collect();
        all.join(", ")
    }

    /// Verification without changes: larger sizes are only logged, all other differences stop the start.
    fn verify(&self, what: &str) -> Result<(), TopologyError> {
        let too_small = self.too_small.iter().map(|field| format!("{field} (too small)"));
        let faults: Vec<String> = self
            .essential
            .iter()
            .map(|field| (*field).to_owned())
            .chain(too_small)
            .collect();
        if faults.is_empty() {
            tracing::warn!(
                what,
                fields = self.fields(),
                "sizes on the NATS server differ from the settings"
            );
            return Ok(());
        }
        Err(TopologyError::Drift {
            what: what.to_owned(),
            fields: faults.join(", "),
        })
    }
}

/// Whether a size is less than the wanted one; no limit counts as the largest.
fn is_less<N: PartialOrd>(found: N, wanted: N, unlimited: impl Fn(&N) -> bool) -> bool {
    !unlimited(&found) && (unlimited(&wanted) || found < wanted)
}

/// Takes over the wanted value of each field and notes those that differed.
macro_rules! take_over {
    ($target:ident, $wanted:ident, $list:expr, $($field:ident),+ $(,)?) => {
        $(if $target.$field != $wanted.$field {
            $target.$field = $wanted.$field.clone();
            $list.push(stringify!($field));
        })+
    };
}

pub(super) async fn stream(bus: &Bus, wanted: stream::Config, provision: Provision) -> Result<(), TopologyError> {
    let what = stream_shown(&wanted.name);
    let found = match (stream_found(bus, &wanted.name).await, provision) {
        (Err(TopologyError::Missing { .. }), Provision::Update) => None,
        (found, _) => Some(found?),
    };
    let Some(found) = found else {
        match bus.jetstream().create_stream(wanted.clone()).await {
            Ok(_) => {
                tracing::info!(stream = wanted.name, "stream created");
                return Ok(());
            }
            // Another process created it first, maybe with other limits: the next start of either applies them.
            Err(error) if is_name_taken(&error.kind()) => return Ok(()),
            Err(error) => {
                return Err(TopologyError::Create {
                    what,
                    source: error.into(),
                });
            }
        }
    };
    if found.persist_mode == Some(PersistenceMode::Async) {
        return Err(TopologyError::AsyncPersist { what });
    }
    let (mut target, mut drift) = (found, Drift::default());
    for (field, is_too_small) in [
        (
            "max_bytes",
            is_less(target.max_bytes, wanted.max_bytes, |bytes| *bytes <= 0),
        ),
        (
            "max_age",
            is_less(target.max_age, wanted.max_age, std::time::Duration::is_zero),
        ),
        (
            "max_message_size",
            is_less(target.max_message_size, wanted.max_message_size, |bytes| *bytes <= 0),
        ),
        ("num_replicas", target.num_replicas < wanted.num_replicas),
    ] {
        if is_too_small {
            drift.too_small.push(field);
        }
    }
    take_over!(
        target,
        wanted,
        drift.essential,
        subjects,
        subject_transform,
        retention,
        storage,
        duplicate_window,
        sources,
        allow_direct,
        republish
    );
    take_over!(
        target,
        wanted,
        drift.essential,
        discard,
        max_messages,
        max_messages_per_subject
    );
    take_over!(
        target,
        wanted,
        drift.sizes,
        num_replicas,
        max_bytes,
        max_age,
        max_message_size,
        description
    );
    if drift.is_empty() {
        return Ok(());
    }
    if provision == Provision::Verify {
        return drift.verify(&what);
    }
    match bus.jetstream().update_stream(target).await {
        Ok(_) => {
            tracing::info!(
                stream = wanted.name,
                fields = drift.fields(),
                "stream changed to the settings"
            );
            Ok(())
        }
        Err(error) => Err(TopologyError::Unchangeable {
            what,
            fields: drift.fields(),
            source: error.into(),
        }),
    }
}

fn stream_shown(name: &str) -> String {
    format!("stream {name}")
}

pub(super) async fn stream_found(bus: &Bus, name: &str) -> Result<stream::Config, TopologyError> {
    let what = stream_shown(name);
    match bus.jetstream().get_stream(name).await {
        Ok(stream) => Ok(stream.cached_info().config.clone()),
        Err(error) => Err(match error.kind() {
            GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                TopologyError::Missing { what }
            }
            _ => TopologyError::Lookup {
                what,
                source: error.into(),
            },
        }),
    }
}

fn is_name_taken(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

pub(super) async fn consumer(
    bus: &Bus,
    stream: &str,
    name: &str,
    wanted: pull::Config,
    provision: Provision,
) -> Result<(), TopologyError> {
    let what = consumer_shown(stream, name);
    let found = match (consumer_found(bus, stream, name).await, provision) {
        (Err(TopologyError::Missing { .. }), Provision::Update) => None,
        (found, _) => Some(found?.cached_info().config.clone()),
    };
    let Some(found) = found else {
        return match bus.jetstream().create_consumer_on_stream(wanted, stream).await {
            Ok(_) => {
                tracing::info!(stream, consumer = name, "consumer created");
                Ok(())
            }
            Err(error) => Err(TopologyError::Create {
                what,
                source: error.into(),
            }),
        };
    };
    let found = pull::Config::try_from_consumer_config(found).map_err(|source| TopologyError::Lookup {
        what: what.clone(),
        source,
    })?;
    let (mut target, mut drift) = (found, Drift::default());
    take_over!(
        target,
        wanted,
        drift.essential,
        filter_subject,
        filter_subjects,
        deliver_policy,
        ack_policy,
        max_deliver
    );
    // The consumer loop extends deliveries by the interval of the settings, not by the server's.
    if target.ack_wait < wanted.ack_wait {
        drift.too_small.push("ack_wait");
    }
    take_over!(target, wanted, drift.sizes, ack_wait, max_ack_pending);
    if drift.is_empty() {
        return Ok(());
    }
    if provision == Provision::Verify {
        return drift.verify(&what);
    }
    match bus.jetstream().update_consumer_on_stream(target, stream).await {
        Ok(_) => {
            tracing::info!(
                stream,
                consumer = name,
                fields = drift.fields(),
                "consumer changed to the settings"
            );
            Ok(())
        }
        Err(error) => Err(TopologyError::Unchangeable {
            what,
            fields: drift.fields(),
            source: error.into(),
        }),
    }
}

fn consumer_shown(stream: &str, name: &str) -> String {
    format!("consumer {name} of stream {stream}")
}

pub(super) async fn consumer_found(bus: &Bus, stream: &str, name: &str) -> Result<PullConsumer, TopologyError> {
    let found = bus.jetstream().get_consumer_from_stream(name, stream).await;
    found.map_err(|error| {
        let what = consumer_shown(stream, name);
        match error.kind() {
            ConsumerErrorKind::JetStream(answer)
                if matches!(
                    answer.error_code(),
                    ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
                ) =>
            {
                TopologyError::Missing { what }
            }
            _ => TopologyError::Lookup {
                what,
                source: error.into(),
            },
        }
    })
}
