//! Reading a partition from an offset: where it starts, what it waits for, and how it detects errors.

use std::time::Duration;

use messaging::{
    Incoming, PartitionReader, ReadError, Stream, StreamOffset, TopologyLimits, first_unread,
    notification_stream_identity, purge_consumed, topology,
};
use time::OffsetDateTime;

use crate::support::{
    Broker, broker, message, next_batch, publish, publish_raw, raw, stream_info, until, updating, within,
};

const QUIET: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(20);
const SUBJECT: &str = "signalbox.notification.acme.t-1";

/// Publishes numbered notifications of one task and returns its partition.
async fn publish_numbers(broker: &Broker, numbers: std::ops::Range<u64>) -> u16 {
    let messages: Vec<_> = numbers
        .map(|number| message(SUBJECT, &format!("n-{number}"), number.to_string()))
        .collect();
    publish(&broker.bus, &messages).await;
    let last = raw(&broker.bus)
        .get_stream("SIGNALBOX_NOTIFICATION")
        .await
        .unwrap()
        .get_last_raw_message_by_subject("signalbox.partition.*.acme.t-1")
        .await
        .unwrap();
    last.subject.split('.').nth(2).unwrap().parse().unwrap()
}

async fn open(broker: &Broker, partition: u16, after: StreamOffset) -> PartitionReader {
    PartitionReader::open(&broker.bus, partition, after).await.unwrap()
}

async fn read_exactly(reader: &mut PartitionReader, count: usize) -> Vec<Incoming> {
    let mut all = Vec::new();
    while all.len() < count {
        let batch = within("a batch", next_batch(reader, count - all.len(), LONG))
            .await
            .unwrap();
        assert!(!batch.is_empty());
        all.extend(batch);
    }
    all
}

fn numbers(batch: &[Incoming]) -> Vec<u64> {
    batch
        .iter()
        .map(|one| std::str::from_utf8(&one.payload).unwrap().parse().unwrap())
        .collect()
}

fn place_of(incoming: &Incoming) -> StreamOffset {
    StreamOffset {
        sequence: incoming.stream_sequence,
        published: Some(incoming.published),
    }
}

/// Reads on until the reader reports an error.
async fn read_error(reader: &mut PartitionReader) -> ReadError {
    within("an error", async {
        loop {
            if let Err(error) = next_batch(reader, 100, QUIET).await {
                return error;
            }
        }
    })
    .await
}

#[tokio::test]
async fn reading_goes_on_behind_the_place() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let first = read_exactly(&mut reader, 4).await;
    assert_eq!(numbers(&first), [0, 1, 2, 3]);
    assert_eq!(first[0].deliveries, 1);
    assert_eq!(first[0].id(), Some("n-0"));
    drop(reader);

    let mut reader = open(&broker, partition, place_of(&first[3])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 6).await), [4, 5, 6, 7, 8, 9]);
    // A message that arrives during a wait is returned at once.
    publish_numbers(&broker, 10..11).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 1).await), [10]);
}

#[tokio::test]
async fn a_batch_holds_the_available_messages_up_to_the_limit() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..2000).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let mut read = 0;
    while read < 2000 {
        let batch = next_batch(&mut reader, 10, LONG).await.unwrap();
        assert!((1..=10).contains(&batch.len()));
        assert_eq!(numbers(&batch), (read..read + batch.len() as u64).collect::<Vec<_>>());
        read += batch.len() as u64;
    }
}

#[tokio::test]
async fn silence_is_an_empty_batch() {
    let broker = broker().await;
    let mut reader = open(&broker, 0, StreamOffset::default()).await;
    assert_eq!(next_batch(&mut reader, 10, QUIET).await.unwrap(), []);
    assert_eq!(next_batch(&mut reader, 10, QUIET).await.unwrap(), []);
}

