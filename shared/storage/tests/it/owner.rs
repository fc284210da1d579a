//! The login that migrates owns the tables and needs no further rights: on a managed Postgres, it may neither create
//! roles nor bypass row-level security.

use sea_orm::ConnectionTrait;
use sea_orm_migration::MigratorTrait;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool, postgres::PgConnectOptions};
use storage::{Database, DatabaseOptions, Role, fitness, migrations};
use testkit::{TestDatabase, rows};
use uuid::Uuid;

/// The rights in a managed database before the first migration, as in deploy/k8s/postgres/cluster.yaml.
const SERVICES: &str =
    "signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator, signalbox_sweeper";

async fn execute(pool: &PgPool, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(pool).await.unwrap();
}

/// The URL of an empty database for its owner, who may make no roles, and the owner's name.
async fn owned(test: &TestDatabase) -> (String, String) {
    // Its server has the roles, from the template's own migration.
    let name = format!("owned_{}", Uuid::now_v7().simple());
    execute(&test.owner, format!("create role {name} login password 'secret'")).await;
    execute(&test.owner, format!("grant {SERVICES} to {name}")).await;
    execute(&test.owner, format!("create database {name} owner {name}")).await;
    let options: PgConnectOptions = test.url.parse().unwrap();
    let (host, port) = (options.get_host(), options.get_port());
    (format!("postgres://{name}:secret@{host}:{port}/{name}"), name)
}

#[tokio::test]
async fn an_owner_who_may_make_no_roles_migrates() {
    let test = TestDatabase::fresh().await;
    let (url, name) = owned(&test).await;
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

/// The owner of the tables is held to their policies and names no account.
#[tokio::test]
async fn an_owner_who_is_no_superuser_converts_what_threads_were_told() {
    let test = TestDatabase::fresh().await;
    let (url, name) = owned(&test).await;
    let owner = Database::connect(&url, Role::Owner, &DatabaseOptions::default())
        .await
        .unwrap();
    // As `migrate` lends it.
    let lend = "grant create on schema public to signalbox_sweeper";
    owner.connection().execute_unprepared(lend).await.unwrap();
    let before = migrations::steps()
        .iter()
        .filter(|(name, _)| *name < "0043_thread_in_one");
    let before = u32::try_from(before.count()).unwrap();
    migrations::Migrator::up(owner.connection(), Some(before))
        .await
        .unwrap();
    let options: PgConnectOptions = test.url.parse().unwrap();
    let above = PgPool::connect_with(options.database(&name)).await.unwrap();
    rows("account").with("id", "acme").insert(&above).await;
    rows("agent")
        .with("account_id", "acme")
        .with("slug", "coder")
        .insert(&above)
        .await;
    for (task, columns) in [
        (
            "begun",
            &[
                ("thread_number", "2"),
                ("thread_live", "true"),
                ("told", r#"{"at": 1700000000, "provider": "p"}"#),
            ][..],
        ),
        (
            "closed",
            &[
                ("tokens_used", "70"),
                ("failures_in_row", "3"),
                ("closed_at", "2026-01-01"),
            ],
        ),
        ("new", &[]),
    ] {
        rows("task")
            .with("account_id", "acme")
            .with("id", task)
            .insert(&above)
            .await;
        let session = rows("session")
            .from("agent a")
            .with("task_id", task)
            .with("provider_thread", "resp_1");
        let session = columns
            .iter()
            .fold(session, |row, (column, value)| row.with(column, value));
        session.insert(&above).await;
    }

    migrations::migrate(owner.connection()).await.unwrap();

    let read = "select jsonb_build_array(task_id, thread, provider_thread)::text from session order by task_id";
    let read: Vec<String> = sqlx::query_scalar(read).fetch_all(&above).await.unwrap();
    let read: Vec<serde_json::Value> = read.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    let begun = json!({"number": 2, "live": true, "lost": 0, "tokens": 0, "failures": 0, "told": {"at": 1_700_000_000_000_i64, "provider": "p"}});
    let closed = json!({"number": 0, "live": false, "lost": 0, "tokens": 70, "failures": 3, "told": {}});
    let expected = [
        json!(["begun", begun, "resp_1"]),
        json!(["closed", closed, null]),
        json!(["new", {}, "resp_1"]),
    ];
    assert_eq!(read, expected);
    let forced = "select relforcerowsecurity from pg_class where oid = 'session'::regclass";
    assert!(sqlx::query_scalar::<_, bool>(forced).fetch_one(&above).await.unwrap());
    owner.close().await;
    above.close().await;
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
