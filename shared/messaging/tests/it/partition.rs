//! Reading a partition from a place: where it starts, what it waits for, and how it notices that something is wrong.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use messaging::{
    Incoming, PartitionReader, Place, ReadError, Stream, TopologyLimits, first_unread, notification_stream_identity,
    purge_consumed, topology,
};
use time::OffsetDateTime;

use crate::support::{Broker, broker, creating, message, publish, raw, stream_info, until, within};

const QUIET: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(20);
const SUBJECT: &str = "signalbox.notification.acme.t-1";

/// Publishes numbered notifications of one task and gives its partition.
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

async fn open(broker: &Broker, partition: u16, after: Place) -> PartitionReader {
    PartitionReader::open(&broker.bus, partition, after, "replica-1")
        .await
        .unwrap()
}

async fn read_exactly(reader: &mut PartitionReader, count: usize) -> Vec<Incoming> {
    let mut all = Vec::new();
    while all.len() < count {
        let batch = within("a batch", reader.next_batch(count - all.len(), LONG))
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

fn place_of(incoming: &Incoming) -> Place {
    Place {
        sequence: incoming.stream_sequence,
        published: Some(incoming.published),
    }
}

/// Reads on until the reader reports an error.
async fn read_error(reader: &mut PartitionReader) -> ReadError {
    within("an error", async {
        loop {
            if let Err(error) = reader.next_batch(100, QUIET).await {
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
    let mut reader = open(&broker, partition, Place::default()).await;
    let first = read_exactly(&mut reader, 4).await;
    assert_eq!(numbers(&first), [0, 1, 2, 3]);
    assert_eq!(first[0].deliveries, 1);
    assert_eq!(first[0].id(), Some("n-0"));
    drop(reader);

    let mut reader = open(&broker, partition, place_of(&first[3])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 6).await), [4, 5, 6, 7, 8, 9]);
    // And a message that comes while somebody waits is there at once.
    publish_numbers(&broker, 10..11).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 1).await), [10]);
}

#[tokio::test]
async fn a_batch_is_what_is_there_up_to_the_limit() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..2000).await;
    let mut reader = open(&broker, partition, Place::default()).await;
    let mut read = 0;
    while read < 2000 {
        let mut batch = reader.next_batch(10, LONG).await.unwrap();
        assert!((1..=10).contains(&batch.len()));
        // And what has come since.
        reader.fill_up(&mut batch, 100).unwrap();
        assert!((1..=100).contains(&batch.len()));
        assert_eq!(numbers(&batch), (read..read + batch.len() as u64).collect::<Vec<_>>());
        read += batch.len() as u64;
    }
}

#[tokio::test]
async fn silence_is_an_empty_batch() {
    let broker = broker().await;
    let mut reader = open(&broker, 0, Place::default()).await;
    assert_eq!(reader.next_batch(10, QUIET).await.unwrap(), []);
    assert_eq!(reader.next_batch(10, QUIET).await.unwrap(), []);
}

#[tokio::test]
async fn closing_removes_the_consumer() {
    let broker = broker().await;
    let reader = open(&broker, 0, Place::default()).await;
    assert_eq!(
        stream_info(&broker.bus, Stream::Notification)
            .await
            .state
            .consumer_count,
        1
    );
    reader.close().await;
    assert_eq!(
        stream_info(&broker.bus, Stream::Notification)
            .await
            .state
            .consumer_count,
        0
    );
}

async fn consumer_names(broker: &Broker) -> Vec<String> {
    let stream = raw(&broker.bus).get_stream("SIGNALBOX_NOTIFICATION").await.unwrap();
    stream.consumer_names().try_collect().await.unwrap()
}

