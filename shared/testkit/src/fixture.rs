//! Inserts accounts, agents, tasks and messages into a test's database, so that a test of one service needs no other.

use domain::{AccountId, AgentId, Conversation, Generation, MessageId, SessionId, SessionScope, TaskId};
use uuid::Uuid;

use crate::{TestDatabase, enqueued, rows};

/// Writes rows as the superuser.
pub struct Fixture<'a>(pub &'a TestDatabase);

impl Fixture<'_> {
    pub async fn account(&self, id: &str) -> AccountId {
        let account = AccountId::parse(id).expect("a valid account id");
        rows("account")
            .with("id", id)
            .with("name", id)
            .insert(&self.0.owner)
            .await;
        account
    }

    pub async fn agent(&self, account: &AccountId, slug: &str) -> AgentId {
        let id = AgentId(Uuid::now_v7());
        let agent = rows("agent")
            .with("account_id", account)
            .with("id", id)
            .with("slug", slug);
        agent.insert(&self.0.owner).await;
        id
    }

    /// A task in status `in_progress` with these assignees.
    pub async fn task(&self, account: &AccountId, id: &str, assignees: &[AgentId]) -> TaskId {
        let task = TaskId::parse(id).expect("a valid task id");
        let row = rows("task").with("account_id", account).with("display_id", id);
        row.insert(&self.0.owner).await;
        for agent in assignees {
            self.assign(account, &task, *agent).await;
        }
        task
    }

    pub async fn assign(&self, account: &AccountId, task: &TaskId, agent: AgentId) {
        let row = rows("task_assignee")
            .with("account_id", account)
            .with("task_id", task.key());
        row.with("agent_id", agent).insert(&self.0.owner).await;
    }

    /// A thread message by a person.
    pub async fn message(&self, account: &AccountId, task: &TaskId, body: &str) -> MessageId {
        let id = MessageId(Uuid::now_v7());
        let row = rows("message").with("account_id", account).with("id", id);
        row.with("task_id", task.key())
            .with("body", body)
            .insert(&self.0.owner)
            .await;
        id
    }

    /// Sets one of an account's settings (S6, S14 and others), by column.
    pub async fn account_set(&self, account: &AccountId, column: &str, value: &str) {
        let sql = match column {
            "session_scope" => "update account set session_scope = $2 where id = $1",
            "instruction_layout" => "update account set instruction_layout = $2 where id = $1",
            "coordinator_task" => "update account set coordinator_task = lower($2) where id = $1",
            "briefing" => "update account set briefing = $2 where id = $1",
            "context_policy" => "update account set context_policy = $2 where id = $1",
            "auto_create_tasks" => "update account set auto_create_tasks = $2::boolean where id = $1",
            "turns_in_flight_max" => "update account set turns_in_flight_max = $2::integer where id = $1",
            other => panic!("no such choice of an account: {other}"),
        };
        self.run(sqlx::query(sql).bind(account.as_str()).bind(value)).await;
    }

    /// An open session of an agent on a task, in its first generation.
    pub async fn session(&self, account: &AccountId, task: &TaskId, agent: AgentId) -> (SessionId, String) {
        let id = SessionId(Uuid::now_v7());
        let conversation = Conversation::of(account, SessionScope::Task, Some(task), agent);
        let key = conversation.key(Generation::FIRST);
        let row = rows("session").with("account_id", account).with("id", id);
        row.with("task_id", task.key())
            .with("agent_id", agent)
            .insert(&self.0.owner)
            .await;
        (id, key.to_string())
    }

    /// Puts a notification into a session's queue, as the resolver does.
    pub async fn enqueue(&self, account: &AccountId, session: SessionId, id: &str, body: &str) {
        let row = enqueued(account, session).with("id", id).with("body", body);
        row.insert(&self.0.owner).await;
    }

    /// A copy of an account under another name: every row with the same ids, and the name replaced wherever it occurs,
    /// in texts too. Only the account in their keys distinguishes the two.
    pub async fn twin(&self, of: &AccountId, name: &str) -> AccountId {
        let twin = AccountId::parse(name).expect("a valid account id");
        sqlx::raw_sql(sqlx::AssertSqlSafe(twin_sql(of.as_str(), name, "true")))
            .execute(&self.0.owner)
            .await
            .expect("a twin");
        twin
    }

    async fn run(&self, query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>) {
        query.execute(&self.0.owner).await.expect("a fixture row");
    }
}

/// Creates the copy, or adds the rows that it lacks. Foreign keys are not checked, so that tables need no order. Generated columns
/// follow from the others. `among`: of the tables whose entry `c` of the catalogue meets this condition.
pub fn twin_sql(of: &str, twin: &str, among: &str) -> String {
    format!(
        "do $$
         declare name text; declare account text; declare columns text;
         begin
             perform set_config('session_replication_role', 'replica', true);
             for name, account, columns in
                 select c.relname::text, a.attname::text,
                        (select string_agg(quote_ident(n.attname), ', ') from pg_attribute n
                         where n.attrelid = c.oid and n.attnum > 0 and not n.attisdropped and n.attgenerated = '')
                 from pg_class c join pg_attribute a on a.attrelid = c.oid
                 where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and {among}
                   and a.attname = case c.relname when 'account' then 'id' else 'account_id' end
             loop
                 execute format(
                     'insert into %1$I (%5$s) select %5$s from (
                          select row.* from %1$I t, jsonb_populate_record(null::%1$I,
                              replace(to_jsonb(t)::text, %3$L, %4$L)::jsonb) as row where t.%2$I = %3$L) copied
                      on conflict do nothing',
                     name, account, '{of}', '{twin}', columns);
             end loop;
             perform set_config('session_replication_role', 'origin', true);
         end $$"
    )
}
