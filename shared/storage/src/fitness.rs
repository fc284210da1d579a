//! Whether a database may be used. A start refuses an unfit database and `signalbox doctor` shows its faults, by the
//! same code. [`look`] reads the catalogue and no tenant's rows; [`ServerFacts::faults`] judges, and is pure.
//!
//! Some faults are refused only on another machine's database: a login above row-level security, and settings that may
//! lose commits. On this machine, a user who could exploit them has the data directory anyway, and `signalbox up` and
//! tests run so.

use std::{collections::BTreeSet, fmt, str::FromStr};

use sea_orm::{ConnectionTrait, FromQueryResult};
use sqlx::postgres::PgConnectOptions;

use crate::{Database, StorageError, error::Attempt, migrations, statement};

/// 15.0 as the server counts: the first version with `security_invoker`.
pub const VERSION_MIN: i32 = 150_000;

/// What the catalogue says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFacts {
    pub login: Login,
    /// What is wrong for every login.
    pub found: Vec<Fault>,
}

/// The user that connected, whatever role was taken then.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Login {
    /// The server's.
    pub version: i32,
    pub name: String,
    pub is_superuser: bool,
    /// Bypasses row-level security.
    pub bypasses: bool,
    /// Owns tables with tenants' rows.
    pub owns: bool,
}

/// Where and how the database is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The database runs on this machine.
    pub is_local: bool,
    /// This process migrates the schema, and so must own it.
    pub migrates: bool,
}

/// One reason not to use a database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub kind: &'static FaultKind,
    pub names: Vec<String>,
}

#[derive(PartialEq, Eq, Debug)]
pub struct FaultKind {
    /// SQL: the names of what has the fault. Empty where other facts tell.
    find: &'static str,
    /// `{}` stands for the names.
    says: &'static str,
    fix: &'static str,
}

impl ServerFacts {
    pub fn faults(&self, setting: Setting) -> Vec<Fault> {
        let login = &self.login;
        if login.version < VERSION_MIN {
            // The catalogue of an older version has another shape, so the other facts are not judged.
            return vec![Fault::of(&TOO_OLD, shown(login.version))];
        }
        let mut faults = self.found.clone();
        if setting.is_local {
            faults.retain(|fault| fault.kind != &SETTINGS_LOSING);
        } else if login.is_above() {
            faults.push(Fault::of(&LOGIN_ABOVE, login.name.clone()));
        } else if login.owns && !setting.migrates {
            faults.push(Fault::of(&LOGIN_OWNS, login.name.clone()));
        }
        faults
    }
}

impl Login {
    /// Above row-level security.
    pub fn is_above(&self) -> bool {
        self.is_superuser || self.bypasses
    }
}

impl Fault {
    fn of(kind: &'static FaultKind, name: String) -> Fault {
        Fault {
            kind,
            names: vec![name],
        }
    }

    pub fn fix(&self) -> &'static str {
        self.kind.fix
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind.says.replace("{}", &self.names.join(", ")))
    }
}

/// `15.18` for what the server counts as 150018.
pub fn shown(version: i32) -> String {
    format!("{}.{}", version / 10_000, version % 10_000)
}

