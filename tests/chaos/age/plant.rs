//! Inserts an account's rows of a year or more by SQL, without foreign-key checks per row and with all indexes.
//!
//! Half of the sessions were closed long ago and are emptied. The other half were closed within the last 31 days and hold all
//! notifications. Each table with a retention time holds the rows of that time and one more day, so that a day's rows expire within
//! the simulated day.

use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Executor};
use testkit::{Rows, rows};

use crate::{arguments::AgeArguments, recovery::bench::Bench};

/// Tasks with an open session and a few waiting items, to be closed: one for each hour.
pub(super) const OPEN: usize = 24;

pub(super) async fn plant(bench: &Bench, arguments: &AgeArguments) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut connection = bench.system.observer.acquire().await?;
    connection
        .execute(
            "set session_replication_role = replica; set synchronous_commit = off; set client_min_messages = error",
        )
        .await?;
    let planted = planted(arguments).into_iter().map(|rows| rows.to_string());
    for sql in planted.chain(["vacuum analyze".to_owned()]) {
        connection
            .execute(AssertSqlSafe(sql.clone()))
            .await
            .with_context(|| format!("could not plant: {sql}"))?;
    }
    connection.close().await?;
    Ok(begun.elapsed())
}

/// `account-0` and its agents already exist, created over the API.
fn planted(arguments: &AgeArguments) -> Vec<Rows> {
    let (sessions, tasks) = (arguments.sessions.max(2), arguments.tasks.max(1));
    let notifications = arguments.notifications;
    let of_account = |table| rows(table).with("account_id", "account-0");
    // One in so many of them, numbered as they are.
    let one_in = |n: u32| format!("generate_series(1, {notifications} / {n}) q, lateral (select q * {n} as k) k");
    let within = |time: &str| format!("now() - interval '{time}' * k / {notifications}");
    vec![
        of_account("task")
            .set("display_id", "'OLD-' || n")
            .with("status", "done")
            .set("created_at", "at")
            .set("updated_at", "at")
            .from(format!(
                "generate_series(1, {tasks}) n, lateral (select now() - interval '400 days' * n / {tasks} as at) a"
            )),
        rows("session")
            .set("id", "('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid")
            .set("task_id", format!("'old-' || (1 + n % {tasks})"))
            .set("generation", format!("1 + n / {tasks}"))
            .set("opened_at", "c.at - interval '1 hour'")
            .set("closed_at", "c.at")
            .set("queue_tail", "case when n % 2 = 0 then 0 else 20 end")
            .set("turn_count", "case when n % 2 = 0 then 0 else 1 end")
            .set("emptied_at", "case when n % 2 = 0 then c.at end")
            .from(format!(
                "agent a, generate_series(1, {sessions}) n,
                 lateral (select case when n % 2 = 0 then now() - interval '60 days' - interval '300 days' * n / {sessions}
                                      else now() - interval '31 days' * n / {sessions} end as at) c
                 where a.account_id = 'account-0' and a.slug = 'coder'"
            )),
        rows("turn")
            .set("id", "s.id")
            .with("reply", "reply")
            .set("started_at", "s.opened_at")
            .set("finished_at", "s.closed_at")
            .from("session s where s.account_id = 'account-0' and s.closed_at is not null and s.emptied_at is null"),
        rows("tool_call").set("id", "t.id").with("result", "result").from("turn t where t.account_id = 'account-0'"),
        // Odd numbers are not emptied.
        rows("notification")
            .set("id", "'old-' || k")
            .set("session_id", "case when k % 50 > 0 then s.id end")
            .set("position", "case when k % 50 > 0 then k end")
            .set("state", "case when k % 50 > 1 then 'delivered' when k % 50 = 1 then 'cancelled' else 'refused' end")
            .set("turn_id", "case when k % 50 > 1 then s.id end")
            .set("created_at", within("31 days"))
            .from(format!(
                "session s join generate_series(1, {notifications}) k on s.account_id = 'account-0'
                  and s.id = ('00000000-0000-7000-8000-' || lpad(to_hex(1 + 2 * (k % ({sessions} / 2))), 12, '0'))::uuid"
            )),
        of_account("accepted_notification")
            .set("id", "'accepted-' || k")
            .set("created_at", within("8 days"))
            .from(one_in(4)),
        of_account("idempotency").set("key", "'key-' || k").set("created_at", within("48 hours")).from(one_in(10)),
        of_account("dead_letter").set("created_at", within("91 days")).from(one_in(50)),
        of_account("mail")
            .set("to_user", "null")
            .with("to_session", "orchestrator:account-0:ann:v1")
            .with("outcome", "in_turn")
            .set("created_at", within("366 days"))
            .set("settled_at", "{created_at}")
            .from(one_in(10)),
        of_account("message")
            .set("task_id", "t.id")
            .set("created_at", "t.created_at")
            .from("task t where t.account_id = 'account-0'"),
        // Nobody works on these: they wait for a moment that does not come. One of them has a long queue, and one has none yet.
        of_account("task")
            .set("display_id", "open.id")
            .from(format!(
                "(select 'OPEN-' || n as id from generate_series(0, {OPEN}) n union all select 'POSTED') open"
            )),
        rows("session")
            .set("task_id", "t.id")
            .with("phase", "backoff")
            .set("wake_at", "now() + interval '10 days'")
            .set("queued", "q.length")
            .set("queue_tail", "q.length")
            .from(format!(
                "agent a, task t, lateral (select case t.id when 'open-0' then {} when 'posted' then 0 else 20 end as length) q
                 where a.account_id = 'account-0' and a.slug = 'coder' and t.account_id = 'account-0' and t.status = 'in_progress'",
                arguments.long_queue()
            )),
        rows("notification")
            .set("id", "s.task_id || '-' || n")
            .set("position", "n")
            .with("sender_kind", "service")
            .from("session s, generate_series(1, s.queued) n where s.account_id = 'account-0' and s.task_id like 'open-%'"),
    ]
}
