//! Applies the table to the server. Only fields that the table sets are compared and changed: an operator's placement,
//! compression or metadata stays.

use async_nats::jetstream::{
    ErrorCode,
    consumer::{FromConsumer, PullConsumer, pull},
    context::{CreateStreamErrorKind, GetStreamErrorKind},
    stream::{self, ConsumerErrorKind, PersistenceMode},
};

use super::{Durable, Provision};
use crate::{Bus, TopologyError, error::Cause};

/// The differences of one stream or consumer.
struct Drift {
    what: String,
    /// Fields that differ.
    fields: Vec<&'static str>,
    /// Those that change the services' behaviour, and sizes that are smaller than the settings: they stop a start.
    faults: Vec<String>,
}

impl Drift {
    fn of(what: String) -> Drift {
        Drift {
            what,
            fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn essential(&mut self, field: &'static str) {
        self.fields.push(field);
        self.faults.push(field.to_owned());
    }

    fn size(&mut self, field: &'static str) {
        self.fields.push(field);
    }

    fn too_small(&mut self, field: &'static str) {
        self.faults.push(format!("{field} (too small)"));
    }

    /// Applies the change. Without the right to change, larger sizes are only logged, and all other differences stop
    /// the start.
    async fn settle<T, E: Into<Cause>>(
        self,
        provision: Provision,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<(), TopologyError> {
        let (what, fields) = (self.what, self.fields.join(", "));
        match provision {
            _ if fields.is_empty() => {}
            Provision::Verify if self.faults.is_empty() => {
                tracing::warn!(what, fields, "sizes on the NATS server differ from the settings");
            }
            Provision::Verify => {
                let fields = self.faults.join(", ");
                return Err(TopologyError::Drift { what, fields });
            }
            Provision::Update => match change.await {
                Ok(_) => tracing::info!(what, fields, "stream or consumer changed to the settings"),
                Err(error) => {
                    return Err(TopologyError::Unchangeable {
                        what,
                        fields,
                        source: error.into(),
                    });
                }
            },
        }
        Ok(())
    }
}

/// Takes over the wanted value of each field and notes those that differed.
macro_rules! take_over {
    ($target:ident, $wanted:ident, $note:expr, $($field:ident),+ $(,)?) => {
        $(if $target.$field != $wanted.$field {
            $target.$field = $wanted.$field.clone();
            $note(stringify!($field));
        })+
    };
}

pub(super) async fn stream(bus: &Bus, wanted: stream::Config, provision: Provision) -> Result<(), TopologyError> {
    let what = stream_shown(&wanted.name);
    let mut target = match stream_found(bus, &wanted.name).await {
        Err(TopologyError::Missing { .. }) if provision == Provision::Update => {
            return match bus.jetstream().create_stream(wanted).await {
                Ok(_) => {
                    tracing::info!(what, "stream created");
                    Ok(())
                }
                // Another process created it first, maybe with other limits: the next start of either applies them.
                Err(error) if is_name_taken(&error.kind()) => Ok(()),
                Err(error) => Err(TopologyError::Create {
                    what,
                    source: error.into(),
                }),
            };
        }
        found => found?,
    };
    if target.persist_mode == Some(PersistenceMode::Async) {
        return Err(TopologyError::AsyncPersist { what });
    }
    let mut drift = Drift::of(what);
    take_over!(
        target,
        wanted,
        |field| drift.essential(field),
        subjects,
        subject_transform,
        retention,
        storage,
        duplicate_window,
        sources,
        allow_direct,
        republish,
        discard,
        max_messages,
        max_messages_per_subject
    );
    for ((field, found), (_, wanted)) in sizes(&target).into_iter().zip(sizes(&wanted)) {
        if found < wanted {
            drift.too_small(field);
        }
    }
    take_over!(
        target,
        wanted,
        |field| drift.size(field),
        num_replicas,
        max_bytes,
        max_age,
        max_message_size,
        description
    );
    // Boxed: the future is large.
    let change = Box::pin(bus.jetstream().update_stream(target));
    drift.settle(provision, change).await
}

/// The sizes of a stream, comparable: no limit is the largest.
fn sizes(config: &stream::Config) -> [(&'static str, i128); 4] {
    let limit = |size: i128| if size <= 0 { i128::MAX } else { size };
    [
        ("max_bytes", limit(config.max_bytes.into())),
        ("max_age", limit(config.max_age.as_nanos() as i128)),
        ("max_message_size", limit(config.max_message_size.into())),
        ("num_replicas", config.num_replicas as i128),
    ]
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
    durable: &Durable,
    wanted: pull::Config,
    provision: Provision,
) -> Result<(), TopologyError> {
    let (what, stream) = (consumer_shown(bus, durable), durable.stream.name(bus.root()));
    let found = match consumer_found(bus, durable).await {
        Err(TopologyError::Missing { .. }) if provision == Provision::Update => {
            return match bus.jetstream().create_consumer_on_stream(wanted, stream).await {
                Ok(_) => {
                    tracing::info!(what, "consumer created");
                    Ok(())
                }
                Err(error) => Err(TopologyError::Create {
                    what,
                    source: error.into(),
                }),
            };
        }
        found => found?.cached_info().config.clone(),
    };
    let mut target = pull::Config::try_from_consumer_config(found).map_err(|source| TopologyError::Lookup {
        what: what.clone(),
        source,
    })?;
    let mut drift = Drift::of(what);
    take_over!(
        target,
        wanted,
        |field| drift.essential(field),
        filter_subject,
        filter_subjects,
        deliver_policy,
        ack_policy,
        max_deliver
    );
    // The consumer loop extends deliveries by the interval of the settings, not by the server's.
    if target.ack_wait < wanted.ack_wait {
        drift.too_small("ack_wait");
    }
    take_over!(target, wanted, |field| drift.size(field), ack_wait, max_ack_pending);
    let change = Box::pin(bus.jetstream().update_consumer_on_stream(target, stream));
    drift.settle(provision, change).await
}

fn consumer_shown(bus: &Bus, durable: &Durable) -> String {
    format!(
        "consumer {} of stream {}",
        durable.name(),
        durable.stream.name(bus.root())
    )
}

/// A durable consumer as the server has it.
pub(crate) async fn consumer_found(bus: &Bus, durable: &Durable) -> Result<PullConsumer, TopologyError> {
    let found = bus
        .jetstream()
        .get_consumer_from_stream(durable.name(), durable.stream.name(bus.root()));
    found.await.map_err(|error| {
        let what = consumer_shown(bus, durable);
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
