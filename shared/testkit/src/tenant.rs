//! An account with one of everything, at rest: no service processes any of it, so every change comes from the test. Two
//! accounts have the same names where clients choose them (`LIVE-1`, `coder`, `n-1`), and each has its own secret in
//! every text.

use std::collections::{BTreeMap, BTreeSet};

use domain::{AccountId, ApiKey};
use sqlx::{PgPool, Row};
use uuid::Uuid;

pub const ROLES: [&str; 5] = ["admin", "member", "service", "publisher", "gateway"];

pub struct Tenant {
    pub account: String,
    /// Tokens by role; `person`: the own one of a member who is no admin.
    pub keys: BTreeMap<&'static str, String>,
}

/// The secret in an account's texts, which must occur in no other account.
pub fn secret(account: &str) -> String {
    format!("secret-of-{account}")
}

const ROWS: &str = include_str!("tenant.sql");

impl Tenant {
    pub async fn furnish(owner: &PgPool, account: &str) -> Tenant {
        let sql = ROWS
            .replace("{secret}", &secret(account))
            .replace("{account}", account)
            .replace("{ACCOUNT}", &account.to_uppercase());
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(owner)
            .await
            .expect("the database does as it is told");
        let mut keys = BTreeMap::new();
        for role in ROLES {
            keys.insert(role, key_of(owner, account, role, None).await);
        }
        let person = key_of(owner, account, "member", Some(format!("{account}-bob"))).await;
        keys.insert("person", person);
        Tenant {
            account: account.to_owned(),
            keys,
        }
    }

    /// A key of a member's own; gives its token.
    pub async fn own_key(&self, owner: &PgPool, role: &str, user: &str) -> String {
        key_of(owner, &self.account, role, Some(user.to_owned())).await
    }

    /// A digest and a count of every table's rows of the account.
    pub async fn snapshot(&self, owner: &PgPool) -> BTreeMap<String, (i64, String)> {
        let tables = sqlx::query(
            "select table_name::text from information_schema.columns
             where table_schema = 'public' and column_name = 'account_id' union select 'account'",
        )
        .fetch_all(owner)
        .await
        .expect("the database does as it is told");
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
            .expect("the database does as it is told")
            .iter()
            .map(|row| (row.get(0), (row.get(1), row.get(2))))
            .collect()
    }

    /// Every id of the account that a request can name, by kind: a table's kind is its name, as in paths.
    pub async fn ids(&self, owner: &PgPool) -> BTreeMap<&'static str, BTreeSet<String>> {
        let tables = sqlx::query(
            "select table_name::text from information_schema.columns
             where table_schema = 'public' and column_name in ('account_id', 'id')
             group by table_name having count(*) = 2",
        );
        let tables = tables.fetch_all(owner).await.expect("the database does as it is told");
        let mut queries: Vec<(&'static str, String)> = tables
            .iter()
            .map(|row| {
                let table: String = row.get(0);
                let kind = match table.as_str() {
                    "dead_letter" => "letter",
                    "api_key" => "key",
                    table => table.to_owned().leak(),
                };
                (kind, format!("select id::text from {table} where account_id = $1"))
            })
            .collect();
        // Other names of objects.
        let more = [
            ("account", "select id from account where id = $1"),
            ("agent", "select slug from agent where account_id = $1"),
            ("task", "select display_id from task where account_id = $1"),
            ("session_key", "select key from session where account_id = $1"),
            ("call", "select call_id from tool_call where account_id = $1"),
            (
                "notification",
                "select id from accepted_notification where account_id = $1",
            ),
            ("consumer", "select unnest(event_consumers) from account where id = $1"),
            ("idempotency", "select key from idempotency where account_id = $1"),
            ("user", "select user_id from member where account_id = $1"),
            (
                "number",
                "select number::text from persona_version where account_id = $1",
            ),
            (
                "sign_in",
                "select s.id::text from login_session s join member m on m.login_id = s.login_id where m.account_id = $1",
            ),
            ("profile", "select hash from instruction_text where account_id = $1"),
        ];
        queries.extend(more.map(|(kind, query)| (kind, query.to_owned())));
        let mut ids: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        for (kind, query) in queries {
            let query = sqlx::query(sqlx::AssertSqlSafe(query)).bind(&self.account);
            let found = query.fetch_all(owner).await.expect("the database does as it is told");
            ids.entry(kind)
                .or_default()
                .extend(found.iter().map(|row| row.get::<String, _>(0)));
        }
        // As it is printed.
        let shown: BTreeSet<String> = ids["task"].iter().map(|id| id.to_lowercase()).collect();
        ids.get_mut("task")
            .expect("read above")
            .retain(|id| !shown.contains(id));
        ids.retain(|_, ids| !ids.is_empty());
        ids
    }
}

/// Makes a key; gives its token.
async fn key_of(owner: &PgPool, account: &str, role: &str, user: Option<String>) -> String {
    let key = key(&AccountId::parse(account).expect("an account id"));
    sqlx::query("insert into api_key (account_id, id, name, role, digest, user_id) values ($1, $2, $3, $4, $5, $6)")
        .bind(account)
        .bind(key.id().as_str())
        .bind(secret(account))
        .bind(role)
        .bind(key.digest().to_vec())
        .bind(user)
        .execute(owner)
        .await
        .expect("the database does as it is told");
    key.expose().to_owned()
}

/// Its id alternates letters and digits, as the others do.
fn key(account: &AccountId) -> ApiKey {
    let mut random = [0; 40];
    for part in random.chunks_mut(8) {
        // The first half of a version 7 UUID is the time.
        part.copy_from_slice(&Uuid::now_v7().as_bytes()[8..]);
    }
    for byte in &mut random {
        *byte = ((0xa + *byte % 6) << 4) | (*byte % 10);
    }
    ApiKey::from_random(account, random)
}