/// A reader leaves no state at the server, and works without announcements.
#[tokio::test]
async fn an_unannounced_message_is_found_after_the_timeout() {
    let broker = broker().await;
    let mut config = stream_info(&broker.bus, Stream::Notification).await.config;
    config.republish = None;
    raw(&broker.bus).update_stream(config).await.unwrap();
    let partition = publish_numbers(&broker, 0..1).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    read_exactly(&mut reader, 1).await;
    publish_numbers(&broker, 1..3).await;
    let mut read = Vec::new();
    while read.len() < 2 {
        read.extend(within("a look", next_batch(&mut reader, 10, QUIET)).await.unwrap());
    }
    assert_eq!(numbers(&read), [1, 2]);
    let info = stream_info(&broker.bus, Stream::Notification).await;
    assert_eq!(info.state.consumer_count, 0);
}

/// A publisher's values of the server's headers have no effect, at any position in a read.
#[tokio::test]
async fn headers_of_the_server_cannot_be_forged() {
    let broker = broker().await;
    let jetstream = raw(&broker.bus);
    let hostile = [
        ("Nats-Sequence", "1000000"),
        ("Nats-Sequence", "0"),
        ("Nats-Subject", "signalbox.partition.0.victim.t"),
        ("Nats-Stream", "SIGNALBOX_EVENT"),
        ("Nats-Time-Stamp", "1970-01-01T00:00:00Z"),
        ("Nats-Num-Pending", "0"),
        ("Nats-Last-Sequence", "7"),
        ("Nats-UpTo-Sequence", "7"),
        ("Status", "204"),
        ("Description", "EOB"),
    ];
    for (name, value) in hostile {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(name, value);
        headers.insert("X-Own", "kept");
        let sent = jetstream
            .publish_with_headers(SUBJECT, headers, "x".into())
            .await
            .unwrap();
        sent.await.unwrap();
    }
    // A status in a message's headers is what ends a batch.
    for line in ["NATS/1.0 204 EOB", "NATS/1.0 404 Message Not Found", "NATS/1.0 503"] {
        publish_raw(&broker, SUBJECT, line.as_bytes()).await;
    }
    let count = u64::try_from(hostile.len()).unwrap() + 3;
    until("all of them are stored", async || {
        let state = stream_info(&broker.bus, Stream::Notification).await.state;
        (state.messages == count).then_some(())
    })
    .await;
    let partition = publish_numbers(&broker, 0..1).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let read = read_exactly(&mut reader, usize::try_from(count).unwrap() + 1).await;
    let sequences: Vec<u64> = read.iter().map(|one| one.stream_sequence).collect();
    assert_eq!(sequences, (1..=count + 1).collect::<Vec<_>>());
    for (one, (name, _)) in read.iter().zip(hostile) {
        assert_eq!(one.subject, format!("signalbox.partition.{partition}.acme.t-1"));
        assert!(one.published.year() > 2000, "{one:?}");
        assert_eq!(one.headers.get("X-Own"), Some("kept"));
        let is_the_servers = name.starts_with("Nats-") && name != "Nats-UpTo-Sequence";
        assert_eq!(one.headers.get(name).is_none(), is_the_servers, "{name}");
    }
    // Reading one message after the other gives the same, each from the offset before it.
    for pair in read.windows(2) {
        let mut reader = open(&broker, partition, place_of(&pair[0])).await;
        assert_eq!(read_exactly(&mut reader, 1).await[0], pair[1]);
    }
}