#[tokio::test]
async fn a_delivery_that_went_elsewhere_is_noticed() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..1).await;
    let mut reader = open(&broker, partition, Place::default()).await;
    read_exactly(&mut reader, 1).await;

    // Somebody else pulls from the same consumer: to the reader that is a message lost on the way.
    let name = consumer_names(&broker).await.remove(0);
    let thief: async_nats::jetstream::consumer::PullConsumer = raw(&broker.bus)
        .get_consumer_from_stream(name, "SIGNALBOX_NOTIFICATION")
        .await
        .unwrap();
    let mut stolen = thief.stream().messages().await.unwrap();
    let mut next = 1;
    let theft = async {
        loop {
            publish_numbers(&broker, next..next + 2).await;
            next += 2;
            if tokio::time::timeout(QUIET, stolen.next()).await.is_ok() {
                break;
            }
        }
        publish_numbers(&broker, next..next + 10).await;
    };
    within("a theft", theft).await;
    drop(stolen);
    let error = read_error(&mut reader).await;
    assert!(matches!(error, ReadError::Gap { .. }), "{error:?}");
}

#[tokio::test]
async fn a_deleted_consumer_ends_the_reader() {
    let broker = broker().await;
    let mut reader = open(&broker, 0, Place::default()).await;
    assert_eq!(reader.next_batch(10, QUIET).await.unwrap(), []);
    let name = consumer_names(&broker).await.remove(0);
    raw(&broker.bus)
        .delete_consumer_from_stream(name, "SIGNALBOX_NOTIFICATION")
        .await
        .unwrap();
    let error = read_error(&mut reader).await;
    assert!(matches!(error, ReadError::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn a_killed_server_ends_the_reader_and_the_next_one_misses_nothing() {
    let mut broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let identity = notification_stream_identity(&broker.bus).await.unwrap();
    let mut reader = open(&broker, partition, Place::default()).await;
    let read = read_exactly(&mut reader, 5).await;

    broker.server.kill().await.unwrap();
    broker.server.restart().await.unwrap();
    let error = read_error(&mut reader).await;
    assert!(
        matches!(error, ReadError::Reconnected { .. } | ReadError::Lost { .. }),
        "{error:?}"
    );

    until("connected again", async || broker.bus.is_connected().then_some(())).await;
    assert_eq!(notification_stream_identity(&broker.bus).await.unwrap(), identity);
    publish_numbers(&broker, 10..12).await;
    let mut reader = open(&broker, partition, place_of(&read[4])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 7).await), [5, 6, 7, 8, 9, 10, 11]);
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
    creating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    let after = notification_stream_identity(&broker.bus).await.unwrap();
    assert_ne!(after.created, before.created);
    assert_eq!(after.last_sequence, 0);

    let place = Place {
        sequence: 5,
        published: None,
    };
    let error = PartitionReader::open(&broker.bus, partition, place, "test")
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
async fn a_tail_written_anew_under_the_same_numbers_is_noticed() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..3).await;
    let mut reader = open(&broker, partition, Place::default()).await;
    let read = read_exactly(&mut reader, 3).await;
    let place = Place {
        sequence: 2,
        published: Some(read[1].published - Duration::from_secs(60)),
    };
    let error = PartitionReader::open(&broker.bus, partition, place, "test")
        .await
        .err()
        .unwrap();
    assert!(
        matches!(&error, ReadError::Rewritten { found: Some(found), .. } if *found == read[1].published),
        "{error:?}"
    );
    // Postgres keeps microseconds: that much less is the same moment.
    let nanoseconds = read[1].published.unix_timestamp_nanos();
    let place = Place {
        sequence: 2,
        published: Some(OffsetDateTime::from_unix_timestamp_nanos(nanoseconds - nanoseconds % 1000).unwrap()),
    };
    open(&broker, partition, place).await;
}

#[tokio::test]
async fn purging_leaves_the_message_at_the_place_and_what_follows() {
    let broker = broker().await;
    let partition = publish_numbers(&broker, 0..10).await;
    let mut reader = open(&broker, partition, Place::default()).await;
    let read = read_exactly(&mut reader, 10).await;
    assert_eq!(purge_consumed(&broker.bus, 0).await.unwrap(), 0);
    assert_eq!(purge_consumed(&broker.bus, 6).await.unwrap(), 5);
    let identity = notification_stream_identity(&broker.bus).await.unwrap();
    assert_eq!((identity.first_sequence, identity.last_sequence), (6, 10));
    let mut reader = open(&broker, partition, place_of(&read[5])).await;
    assert_eq!(numbers(&read_exactly(&mut reader, 4).await), [6, 7, 8, 9]);
    // A place whose message is gone is taken at its word.
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
