//! An account with one of everything, at rest: nothing here is anyone's to take up, so whatever changes was changed from
//! outside. Two accounts have the same names where names are theirs to choose (`LIVE-1`, `coder`, `n-1`), and each says its
//! own secret in every text.

use std::collections::{BTreeMap, BTreeSet};

use domain::{AccountId, ApiKey};
use sqlx::{PgPool, Row};
use uuid::Uuid;

pub(crate) const ROLES: [&str; 5] = ["admin", "member", "service", "publisher", "gateway"];

pub(crate) struct Tenant {
    pub(crate) account: String,
    /// Tokens by role.
    pub(crate) keys: BTreeMap<&'static str, String>,
}

/// What an account's texts say, and nobody else's may.
pub(crate) fn secret(account: &str) -> String {
    format!("secret-of-{account}")
}

const ROWS: &str = include_str!("tenant.sql");

impl Tenant {
    pub(crate) async fn furnish(owner: &PgPool, account: &str) -> Tenant {
        let sql = ROWS
            .replace("{secret}", &secret(account))
            .replace("{account}", account)
            .replace("{ACCOUNT}", &account.to_uppercase());
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(owner).await.unwrap();
        let mut keys = BTreeMap::new();
        for role in ROLES {
            let key = key(&AccountId::parse(account).unwrap());
            sqlx::query("insert into api_key (account_id, id, name, role, digest) values ($1, $2, $3, $4, $5)")
                .bind(account)
                .bind(key.id().as_str())
                .bind(secret(account))
                .bind(role)
                .bind(key.digest().to_vec())
                .execute(owner)
                .await
                .unwrap();
            keys.insert(role, key.expose().to_owned());
        }
        Tenant {
            account: account.to_owned(),
            keys,
        }
    }

    /// A digest and a count of every table's rows of the account.
    pub(crate) async fn snapshot(&self, owner: &PgPool) -> BTreeMap<String, (i64, String)> {
        let tables = sqlx::query(
            "select table_name::text from information_schema.columns
             where table_schema = 'public' and column_name = 'account_id' union select 'account'",
        )
        .fetch_all(owner)
        .await
        .unwrap();
        let parts: Vec<String> = tables
            .iter()
            .map(|row| {
                let table: String = row.get(0);
                let account = if table == "account" { "id" } else { "account_id" };
                format!(
                    "select '{table}', count(*), coalesce(md5(string_agg(t::text, '|' order by t::text)), '')
                     from {table} t where {account} = $1"
                )
            })
            .collect();
        assert!(parts.len() > 14, "the catalogue lists the tables");
        sqlx::query(sqlx::AssertSqlSafe(parts.join(" union all ")))
            .bind(&self.account)
            .fetch_all(owner)
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), (row.get(1), row.get(2))))
            .collect()
    }

    /// Every id of the account that a request can name, by kind.
    pub(crate) async fn ids(&self, owner: &PgPool) -> BTreeMap<&'static str, BTreeSet<String>> {
        let mut ids = BTreeMap::from([("account", BTreeSet::from([self.account.clone()]))]);
        for (kind, query) in [
            (
                "agent",
                "select id::text from agent where account_id = $1 union select slug from agent where account_id = $1",
            ),
            ("task", "select display_id from task where account_id = $1"),
            ("message", "select id::text from message where account_id = $1"),
            ("activity", "select id::text from activity where account_id = $1"),
            ("session", "select id::text from session where account_id = $1"),
            ("session_key", "select key from session where account_id = $1"),
            ("turn", "select id::text from turn where account_id = $1"),
            ("tool_call", "select id::text from tool_call where account_id = $1"),
            ("call", "select call_id from tool_call where account_id = $1"),
            (
                "notification",
                "select id from notification where account_id = $1
                              union select id from accepted_notification where account_id = $1",
            ),
            ("letter", "select id::text from dead_letter where account_id = $1"),
            ("key", "select id from api_key where account_id = $1"),
            ("idempotency", "select key from idempotency where account_id = $1"),
            ("profile", "select hash from instruction_text where account_id = $1"),
        ] {
            let rows = sqlx::query(query).bind(&self.account).fetch_all(owner).await.unwrap();
            let found: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(!found.is_empty(), "{} has no {kind}", self.account);
            ids.insert(kind, found);
        }
        ids
    }
}

/// Its id is of letters and digits in turn, as the others are.
fn key(account: &AccountId) -> ApiKey {
    let mut random = [0; 40];
    for part in random.chunks_mut(8) {
        // The first half of a v7 is the time.
        part.copy_from_slice(&Uuid::now_v7().as_bytes()[8..]);
    }
    for byte in &mut random {
        *byte = ((0xa + *byte % 6) << 4) | (*byte % 10);
    }
    ApiKey::from_random(account, random)
}