/// Headers that the client library cannot parse break each connection that delivers them. Such a message is a
/// notification like any other, without headers; later messages are read as usual, and the connection stays.
#[tokio::test]
async fn unreadable_headers_block_no_later_message() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..2).await;
    let lines = [
        &b"NATS/1.0 abc"[..],
        b"NATS/1.0\r\nno colon",
        b"NATS/1.0\r\nname with blanks: x",
        b"NATS/1.0\r\nX-Bytes: \xff",
    ];
    for (number, line) in (3..).zip(lines) {
        publish_raw(&broker, SUBJECT, line).await;
        until("it is stored", async || {
            let state = stream_info(&broker.bus, Stream::Notification).await.state;
            (state.messages == number).then_some(())
        })
        .await;
    }
    let read = async |after: StreamOffset, count: usize| {
        until("it is read", async || {
            let mut reader = PartitionReader::open(&broker.bus, partition, after).await.ok()?;
            let mut read = Vec::new();
            while read.len() < count {
                read.extend(next_batch(&mut reader, count - read.len(), QUIET).await.ok()?);
            }
            Some((reader, read))
        })
        .await
    };
    let (mut reader, all) = read(StreamOffset::default(), 6).await;
    let sequences: Vec<u64> = all.iter().map(|one| one.stream_sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6]);
    assert!(all[2..].iter().all(|one| one.payload == "x" && one.id().is_none()));
    assert_eq!(all[1].id(), Some("n-1"));
    // It is the last one; the check for further messages does not fetch it.
    let connections = broker.bus.connections_made();
    for _ in 0..3 {
        assert_eq!(next_batch(&mut reader, 10, QUIET).await.unwrap(), []);
    }
    assert_eq!(broker.bus.connections_made(), connections);
    publish_numbers(&broker, 2..3).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 1).await), [2]);
    // The check for unread messages works, and so does a reader that starts between them.
    let first = first_unread(&broker.bus, partition, 2).await.unwrap();
    assert_eq!(first.map(|first| first.sequence), Some(3));
    let (_, rest) = read(place_of(&all[3]), 3).await;
    assert_eq!(rest[2].stream_sequence, 7);
}

#[tokio::test]
async fn a_recreated_stream_ends_the_reader_whatever_its_size() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..3).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    read_exactly(&mut reader, 3).await;
    raw(&broker.bus).delete_stream("SIGNALBOX_NOTIFICATION").await.unwrap();
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    publish_numbers(&broker, 0..10).await;
    let error = read_error(&mut reader).await;
    assert!(matches!(error, ReadError::Rewritten { .. }), "{error:?}");
}

#[tokio::test]
async fn a_missing_stream_is_named() {
    let broker = broker().await;
    let mut reader = open(&broker, 0, StreamOffset::default()).await;
    raw(&broker.bus).delete_stream("SIGNALBOX_NOTIFICATION").await.unwrap();
    let error = read_error(&mut reader).await;
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        cause.contains("SIGNALBOX_NOTIFICATION is missing") && cause.contains("signalbox migrate"),
        "{cause}"
    );
}

/// No message is skipped, whichever replies and announcements are lost; and no reader has to be reopened for it.
#[tokio::test]
async fn a_killed_server_costs_the_reader_nothing() {
    let mut broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let identity = notification_stream_identity(&broker.bus).await.unwrap();
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    read_exactly(&mut reader, 5).await;
    broker.server.kill().await.unwrap();
    broker.server.restart().await.unwrap();
    until("connected again", async || broker.bus.is_connected().then_some(())).await;
    assert_eq!(notification_stream_identity(&broker.bus).await.unwrap(), identity);
    publish_numbers(&broker, 10..12).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 7).await), [5, 6, 7, 8, 9, 10, 11]);
}

/// A read has a limit in bytes, and each read makes progress for messages of any size.
#[tokio::test]
async fn large_messages_come_a_few_at_a_time() {
    let broker = broker().await;
    let body = vec![b'x'; 900 * 1024];
    let messages: Vec<_> = (0..12)
        .map(|number| message(SUBJECT, &format!("n-{number}"), body.clone()))
        .collect();
    publish(&broker.bus, &messages).await;
    let partition = publish_numbers(&broker, 12..13).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let first = next_batch(&mut reader, 100, LONG).await.unwrap();
    assert!((1..=5).contains(&first.len()), "{}", first.len());
    assert_eq!(
        read_exactly(&mut reader, 13 - first.len()).await.len(),
        13 - first.len()
    );
}

