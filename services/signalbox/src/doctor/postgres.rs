//! Postgres: reachable, new enough, migrated, and its walls standing. Reads the catalogue and nothing of a tenant.

use runtime::{Settings, context};
use sea_orm::{ConnectionTrait, FromQueryResult};
use secrecy::ExposeSecret;
use storage::{Database, DatabaseOptions, Role, StorageError, migrations, statement};

use super::Finding;

/// 15.0 as the server counts.
const VERSION_MIN: i32 = 150_000;
const MIGRATE: &str = "run `signalbox migrate` as the user that owns the tables";
const SERVICES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    let url = match settings.database.url() {
        Ok(url) => url.expose_secret(),
        Err(error) => {
            let mend = "set it, or use `signalbox up`, which starts a Postgres of its own";
            return vec![Finding::failed("postgres", error, mend)];
        }
    };
    let options = DatabaseOptions {
        connections_max: 1,
        ..context::database_options(&settings.database)
    };
    let owner = match Database::connect(url, Role::Owner, &options).await {
        Ok(owner) => owner,
        Err(error) => {
            let mend = "is it running, and are host, user and password in database.url right?";
            return vec![Finding::failed("postgres", error, mend)];
        }
    };
    let facts = facts(&owner).await;
    owner.close().await;
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => return vec![Finding::failed("postgres", error, "may this user read the catalogue?")],
    };
    let mut findings = judge(&facts, settings.database.migrate);
    if !facts.migrations.is_empty() {
        let mut refused = Vec::new();
        for role in SERVICES {
            match Database::connect(url, role, &options).await {
                Ok(database) => database.close().await,
                Err(_) => refused.push(role.service()),
            }
        }
        findings.push(roles(&refused));
    }
    findings
}

struct Facts {
    version: i32,
    user: String,
    is_superuser: bool,
    /// Names of the steps that were run.
    migrations: Vec<String>,
    /// Tables with tenants' rows that row-level security does not hold.
    tables_open: Vec<String>,
    /// Roles of services that row-level security does not hold.
    roles_above: Vec<String>,
}

#[derive(FromQueryResult)]
struct Login {
    version: i32,
    name: String,
    is_superuser: bool,
}

#[derive(FromQueryResult)]
struct Name {
    name: String,
}

async fn facts(owner: &Database) -> Result<Facts, StorageError> {
    let unreadable = |what: &str| StorageError::unreadable("look at the catalogue", what);
    let login = Login::find_by_statement(statement(LOGIN, [])).one(owner.connection());
    let login = login.await.map_err(|source| failed("look at the login", source))?;
    let login = login.ok_or_else(|| unreadable("no row for the current user"))?;
    let is_migrated = !names(owner, MIGRATIONS_TABLE).await?.is_empty();
    Ok(Facts {
        version: login.version,
        user: login.name,
        is_superuser: login.is_superuser,
        migrations: if is_migrated {
            names(owner, MIGRATIONS).await?
        } else {
            Vec::new()
        },
        tables_open: names(owner, TABLES_OPEN).await?,
        roles_above: names(owner, ROLES_ABOVE).await?,
    })
}

async fn names(owner: &Database, query: &'static str) -> Result<Vec<String>, StorageError> {
    let rows = owner.connection().query_all_raw(statement(query, [])).await;
    let rows = rows.map_err(|source| failed("look at the catalogue", source))?;
    rows.iter()
        .map(|row| Name::from_query_result(row, "").map(|row| row.name))
        .collect::<Result<_, _>>()
        .map_err(|source| failed("look at the catalogue", source))
}

fn failed(attempt: &'static str, source: sea_orm::DbErr) -> StorageError {
    StorageError::Database { attempt, source }
}

const LOGIN: &str = "
    select current_setting('server_version_num')::integer as version, rolname::text as name,
           rolsuper or rolbypassrls as is_superuser
    from pg_roles where rolname = current_user";
/// Asked before the table itself is: it is made by the first migration, and looking must not make it.
const MIGRATIONS_TABLE: &str = "select 'seaql_migrations' as name where to_regclass('seaql_migrations') is not null";
const MIGRATIONS: &str = "select version as name from seaql_migrations order by version";
const TABLES_OPEN: &str = "
    select c.relname::text as name from pg_class c
    where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace
      and not (c.relrowsecurity and c.relforcerowsecurity)
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
    order by 1";
const ROLES_ABOVE: &str = r"
    select rolname::text as name from pg_roles where rolname like 'signalbox\_%' and (rolsuper or rolbypassrls) order by 1";

fn judge(facts: &Facts, migrates_at_start: bool) -> Vec<Finding> {
    let mut findings = vec![
        version(facts.version),
        login(&facts.user, facts.is_superuser),
        schema(&facts.migrations, migrates_at_start),
    ];
    // Without tables there is nothing to hold.
    if !facts.migrations.is_empty() {
        findings.push(walls(&facts.tables_open, &facts.roles_above));
    }
    findings
}

fn version(found: i32) -> Finding {
    let shown = format!("version {}.{}", found / 10_000, found % 10_000);
    if found >= VERSION_MIN {
        Finding::ok("postgres", shown)
    } else {
        let said = format!("{shown} is too old");
        Finding::problem(
            "postgres",
            said,
            format!("use Postgres {} or newer", VERSION_MIN / 10_000),
        )
    }
}

