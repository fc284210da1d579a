//! The guarantees of the stream of notifications: no deduplication, and a stable partition with order inside it.

use std::{collections::HashMap, time::Duration};

use messaging::{PartitionReader, ServerVersion, Stream, StreamOffset, topology};

use crate::support::{Broker, broker, message, next_batch, publish, stream_info, until};

/// All messages of all partitions: subject and payload, in each partition's order.
async fn stored(broker: &Broker) -> Vec<(String, String)> {
    let mut stored = Vec::new();
    for partition in 0..topology::PARTITIONS {
        let mut reader = PartitionReader::open(&broker.bus, partition, StreamOffset::default())
            .await
            .unwrap();
        loop {
            let batch = next_batch(&mut reader, 1000, Duration::from_millis(200)).await.unwrap();
            if batch.is_empty() {
                break;
            }
            stored.extend(
                batch
                    .into_iter()
                    .map(|incoming| (incoming.subject, String::from_utf8(incoming.payload.to_vec()).unwrap())),
            );
        }
    }
    stored
}

/// Before 2.14, a server cannot switch deduplication off (see `topology.rs`); then the test is skipped.
fn deduplicates(broker: &Broker) -> bool {
    let deduplicates = broker.bus.server_version() < ServerVersion { major: 2, minor: 14 };
    if deduplicates {
        eprintln!("not tested: this nats-server always deduplicates");
    }
    deduplicates
}

#[tokio::test]
async fn the_same_id_is_stored_for_every_account_and_every_content() {
    let mut broker = broker().await;
    if deduplicates(&broker) {
        return;
    }
    let notifications = [
        message("signalbox.notification.acme.t-1", "ci-1", "first"),
        message("signalbox.notification.globex.t-1", "ci-1", "another account's"),
        message("signalbox.notification.acme.t-1", "ci-1", "other content"),
        message("signalbox.notification.acme.t-1", "ci-1", "first"),
    ];
    publish(&broker.bus, &notifications).await;
    assert_eq!(stream_info(&broker.bus, Stream::Notification).await.state.messages, 4);

    // The server rebuilds its list of seen ids when it starts.
    broker.server.restart().await.unwrap();
    until("connected again", async || broker.bus.is_connected().then_some(())).await;
    publish(&broker.bus, &notifications).await;
    assert_eq!(stream_info(&broker.bus, Stream::Notification).await.state.messages, 8);
}

#[tokio::test]
async fn dead_letters_do_not_flow_into_the_notifications() {
    let broker = broker().await;
    if deduplicates(&broker) {
        return;
    }
    publish(&broker.bus, &[message("signalbox.dead.acme.t-1", "d-1", "dead")]).await;
    publish(
        &broker.bus,
        &[message("signalbox.notification.acme.t-1", "n-1", "alive")],
    )
    .await;
    let source = until("the source has looked", async || {
        let info = stream_info(&broker.bus, Stream::Notification).await;
        info.sources.into_iter().find(|source| source.active.is_some())
    })
    .await;
    assert_eq!(source.name, "SIGNALBOX_DEAD");
    assert_eq!(stream_info(&broker.bus, Stream::Notification).await.state.messages, 1);
}

#[tokio::test]
async fn a_task_stays_in_one_partition_and_in_order() {
    let broker = broker().await;
    let mut notifications = Vec::new();
    for number in 0..20 {
        for account in ["acme", "globex"] {
            for task in ["-", "t-1", "t-2", "t-3", "t-4", "t-5", "t-6", "t-7"] {
                let subject = format!("signalbox.notification.{account}.{task}");
                notifications.push(message(
                    &subject,
                    &format!("{account}-{task}-{number}"),
                    number.to_string(),
                ));
            }
        }
    }
    publish(&broker.bus, &notifications).await;

    let mut by_task: HashMap<String, (String, Vec<String>)> = HashMap::new();
    for (subject, payload) in stored(&broker).await {
        let mut tokens = subject.splitn(4, '.');
        assert_eq!((tokens.next(), tokens.next()), (Some("signalbox"), Some("partition")));
        let (partition, address) = (tokens.next().unwrap().to_owned(), tokens.next().unwrap().to_owned());
        let (found, payloads) = by_task.entry(address).or_insert((partition.clone(), Vec::new()));
        assert_eq!(*found, partition);
        payloads.push(payload);
    }
    assert_eq!(by_task.len(), 16);
    let in_order: Vec<String> = (0..20).map(|number: i32| number.to_string()).collect();
    for (address, (_, payloads)) in &by_task {
        assert_eq!(*payloads, in_order, "{address}");
    }
    let partitions: std::collections::HashSet<&String> = by_task.values().map(|(partition, _)| partition).collect();
    assert!(partitions.len() > 1, "all in one partition");
}