#[tokio::test]
async fn a_wiped_store_is_another_stream() {
    let mut broker = broker().await;
    let partition = publish_numbers(&broker, 0..5).await;
    let before = notification_stream_identity(&broker.bus).await.unwrap();
    assert_eq!((before.first_sequence, before.last_sequence), (1, 5));

    broker.server.wipe_store().await.unwrap();
    broker.server.restart().await.unwrap();
    until("connected again", async || broker.bus.is_connected().then_some(())).await;
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    let after = notification_stream_identity(&broker.bus).await.unwrap();
    assert_ne!(after.created, before.created);
    assert_eq!(after.last_sequence, 0);

    let place = StreamOffset {
        sequence: 5,
        published: None,
    };
    let error = PartitionReader::open(&broker.bus, partition, place)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(
            error,
            ReadError::Rewritten {
                sequence: 5,
                last_sequence: 0,
                found: None,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_tail_rewritten_under_the_same_sequences_is_detected() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..3).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let read = read_exactly(&mut reader, 3).await;
    let place = StreamOffset {
        sequence: 2,
        published: Some(read[1].published - Duration::from_secs(60)),
    };
    let error = PartitionReader::open(&broker.bus, partition, place)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(&error, ReadError::Rewritten { found: Some(found), .. } if *found == read[1].published),
        "{error:?}"
    );
    // Postgres stores microseconds: times that differ by less are equal.
    let nanoseconds = read[1].published.unix_timestamp_nanos();
    let place = StreamOffset {
        sequence: 2,
        published: Some(OffsetDateTime::from_unix_timestamp_nanos(nanoseconds - nanoseconds % 1000).unwrap()),
    };
    open(&broker, partition, place).await;
}

/// Partitions share their sequences: the lost tail's sequence may now be a message of another partition.
#[tokio::test]
async fn a_rewritten_tail_with_another_partitions_message_at_the_offset_is_detected() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..3).await;
    let mut subjects = (2..).map(|number| format!("signalbox.notification.acme.t-{number}"));
    let mut last = 3;
    let foreign = loop {
        publish(&broker.bus, &[message(&subjects.next().unwrap(), "foreign", "x")]).await;
        last += 1;
        let stream = raw(&broker.bus).get_stream("SIGNALBOX_NOTIFICATION").await.unwrap();
        let there = stream.get_raw_message(last).await.unwrap();
        if !there.subject.starts_with(&format!("signalbox.partition.{partition}.")) {
            break there;
        }
    };
    let place = StreamOffset {
        sequence: foreign.sequence,
        published: Some(foreign.time),
    };
    let error = PartitionReader::open(&broker.bus, partition, place).await.err();
    assert!(matches!(&error, Some(ReadError::Rewritten { .. })), "{error:?}");
    // Below the purged sequences, an offset is not verified.
    publish_numbers(&broker, 3..4).await;
    purge_consumed(&broker.bus, foreign.sequence + 1).await.unwrap();
    let mut reader = open(&broker, partition, place).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 1).await), [3]);
}

#[tokio::test]
async fn purging_leaves_the_message_at_the_place_and_what_follows() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let mut reader = open(&broker, partition, StreamOffset::default()).await;
    let read = read_exactly(&mut reader, 10).await;
    assert_eq!(purge_consumed(&broker.bus, 0).await.unwrap(), 0);
    assert_eq!(purge_consumed(&broker.bus, 6).await.unwrap(), 5);
    let identity = notification_stream_identity(&broker.bus).await.unwrap();
    assert_eq!((identity.first_sequence, identity.last_sequence), (6, 10));
    let mut reader = open(&broker, partition, place_of(&read[5])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 4).await), [6, 7, 8, 9]);
    // An offset whose message is gone is not verified.
    let mut reader = open(&broker, partition, place_of(&read[1])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 5).await), [5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn a_quiet_partition_has_nothing_unread() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let quiet = (partition + 1) % topology::PARTITIONS;
    let unread = async |partition, after| {
        let first = first_unread(&broker.bus, partition, after).await.unwrap();
        first.map(|first| first.sequence)
    };
    assert_eq!(unread(partition, 0).await, Some(1));
    assert_eq!(unread(partition, 9).await, Some(10));
    assert_eq!(unread(partition, 10).await, None);
    assert_eq!(unread(quiet, 0).await, None);
}
