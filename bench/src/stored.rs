//! Data of an old installation: processed notifications with their turns and replies, in closed sessions. Inserted directly, in the
//! services' shape: ids that grow with time, texts of the usual size.

use anyhow::Context;
use sqlx::PgPool;

use crate::work::Work;

/// An id of that time.
const ID_OF: &str = "create function pg_temp.id_of(at timestamptz) returns uuid language sql as $f$
        select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(r, 1, 3) || '8' || substr(r, 4, 15))::uuid
        from (select md5(random()::text) as r) as random $f$";
/// One statement for each table. `$n` is a row's number over all; rows of one service are inserted together, so they lie together.
const STATEMENTS: &[&str] = &[
    "insert into instruction_text (account_id, hash, version, body) select id, 'stored', '1', repeat('instructions ', 400) from account",
    "insert into session (account_id, id, kind, task_id, agent_id, generation, key, opened_at, closed_at, close_reason, turn_count)
        select task.account_id, pg_temp.id_of(now() - interval '1 day'), 'task', task.id, agent.id, 1,
            'stored:' || task.account_id || ':' || task.id, now() - interval '1 day', now() - interval '2 hours', 'task_done', 0
        from task join agent on agent.account_id = task.account_id",
    "insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind, sender_id,
            sender_name, content_hash, state, turn_id, attempts, created_at)
        select account_id, 'stored-' || id || '-' || n, task_id, agent_id, id, n, 'message', repeat('please look into it, ', 10),
            'service', 'bench', 'bench', sha256(convert_to(id || ':' || n, 'UTF8')), 'delivered', null, 1,
            now() - interval '1 day' + n * interval '1 second'
        from generate_series(1, {each}) as n, session",
    "insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
            profile_version, profile_hash, input, manifest, journal, rounds, reply, started_at, sent_at, finished_at)
        select account_id, pg_temp.id_of(at), id, task_id, agent_id, 1, n, n, 'finished', array['stored-' || id || '-' || n], 'default',
            '1', 'stored', repeat('please look into it, ', 20), '[]', '[]', 1, repeat('noted. ', 11), at, at, at
        from generate_series(1, {each}) as n, session, lateral (select now() - interval '1 day' + n * interval '1 second') as moment (at)",
    "insert into message (account_id, id, task_id, author_kind, author_id, author_name, body, turn_id, created_at)
        select account_id, pg_temp.id_of(finished_at), task_id, 'agent', agent_id::text, 'coder', reply, id, finished_at from turn",
];

pub(crate) async fn fill(observer: &PgPool, work: &Work) -> anyhow::Result<()> {
    let each = work.stored.div_ceil(work.pairs).to_string();
    insert(
        observer,
        STATEMENTS.iter().map(|statement| statement.replace("{each}", &each)),
    )
    .await
}

/// Runs statements that insert rows as the services would have written them.
pub(crate) async fn insert(observer: &PgPool, statements: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut connection = observer.acquire().await.context("could not connect to Postgres")?;
    // Foreign keys hold by construction; checking a million rows takes minutes.
    for statement in [
        "set session_replication_role = replica",
        "set synchronous_commit = off",
        ID_OF,
    ] {
        sqlx::query(statement)
            .execute(&mut *connection)
            .await
            .context("could not prepare the session for inserts")?;
    }
    for statement in statements {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut *connection)
            .await
            .context("could not insert old data")?;
    }
    for statement in [
        "vacuum analyze",
        "checkpoint",
        "reset session_replication_role",
        "reset synchronous_commit",
    ] {
        sqlx::query(statement)
            .execute(&mut *connection)
            .await
            .context("could not finish the inserts")?;
    }
    Ok(())
}
