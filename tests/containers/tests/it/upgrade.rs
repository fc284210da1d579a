//! Upgrade and rollback, one replica at a time, under load. Each service reads the other version's messages, in both directions: a
//! message between services lives longer than the process that wrote it.
//!
//! `SIGNALBOX_IMAGE_BEFORE` names the image of the previous version. Without it, `make containers` gives the same program a
//! second name: then the test shows the procedure, and not that two versions are compatible.
//!
//! If the previous version needs other NATS users (`SIGNALBOX_NATS_USERS_BEFORE`, a file), its services cannot read as the
//! new ones: the server's users, the schema and all services change together, and each version then reads the messages of the
//! other.

use std::{env, fs};

use signalbox_testcontainers::{Service, Signalbox};

use crate::{
    bus::{Bus, next},
    load::Load,
    town::{ACCOUNT, Town},
};

const NATS_USERS: &str = include_str!("../../../../schemas/nats-users.conf");

struct Version {
    image: String,
    nats_users: String,
}

fn named(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// The previous version, and the new one.
fn versions() -> (Version, Version) {
    let new = named("SIGNALBOX_IMAGE").unwrap_or_else(|| concat!("signalbox:", env!("CARGO_PKG_VERSION")).to_owned());
    let before = Version {
        image: named("SIGNALBOX_IMAGE_BEFORE").unwrap_or_else(|| format!("{new}-before")),
        nats_users: named("SIGNALBOX_NATS_USERS_BEFORE").map_or_else(
            || NATS_USERS.to_owned(),
            |file| fs::read_to_string(file).expect("the users of the version before"),
        ),
    };
    let new = Version {
        image: new,
        nats_users: NATS_USERS.to_owned(),
    };
    (before, new)
}

/// An installation of one version, and the versions that it moves between.
struct Moving {
    signalbox: Signalbox,
    town: Town,
    bus: Bus,
    before: Version,
    new: Version,
}

impl Moving {
    /// Starts the previous version, with the new version's schema if the previous version runs on it.
    async fn start() -> Moving {
        let (before, new) = versions();
        let builder = Signalbox::builder().image(&before.image).nats_users(&before.nats_users);
        let signalbox = Box::pin(builder.start()).await.unwrap();
        let mut moving = Moving {
            bus: Bus::connect(&signalbox.nats_url()).await,
            town: Town::found(&signalbox).await,
            signalbox,
            before,
            new,
        };
        if !moving.moves_at_once() {
            moving.signalbox.migrate(&moving.new.image).await.unwrap();
        }
        moving
    }

    fn moves_at_once(&self) -> bool {
        self.before.nats_users != self.new.nats_users
    }

    /// Changes what both versions cannot share: the users, and then the schema, which is only migrated forward.
    async fn move_stores(&mut self, forward: bool) {
        if self.moves_at_once() {
            let version = if forward { &self.new } else { &self.before };
            self.signalbox.replace_nats_users(&version.nats_users).await.unwrap();
            if forward {
                self.signalbox.migrate(&self.new.image).await.unwrap();
            }
        }
    }

    fn image(&self, forward: bool) -> String {
        let version = if forward { &self.new } else { &self.before };
        version.image.clone()
    }

    /// Stops a service, lets the others write for it, and starts one of the other version, which reads those messages.
    async fn read_later(&mut self, service: Service, forward: bool) {
        Box::pin(self.signalbox.scale(service, 0)).await.unwrap();
        match read_by(service) {
            Some(subject) => {
                let subject = match service {
                    Service::Orchestrator => format!("signalbox.{subject}.{ACCOUNT}.*.turn.finished"),
                    Service::Resolver | Service::Delivery | Service::ToolGateway => {
                        format!("signalbox.{subject}.{ACCOUNT}.*")
                    }
                };
                let mut written = self.bus.listen(&subject).await;
                self.town.notify(&self.bus).await;
                next(&mut written).await;
            }
            None => drop(self.town.notify(&self.bus).await),
        }
        self.move_stores(forward).await;
        let image = self.image(forward);
        if self.moves_at_once() {
            for other in Service::ALL {
                Box::pin(self.signalbox.roll(other, &image)).await.unwrap();
            }
        }
        self.signalbox.use_image(&image);
        Box::pin(self.signalbox.scale(service, 1)).await.unwrap();
        self.town.everything_was_done_once(&self.signalbox.client()).await;
    }
}

/// The messages that a service reads from other services; the resolver reads those of publishers, which the broker acknowledges.
fn read_by(service: Service) -> Option<&'static str> {
    match service {
        Service::Resolver => None,
        Service::Delivery => Some("session.resolved"),
        Service::ToolGateway => Some("tool.requested"),
        Service::Orchestrator => Some("event"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_service_reads_what_the_other_version_has_written() {
    let mut moving = Box::pin(Moving::start()).await;
    if moving.moves_at_once() {
        for service in Service::ALL {
            for forward in [true, false] {
                Box::pin(moving.read_later(service, forward)).await;
            }
        }
    } else {
        for forward in [true, false] {
            for service in Service::ALL {
                Box::pin(moving.read_later(service, forward)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_and_its_rollback_lose_nothing_under_load() {
    let mut moving = Box::pin(Moving::start()).await;
    Box::pin(moving.signalbox.scale(Service::Delivery, 2)).await.unwrap();
    let load = Load::start(moving.bus.clone()).await;
    for forward in [true, false] {
        moving.move_stores(forward).await;
        let image = moving.image(forward);
        for service in Service::ALL {
            Box::pin(moving.signalbox.roll(service, &image)).await.unwrap();
            moving.town.notify(&moving.bus).await;
        }
    }
    let published = load.stop().await;
    assert!(
        published.values().map(Vec::len).sum::<usize>() > Service::ALL.len(),
        "work was under way"
    );
    moving.town.add(published);
    moving.town.everything_was_done_once(&moving.signalbox.client()).await;
}
