//! The start of a service: both dependencies, the schema, the health pages, and one clear line for each missing
//! dependency.

use std::sync::Arc;

use axum::Router;
use messaging::{Provision, Topology, User};
use runtime::{Context, Settings, Shutdown};
use serde_json::{Value, json};
use storage::Role;
use testkit::{ENVELOPE, TestDatabase, eventually};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_broker() {
    testkit::install_tls_provider();
    let mut world = World::new().await;
    let context = world.context("").await;
    let address = "127.0.0.1:0".parse().unwrap();
    let address = context.serve(address, Router::new(), context.health()).await.unwrap();
    let ready = async || {
        let answer = reqwest::get(format!("http://{address}/readyz")).await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap()["checks"].clone())
    };
    assert_eq!(ready().await, (200, json!({"database": "ok", "bus": "ok"})));
    world.nats.kill().await.unwrap();
    eventually("not ready", async || {
        (ready().await == (503, json!({"database": "ok", "bus": "not connected"}))).then_some(())
    })
    .await;
    world.nats.restart().await.unwrap();
    eventually("ready again", async || (ready().await.0 == 200).then_some(())).await;

    let jetstream = async_nats::jetstream::new(context.bus.client().clone());
    jetstream.delete_stream("SIGNALBOX_EVENT").await.unwrap();
    let missing =
        "stream SIGNALBOX_EVENT is missing on the NATS server: run `signalbox migrate` as a user that may create it";
    assert_eq!(ready().await, (503, json!({"database": "ok", "bus": missing})));
    let operators = Topology {
        provision: Provision::Update,
        scope: User::Operator,
        ..context.topology.clone()
    };
    operators.ensure(&context.bus).await.unwrap();
    assert_eq!(ready().await.0, 200);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_what_is_missing() {
    async fn check(settings: Settings, says: &str) {
        let shutdown = Shutdown::new();
        let started = Context::connect(Role::Resolver, Arc::new(settings), shutdown).await;
        let error = started.err().expect(says);
        let line = format!("{:#}", anyhow::Error::new(error));
        assert!(
            line.starts_with(says) && !line.contains('\n') && !line.contains("hunter2"),
            "{line}"
        );
    }
    let load = |variables: &[(&str, &str)]| {
        let short = "[process]\ndependencies_timeout_ms = 300\n";
        Settings::load_from(short, variables.iter().copied()).unwrap()
    };
    let database = TestDatabase::fresh().await;
    let nowhere = "postgres://u:hunter2@127.0.0.1:1/d";

    let broker = ("NATS_URL", "nats://u:hunter2@127.0.0.1:1");
    check(load(&[broker]), "setting database.url is missing").await;
    check(
        load(&[("DATABASE_URL", nowhere), broker, ENVELOPE]),
        "Postgres was not available within 0 s: cannot connect to the database: ",
    )
    .await;
    check(load(&[("DATABASE_URL", &database.url)]), "setting nats.url is missing").await;
    check(
        load(&[("DATABASE_URL", &database.url), broker]),
        "setting envelope.keys is missing: set it in signalbox.toml or as SIGNALBOX__ENVELOPE__KEYS__K1 (64 hexadecimal \
         characters, the same for every service; `openssl rand -hex 32` makes one) in the environment",
    )
    .await;
    check(
        load(&[("DATABASE_URL", &database.url), broker, ENVELOPE]),
        "NATS at 127.0.0.1:1 could not be reached",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_old_schema_and_migrates_when_asked() {
    let world = World::new().await;
    world.migrate_streams("").await;
    // A database of the same server without any objects.
    let name = format!("empty_{}", uuid::Uuid::now_v7().simple());
    let create = format!("create database {name}");
    sqlx::query(sqlx::AssertSqlSafe(create))
        .execute(&world.database.owner)
        .await
        .unwrap();
    let mut url = reqwest::Url::parse(&world.database.url).unwrap();
    url.set_path(&name);
    let load = |toml: &str| {
        let variables = [("DATABASE_URL", url.as_str()), ("NATS_URL", world.nats.url()), ENVELOPE];
        Settings::load_from(toml, variables).unwrap()
    };
    let connect = |toml: &str| Context::connect(Role::Resolver, Arc::new(load(toml)), world.shutdown.clone());

    let refused = connect("").await.err().expect("no schema").to_string();
    assert!(refused.starts_with("the database lacks 0001_ground"), "{refused}");
    assert!(connect("[database]\nmigrate = true\n").await.is_ok());
    assert!(connect("").await.is_ok(), "and it stays");
    world.stop().await;
}

/// Each of these alone stops the start with one line that names the fault and its fix.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_database_that_does_not_keep_accounts_apart() {
    for (hole, says) in [
        (
            "alter table turn no force row level security",
            "row-level security is not forced on turn: accounts are not kept apart there",
        ),
        (
            "alter table task disable row level security",
            "row-level security is not forced on task: accounts are not kept apart there",
        ),
        (
            "drop policy tenant on message",
            "message has no policy for reading and writing",
        ),
        (
            "drop policy tenant on agent; create policy tenant on agent for select using (true)",
            "agent has no policy for reading and writing",
        ),
        (
            "create view everything as select * from task",
            "everything shows rows of every account",
        ),
        (
            "create materialized view kept as select * from task",
            "kept shows rows of every account",
        ),
        (
            "alter table session owner to signalbox_delivery",
            "signalbox_delivery is above row-level security: accounts are not kept apart",
        ),
    ] {
        let world = World::new().await;
        sqlx::raw_sql(hole).execute(&world.database.owner).await.unwrap();
        let started = Context::connect(Role::Delivery, Arc::new(world.settings("")), world.shutdown.clone()).await;
        let line = started.err().expect(says).to_string();
        assert!(
            line.starts_with(&format!("the database is not fit for use: {says} (")),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_security_invoker_view_is_accepted_and_so_is_one_of_an_extension() {
    for view in [
        "create view everything with (security_invoker = true) as select * from task",
        "create extension pg_stat_statements",
    ] {
        let world = World::new().await;
        sqlx::raw_sql(view).execute(&world.database.owner).await.unwrap();
        world.context("").await;
        world.stop().await;
    }
}
