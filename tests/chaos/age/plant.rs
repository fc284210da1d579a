//! What an account has after a year or more, written by SQL: references are not checked row by row, and no index is dropped.
//!
//! Half of the sessions were closed long ago and are emptied; the other half were closed within the last 31 days, and everything
//! that was notified hangs on them. Of what is kept for a time there is as much as comes in in that time and a day, so that a
//! day's worth comes due within the day that is run.

use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Executor};

use crate::{arguments::AgeArguments, recovery::bench::Bench};

/// Tasks with an open session and a little waiting, to be closed: one for each hour.
pub(super) const OPEN: usize = 24;

pub(super) async fn plant(bench: &Bench, arguments: &AgeArguments) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut connection = bench.system.observer.acquire().await?;
    connection
        .execute(
            "set session_replication_role = replica; set synchronous_commit = off; set client_min_messages = error",
        )
        .await?;
    for sql in PLANTED {
        let sql = sql
            .replace("$sessions", &arguments.sessions.max(2).to_string())
            .replace("$notifications", &arguments.notifications.to_string())
            .replace("$tasks", &arguments.tasks.max(1).to_string())
            .replace("$long", &arguments.long_queue().to_string())
            .replace("$open", &OPEN.to_string());
        connection
            .execute(AssertSqlSafe(sql.clone()))
            .await
            .with_context(|| format!("could not plant: {sql}"))?;
    }
    connection.close().await?;
    Ok(begun.elapsed())
}

/// `account-0` and its agents are there, made over the API.
const PLANTED: [&str; 12] = [
    "insert into task (account_id, id, display_id, title, status, created_at, updated_at)
     select 'account-0', 'old-' || n, 'OLD-' || n, 'Task ' || n, 'done', at, at
     from generate_series(1, $tasks) n, lateral (select now() - interval '400 days' * n / $tasks as at) a",
    "insert into session (account_id, id, kind, task_id, agent_id, generation, key, opened_at, closed_at, close_reason,
                          queue_tail, turn_count, emptied_at)
     select 'account-0', ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'task', 'old-' || (1 + n % $tasks), a.id,
            1 + n / $tasks, 'task:old-' || (1 + n % $tasks) || ':agent:' || a.id || ':account-0:v' || (1 + n / $tasks),
            c.at - interval '1 hour', c.at, 'task_done', case when n % 2 = 0 then 0 else 20 end,
            case when n % 2 = 0 then 0 else 1 end, case when n % 2 = 0 then c.at end
     from (select id from agent where account_id = 'account-0' and slug = 'coder') a, generate_series(1, $sessions) n,
          lateral (select case when n % 2 = 0 then now() - interval '60 days' - interval '300 days' * n / $sessions
                               else now() - interval '31 days' * n / $sessions end as at) c",
    "insert into instruction_text (account_id, hash, version, body) values ('account-0', 'planted', '1', 'b')
     on conflict do nothing",
    "insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids,
                       provider, profile_version, profile_hash, input, manifest, reply, started_at, finished_at)
     select account_id, id, id, task_id, agent_id, generation, 1, 1, 'finished', '{}', 'default', '1', 'planted', 'input',
            '{}', 'reply', opened_at, closed_at
     from session where account_id = 'account-0' and closed_at is not null and emptied_at is null",
    "insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments,
                            state, result)
     select account_id, id, id, id, generation, 1, 'c-1', 1, agent_id, 'task_history', '{}', 'finished', 'result'
     from session where account_id = 'account-0' and closed_at is not null and emptied_at is null",
    // Odd numbers are those that are not emptied.
    "insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind, sender_id,
                               sender_name, content_hash, state, reason, turn_id, created_at)
     select 'account-0', 'old-' || k, s.task_id, s.agent_id, case when k % 50 > 0 then s.id end, case when k % 50 > 0 then k end,
            'work', 'a body', 'user', 'u-1', 'A person', '',
            case when k % 50 > 1 then 'delivered' when k % 50 = 1 then 'cancelled' else 'refused' end,
            null, case when k % 50 > 1 then s.id end, now() - interval '31 days' * k / $notifications
     from generate_series(1, $notifications) k
     join session s on s.account_id = 'account-0'
      and s.id = ('00000000-0000-7000-8000-' || lpad(to_hex(1 + 2 * (k % ($sessions / 2))), 12, '0'))::uuid",
    "insert into accepted_notification (account_id, id, kind, content_hash, created_at)
     select 'account-0', 'accepted-' || k, 'work', '', now() - interval '8 days' * k / $notifications
     from generate_series(1, $notifications / 4) q, lateral (select q * 4 as k) k",
    "insert into idempotency (account_id, key, request_hash, status, body, created_at)
     select 'account-0', 'key-' || k, '', 202, '{}', now() - interval '48 hours' * k / $notifications
     from generate_series(1, $notifications / 10) q, lateral (select q * 10 as k) k",
    "insert into dead_letter (account_id, id, service, subject, reason, detail, payload, created_at)
     select 'account-0', gen_random_uuid(), 'resolver', 'signalbox.notification.account-0.-', 'planted', 'd', 'a payload',
            now() - interval '91 days' * k / $notifications
     from generate_series(1, $notifications / 50) q, lateral (select q * 50 as k) k",
    "insert into message (account_id, id, task_id, author_kind, author_id, author_name, body, created_at)
     select 'account-0', gen_random_uuid(), id, 'user', 'u-1', 'A person', 'a message', created_at
     from task where account_id = 'account-0'",
    // Nobody works on these: they wait for a moment that does not come. One of them has a long queue, and one has none yet.
    "insert into task (account_id, id, display_id, title, status)
     select 'account-0', lower(id), id, id, 'in_progress'
     from (select 'OPEN-' || n as id from generate_series(0, $open) n union all select 'POSTED') open;
     insert into session (account_id, id, kind, task_id, agent_id, generation, key, phase, wake_at, queued, queue_tail)
     select 'account-0', gen_random_uuid(), 'task', t.id, a.id, 1,
            'task:' || t.id || ':agent:' || a.id || ':account-0:v1', 'backoff', now() + interval '10 days', q.length, q.length
     from (select id from agent where account_id = 'account-0' and slug = 'coder') a,
          (select id from task where account_id = 'account-0' and status = 'in_progress') t,
          lateral (select case t.id when 'open-0' then $long when 'posted' then 0 else 20 end as length) q;
     insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind, sender_id,
                               sender_name, content_hash, state)
     select 'account-0', s.task_id || '-' || n, s.task_id, s.agent_id, s.id, n, 'work', 'a body', 'service', 's-1', 'A service',
            '', 'queued'
     from session s, generate_series(1, s.queued) n where s.account_id = 'account-0' and s.task_id like 'open-%'",
    "vacuum analyze",
];
