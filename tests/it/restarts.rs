//! Every service is killed and restarted, messages are repeated and reordered, and the result is the same, once.

use contracts::{Headers, Outgoing, header};
use futures::TryStreamExt;
use storage::Role;
use testkit::eventually;

use crate::same_end::{assert_end, furnished};

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_service_dies_in_turn_while_work_goes_on() {
    let mut house = furnished(&[]).await;
    let count = 24;
    for n in 0..count {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        if n % 3 == 2 {
            // Killed at any point of its work.
            house.kill(ROLES[(n / 3) % ROLES.len()]);
            house.up().await;
        }
    }
    assert_end(&house, count).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_dies_at_once_and_the_broker_with_it() {
    let mut house = furnished(&[]).await;
    for n in 0..8 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    eventually("work is under way", || async {
        (house.provider.seen().len() > 2).then_some(())
    })
    .await;
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.kill().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    assert_end(&house, 8).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_twice_and_out_of_order() {
    let house = furnished(&[]).await;
    let bus = house.world.bus().await;
    for n in 0..6 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    assert_end(&house, 6).await;
    // Every earlier message again, newest first.
    let jetstream = async_nats::jetstream::new(bus.client().clone());
    for stream in [
        "SIGNALBOX_SESSION",
        "SIGNALBOX_TOOL",
        "SIGNALBOX_EVENT",
        "SIGNALBOX_NOTIFICATION",
    ] {
        let mut stream = jetstream.get_stream(stream).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        for sequence in (1..=last).rev() {
            let Ok(message) = stream.get_raw_message(sequence).await else {
                continue;
            };
            let mut subject = message.subject.to_string();
            if let Some(rest) = subject.strip_prefix("signalbox.partition.") {
                subject = format!("signalbox.notification.{}", rest.split_once('.').unwrap().1);
            }
            let mut headers = Headers::default();
            for (name, values) in message.headers.iter() {
                headers.set(name.as_ref(), values[0].as_str());
            }
            // Another id, so that the broker's deduplication does not drop it.
            headers.set(header::MESSAGE_ID, format!("again-{}", uuid::Uuid::now_v7()));
            let again = Outgoing {
                subject,
                headers,
                payload: message.payload.to_vec(),
            };
            bus.publish_all(&[again]).await.pop().unwrap().unwrap();
        }
    }
    // All messages were read before the end is checked.
    for name in ["SIGNALBOX_SESSION", "SIGNALBOX_TOOL", "SIGNALBOX_EVENT"] {
        eventually(&format!("{name} is read to its end"), || async {
            let stream = jetstream.get_stream(name).await.unwrap();
            let consumers: Vec<_> = stream.consumers().try_collect().await.unwrap();
            let read = |consumer: &async_nats::jetstream::consumer::Info| {
                consumer.num_pending == 0 && consumer.num_ack_pending == 0
            };
            (!consumers.is_empty() && consumers.iter().all(read)).then_some(())
        })
        .await;
    }
    house.notify("acme", "T-1", "coder", "n-6", "x").await;
    assert_end(&house, 7).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_broker_loses_nothing_that_was_accepted() {
    let mut house = furnished(&[]).await;
    house.notify("acme", "T-1", "coder", "n-0", "x").await;
    house.until("acme", "n-0", "delivered").await;
    house.kill(Role::Delivery);
    for n in 1..5 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        house.until("acme", &format!("n-{n}"), "queued").await;
    }
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.stop().await.unwrap();
    house.world.nats.wipe_store().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    house.notify("acme", "T-1", "coder", "n-5", "x").await;
    assert_end(&house, 6).await;
    house.close().await;
}
