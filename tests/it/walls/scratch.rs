//! Executes a statement as a service would and rolls it back: gives its result and its effect.

use std::collections::HashSet;

use futures::StreamExt;
use sqlx::{
    AssertSqlSafe, Connection, Either, Encode, Executor, PgConnection, Postgres, Row, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo, types::Oid},
};

use testkit::twin_sql;

use super::trials::Executed;

/// A longer wait is a wait for a row that a service holds now.
const LOCK_TIMEOUT: &str = "5ms";
const SERIALIZATION_FAILURE: &str = "40001";
/// Codes of a lock that was not available, of a deadlock, or of a row that changed.
const HELD: &[&str] = &["55P03", "40P01", SERIALIZATION_FAILURE];

/// Without foreign-key checks: removed rows are inserted again.
const REMOVED: &str = "
    do $$
    declare name text; declare account text;
    begin
        for name, account in
            select c.relname::text, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
            where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and {among}
              and a.attname = case c.relname when 'account' then 'id' else 'account_id' end
        loop
            execute format('delete from %I where %I = %L', name, account, '{twin}');
        end loop;
    end $$";

/// Columns of the twin that must differ to be visible, since a statement takes one row, the maximum or any row; and timestamps that
/// must be old, for statements by age.
const DIFFERENT: &str = "
    update notification set attempts = attempts + 7 where account_id = '{twin}';
    update tool_call set name = 'task_message' where account_id = '{twin}';
    update session set generation = generation + 100, fence = fence + 100 where account_id = '{twin}';
    update session set phase = 'running', lease_owner = gen_random_uuid()
    where account_id = '{twin}' and phase = 'waiting' and task_id = '{twin}-1';
    update idempotency set created_at = created_at - interval '10 years' where account_id = '{twin}';
    update accepted_notification set created_at = created_at - interval '10 years' where account_id = '{twin}';
    update dead_letter set created_at = created_at - interval '10 years' where account_id = '{twin}';
    update hold set created_at = created_at - interval '10 years', released_at = released_at - interval '10 years',
        until = until - interval '1000 years' where account_id = '{twin}';
    update session set gate_ref = (select h.id from hold h where h.account_id = '{twin}' order by h.unsettled desc, h.created_at desc limit 1)
    where account_id = '{twin}' and kind = 'system';
    update timer set due_at = due_at - interval '2000 years', ended_at = ended_at - interval '10 years', note = 'of the twin'
    where account_id = '{twin}';
    update task_context set version = case version when 50 then 150 else version end, body = 'of the twin' where account_id = '{twin}';
    update branch set label = 'of the twin', request = 'of the twin', result = 'of the twin', depth = depth + 7,
        base = base || jsonb_build_object('number', 100, 'context_version', 150) where account_id = '{twin}';
    update replay set spec = jsonb_build_object('provider', 'of-the-twin'), created_at = created_at - interval '10 years', created_by_name = 'of the twin'
    where account_id = '{twin}';
    update recovery set cause = cause || '-twin', created_at = created_at - interval '10 years',
        ended_at = ended_at - interval '10 years' where account_id = '{twin}';
    update question set title = 'of the twin', created_at = created_at - interval '10 years',
        ended_at = ended_at - interval '10 years', plan_revision = plan_revision + 1000 where account_id = '{twin}';
    update memory set fades_at = fades_at - interval '1000 years' where account_id = '{twin}' and key like '%repo';
    update memory set content = 'n of the twin' where account_id = '{twin}';
    update agent set provider = 'of-the-twin' where account_id = '{twin}';
    update notification set sender_kind = 'user' where account_id = '{twin}' and kind = 'notification';
    insert into member (account_id, user_id, name, email, role, removed_at)
    select account_id, 'of-the-twin-' || user_id, name, email, role, removed_at + interval '1 day' from member
    where account_id = '{twin}' and removed_at is not null;
    update member set login_id = null where account_id = '{twin}' and user_id = 'ann';
    insert into member (account_id, user_id, name, role, login_id) values ('{twin}', 'of-the-twin', 'n', 'admin', gen_random_uuid());
    insert into orchestrator_identity (account_id, user_id, name, handle) values ('{twin}', 'of-the-twin', 'n', 'of-the-twin');
    update orchestrator_identity set enabled = true where account_id = '{twin}' and user_id is null;
    update task_dependency set satisfied_at = null, ended_at = null where account_id = '{twin}';
    update turn set hops = hops + 7, tools = '{of-the-twin}', reply = 'of the twin', started_at = started_at - interval '1 day', finished_at = finished_at + interval '1 day'
    where account_id = '{twin}';
    update task_assignee t set agent_id = a.id from agent a
    where t.account_id = '{twin}' and t.task_id = 'chat' and a.account_id = '{twin}' and a.slug = '{twin}-reviewer';
    insert into task_assignee (account_id, task_id, agent_id)
    select '{twin}', 'chat', id from agent
    where account_id = '{twin}' and slug = '{twin}-reviewer'
      and not exists (select from task_assignee where account_id = '{of}' and task_id = 'chat')
    on conflict do nothing";

