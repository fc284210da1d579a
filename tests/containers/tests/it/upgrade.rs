//! From one version to the next and back, one replica at a time, while work is under way. Each service reads what the other
//! version has written, in both directions: a message between services lives longer than the process that wrote it.
//!
//! `SIGNALBOX_IMAGE_BEFORE` names the image of the version before. `make containers` gives the same program a second name
//! where none is named: then this shows the way, and not that two versions understand each other.

use std::env;

use signalbox_testcontainers::{Service, Signalbox};

use crate::{
    bus::{Bus, next},
    load::Load,
    town::{ACCOUNT, Town},
};

fn image(variable: &str, default: &str) -> String {
    env::var(variable)
        .ok()
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| default.to_owned())
}

fn images() -> (String, String) {
    let new = image("SIGNALBOX_IMAGE", concat!("signalbox:", env!("CARGO_PKG_VERSION")));
    (image("SIGNALBOX_IMAGE_BEFORE", &format!("{new}-before")), new)
}

/// What a service reads from the others; the resolver reads what publishers write, which the broker acknowledges.
fn read_by(service: Service) -> Option<&'static str> {
    match service {
        Service::Resolver => None,
        Service::Delivery => Some("session.resolved"),
        Service::ToolGateway => Some("tool.requested"),
        Service::Orchestrator => Some("event"),
    }
}

/// While there is no such service, the others write for it; then one of `image` comes and reads that.
async fn read_later(signalbox: &mut Signalbox, town: &mut Town, bus: &Bus, service: Service, image: &str) {
    Box::pin(signalbox.scale(service, 0)).await.unwrap();
    match read_by(service) {
        Some(subject) => {
            let subject = match service {
                Service::Orchestrator => format!("signalbox.{subject}.{ACCOUNT}.*.turn.finished"),
                Service::Resolver | Service::Delivery | Service::ToolGateway => {
                    format!("signalbox.{subject}.{ACCOUNT}.*")
                }
            };
            let mut written = bus.listen(&subject).await;
            town.notify(bus).await;
            next(&mut written).await;
        }
        None => drop(town.notify(bus).await),
    }
    signalbox.use_image(image);
    Box::pin(signalbox.scale(service, 1)).await.unwrap();
    town.everything_was_done_once(&signalbox.client()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_service_reads_what_the_other_version_has_written() {
    let (before, new) = images();
    let mut signalbox = Box::pin(Signalbox::builder().image(&before).start()).await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    let mut town = Town::found(&signalbox).await;
    // The schema goes first, and the version before runs on it.
    signalbox.migrate(&new).await.unwrap();
    for service in Service::ALL {
        Box::pin(read_later(&mut signalbox, &mut town, &bus, service, &new)).await;
    }
    for service in Service::ALL {
        Box::pin(read_later(&mut signalbox, &mut town, &bus, service, &before)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_and_its_rollback_lose_nothing_under_load() {
    let (before, new) = images();
    let mut signalbox = Box::pin(Signalbox::builder().image(&before).start()).await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    let mut town = Town::found(&signalbox).await;
    Box::pin(signalbox.scale(Service::Delivery, 2)).await.unwrap();
    let load = Load::start(bus.clone()).await;
    signalbox.migrate(&new).await.unwrap();
    for service in Service::ALL {
        Box::pin(signalbox.roll(service, &new)).await.unwrap();
        town.notify(&bus).await;
    }
    for service in Service::ALL {
        Box::pin(signalbox.roll(service, &before)).await.unwrap();
        town.notify(&bus).await;
    }
    let published = load.stop().await;
    assert!(
        published.values().map(Vec::len).sum::<usize>() > Service::ALL.len(),
        "work was under way"
    );
    town.add(published);
    town.everything_was_done_once(&signalbox.client()).await;
}
