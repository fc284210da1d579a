//! Postgres: reachable, migrated, and fit by the checks of a start (`storage::fitness`). Reads the catalogue and no tenant's data.

use runtime::{Settings, context};
use sea_orm::FromQueryResult;
use secrecy::ExposeSecret;
use storage::{
    Database, DatabaseOptions, Role, StorageError,
    fitness::{self, Fault, ServerFacts, Setting},
    migrations,
};

use super::{Check, Finding};

const MIGRATE: &str = "run `signalbox migrate` as the user that owns the tables";
pub(super) const SERVICES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    look(settings).await.unwrap_or_else(|finding| vec![finding])
}

/// The findings; as an error, the one that ends the examination.
async fn look(settings: &Settings) -> Result<Vec<Finding>, Finding> {
    let url = settings.database.url().map_err(|error| {
        let fix = "set it, or use `signalbox up`, which starts a Postgres of its own";
        Finding::failed(Check::Postgres, error, fix)
    })?;
    let (url, options) = (url.expose_secret(), options(settings));
    let owner = Database::connect(url, Role::Owner, &options).await.map_err(|error| {
        let fix = "is it running, and are host, user and password in database.url right?";
        Finding::failed(Check::Postgres, error, fix)
    })?;
    let setting = context::fitness_setting(&settings.database).await;
    let looked = async { Ok::<_, StorageError>((fitness::look(&owner).await?, applied(&owner).await?)) };
    let looked = looked.await;
    owner.close().await;
    let unread = |error| Finding::failed(Check::Postgres, error, "may this user read the catalogue?");
    let (facts, applied) = looked.map_err(unread)?;
    let setting = setting.map_err(|error| Finding::failed(Check::Postgres, error, "correct this setting"))?;
    let (seen, refused) = as_services(url, &options).await;
    let applied = if applied.is_empty() { seen } else { applied };
    let mut findings = judge(&facts, setting, &applied);
    if !applied.is_empty() {
        findings.push(roles(&refused));
    }
    Ok(findings)
}

pub(super) fn options(settings: &Settings) -> DatabaseOptions {
    DatabaseOptions {
        connections_max: 1,
        ..context::database_options(&settings.database)
    }
}

/// The applied migrations, as a service's role reads them, and the services whose role this login may not take.
async fn as_services(url: &str, options: &DatabaseOptions) -> (Vec<String>, Vec<&'static str>) {
    let (mut seen, mut refused) = (Vec::new(), Vec::new());
    for role in SERVICES {
        match Database::connect(url, role, options).await {
            Ok(database) => {
                seen = applied(&database).await.unwrap_or_default();
                database.close().await;
            }
            Err(_) => refused.push(role.service()),
        }
    }
    (seen, refused)
}

fn judge(facts: &ServerFacts, setting: Setting, applied: &[String]) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok(
            Check::Postgres,
            format!("version {}", fitness::shown(facts.login.version)),
        ),
        schema(applied, setting.migrates),
    ];
    let faults = facts.faults(setting);
    findings.extend(
        faults
            .iter()
            .map(|fault| Finding::problem(Check::Fitness, fault.to_string(), fault.fix())),
    );
    if faults.is_empty() {
        let message = "row-level security is on, forced and watched on every table of accounts";
        findings.push(Finding::ok(Check::Fitness, message));
    }
    if setting.is_local {
        findings.extend(on_this_machine(facts, &faults));
    }
    findings
}

/// Faults that a start refuses only for a database on another machine.
fn on_this_machine(facts: &ServerFacts, refused: &[Fault]) -> Vec<Finding> {
    let elsewhere = facts.faults(Setting {
        is_local: false,
        migrates: true,
    });
    let lenient = elsewhere.iter().filter(|fault| !refused.contains(fault));
    lenient
        .map(|fault| {
            let message = format!("{fault}; accepted on this machine, refused for a database on another machine");
            Finding::hint(Check::Fitness, message, fault.fix())
        })
        .collect()
}

/// Names of the applied migrations.
async fn applied(owner: &Database) -> Result<Vec<String>, StorageError> {
    if names(owner, MIGRATIONS_TABLE).await?.is_empty() {
        return Ok(Vec::new());
    }
    names(owner, MIGRATIONS).await
}

#[derive(FromQueryResult)]
struct Name {
    name: String,
}

async fn names(owner: &Database, query: &'static str) -> Result<Vec<String>, StorageError> {
    let rows: Vec<Name> = owner.query_alone("look at the migrations", query, []).await?;
    Ok(rows.into_iter().map(|row| row.name).collect())
}