/// The result of an execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done {
        /// Sorted, since few statements promise an order.
        rows: Vec<Vec<u8>>,
        affected: u64,
        /// A digest of the named tables afterwards; absent for a read. No trigger writes to another table.
        left: Option<String>,
    },
    /// It waits for a lock of another session.
    Waits,
    /// Another session has changed its rows.
    Overtaken,
    /// An error by its code.
    Failed(String),
}

impl Outcome {
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Outcome::Done { rows, affected: 0, .. } if rows.is_empty())
    }

    /// Without conflicts with other sessions.
    pub(crate) fn is_clear(&self) -> bool {
        !matches!(self, Outcome::Waits | Outcome::Overtaken)
    }
}

struct Table {
    name: String,
    /// The column of its account, if its rows are accounts' ones.
    account: Option<String>,
    /// Tables that it refers to.
    referred: Vec<String>,
}

pub(crate) struct Scratch {
    connection: PgConnection,
    /// The first account, and the one that gets a copy of its rows.
    twins: [String; 2],
    tables: Vec<Table>,
    /// Another session changed a row after this transaction's snapshot: in this transaction, no statement can lock that row.
    pub(crate) is_overtaken: bool,
}

impl Scratch {
    /// On a superuser's connection, which may take any role.
    pub(crate) async fn open(url: &str, [of, twin]: [&str; 2]) -> Scratch {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let tables = sqlx::query(
            "select c.relname::text, a.attname::text,
                    array(select k.confrelid::regclass::text from pg_constraint k where k.conrelid = c.oid and k.contype = 'f')
             from pg_class c
             left join pg_attribute a on a.attrelid = c.oid
                 and a.attname = case c.relname when 'account' then 'id' else 'account_id' end
             where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        Scratch {
            connection,
            twins: [of, twin].map(str::to_owned),
            tables: tables
                .iter()
                .map(|table| Table {
                    name: table.get(0),
                    account: table.get(1),
                    referred: table.get(2),
                })
                .collect(),
            is_overtaken: false,
        }
    }

    /// Begins a transaction with one snapshot, with a fresh twin of the rows that the statement may meet. `false`: rows of the twin are
    /// locked; try later.
    pub(crate) async fn begin(&mut self, sql: &str) -> bool {
        self.is_overtaken = false;
        self.run(&format!(
            "begin isolation level repeatable read; set local lock_timeout = '{LOCK_TIMEOUT}';
             set local statement_timeout = '20s'"
        ))
        .await;
        let sql = format!("{}; savepoint trial", self.twin(sql));
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection).await {
            Ok(_) => true,
            Err(error) if HELD.contains(&code(&error).as_str()) => {
                self.end().await;
                false
            }
            Err(error) => panic!("no twin can be made: {error}"),
        }
    }

    /// Copies the first account's rows to the second one, then changes them slightly.
    fn twin(&self, sql: &str) -> String {
        let [of, twin] = &self.twins;
        let mut names: Vec<&str> = self.named(sql).map(|table| table.name.as_str()).collect();
        let mut at = 0;
        while let Some(name) = names.get(at) {
            let table = self.tables.iter().find(|table| table.name == *name);
            for referred in table.iter().flat_map(|table| &table.referred) {
                if !names.contains(&referred.as_str()) {
                    names.push(referred);
                }
            }
            at += 1;
        }
        let changes = DIFFERENT.split_inclusive(';').filter(|change| {
            let changed = change.split_whitespace().find(|word| self.is_table(word));
            changed.is_some_and(|changed| names.contains(&changed))
        });
        let among = format!("c.relname = any ('{{{}}}')", names.join(","));
        let [without, with] =
            ["replica", "origin"].map(|checks| format!("set local session_replication_role = {checks}"));
        let [removed, different] = [REMOVED, &changes.collect::<String>()].map(|sql| {
            sql.replace("{twin}", twin)
                .replace("{of}", of)
                .replace("{among}", &among)
        });
        format!(
            "{without}; {removed}; {}; {without}; {different}; {with}",
            twin_sql(of, twin, &among)
        )
    }

