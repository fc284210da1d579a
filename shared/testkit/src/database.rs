//! A database for every test, cloned from a template that is migrated once for each version of the schema.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use contracts::Outgoing;
use devstack::SharedPostgres;
use sea_orm::{FromQueryResult, SqlxPostgresConnector};
use sqlx::{Connection, PgConnection, PgPool, Row, postgres::PgPoolOptions};
use storage::{Database, DatabaseOptions, Role, migrations, outbox::OutboxRow};
use uuid::{NoContext, Timestamp, Uuid};

use crate::eventually;

/// A test connects to its new database sooner than this.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

pub struct TestDatabase {
    /// The superuser's URL of this test's database.
    pub url: String,
    /// Row-level security does not apply to the superuser: use it for set-up and for assertions.
    pub owner: PgPool,
    /// Keeps the shared server running.
    _server: SharedPostgres,
}

impl TestDatabase {
    /// A migrated, empty database. It is dropped after its process has ended, when another test creates one.
    pub async fn fresh() -> TestDatabase {
        TestDatabase::create().await.expect("a test database")
    }

    async fn create() -> anyhow::Result<TestDatabase> {
        let server = SharedPostgres::for_tests().await?;
        let template = template_ensure(&server).await?;
        let name = name_at(SystemTime::now());
        let mut admin = PgConnection::connect(server.database_url())
            .await
            .context("the shared server")?;
        abandoned_drop(&mut admin).await?;
        execute(&mut admin, &format!("create database {name} template {template}")).await?;
        admin.close().await?;
        let url = server.database_url_of(&name);
        // One connection stays open as long as the process: it says that the database is in use.
        let options = PgPoolOptions::new().min_connections(1).max_connections(4);
        let owner = options.idle_timeout(None).max_lifetime(None).connect(&url).await?;
        // Rights on a database are not cloned with it.
        migrations::withdraw(&SqlxPostgresConnector::from_sqlx_postgres_pool(owner.clone())).await?;
        Ok(TestDatabase {
            url,
            owner,
            _server: server,
        })
    }

    /// A pool like a service's: its role, its guard, row-level security on.
    pub async fn connect(&self, role: Role) -> Database {
        let options = DatabaseOptions {
            connections_max: 8,
            ..DatabaseOptions::default()
        };
        Database::connect(&self.url, role, &options)
            .await
            .expect("a pool of the test database")
    }

    /// The messages in the outbox, oldest row first.
    pub async fn outbox(&self) -> Vec<Outgoing> {
        let connection = SqlxPostgresConnector::from_sqlx_postgres_pool(self.owner.clone());
        let rows = OutboxRow::find_by_statement(storage::statement("select * from outbox order by id", []));
        let rows = rows.all(&connection).await.expect("rows of the outbox");
        rows.into_iter().flat_map(|row| row.messages).collect()
    }

    /// Waits until a statement of this database waits for a lock that another one holds.
    pub async fn lock_is_awaited(&self) {
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        eventually("a statement waits for a lock", || async {
            (self.count(waits).await > 0).then_some(())
        })
        .await;
    }

    /// One number, as the superuser sees it.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query(query).fetch_one(&self.owner).await.expect(query).get(0)
    }

    /// A column of texts, as the superuser sees it.
    pub async fn texts(&self, query: &'static str) -> Vec<String> {
        sqlx::query(query)
            .fetch_all(&self.owner)
            .await
            .expect(query)
            .iter()
            .map(|row| row.get(0))
            .collect()
    }
}

/// Creates the template if this version of the schema has none yet. Test processes race for it; an advisory lock admits
/// one at a time.
async fn template_ensure(server: &SharedPostgres) -> anyhow::Result<String> {
    let template = format!("template_{}", migrations::fingerprint());
    let mut admin = PgConnection::connect(server.database_url())
        .await
        .context("the shared server")?;
    execute(&mut admin, "select pg_advisory_lock(74161)").await?;
    let exists = sqlx::query("select 1 from pg_database where datname = $1")
        .bind(&template)
        .fetch_optional(&mut admin)
        .await?
        .is_some();
    if !exists {
        // Created under another name first: a crash must not leave an incomplete template.
        let draft = format!("draft_{}", Uuid::now_v7().simple());
        execute(&mut admin, &format!("create database {draft}")).await?;
        let options = DatabaseOptions {
            connections_max: 2,
            ..DatabaseOptions::default()
        };
        let database = Database::connect(&server.database_url_of(&draft), Role::Owner, &options).await?;
        migrations::migrate(database.connection()).await?;
        database.close().await;
        execute(&mut admin, &format!("alter database {draft} rename to {template}")).await?;
    }
    admin.close().await?; // and with it the lock
    Ok(template)
}

/// Drops two databases whose tests are over, if there are as many: a run of all tests would otherwise leave 14 GB until the
/// server ends. Another process may drop them first.
async fn abandoned_drop(admin: &mut PgConnection) -> anyhow::Result<()> {
    let abandoned = "select datname from pg_database d
                     where datname between 'test_' and $1
                       and not exists (select from pg_stat_activity a where a.datname = d.datname)
                     order by random() limit 2";
    let names: Vec<String> = sqlx::query_scalar(abandoned)
        .bind(name_at(SystemTime::now() - CONNECT_LIMIT))
        .fetch_all(&mut *admin)
        .await?;
    for name in names {
        // One that is in use after all is left to a later test.
        execute(admin, &format!("drop database if exists {name}")).await.ok();
    }
    Ok(())
}

/// Names of databases sort by time.
fn name_at(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
    let timestamp = Timestamp::from_unix(NoContext, since.as_secs(), since.subsec_nanos());
    format!("test_{}", Uuid::new_v7(timestamp).simple())
}

/// The names are our own; `create database` takes no parameters.
async fn execute(connection: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .with_context(|| sql.to_owned())
        .map(|_| ())
}