fn login(user: &str, is_superuser: bool) -> Finding {
    if is_superuser {
        let mend = "give services a login of their own that is only granted the signalbox_ roles";
        return Finding::hint(
            "database user",
            format!("{user} is above row-level security until a service takes its role"),
            mend,
        );
    }
    Finding::ok("database user", format!("{user}, held by row-level security"))
}

fn schema(applied: &[String], migrates_at_start: bool) -> Finding {
    let known: Vec<&str> = migrations::steps().iter().map(|(name, _)| *name).collect();
    let pending: Vec<&str> = known
        .iter()
        .copied()
        .filter(|name| applied.iter().all(|done| done != name))
        .collect();
    let newer = applied.iter().any(|done| !known.contains(&done.as_str()));
    if newer {
        return Finding::hint(
            "schema",
            "the database has steps that this version does not know",
            "that is as it should be while a newer version is being rolled out",
        );
    }
    if pending.is_empty() {
        return Finding::ok(
            "schema",
            format!("up to date at {}", known.last().unwrap_or(&"nothing")),
        );
    }
    let said = format!("lacks {}", pending.join(", "));
    if migrates_at_start {
        Finding::hint(
            "schema",
            said,
            "database.migrate is on: the next start brings it up to date",
        )
    } else {
        Finding::problem("schema", said, MIGRATE)
    }
}

fn walls(tables_open: &[String], roles_above: &[String]) -> Finding {
    if !roles_above.is_empty() {
        let said = format!("{} is above it: accounts are not kept apart", roles_above.join(", "));
        return Finding::problem("row security", said, "alter role … nosuperuser nobypassrls");
    }
    if !tables_open.is_empty() {
        let said = format!(
            "not forced on {}: accounts are not kept apart there",
            tables_open.join(", ")
        );
        return Finding::problem(
            "row security",
            said,
            "alter table … enable row level security, force row level security",
        );
    }
    Finding::ok("row security", "on and forced on every table of accounts")
}

fn roles(refused: &[&str]) -> Finding {
    if refused.is_empty() {
        return Finding::ok("database roles", "every service may take its role");
    }
    let said = format!("not to be taken by {}", refused.join(", "));
    Finding::problem(
        "database roles",
        said,
        "grant the signalbox_ roles to the user in database.url",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(finding: &Finding, is_problem: bool, said: &str) {
        let shown = serde_json::to_value(finding).unwrap();
        assert_eq!(
            (finding.is_problem(), shown["said"].as_str().unwrap()),
            (is_problem, said)
        );
        assert_eq!(
            shown["status"] == "ok",
            shown.get("mend").is_none(),
            "what is wrong says how to mend it"
        );
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn wants_postgres_15() {
        check(&version(150_018), false, "version 15.18");
        check(&version(180_000), false, "version 18.0");
        check(&version(140_011), true, "version 14.11 is too old");
    }

    #[test]
    fn wants_every_step_unless_the_start_sees_to_it() {
        let steps = migrations::steps();
        let all: Vec<String> = steps.iter().map(|(name, _)| (*name).to_owned()).collect();
        let last = all.last().unwrap().clone();
        check(&schema(&all, false), false, &format!("up to date at {last}"));
        check(&schema(&[], true), false, &format!("lacks {}", all.join(", ")));
        check(&schema(&[], false), true, &format!("lacks {}", all.join(", ")));
        let newer = [all, texts(&["9999_future"])].concat();
        check(
            &schema(&newer, false),
            false,
            "the database has steps that this version does not know",
        );
    }

    #[test]
    fn wants_both_walls() {
        check(&walls(&[], &[]), false, "on and forced on every table of accounts");
        check(
            &walls(&texts(&["turn"]), &[]),
            true,
            "not forced on turn: accounts are not kept apart there",
        );
        let above = texts(&["signalbox_delivery"]);
        check(
            &walls(&[], &above),
            true,
            "signalbox_delivery is above it: accounts are not kept apart",
        );
        check(&roles(&[]), false, "every service may take its role");
        check(&roles(&["delivery"]), true, "not to be taken by delivery");
        check(&login("app", false), false, "app, held by row-level security");
        check(
            &login("postgres", true),
            false,
            "postgres is above row-level security until a service takes its role",
        );
    }

    #[tokio::test]
    async fn finds_nothing_wrong_with_a_migrated_database() {
        let database = testkit::TestDatabase::fresh().await;
        let settings = Settings::load_from("", [("DATABASE_URL", database.url.as_str())]).unwrap();
        let findings = examine(&settings).await;
        let problems: Vec<_> = findings.iter().filter(|finding| finding.is_problem()).collect();
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(findings.len(), 5);
    }

    #[tokio::test]
    async fn finds_a_table_without_its_wall() {
        let database = testkit::TestDatabase::fresh().await;
        let owner = database.connect(Role::Owner).await;
        owner
            .connection()
            .execute_unprepared("alter table turn no force row level security")
            .await
            .unwrap();
        let settings = Settings::load_from("", [("DATABASE_URL", database.url.as_str())]).unwrap();
        let findings = examine(&settings).await;
        let wall = walls(&texts(&["turn"]), &[]);
        assert!(findings.contains(&wall), "{findings:?}");
    }
}
