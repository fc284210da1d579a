//! `signalbox migrate`: migrates the database's schema and the broker's streams to this version. Run once before a new version's
//! services, by a user that owns the tables; the services need no such right.

use std::{process::ExitCode, time::Duration};

use messaging::{Bus, Provision, Topology, User};
use runtime::{Settings, context};
use secrecy::ExposeSecret;
use serde_json::json;
use storage::{Database, DatabaseOptions, Role, StorageError, migrations};
use tokio::time::sleep;

use crate::print::show;

/// The previous version's services run meanwhile.
const TRIES_MAX: u32 = 8;
/// Pause before the second attempt; it grows by this much with every further attempt.
const PAUSE: Duration = Duration::from_millis(250);

pub(crate) async fn run(json: bool) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    let applied = database(&settings).await?;
    let has_bus = settings.is_set("nats.url");
    if has_bus {
        streams(&settings).await?;
    }
    show(json, &json!({"applied": applied, "streams": has_bus}), |_| {
        let database = match applied.is_empty() {
            true => "nothing to do".to_owned(),
            false => format!("applied {}", applied.join(", ")),
        };
        let nats = match has_bus {
            true => "streams and consumers are up to date",
            false => "skipped, nats.url is not set",
        };
        Ok(format!("database: {database}\nnats: {nats}"))
    })
}

/// Gives the names of the applied migrations.
pub(crate) async fn database(settings: &Settings) -> anyhow::Result<Vec<String>> {
    let options = DatabaseOptions {
        // Migrating holds a lock on one connection and works on another.
        connections_max: 2,
        ..context::database_options(&settings.database)
    };
    let owner = Database::connect(settings.database.url()?.expose_secret(), Role::Owner, &options).await?;
    let migrated = async {
        let pending = migrations::pending(owner.connection()).await?;
        tried(StorageError::is_retryable, || migrations::migrate(owner.connection())).await?;
        anyhow::Ok(pending)
    };
    let applied = migrated.await;
    owner.close().await;
    applied
}

/// Retries transient failures. A migration takes its locks in another order than a running service: Postgres ends one of the two as
/// a deadlock, or the wait for a lock times out, and the migration is rolled back whole.
async fn tried<T, E, F>(is_retryable: impl Fn(&E) -> bool, mut attempt: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut tries = 1;
    loop {
        match attempt().await {
            Err(error) if is_retryable(&error) && tries < TRIES_MAX => sleep(PAUSE * tries).await,
            ended => return ended,
        }
        tries += 1;
    }
}

/// Gives the operator's connection.
pub(crate) async fn streams(settings: &Settings) -> anyhow::Result<Bus> {
    let bus = Bus::connect(context::bus_options("migrate", &settings.nats)?).await?;
    topology(settings).ensure(&bus).await?;
    Ok(bus)
}

/// Services only check their streams and consumers; a user with the right to manage them creates and changes all of them.
pub(crate) fn topology(settings: &Settings) -> Topology {
    Topology {
        provision: Provision::Update,
        ..context::topology(User::Operator, &settings.nats)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_step_that_was_undone_is_tried_again_and_not_for_ever() {
        let check = async |passes_after: u32, is_retryable: bool, expected: (u32, Result<(), u32>)| {
            let mut tries = 0;
            let ended = tried(
                |_| is_retryable,
                || {
                    tries += 1;
                    ready(if tries > passes_after { Ok(()) } else { Err(tries) })
                },
            );
            let ended = ended.await;
            assert_eq!((tries, ended), expected);
        };
        check(0, true, (1, Ok(()))).await;
        check(2, true, (3, Ok(()))).await;
        check(2, false, (1, Err(1))).await;
        check(u32::MAX, true, (TRIES_MAX, Err(TRIES_MAX))).await;
    }
}
