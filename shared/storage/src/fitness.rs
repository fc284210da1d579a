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
    pub version: i32,
    /// The user that connected, whatever role was taken then.
    pub login: String,
    pub login_is_superuser: bool,
    pub login_bypasses: bool,
    /// The login owns tables with tenants' rows.
    pub login_owns: bool,
    /// Roles of services that are superusers, bypass row-level security, or own tables.
    pub roles_above: Vec<String>,
    /// Tables with tenants' rows where row-level security is not enabled and forced.
    pub tables_open: Vec<String>,
    /// Tables whose policy does not apply to both reading and writing.
    pub tables_unwatched: Vec<String>,
    /// Views that show their owner's rows instead of the caller's.
    pub views_above: Vec<String>,
    /// Functions that resolve names by their caller's search path, or that a service's role has made.
    pub functions_open: Vec<String>,
    /// Roles of services, and logins, that may create objects that shadow ours; and which objects.
    pub roles_making: Vec<String>,
    /// Shared tables in which one service may write in another's name; and which service.
    pub tables_shared: Vec<String>,
    /// Policies on our tables that differ from those of the migrations. Empty for a schema that is newer than this
    /// version, and for a Postgres of another major version than [`POLICIES_MAJOR`].
    pub policies_changed: Vec<String>,
    /// Settings with which an acknowledged commit may be lost.
    pub settings_losing: Vec<String>,
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
pub enum Fault {
    TooOld(i32),
    RolesAbove(Vec<String>),
    TablesOpen(Vec<String>),
    TablesUnwatched(Vec<String>),
    ViewsAbove(Vec<String>),
    FunctionsOpen(Vec<String>),
    RolesMaking(Vec<String>),
    TablesShared(Vec<String>),
    PoliciesChanged(Vec<String>),
    LoginAbove(String),
    LoginOwns(String),
    Losing(Vec<String>),
}

impl ServerFacts {
    pub fn faults(&self, setting: Setting) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.version < VERSION_MIN {
            // The catalogue of an older version has another shape, so the other facts are not judged.
            return vec![Fault::TooOld(self.version)];
        }
        let mut found = |names: &Vec<String>, fault: fn(Vec<String>) -> Fault| {
            if !names.is_empty() {
                faults.push(fault(names.clone()));
            }
        };
        found(&self.roles_above, Fault::RolesAbove);
        found(&self.tables_open, Fault::TablesOpen);
        found(&self.tables_unwatched, Fault::TablesUnwatched);
        found(&self.views_above, Fault::ViewsAbove);
        found(&self.functions_open, Fault::FunctionsOpen);
        found(&self.roles_making, Fault::RolesMaking);
        found(&self.tables_shared, Fault::TablesShared);
        found(&self.policies_changed, Fault::PoliciesChanged);
        if !setting.is_local {
            if self.is_login_above() {
                faults.push(Fault::LoginAbove(self.login.clone()));
            } else if self.login_owns && !setting.migrates {
                faults.push(Fault::LoginOwns(self.login.clone()));
            }
            if !self.settings_losing.is_empty() {
                faults.push(Fault::Losing(self.settings_losing.clone()));
            }
        }
        faults
    }

    pub fn is_login_above(&self) -> bool {
        self.login_is_superuser || self.login_bypasses
    }
}

