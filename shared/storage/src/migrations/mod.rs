//! The schema, one SQL file a step. Steps are only added: existing databases have run the present ones.

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, TransactionTrait};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager, async_trait::async_trait};

use crate::{StorageError, error::Attempt, statement};

pub struct Migrator;

/// A step of one SQL file.
struct Step {
    name: &'static str,
    sql: &'static str,
}

impl MigrationName for Step {
    fn name(&self) -> &str {
        self.name
    }
}

#[async_trait]
impl MigrationTrait for Step {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.get_connection().execute_unprepared(self.sql).await.map(|_| ())
    }
}

/// The step from which on a service's role may read the list of steps.
const SEEN_SINCE: &str = "0010_seen_steps";

/// Names and SQL. `build.rs` lists the files.
const STEPS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/steps.rs"));

#[async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        STEPS
            .iter()
            .map(|&(name, sql)| Box::new(Step { name, sql }) as Box<dyn MigrationTrait>)
            .collect()
    }
}

/// Migrates the schema, and revokes the rights of services' roles to create objects in the database. Safe to call from
/// many processes at once: they run one after the other.
pub async fn migrate(connection: &DatabaseConnection) -> Result<(), StorageError> {
    // The lock belongs to a transaction without other statements, so that it ends with the transaction in every case.
    let turn = connection.begin().await.attempt("begin migration")?;
    // The transaction is idle while the steps run, which may take minutes on large tables.
    turn.execute_unprepared("set local idle_in_transaction_session_timeout = 0; select pg_advisory_xact_lock(74160)")
        .await
        .attempt("wait for other migrations")?;
    let migrated = up(connection).await;
    // Also after a failed step: lent rights are revoked.
    withdraw(connection).await?;
    migrated?;
    turn.commit().await.attempt("end migration")
}

async fn up(connection: &DatabaseConnection) -> Result<(), StorageError> {
    if pending(connection).await?.is_empty() {
        return Ok(());
    }
    let lend = connection.execute_unprepared(LEND).await;
    lend.attempt("lend rights to the sweeper role")?;
    Migrator::up(connection, None).await.attempt("migrate")
}

/// Revokes rights that no service needs from every role: temporary objects, and objects in the schema. An unqualified
/// name in a statement or a function then means an object of a migration. Not a step, since a dump or a copy of the
/// database does not contain these rights. A login that may not revoke them leaves the report to the check at the start
/// ([`crate::fitness`]).
pub async fn withdraw(connection: &DatabaseConnection) -> Result<(), StorageError> {
    let withdraw = connection.execute_unprepared(WITHDRAW).await;
    withdraw.attempt("revoke the right to create objects").map(|_| ())
}

/// An owner that is no superuser can give a function only to a role that may create objects in its schema.
const LEND: &str = "
    do $$
    begin
        if not has_schema_privilege('signalbox_sweeper', 'public', 'create') then
            grant create on schema public to signalbox_sweeper;
        end if;
    exception when undefined_object or insufficient_privilege then
        raise notice 'nothing lent to signalbox_sweeper: %', sqlerrm;
    end $$";
/// Checks first: a change of these rights invalidates the caches of every connection.
const WITHDRAW: &str = "
    do $$
    declare everybody constant text :=
        'public, signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator, signalbox_sweeper';
    begin
        if exists (select from string_to_table(everybody, ', ') r (name)
                   where has_database_privilege(r.name, current_database(), 'temporary')
                      or has_schema_privilege(r.name, 'public', 'create')) then
            execute format('revoke temporary on database %I from %s', current_database(), everybody);
            execute format('revoke create on schema public from %s', everybody);
        end if;
    exception when undefined_object or insufficient_privilege then
        raise notice 'rights to make objects stay as they are: %', sqlerrm;
    end $$";

/// Names of the steps that this version has and the database has not run, as far as the connected role may read them.
/// Writes nothing.
pub async fn pending(connection: &DatabaseConnection) -> Result<Vec<String>, StorageError> {
    let (is_there, is_readable, ran) = ran(connection).await?;
    let lacks = |name: &str| match (is_there, is_readable) {
        // A role that may not read the list sees a schema from before that right was granted, or has no role.
        (true, false) => name >= SEEN_SINCE,
        (_, _) => ran.iter().all(|done| done != name),
    };
    let lacking = STEPS.iter().map(|(name, _)| *name).filter(|name| lacks(name));
    Ok(lacking.map(str::to_owned).collect())
}

/// Whether the database has run a step that this version does not know.
pub(crate) async fn is_newer(connection: &DatabaseConnection) -> Result<bool, StorageError> {
    let (_, _, ran) = ran(connection).await?;
    Ok(ran.iter().any(|done| STEPS.iter().all(|(name, _)| name != done)))
}

/// Whether the list of steps exists, whether it can be read, and its content.
async fn ran(connection: &DatabaseConnection) -> Result<(bool, bool, Vec<String>), StorageError> {
    let table = connection.query_one_raw(statement(TABLE, [])).await;
    let table = table.attempt("find the list of migrations")?;
    let (mut is_there, mut is_readable) = (false, false);
    if let Some(row) = table {
        is_there = row.try_get("", "is_there").attempt("find the list of migrations")?;
        is_readable = row.try_get("", "is_readable").attempt("find the list of migrations")?;
    }
    let mut ran = Vec::new();
    if is_readable {
        let rows = connection.query_all_raw(statement(RAN, [])).await;
        for row in rows.attempt("read migrations")? {
            ran.push(row.try_get::<String>("", "version").attempt("read migrations")?);
        }
    }
    Ok((is_there, is_readable, ran))
}

/// Asked before the table is read: the first migration creates it, and reading a missing table is an error.
const TABLE: &str = "select to_regclass('seaql_migrations') is not null as is_there, \
    coalesce(has_table_privilege(to_regclass('seaql_migrations'), 'select'), false) as is_readable";
const RAN: &str = "select version from seaql_migrations order by version";

/// Names and SQL of all steps, in order.
pub fn steps() -> &'static [(&'static str, &'static str)] {
    STEPS
}

/// A hash of all steps: names the template that tests clone.
pub fn fingerprint() -> String {
    // FNV-1a: stable between builds, which the standard library's hasher does not promise. It secures nothing.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in STEPS.iter().flat_map(|(name, sql)| name.bytes().chain(sql.bytes())) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}
