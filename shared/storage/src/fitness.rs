//! Whether a database may be used: what a start refuses and the doctor shows, by the same code. [`look`] reads the
//! catalogue and nothing of a tenant; [`Facts::faults`] judges, and is pure.
//!
//! Some things are refused only where the database is another machine's: a login above row-level security, and settings
//! that lose what was committed. On this machine whoever could use them has the data directory anyway, and `signalbox up`
//! and tests run so.

use std::{fmt, str::FromStr};

use sea_orm::{ConnectionTrait, FromQueryResult};
use sqlx::postgres::PgConnectOptions;

use crate::{Database, StorageError, error::Attempt, statement};

/// 15.0 as the server counts: the first with `security_invoker`.
pub const VERSION_MIN: i32 = 150_000;

/// What the catalogue says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    pub version: i32,
    /// Who connected, whatever role was taken then.
    pub login: String,
    pub login_is_superuser: bool,
    pub login_bypasses: bool,
    /// Of tables with tenants' rows.
    pub login_owns: bool,
    /// Roles of services that are superusers, bypass row-level security, or own tables.
    pub roles_above: Vec<String>,
    /// Tables with tenants' rows where row-level security is not on and forced.
    pub tables_open: Vec<String>,
    /// Those whose policy does not hold for reading and writing.
    pub tables_unwatched: Vec<String>,
    /// Views that show their owner's rows instead of the asker's.
    pub views_above: Vec<String>,
    /// Settings with which an acknowledged commit may be lost.
    pub settings_losing: Vec<String>,
}

/// Where and how the database is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// It is this machine's.
    pub is_local: bool,
    /// This process brings the schema up to date, and so has to own it.
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
    LoginAbove(String),
    LoginOwns(String),
    Losing(Vec<String>),
}

impl Facts {
    pub fn faults(&self, setting: Setting) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.version < VERSION_MIN {
            // The rest is read from a catalogue of another shape.
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
    pub fn mend(&self) -> &'static str {
        match self {
            Fault::TooOld(_) => "use Postgres 15 or newer",
            Fault::RolesAbove(_) => {
                "alter role … nosuperuser nobypassrls, and give the tables to the login that migrates"
            }
            Fault::TablesOpen(_) => "alter table … enable row level security, force row level security",
            Fault::TablesUnwatched(_) => "make the policy `tenant` again as in schemas/database.sql",
            Fault::ViewsAbove(_) => "alter view … set (security_invoker = true)",
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
            Fault::LoginAbove(login) => write!(f, "login {login} is above row-level security"),
            Fault::LoginOwns(login) => write!(f, "login {login} owns the tables and database.migrate is off"),
            Fault::Losing(settings) => {
                write!(f, "{} is off: what is committed may be lost", settings.join(", "))
            }
        }
    }
}

/// `15.18` of what the server counts as 150018.
pub fn shown(version: i32) -> String {
    format!("{}.{}", version / 10_000, version % 10_000)
}

/// Whether a URL can only mean a server of this machine. A name that cannot be looked up may be anywhere.
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

/// As any role: everybody may read the catalogue.
pub async fn look(database: &Database) -> Result<Facts, StorageError> {
    let connection = database.connection();
    let login = Login::find_by_statement(statement(LOGIN, [])).one(connection).await;
    let login = login
        .attempt("look at the login")?
        .ok_or_else(|| StorageError::unreadable("look at the login", "no row for the current user"))?;
    Ok(Facts {
        version: login.version,
        login: login.name,
        login_is_superuser: login.is_superuser,
        login_bypasses: login.bypasses,
        login_owns: login.owns,
        roles_above: names(database, ROLES_ABOVE).await?,
        tables_open: names(database, TABLES_OPEN).await?,
        tables_unwatched: names(database, TABLES_UNWATCHED).await?,
        views_above: names(database, VIEWS_ABOVE).await?,
        settings_losing: names(database, SETTINGS_LOSING).await?,
    })
}

async fn names(database: &Database, query: &'static str) -> Result<Vec<String>, StorageError> {
    let rows = database.connection().query_all_raw(statement(query, [])).await;
    let rows = rows.attempt("look at the catalogue")?;
    rows.iter()
        .map(|row| Name::from_query_result(row, "").map(|row| row.name))
        .collect::<Result<_, _>>()
        .attempt("look at the catalogue")
}

/// Counted as an owner: whoever has the owner's rights without asking for them.
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
/// The policy `tenant`, for everybody, on what is read and on what is written.
const TABLES_UNWATCHED: &str = "
    select c.relname::text as name from pg_class c
    where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
      and (c.relname = 'account' or exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'account_id' and not a.attisdropped))
      and not exists (
          select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant' and p.polcmd = '*' and p.polpermissive
            and p.polroles = array[0::oid] and p.polqual is not null and p.polwithcheck is not null)
    order by 1";
/// A materialized view knows no asker at all. Views of an extension (`pg_stat_statements`) know none of these tables.
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
const SETTINGS_LOSING: &str = "
    select s.name from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) as s (name)
    where current_setting(s.name) = 'off' order by 1";

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Facts {
        Facts {
            version: 150_018,
            login: "app".to_owned(),
            login_is_superuser: false,
            login_bypasses: false,
            login_owns: false,
            roles_above: Vec::new(),
            tables_open: Vec::new(),
            tables_unwatched: Vec::new(),
            views_above: Vec::new(),
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

    fn check(setting: Setting, change: impl FnOnce(&mut Facts), says: &[&str]) {
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
        }
    }

    #[test]
    fn what_is_wrong_where_the_database_is_another_machines() {
        type Change = fn(&mut Facts);
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
    async fn a_url_says_whose_machine_it_is() {
        let check = async |url: &str, expected: bool| assert_eq!(is_local(url).await, expected, "{url}");
        check("postgres://u:p@127.0.0.1:5432/d", true).await;
        check("postgres://u:p@[::1]/d", true).await;
        check("postgres:///d?host=/run/postgresql", true).await;
        check("postgres://u:p@192.0.2.7/d", false).await;
        check("postgres://u:p@database.invalid/d", false).await;
        check("nonsense", false).await;
    }
}
