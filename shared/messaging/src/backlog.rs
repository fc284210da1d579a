//! The backlog of consumers and the fill level of streams, polled for gauges and for the doctor. A few requests, each
//! answered from the server's memory. A user sees its own consumers and streams only.

use async_nats::jetstream;

use crate::{Bus, Durable, ReadError, Stream, User, streams_read};

/// The backlog of one durable consumer, over all replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerBacklog {
    pub durable: &'static Durable,
    /// Never delivered yet.
    pub pending: u64,
    /// Delivered and not settled yet.
    pub unsettled: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamFill {
    pub stream: Stream,
    pub bytes: u64,
    /// None: the operator has set no limit.
    pub bytes_max: Option<u64>,
}

/// The backlogs of the consumers that a user reads from.
pub async fn consumer_backlogs(bus: &Bus, user: User) -> Result<Vec<ConsumerBacklog>, ReadError> {
    let mut backlogs = Vec::with_capacity(Durable::read_by(user).len());
    for durable in Durable::read_by(user) {
        let stream = open(bus, durable.stream).await?;
        let info = stream.consumer_info(durable.name()).await;
        let info = info.map_err(|error| ReadError::Lookup(error.into()))?;
        backlogs.push(ConsumerBacklog {
            durable,
            pending: info.num_pending,
            unsettled: u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX),
        });
    }
    Ok(backlogs)
}

/// The fill levels of the streams that a user reads from.
pub async fn stream_fills(bus: &Bus, user: User) -> Result<Vec<StreamFill>, ReadError> {
    let mut fills = Vec::with_capacity(streams_read(user).len());
    for stream in streams_read(user) {
        let info = open(bus, stream).await?.get_info().await;
        let info = info.map_err(|error| ReadError::Lookup(error.into()))?;
        fills.push(StreamFill {
            stream,
            bytes: info.state.bytes,
            bytes_max: u64::try_from(info.config.max_bytes).ok(),
        });
    }
    Ok(fills)
}

async fn open(bus: &Bus, stream: Stream) -> Result<jetstream::stream::Stream<()>, ReadError> {
    let stream = bus.jetstream().get_stream_no_info(stream.name(bus.root())).await;
    stream.map_err(|error| ReadError::Lookup(error.into()))
}