/// Queried before the table: the first migration creates the table, and the doctor must not create it.
const MIGRATIONS_TABLE: &str =
    "select 'seaql_migrations' as name where has_table_privilege(to_regclass('seaql_migrations'), 'select')";
const MIGRATIONS: &str = "select version as name from seaql_migrations order by version";

const STEPS_SHOWN_MAX: usize = 5;

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
            Check::Schema,
            "the database has steps that this version does not know",
            "expected while a newer version is being rolled out",
        );
    }
    if pending.is_empty() {
        return Finding::ok(
            Check::Schema,
            format!("up to date at {}", known.last().unwrap_or(&"nothing")),
        );
    }
    let message = match pending[..] {
        [first, .., last] if STEPS_SHOWN_MAX < pending.len() => {
            format!("lacks {} steps, from {first} to {last}", pending.len())
        }
        _ => format!("lacks {}", pending.join(", ")),
    };
    if migrates_at_start {
        Finding::hint(
            Check::Schema,
            message,
            "database.migrate is on: the next start brings it up to date",
        )
    } else {
        Finding::problem(Check::Schema, message, MIGRATE)
    }
}

/// A login for one service takes one role, a login for all services takes four; with another number a grant is missing.
fn roles(refused: &[&str]) -> Finding {
    if refused.is_empty() {
        return Finding::ok(Check::DatabaseRoles, "every service may take its role");
    }
    if refused.len() == SERVICES.len() - 1 {
        let own = SERVICES.iter().map(|role| role.service());
        let own = own.filter(|service| !refused.contains(service)).collect::<String>();
        return Finding::ok(
            Check::DatabaseRoles,
            format!("a login of {own} only; it may take its role"),
        );
    }
    let message = format!("cannot take the role of {}", refused.join(", "));
    Finding::problem(
        Check::DatabaseRoles,
        message,
        "grant the signalbox_ roles to the user in database.url",
    )
}

#[cfg(test)]
mod tests {
    use sea_orm::ConnectionTrait;

    use super::*;

    fn check(finding: &Finding, is_problem: bool, message: &str) {
        let shown = serde_json::to_value(finding).unwrap();
        assert_eq!(
            (finding.is_problem(), shown["message"].as_str().unwrap()),
            (is_problem, message)
        );
        assert_eq!(
            shown["status"] == "ok",
            shown.get("fix").is_none(),
            "a finding has a fix unless it is ok"
        );
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn wants_every_step_unless_the_start_sees_to_it() {
        let steps = migrations::steps();
        let all: Vec<String> = steps.iter().map(|(name, _)| (*name).to_owned()).collect();
        let last = all.last().unwrap().clone();
        check(&schema(&all, false), false, &format!("up to date at {last}"));
        let none = format!("lacks {} steps, from {} to {last}", all.len(), all[0]);
        check(&schema(&[], true), false, &none);
        check(&schema(&[], false), true, &none);
        check(&schema(&all[..all.len() - 1], false), true, &format!("lacks {last}"));
        let newer = [all, texts(&["9999_future"])].concat();
        check(
            &schema(&newer, false),
            false,
            "the database has steps that this version does not know",
        );
    }

    #[test]
    fn wants_every_role() {
        check(&roles(&[]), false, "every service may take its role");
        check(&roles(&["delivery"]), true, "cannot take the role of delivery");
        let others = ["resolver", "tool-gateway", "orchestrator"];
        check(&roles(&others), false, "a login of delivery only; it may take its role");
    }

    #[tokio::test]
    async fn finds_nothing_wrong_with_a_migrated_database() {
        let database = testkit::TestDatabase::fresh().await;
        let settings = Settings::load_from("", [("DATABASE_URL", database.url.as_str())]).unwrap();
        let findings = examine(&settings).await;
        let problems: Vec<_> = findings.iter().filter(|finding| finding.is_problem()).collect();
        assert!(problems.is_empty(), "{problems:?}");
        let hints = super::super::finding::render(&findings);
        assert!(
            hints.contains("accepted on this machine, refused for a database on another machine"),
            "{hints}"
        );
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
        let fault = Fault {
            kind: &fitness::TABLES_OPEN,
            names: texts(&["turn"]),
        };
        let wall = Finding::problem(Check::Fitness, fault.to_string(), fault.fix());
        assert!(findings.contains(&wall), "{findings:?}");
    }
}