impl Fault {
    pub fn fix(&self) -> &'static str {
        match self {
            Fault::TooOld(_) => "use Postgres 15 or newer",
            Fault::RolesAbove(_) => {
                "alter role … nosuperuser nobypassrls, and give the tables to the login that migrates"
            }
            Fault::TablesOpen(_) => "alter table … enable row level security, force row level security",
            Fault::TablesUnwatched(_) => "make the policy `tenant` again as in schemas/database.sql",
            Fault::ViewsAbove(_) => "alter view … set (security_invoker = true)",
            Fault::FunctionsOpen(_) => {
                "alter function … set search_path = public, pg_temp; drop function … where schemas/database.sql has none"
            }
            Fault::RolesMaking(_) => {
                "run `signalbox migrate` as the owner of the database, or revoke temporary and create on the database, \
                 and create on schema public, from each and from public"
            }
            Fault::TablesShared(_) => "make the policies `own_…` again as in schemas/database.sql",
            Fault::PoliciesChanged(_) => "make them again as in schemas/database.sql, and drop those that it has not",
            Fault::LoginAbove(_) | Fault::LoginOwns(_) => {
                "give services a login of their own that is only granted the signalbox_ roles (SECURITY.md)"
            }
            Fault::Losing(_) => "switch them on again and restart Postgres",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TooOld(version) => write!(f, "version {} is too old", shown(*version)),
            Fault::RolesAbove(roles) => {
                write!(
                    f,
                    "{} is above row-level security: accounts are not kept apart",
                    roles.join(", ")
                )
            }
            Fault::TablesOpen(tables) => write!(
                f,
                "row-level security is not forced on {}: accounts are not kept apart there",
                tables.join(", ")
            ),
            Fault::TablesUnwatched(tables) => {
                write!(f, "{} has no policy for reading and writing", tables.join(", "))
            }
            Fault::ViewsAbove(views) => write!(f, "{} shows rows of every account", views.join(", ")),
            Fault::FunctionsOpen(functions) => {
                write!(f, "{} may run code of a service", functions.join(", "))
            }
            Fault::RolesMaking(roles) => {
                write!(f, "objects can be created that shadow ours: {}", roles.join(", "))
            }
            Fault::TablesShared(tables) => {
                write!(
                    f,
                    "a service may write in another's name: no policy on {}",
                    tables.join(", ")
                )
            }
            Fault::PoliciesChanged(policies) => {
                write!(f, "policies differ from the migrations': {}", policies.join(", "))
            }
            Fault::LoginAbove(login) => write!(f, "login {login} is above row-level security"),
            Fault::LoginOwns(login) => write!(f, "login {login} owns the tables and database.migrate is off"),
            Fault::Losing(settings) => {
                write!(f, "{} is off: what is committed may be lost", settings.join(", "))
            }
        }
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

#[derive(FromQueryResult)]
struct Login {
    version: i32,
    name: String,
    is_superuser: bool,
    bypasses: bool,
    owns: bool,
}

#[derive(FromQueryResult)]
struct Name {
    name: String,
}

/// Reads the catalogue, as any role: every role may read it.
pub async fn look(database: &Database) -> Result<ServerFacts, StorageError> {
    let connection = database.connection();
    let login = Login::find_by_statement(statement(LOGIN, [])).one(connection).await;
    let login = login
        .attempt("read the login")?
        .ok_or_else(|| StorageError::unreadable("read the login", "no row for the current user"))?;
    Ok(ServerFacts {
        version: login.version,
        login: login.name,
        login_is_superuser: login.is_superuser,
        login_bypasses: login.bypasses,
        login_owns: login.owns,
        roles_above: names(database, ROLES_ABOVE).await?,
        tables_open: names(database, TABLES_OPEN).await?,
        tables_unwatched: names(database, TABLES_UNWATCHED).await?,
        views_above: names(database, VIEWS_ABOVE).await?,
        functions_open: names(database, FUNCTIONS_OPEN).await?,
        roles_making: names(database, ROLES_MAKING).await?,
        tables_shared: names(database, TABLES_SHARED).await?,
        policies_changed: policies_changed(database, login.version).await?,
        settings_losing: names(database, SETTINGS_LOSING).await?,
    })
}

/// Every policy, one a line, as Postgres prints it: its name and table, a colon, and its definition.
pub async fn policies(database: &Database) -> Result<Vec<String>, StorageError> {
    names(database, POLICIES).await
}

/// The result of [`policies`] for a database that the migrations have made. `tests/it/walls.rs` compares and, with
/// `INSTA_UPDATE=always`, writes it.
pub const POLICIES_EXPECTED: &str = include_str!("policies.txt");

/// The major version of Postgres that printed them: another version may print the same policy differently.
pub const POLICIES_MAJOR: i32 = 15;

/// Finds changed policies. A missing policy is found by its table.
async fn policies_changed(database: &Database, version: i32) -> Result<Vec<String>, StorageError> {
    if version / 10_000 != POLICIES_MAJOR || migrations::is_newer(database.connection()).await? {
        return Ok(Vec::new());
    }
    let table_of = |line: &str| Some(line.split_once(" on ")?.1.split_once(':')?.0.to_owned());
    let expected: BTreeSet<&str> = POLICIES_EXPECTED.lines().collect();
    let tables: BTreeSet<String> = expected.iter().filter_map(|line| table_of(line)).collect();
    let found = policies(database).await?.into_iter();
    let changed = found.filter(|line| {
        !expected.contains(line.as_str()) && table_of(line).is_some_and(|table| tables.contains(&table))
    });
    Ok(changed
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect())
}

async fn names(database: &Database, query: &'static str) -> Result<Vec<String>, StorageError> {
    let rows = database.connection().query_all_raw(statement(query, [])).await;
    let rows = rows.attempt("read the catalogue")?;
    rows.iter()
        .map(|row| Name::from_query_result(row, "").map(|row| row.name))
        .collect::<Result<_, _>>()
        .attempt("read the catalogue")
}

/// A login counts as an owner if it has the owner's rights without taking a role.
const LOGIN: &str = "
    select current_setting('server_version_num')::integer as version, r.rolname::text as name,
           r.rolsuper as is_superuser, r.rolbypassrls as bypasses,
           exists (select from pg_class c join pg_attribute a on a.attrelid = c.oid
                   where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
                     and a.attname = 'account_id' and pg_has_role(r.oid, c.relowner, 'USAGE')) as owns
    from pg_roles r where r.rolname = session_user";
const ROLES_ABOVE: &str = r"
    select r.rolname::text as name from pg_roles r
    where r.rolname like 'signalbox\_%' and r.rolname <> session_user
      and (r.rolsuper or r.rolbypassrls or exists (
          select from pg_class c join pg_attribute a on a.attrelid = c.oid
          where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
            and a.attname = 'account_id' and pg_has_role(r.oid, c.relowner, 'USAGE')))
    order by 1";
const TABLES_OPEN: &str = "
    select c.relname::text as name from pg_class c
    where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
      and not (c.relrowsecurity and c.relforcerowsecurity)
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
    order by 1";
/// The policy `tenant`, for every role, on reads and on writes.
const TABLES_UNWATCHED: &str = "
    select c.relname::text as name from pg_class c
    where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
      and not exists (
          select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant' and p.polcmd = '*' and p.polpermissive
            and p.polroles = array[0::oid] and p.polqual is not null and p.polwithcheck is not null)
    order by 1";
/// A materialized view never checks its caller. Views of an extension (`pg_stat_statements`) read none of these tables.
const VIEWS_ABOVE: &str = "
    select c.relname::text as name from pg_class c
    where c.relnamespace = current_schema()::regnamespace
      and (c.relkind = 'm' or c.relkind = 'v' and not exists (
          select from pg_options_to_table(c.reloptions) o
          where o.option_name = 'security_invoker' and o.option_value::boolean))
      and not exists (
          select from pg_depend d
          where d.classid = 'pg_class'::regclass and d.objid = c.oid
            and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e')
    order by 1";
/// Functions that run with their owner's rights, and all functions of a service's role, except those of extensions.
const FUNCTIONS_OPEN: &str = r"
    select p.oid::regprocedure::text as name from pg_proc p join pg_roles o on o.oid = p.proowner
    where p.pronamespace = 'public'::regnamespace and (p.prosecdef or o.rolname like 'signalbox\_%')
      and not coalesce('search_path=public, pg_temp' = any (p.proconfig) and p.prosecdef, false)
      and not exists (
          select from pg_depend d
          where d.classid = 'pg_proc'::regclass and d.objid = p.oid
            and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e')
    order by 1";
/// Zero stands for every role; a right of every role is reported once. The login counts, since its own temporary
/// objects stay when it takes a role; a login that is above row-level security anyway is reported as such.
const ROLES_MAKING: &str = r"
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
    order by 1";
const TABLES_SHARED: &str = r"
    select format('%s for %s', t.name, r.rolname) as name
    from (values ('dead_letter'), ('outbox'), ('replica')) t (name)
    join pg_class c on c.relname = t.name and c.relnamespace = 'public'::regnamespace
    join pg_roles r on r.rolname in ('signalbox_resolver', 'signalbox_delivery', 'signalbox_tool_gateway',
                                     'signalbox_orchestrator')
    where not (c.relrowsecurity and c.relforcerowsecurity) or not exists (
        select from pg_policy p
        where p.polrelid = c.oid and not p.polpermissive and p.polcmd in ('a', '*') and r.oid = any (p.polroles)
          and p.polwithcheck is not null)
    order by 1";
const POLICIES: &str = r#"
    select regexp_replace(format('%s on %s: %s%s for %s using %s with check %s', policyname, tablename,
               case permissive when 'RESTRICTIVE' then 'only ' else '' end, cmd, array_to_string(roles, ', '),
               coalesce(qual, '-'), coalesce(with_check, '-')), '\s+', ' ', 'g') as name
    from pg_policies where schemaname = current_schema() order by policyname collate "C", tablename collate "C""#;
const SETTINGS_LOSING: &str = "
    select s.name from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) as s (name)
    where current_setting(s.name) = 'off' order by 1";

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> ServerFacts {
        ServerFacts {
            version: 150_018,
            login: "app".to_owned(),
            login_is_superuser: false,
            login_bypasses: false,
            login_owns: false,
            roles_above: Vec::new(),
            tables_open: Vec::new(),
            tables_unwatched: Vec::new(),
            views_above: Vec::new(),
            functions_open: Vec::new(),
            roles_making: Vec::new(),
            tables_shared: Vec::new(),
            policies_changed: Vec::new(),
            settings_losing: Vec::new(),
        }
    }

    const LOCAL: Setting = Setting {
        is_local: true,
        migrates: false,
    };
    const ELSEWHERE: Setting = Setting {
        is_local: false,
        migrates: false,
    };

    fn check(setting: Setting, change: impl FnOnce(&mut ServerFacts), says: &[&str]) {
        let mut facts = fit();
        change(&mut facts);
        let faults: Vec<String> = facts.faults(setting).iter().map(Fault::to_string).collect();
        assert_eq!(faults, says, "{setting:?}");
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_wrong_anywhere() {
        for setting in [LOCAL, ELSEWHERE] {
            check(setting, |_| {}, &[]);
            check(setting, |facts| facts.version = 140_011, &["version 14.11 is too old"]);
            check(
                setting,
                |facts| facts.roles_above = names(&["signalbox_delivery"]),
                &["signalbox_delivery is above row-level security: accounts are not kept apart"],
            );
            check(
                setting,
                |facts| facts.tables_open = names(&["task", "turn"]),
                &["row-level security is not forced on task, turn: accounts are not kept apart there"],
            );
            check(
                setting,
                |facts| facts.tables_unwatched = names(&["turn"]),
                &["turn has no policy for reading and writing"],
            );
            check(
                setting,
                |facts| facts.views_above = names(&["report"]),
                &["report shows rows of every account"],
            );
            check(
                setting,
                |facts| facts.functions_open = names(&["account_directory(text,integer)"]),
                &["account_directory(text,integer) may run code of a service"],
            );
            check(
                setting,
                |facts| facts.roles_making = names(&["temporary objects by everybody"]),
                &["objects can be created that shadow ours: temporary objects by everybody"],
            );
            check(
                setting,
                |facts| facts.tables_shared = names(&["outbox for signalbox_resolver"]),
                &["a service may write in another's name: no policy on outbox for signalbox_resolver"],
            );
            check(
                setting,
                |facts| facts.policies_changed = names(&["own_resolver on outbox"]),
                &["policies differ from the migrations': own_resolver on outbox"],
            );
        }
    }

    #[test]
    fn what_is_wrong_where_the_database_is_another_machines() {
        type Change = fn(&mut ServerFacts);
        let cases: [(Change, &str); 4] = [
            (
                |facts| facts.login_is_superuser = true,
                "login app is above row-level security",
            ),
            (
                |facts| facts.login_bypasses = true,
                "login app is above row-level security",
            ),
            (
                |facts| facts.login_owns = true,
                "login app owns the tables and database.migrate is off",
            ),
            (
                |facts| facts.settings_losing = vec!["fsync".to_owned()],
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
        check(migrating, |facts| facts.login_owns = true, &[]);
        check(
            migrating,
            |facts| (facts.login_is_superuser, facts.login_owns) = (true, true),
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
