//! Containers are killed under load and scaled up and down: nothing is lost or done twice.

use signalbox_testcontainers::{Service, Signalbox};

use crate::{bus::Bus, load::Load, town::Town};

const BETWEEN: usize = 5;

async fn notify_some(town: &mut Town, bus: &Bus) {
    for _ in 0..BETWEEN {
        town.notify(bus).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_killed_loses_nothing() {
    let mut signalbox = Box::pin(Signalbox::start()).await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    let mut town = Town::found(&signalbox).await;
    for service in [Service::Delivery, Service::Resolver, Service::ToolGateway] {
        notify_some(&mut town, &bus).await;
        signalbox.kill(service).await.unwrap();
        // No replica runs meanwhile.
        notify_some(&mut town, &bus).await;
        Box::pin(signalbox.scale(service, 1)).await.unwrap();
    }
    // The API's service: all other services continue without it.
    notify_some(&mut town, &bus).await;
    signalbox.kill(Service::Orchestrator).await.unwrap();
    Box::pin(signalbox.scale(Service::Orchestrator, 1)).await.unwrap();
    town.everything_was_done_once(&signalbox.client()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_restart_lose_nothing() {
    let mut signalbox = Box::pin(Signalbox::start()).await.unwrap();
    let mut town = Town::found(&signalbox).await;
    let bus = Bus::connect(&signalbox.nats_url()).await;
    notify_some(&mut town, &bus).await;
    signalbox.restart_postgres().await.unwrap();
    notify_some(&mut town, &bus).await;
    // Its published port changes.
    signalbox.restart_nats().await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    notify_some(&mut town, &bus).await;
    town.everything_was_done_once(&signalbox.client()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_and_fewer_of_a_service_under_load() {
    let mut signalbox = Box::pin(Signalbox::start()).await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    let mut town = Town::found(&signalbox).await;
    let load = Load::start(bus.clone()).await;
    Box::pin(signalbox.scale(Service::Delivery, 3)).await.unwrap();
    Box::pin(signalbox.scale(Service::Resolver, 2)).await.unwrap();
    assert_eq!(signalbox.replicas(Service::Delivery), 3);
    notify_some(&mut town, &bus).await;
    // One is killed, one stopped in order; the last one takes over their work.
    signalbox.kill(Service::Delivery).await.unwrap();
    notify_some(&mut town, &bus).await;
    Box::pin(signalbox.scale(Service::Delivery, 1)).await.unwrap();
    Box::pin(signalbox.scale(Service::Resolver, 1)).await.unwrap();
    notify_some(&mut town, &bus).await;
    town.add(load.stop().await);
    town.everything_was_done_once(&signalbox.client()).await;
}
