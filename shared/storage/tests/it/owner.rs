//! The login that migrates owns the tables and needs no further rights: on a managed Postgres, it may neither create
//! roles nor bypass row-level security.

use sqlx::{AssertSqlSafe, PgPool, postgres::PgConnectOptions};
use storage::{Database, DatabaseOptions, Role, fitness, migrations};
use testkit::TestDatabase;
use uuid::Uuid;

/// The rights in a managed database before the first migration, as in deploy/k8s/postgres/cluster.yaml.
const SERVICES: &str =
    "signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator, signalbox_sweeper";

async fn execute(pool: &PgPool, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(pool).await.unwrap();
}

#[tokio::test]
async fn an_owner_who_may_make_no_roles_migrates() {
    // Its server has the roles, from the template's own migration.
    let test = TestDatabase::fresh().await;
    let name = format!("owned_{}", Uuid::now_v7().simple());
    execute(&test.owner, format!("create role {name} login password 'secret'")).await;
    execute(&test.owner, format!("grant {SERVICES} to {name}")).await;
    execute(&test.owner, format!("create database {name} owner {name}")).await;
    let options: PgConnectOptions = test.url.parse().unwrap();
    let (host, port) = (options.get_host(), options.get_port());
    let url = format!("postgres://{name}:secret@{host}:{port}/{name}");
    let options = DatabaseOptions {
        connections_max: 2,
        ..DatabaseOptions::default()
    };
    let owner = Database::connect(&url, Role::Owner, &options).await.unwrap();
    migrations::migrate(owner.connection()).await.unwrap();
    let facts = fitness::look(&owner).await.unwrap();
    assert!(facts.login.owns && !facts.login.is_above());
    // Lent rights are revoked, and so are the default rights of every role in a new database; each time, though no step
    // is left.
    let making = async || {
        let found = fitness::look(&owner).await.unwrap().found;
        let making = found.into_iter().find(|fault| fault.kind == &fitness::ROLES_MAKING);
        making.map_or_else(Vec::new, |fault| fault.names)
    };
    assert_eq!(making().await, [""; 0]);
    execute(&test.owner, format!("grant temporary on database {name} to public")).await;
    assert_eq!(making().await, ["temporary objects by everybody"]);
    migrations::migrate(owner.connection()).await.unwrap();
    assert_eq!(making().await, [""; 0]);
    owner.close().await;
}

/// A login of one service, as in SECURITY.md, reads the list of steps through its role.
#[tokio::test]
async fn a_login_that_may_only_take_a_role_sees_which_steps_were_run() {
    let test = TestDatabase::fresh().await;
    let name = format!("login_{}", Uuid::now_v7().simple());
    execute(
        &test.owner,
        format!("create role {name} login noinherit password 'secret' in role signalbox_delivery"),
    )
    .await;
    let options: PgConnectOptions = test.url.parse().unwrap();
    let url = format!(
        "postgres://{name}:secret@{}:{}/{}",
        options.get_host(),
        options.get_port(),
        options.get_database().unwrap()
    );
    let pool = DatabaseOptions {
        connections_max: 1,
        ..DatabaseOptions::default()
    };
    let service = Database::connect(&url, Role::Delivery, &pool).await.unwrap();
    assert_eq!(migrations::pending(service.connection()).await.unwrap(), [""; 0]);
    execute(
        &test.owner,
        "delete from seaql_migrations where version = '0006_keys_expire'".to_owned(),
    )
    .await;
    assert_eq!(
        migrations::pending(service.connection()).await.unwrap(),
        ["0006_keys_expire"]
    );
    service.close().await;
    // The login itself cannot read the list, and does not report that all steps were run.
    let login = Database::connect(&url, Role::Owner, &pool).await.unwrap();
    let steps = migrations::steps().iter().map(|(name, _)| *name);
    let since: Vec<&str> = steps.filter(|name| *name >= "0010_seen_steps").collect();
    assert_eq!(migrations::pending(login.connection()).await.unwrap(), since);
    login.close().await;
}