/// Whether a URL can only mean a server of this machine. A name that cannot be resolved may be anywhere.
pub async fn is_local(url: &str) -> bool {
    let Ok(options) = PgConnectOptions::from_str(url) else {
        return false;
    };
    let host = options.get_host();
    if host.starts_with('/') {
        return true; // a socket
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match tokio::net::lookup_host((host, options.get_port())).await {
        Ok(mut addresses) => addresses.all(|address| address.ip().is_loopback()),
        Err(_) => false,
    }
}

/// Reads the catalogue, as any role: every role may read it.
pub async fn look(database: &Database) -> Result<ServerFacts, StorageError> {
    let login = Login::find_by_statement(statement(LOGIN, [])).one(database.connection());
    let login = login.await.attempt("read the login")?;
    let login = login.ok_or_else(|| StorageError::unreadable("read the login", "no row for the current user"))?;
    let mut found = Vec::new();
    for kind in FOUND {
        let mut names = names(database, kind.find).await?;
        if kind == &POLICIES_CHANGED {
            names = changed(database, login.version, names).await?;
        }
        if !names.is_empty() {
            found.push(Fault { kind, names });
        }
    }
    Ok(ServerFacts { login, found })
}

/// Every policy, one a line.
pub async fn policies(database: &Database) -> Result<Vec<String>, StorageError> {
    names(database, POLICIES_CHANGED.find).await
}

/// The result of [`policies`] for a database that the migrations have made. `tests/it/walls.rs` compares and, with
/// `INSTA_UPDATE=always`, writes it.
pub const POLICIES_EXPECTED: &str = include_str!("policies.txt");

/// The major version of Postgres that printed them: another version may print the same policy differently.
pub const POLICIES_MAJOR: i32 = 15;

/// The changed ones of all policies. None for a schema that is newer than this version, or for another major version of
/// Postgres. A missing policy is found by its table.
async fn changed(database: &Database, version: i32, found: Vec<String>) -> Result<Vec<String>, StorageError> {
    if version / 10_000 != POLICIES_MAJOR || migrations::is_newer(database.connection()).await? {
        return Ok(Vec::new());
    }
    let table_of = |line: &str| Some(line.split_once(" on ")?.1.split_once(':')?.0.to_owned());
    let expected: BTreeSet<&str> = POLICIES_EXPECTED.lines().collect();
    let tables: BTreeSet<String> = expected.iter().filter_map(|line| table_of(line)).collect();
    let changed = found.into_iter().filter(|line| {
        !expected.contains(line.as_str()) && table_of(line).is_some_and(|table| tables.contains(&table))
    });
    Ok(changed
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect())
}

async fn names(database: &Database, query: &'static str) -> Result<Vec<String>, StorageError> {
    let rows = database.connection().query_all_raw(statement(query, [])).await;
    let names = rows.and_then(|rows| rows.iter().map(|row| row.try_get("", "name")).collect());
    names.attempt("read the catalogue")
}

pub static TOO_OLD: FaultKind = FaultKind {
    find: "",
    says: "version {} is too old",
    fix: "use Postgres 15 or newer",
};
static LOGIN_ABOVE: FaultKind = FaultKind {
    find: "",
    says: "login {} is above row-level security",
    fix: LOGIN_FIX,
};
static LOGIN_OWNS: FaultKind = FaultKind {
    find: "",
    says: "login {} owns the tables and database.migrate is off",
    fix: LOGIN_FIX,
};
const LOGIN_FIX: &str = "give services a login of their own that is only granted the signalbox_ roles (SECURITY.md)";

/// Roles of services that are superusers, bypass row-level security, or own tables.
pub static ROLES_ABOVE: FaultKind = FaultKind {
    find: r"
    select r.rolname::text as name from pg_roles r
    where r.rolname like 'signalbox\_%' and r.rolname <> session_user
      and (r.rolsuper or r.rolbypassrls or exists (
          select from pg_class c join pg_attribute a on a.attrelid = c.oid
          where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
            and a.attname = 'account_id' and pg_has_role(r.oid, c.relowner, 'USAGE')))
    order by 1",
    says: "{} is above row-level security: accounts are not kept apart",
    fix: "alter role … nosuperuser nobypassrls, and give the tables to the login that migrates",
};

/// Tables with tenants' rows where row-level security is not enabled and forced.
pub static TABLES_OPEN: FaultKind = FaultKind {
    find: "
    select c.relname::text as name from pg_class c
    where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
      and not (c.relrowsecurity and c.relforcerowsecurity)
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
    order by 1",
    says: "row-level security is not forced on {}: accounts are not kept apart there",
    fix: "alter table … enable row level security, force row level security",
};

/// Tables without the policy `tenant`, for every role, on reads and on writes.
pub static TABLES_UNWATCHED: FaultKind = FaultKind {
    find: "
    select c.relname::text as name from pg_class c
    where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
      and not exists (
          select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant' and p.polcmd = '*' and p.polpermissive
            and p.polroles = array[0::oid] and p.polqual is not null and p.polwithcheck is not null)
    order by 1",
    says: "{} has no policy for reading and writing",
    fix: "make the policy `tenant` again as in schemas/database.sql",
};

/// Views that show their owner's rows instead of the caller's. A materialized view never checks its caller. Views of an
/// extension (`pg_stat_statements`) read none of these tables.
pub static VIEWS_ABOVE: FaultKind = FaultKind {
    find: "
    select c.relname::text as name from pg_class c
    where c.relnamespace = current_schema()::regnamespace
      and (c.relkind = 'm' or c.relkind = 'v' and not exists (
          select from pg_options_to_table(c.reloptions) o
          where o.option_name = 'security_invoker' and o.option_value::boolean))
      and not exists (
          select from pg_depend d
          where d.classid = 'pg_class'::regclass and d.objid = c.oid
            and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e')
    order by 1",
    says: "{} shows rows of every account",
    fix: "alter view … set (security_invoker = true)",
};

/// Functions that run with their owner's rights and resolve names by their caller's search path, and all functions of a
/// service's role, except those of extensions.
pub static FUNCTIONS_OPEN: FaultKind = FaultKind {
    find: r"
    select p.oid::regprocedure::text as name from pg_proc p join pg_roles o on o.oid = p.proowner
    where p.pronamespace = 'public'::regnamespace and (p.prosecdef or o.rolname like 'signalbox\_%')
      and not coalesce('search_path=public, pg_temp' = any (p.proconfig) and p.prosecdef, false)
      and not exists (
          select from pg_depend d
          where d.classid = 'pg_proc'::regclass and d.objid = p.oid
            and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e')
    order by 1",
    says: "{} may run code of a service",
    fix: "alter function … set search_path = public, pg_temp; drop function … where schemas/database.sql has none",
};

/// Roles of services, and logins, that may create objects that shadow ours; and which objects. Zero stands for every role;
/// a right of every role is reported once. The login counts, since its own temporary objects stay when it takes a role; a
/// login that is above row-level security anyway is reported as such.
pub static ROLES_MAKING: FaultKind = FaultKind {
    find: r"
    with role (oid, name) as (
        select 0::oid, 'everybody'
        union all
        select r.oid, r.rolname::text from pg_roles r, pg_database d
        where d.datname = current_database() and not r.rolsuper and not pg_has_role(r.oid, d.datdba, 'USAGE')
          and (r.rolname like 'signalbox\_%' or r.rolname = session_user)
    ), held as (
        select r.oid, r.name, w.what from role r cross join lateral (
            select 'temporary objects' where has_database_privilege(r.oid, current_database(), 'temporary')
            union all
            select 'schemas' where has_database_privilege(r.oid, current_database(), 'create')
            union all
            select 'objects in schema public' where has_schema_privilege(r.oid, 'public', 'create')) w (what)
    )
    select format('%s by %s', h.what, h.name) as name from held h
    where h.oid = 0 or not exists (select from held e where e.oid = 0 and e.what = h.what)
    order by 1",
    says: "objects can be created that shadow ours: {}",
    fix: "run `signalbox migrate` as the owner of the database, or revoke temporary and create on the database, \
          and create on schema public, from each and from public",
};

/// Shared tables in which one service may write in another's name; and which service.
pub static TABLES_SHARED: FaultKind = FaultKind {
    find: r"
    select format('%s for %s', t.name, r.rolname) as name
    from (values ('dead_letter'), ('outbox'), ('replica')) t (name)
    join pg_class c on c.relname = t.name and c.relnamespace = 'public'::regnamespace
    join pg_roles r on r.rolname in ('signalbox_resolver', 'signalbox_delivery', 'signalbox_tool_gateway',
                                     'signalbox_orchestrator')
    where not (c.relrowsecurity and c.relforcerowsecurity) or not exists (
        select from pg_policy p
        where p.polrelid = c.oid and not p.polpermissive and p.polcmd in ('a', '*') and r.oid = any (p.polroles)
          and p.polwithcheck is not null)
    order by 1",
    says: "a service may write in another's name: no policy on {}",
    fix: "make the policies `own_…` again as in schemas/database.sql",
};

/// All policies, one a line, as Postgres prints them: name and table, a colon, and the definition. [`changed`] keeps those
/// that differ from the migrations'.
pub static POLICIES_CHANGED: FaultKind = FaultKind {
    find: r#"
    select regexp_replace(format('%s on %s: %s%s for %s using %s with check %s', policyname, tablename,
               case permissive when 'RESTRICTIVE' then 'only ' else '' end, cmd, array_to_string(roles, ', '),
               coalesce(qual, '-'), coalesce(with_check, '-')), '\s+', ' ', 'g') as name
    from pg_policies where schemaname = current_schema() order by policyname collate "C", tablename collate "C""#,
    says: "policies differ from the migrations': {}",
    fix: "make them again as in schemas/database.sql, and drop those that it has not",
};

/// Settings with which an acknowledged commit may be lost.
pub static SETTINGS_LOSING: FaultKind = FaultKind {
    find: "
    select s.name from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) as s (name)
    where current_setting(s.name) = 'off' order by 1",
    says: "{} is off: what is committed may be lost",
    fix: "switch them on again and restart Postgres",
};

/// All that have a query.
static FOUND: [&FaultKind; 9] = [
    &ROLES_ABOVE,
    &TABLES_OPEN,
    &TABLES_UNWATCHED,
    &VIEWS_ABOVE,
    &FUNCTIONS_OPEN,
    &ROLES_MAKING,
    &TABLES_SHARED,
    &POLICIES_CHANGED,
    &SETTINGS_LOSING,
];

/// A login counts as an owner if it has the owner's rights without taking a role.
const LOGIN: &str = "
    select current_setting('server_version_num')::integer as version, r.rolname::text as name,
           r.rolsuper as is_superuser, r.rolbypassrls as bypasses,
           exists (select from pg_class c join pg_attribute a on a.attrelid = c.oid
                   where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
                     and a.attname = 'account_id' and pg_has_role(r.oid, c.relowner, 'USAGE')) as owns
    from pg_roles r where r.rolname = session_user";

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Setting = Setting {
        is_local: true,
        migrates: false,
    };
    const ELSEWHERE: Setting = Setting {
        is_local: false,
        migrates: false,
    };

    fn check(setting: Setting, change: impl FnOnce(&mut ServerFacts), says: &[&str]) {
        let login = Login {
            version: 150_018,
            name: "app".to_owned(),
            is_superuser: false,
            bypasses: false,
            owns: false,
        };
        let mut facts = ServerFacts {
            login,
            found: Vec::new(),
        };
        change(&mut facts);
        let faults: Vec<String> = facts.faults(setting).iter().map(Fault::to_string).collect();
        assert_eq!(faults, says, "{setting:?}");
    }

    fn found(kind: &'static FaultKind, names: &[&str]) -> Fault {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Fault { kind, names }
    }

    #[test]
    fn what_is_wrong_anywhere() {
        for setting in [LOCAL, ELSEWHERE] {
            check(setting, |_| {}, &[]);
            check(
                setting,
                |facts| facts.login.version = 140_011,
                &["version 14.11 is too old"],
            );
            let faults = vec![
                found(&ROLES_ABOVE, &["signalbox_delivery"]),
                found(&TABLES_OPEN, &["task", "turn"]),
            ];
            check(
                setting,
                |facts| facts.found = faults,
                &[
                    "signalbox_delivery is above row-level security: accounts are not kept apart",
                    "row-level security is not forced on task, turn: accounts are not kept apart there",
                ],
            );
        }
        assert!(FOUND.iter().all(|kind| kind.says.matches("{}").count() == 1));
    }

    #[test]
    fn what_is_wrong_where_the_database_is_another_machines() {
        type Change = fn(&mut ServerFacts);
        let cases: [(Change, &str); 4] = [
            (
                |facts| facts.login.is_superuser = true,
                "login app is above row-level security",
            ),
            (
                |facts| facts.login.bypasses = true,
                "login app is above row-level security",
            ),
            (
                |facts| facts.login.owns = true,
                "login app owns the tables and database.migrate is off",
            ),
            (
                |facts| facts.found = vec![found(&SETTINGS_LOSING, &["fsync"])],
                "fsync is off: what is committed may be lost",
            ),
        ];
        for (change, says) in cases {
            check(ELSEWHERE, change, &[says]);
            check(LOCAL, change, &[]);
        }
        let migrating = Setting {
            migrates: true,
            ..ELSEWHERE
        };
        check(migrating, |facts| facts.login.owns = true, &[]);
        check(
            migrating,
            |facts| (facts.login.is_superuser, facts.login.owns) = (true, true),
            &["login app is above row-level security"],
        );
    }

    #[tokio::test]
    async fn a_url_shows_whether_the_server_is_local() {
        let check = async |url: &str, expected: bool| assert_eq!(is_local(url).await, expected, "{url}");
        check("postgres://u:p@127.0.0.1:5432/d", true).await;
        check("postgres://u:p@[::1]/d", true).await;
        check("postgres:///d?host=/run/postgresql", true).await;
        check("postgres://u:p@192.0.2.7/d", false).await;
        check("postgres://u:p@database.invalid/d", false).await;
        check("nonsense", false).await;
    }
}
