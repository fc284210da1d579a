//! `signalbox migrate`: the database's schema and the broker's streams as this version needs them. Run once before a
//! new version's services, by a user that owns the tables; the services themselves need no such right.

use std::process::ExitCode;

use messaging::{Bus, Provision, Topology, User};
use runtime::{Settings, context};
use secrecy::ExposeSecret;
use serde_json::json;
use storage::{Database, DatabaseOptions, Role, migrations};

use crate::print::{print, print_json};

pub(crate) async fn run(json: bool) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    let applied = database(&settings).await?;
    let has_bus = settings.is_set("nats.url");
    if has_bus {
        streams(&settings).await?;
    }
    if json {
        print_json(&json!({"applied": applied, "streams": has_bus}))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&if applied.is_empty() {
        "database: nothing to do".to_owned()
    } else {
        format!("database: applied {}", applied.join(", "))
    })?;
    print(if has_bus {
        "nats: streams and consumers are as they must be"
    } else {
        "nats: nats.url is not set, left alone"
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Gives the names of the steps that were applied.
pub(crate) async fn database(settings: &Settings) -> anyhow::Result<Vec<String>> {
    let options = DatabaseOptions {
        // Migrating holds a lock on one connection and works on another.
        connections_max: 2,
        ..context::database_options(&settings.database)
    };
    let owner = Database::connect(settings.database.url()?.expose_secret(), Role::Owner, &options).await?;
    let migrated = async {
        let pending = migrations::pending(owner.connection()).await?;
        migrations::migrate(owner.connection()).await?;
        anyhow::Ok(pending)
    };
    let applied = migrated.await;
    owner.close().await;
    applied
}

pub(crate) async fn streams(settings: &Settings) -> anyhow::Result<()> {
    let bus = Bus::connect(context::bus_options("migrate", &settings.nats)?).await?;
    // Services make what is missing; this command alone changes what is there.
    let topology = Topology {
        provision: Provision::Update,
        ..context::topology(User::Operator, &settings.nats)
    };
    topology.ensure(&bus).await?;
    Ok(())
}
