//! Makes the server agree with the table. Only fields that the table sets are compared and changed: an operator's
//! placement, compression or metadata stays.

use async_nats::jetstream::{
    ErrorCode,
    consumer::{FromConsumer, pull},
    context::{CreateStreamErrorKind, GetStreamErrorKind},
    stream::{self, ConsumerErrorKind, PersistenceMode},
};

use super::Provision;
use crate::{Bus, TopologyError};

/// Differing fields. Essential ones change what the services see; the others are sizes.
#[derive(Default)]
struct Drift {
    essential: Vec<&'static str>,
    sizes: Vec<&'static str>,
}

impl Drift {
    fn is_empty(&self) -> bool {
        self.essential.is_empty() && self.sizes.is_empty()
    }

    fn fields(&self) -> String {
        let all: Vec<&str> = self.essential.iter().chain(&self.sizes).copied().collect();
        all.join(", ")
    }

    /// What a process without the right to change does: sizes are the operator's affair, the rest stops the start.
    fn verify(&self, what: &str) -> Result<(), TopologyError> {
        if self.essential.is_empty() {
            tracing::warn!(
                what,
                fields = self.fields(),
                "sizes on the NATS server differ from the settings"
            );
            return Ok(());
        }
        Err(TopologyError::Drift {
            what: what.to_owned(),
            fields: self.fields(),
        })
    }
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
    let what = format!("stream {}", wanted.name);
    let Some(found) = stream_lookup(bus, &wanted.name, &what).await? else {
        if provision == Provision::VerifyOnly {
            return Err(TopologyError::Missing { what });
        }
        match bus.jetstream().create_stream(wanted.clone()).await {
            Ok(_) => {
                tracing::info!(stream = wanted.name, "stream created");
                return Ok(());
            }
            // Another process was faster, with other limits: the next start of either settles them.
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
    take_over!(
        target,
        wanted,
        drift.essential,
        subjects,
        subject_transform,
        retention,
        storage,
        duplicate_window,
        sources
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
    if provision == Provision::VerifyOnly {
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

async fn stream_lookup(bus: &Bus, name: &str, what: &str) -> Result<Option<stream::Config>, TopologyError> {
    match bus.jetstream().get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            _ => Err(TopologyError::Lookup {
                what: what.to_owned(),
                source: error.into(),
            }),
        },
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
    let what = format!("consumer {name} of stream {stream}");
    let Some(found) = consumer_lookup(bus, stream, name, &what).await? else {
        if provision == Provision::VerifyOnly {
            return Err(TopologyError::Missing { what });
        }
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
    take_over!(target, wanted, drift.sizes, ack_wait, max_ack_pending);
    if drift.is_empty() {
        return Ok(());
    }
    if provision == Provision::VerifyOnly {
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

async fn consumer_lookup(
    bus: &Bus,
    stream: &str,
    name: &str,
    what: &str,
) -> Result<Option<pull::Config>, TopologyError> {
    match bus
        .jetstream()
        .get_consumer_from_stream::<pull::Config, _, _>(name, stream)
        .await
    {
        Ok(consumer) => pull::Config::try_from_consumer_config(consumer.cached_info().config.clone())
            .map(Some)
            .map_err(|source| TopologyError::Lookup {
                what: what.to_owned(),
                source,
            }),
        Err(error) => match error.kind() {
            ConsumerErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::CONSUMER_NOT_FOUND => Ok(None),
            _ => Err(TopologyError::Lookup {
                what: what.to_owned(),
                source: error.into(),
            }),
        },
    }
}