    fn is_table(&self, word: &str) -> bool {
        self.tables.iter().any(|table| table.name == word)
    }

    /// The tables that a statement names.
    fn named(&self, sql: &str) -> impl Iterator<Item = &Table> {
        let words: HashSet<String> = sql
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map(str::to_owned)
            .collect();
        self.tables.iter().filter(move |table| words.contains(&table.name))
    }

    pub(crate) async fn end(&mut self) {
        self.run("rollback").await;
    }

    /// The change that removes an account's rows of a table.
    pub(crate) fn emptied(&self, table: &str, of: &str) -> Option<String> {
        let Table { name, account, .. } = self.tables.iter().find(|known| known.name == table)?;
        let column = account.as_ref()?;
        Some(format!(
            "set local session_replication_role = replica; delete from {name} where {column} = '{of}';
             set local session_replication_role = origin"
        ))
    }

    /// Executes once, after a change of the rows, in the role of its service, with these accounts declared.
    pub(crate) async fn outcome(&mut self, executed: &Executed, sql: &str, declared: &str, change: &str) -> Outcome {
        self.run(&format!(
            "rollback to savepoint trial; {change}; set local role {};
             select set_config('signalbox.accounts', '{declared}', true)",
            executed.role
        ))
        .await;
        match self.execute(executed, sql).await {
            Ok((rows, affected)) => {
                let left = if writes(sql) { Some(self.left(sql).await) } else { None };
                Outcome::Done { rows, affected, left }
            }
            Err(error) => match code(&error) {
                code if code == SERIALIZATION_FAILURE => {
                    self.is_overtaken = true;
                    Outcome::Overtaken
                }
                code if HELD.contains(&code.as_str()) => Outcome::Waits,
                code => Outcome::Failed(code),
            },
        }
    }

    async fn execute(&mut self, executed: &Executed, sql: &str) -> Result<(Vec<Vec<u8>>, u64), sqlx::Error> {
        let mut arguments = PgArguments::default();
        for (kind, value) in executed.types.iter().zip(&executed.values) {
            let raw = Raw {
                kind: *kind,
                bytes: value.clone(),
            };
            sqlx::Arguments::add(&mut arguments, raw).expect("bytes as they came");
        }
        // All statements of a transaction have the same timestamp. Rows that a service holds must be waited for: whoever passes over
        // them may see them a moment later.
        let sql = sql.replace("clock_timestamp()", "now()").replace("skip locked", "");
        let query = sqlx::query_with(AssertSqlSafe(sql), arguments).persistent(false);
        let (mut rows, mut affected) = (Vec::new(), 0);
        let mut results = self.connection.fetch_many(query);
        while let Some(result) = results.next().await {
            match result? {
                Either::Left(done) => affected += done.rows_affected(),
                Either::Right(row) => rows.push(bytes(&row)),
            }
        }
        rows.sort_unstable();
        Ok((rows, affected))
    }

    async fn left(&mut self, sql: &str) -> String {
        let rows: Vec<String> = self
            .named(sql)
            .map(|Table { name, .. }| format!("select '{name}' || t::text as row from \"{name}\" t"))
            .collect();
        assert!(!rows.is_empty(), "who writes names a table: {sql}");
        let sql = format!(
            "set local role none; select md5(string_agg(row, '|' order by row)) from ({}) as rows",
            rows.join(" union all ")
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut self.connection).await;
        row.unwrap().get::<Option<String>, _>(0).unwrap_or_default()
    }

    async fn run(&mut self, sql: &str) {
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.connection)
            .await;
        ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

fn code(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    code.unwrap_or_else(|| panic!("{error}")).into_owned()
}

fn writes(sql: &str) -> bool {
    let sql = sql.to_ascii_lowercase();
    ["insert ", "update ", "delete "].iter().any(|word| sql.contains(word))
}

fn bytes(row: &PgRow) -> Vec<u8> {
    let mut bytes = Vec::new();
    for column in 0..row.len() {
        let value = row.try_get_raw(column).expect("a column");
        let value = value.as_bytes().ok();
        bytes.extend(value.map_or(u64::MAX, |value| value.len() as u64).to_be_bytes());
        bytes.extend(value.unwrap_or_default());
    }
    bytes
}

/// A parameter as received.
struct Raw {
    kind: u32,
    bytes: Option<Vec<u8>>,
}

impl Type<Postgres> for Raw {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(0))
    }
}

impl Encode<'_, Postgres> for Raw {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Ok(match &self.bytes {
            Some(bytes) => {
                buffer.extend_from_slice(bytes);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.kind)))
    }
}
