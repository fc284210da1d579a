//! Raw statements: a named SQL constant and its values, through sea-orm's connection.

use domain::AccountId;
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

/// A Postgres statement. `sql` is a constant on purpose: no SQL text is built from input.
pub fn statement(sql: &'static str, values: impl IntoIterator<Item = Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}

/// One field of each of many, as an array for `unnest`.
pub fn column<T, V>(all: &[T], of: impl Fn(&T) -> V) -> Value
where
    Vec<V>: Into<Value>,
{
    all.iter().map(of).collect::<Vec<V>>().into()
}

/// UUIDs as one text that Postgres reads as an array: for arrays of arrays.
pub fn uuid_array(ids: impl IntoIterator<Item = Uuid>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    format!("{{{}}}", ids.join(","))
}

/// Keys of rows as two arrays for `unnest`: accounts, and the keys within them.
pub fn pairs<'a, K: Clone + 'a>(keys: impl IntoIterator<Item = &'a (AccountId, K)>) -> (Vec<AccountId>, Vec<K>) {
    keys.into_iter().cloned().unzip()
}

/// SQL: whether an agent is its account's coordinator (S6): an agent to which the account's `coordinator_task` is
/// assigned, or any agent while that task is unassigned. For queries that have an account and an agent's id under these
/// names. Relies on the primary keys of task_assignee and agent; `offset 0` keeps the planner from reading all
/// assignments once, to look them up in memory. The task is compared as it is stored, by its key: on a table with
/// policies the server uses no index for the result of a function that is not leakproof, and `lower` is not.
#[macro_export]
macro_rules! coordinates {
    ($account:literal, $agent:literal) => {
        concat!(
            "(exists (select from task_assignee ca where ca.account_id = ",
            $account,
            ".id
                        and ca.task_id = ",
            $account,
            ".coordinator_task and ca.agent_id = ",
            $agent,
            " offset 0)
              or not exists (select from task_assignee ca
                        where ca.account_id = ",
            $account,
            ".id and ca.task_id = ",
            $account,
            ".coordinator_task
                          and (select cg.removed_at is null from agent cg
                               where cg.account_id = ca.account_id and cg.id = ca.agent_id) offset 0))"
        )
    };
}

/// What a prompt says of the mail that a session's item brings. Null: the mail is for another conversation, or there is none of this id:
/// anybody may publish an item of its type. A conversation is named by the key of its first generation. Relies on mail_pkey, whose order is
/// requested with the id as a range: a single value is no order.
#[macro_export]
macro_rules! mail_facts {
    ($item:literal, $session:literal) => {
        concat!(
            "case when ",
            $item,
            ".kind = 'mail' and ",
            $item,
            ".id ~ '^mail:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then (
                select jsonb_build_object('id', m.id, 'message_type', m.message_type, 'about', m.context_task_id,
                                          'from', coalesce('@user:' || m.from_user, m.from_session))
                from mail m
                where m.account_id = ",
            $item,
            ".account_id and m.id >= substr(",
            $item,
            ".id, 6)::uuid and m.id <= substr(",
            $item,
            ".id, 6)::uuid and coalesce(m.to_session, '') = (
                    select regexp_replace(ms.key, ':v[0-9]+$', ':v1') from session ms
                    where ms.account_id = ",
            $item,
            ".account_id and ms.id = ",
            $session,
            " offset 0) order by m.id limit 1) end"
        )
    };
}
