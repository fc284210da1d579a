//! How the statements of a claim and of a record find their rows: by the index that each is said to rely on, whether the
//! tables are empty, full but not yet counted, counted, or counted when they held little.

use delivery::store::{claim, context};
use sqlx::AssertSqlSafe;
use storage::{
    Role,
    session::{sessions_lock, turns_begin, turns_record, turns_resume},
};
use testkit::{
    Fixture, TestDatabase,
    plans::{Planned, check_plans},
};

const STATEMENTS: [Planned; 14] = [
    (sessions_lock::SESSIONS_LOCK, 2, &["session_pkey", "account_pkey"]),
    (sessions_lock::SESSIONS_THERE, 2, &["session_pkey"]),
    (sessions_lock::SESSIONS_LOCK_FREE, 2, &["session_pkey", "account_pkey"]),
    (claim::REPLICAS_ALIVE, 1, &["replica_pkey"]),
    (claim::IN_FLIGHT_COUNT, 1, &["turn_open of the account", "session_pkey"]),
    (
        claim::TURNS_LOAD,
        3,
        &[
            "turn_pkey",
            "account_pkey",
            "instruction_text_pkey",
            "task_pkey",
            "task_assignee_pkey",
            "agent_pkey",
            "notification_pkey",
        ],
    ),
    (claim::RESULTS_LOAD, 2, &["tool_call_turn"]),
    (turns_resume::TURNS_RESUME, 6, &["turn_pkey", "session_pkey"]),
    (turns_resume::TURNS_WAIT, 4, &["session_pkey"]),
    (turns_begin::INSTRUCTIONS_KEEP, 4, &[]),
    (
        turns_begin::TURNS_BEGIN,
        28,
        &["notification_pkey", "session_pkey", "instruction_text_pkey"],
    ),
    (
        turns_record::TURNS_RECORD,
        2,
        &["turn_pkey", "tool_call_turn", "session_pkey", "notification_pkey"],
    ),
    (
        context::QUEUE_NEXT,
        4,
        &[
            "notification_queue",
            "message_thread",
            "account_pkey",
            "agent_pkey",
            "task_pkey",
            "task_assignee_pkey",
        ],
    ),
    (context::OVERVIEW_LOAD, 2, &["task_newest of the account"]),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    // A plan may also have been made when a table had been counted and held next to nothing, or a few rows.
    for (counted_when_new, rows) in [(false, 3000), (true, 3000), (false, 25), (true, 25)] {
        let test = TestDatabase::fresh().await;
        let fixture = Fixture(&test);
        let account = fixture.account("acme").await;
        fixture.agent(&account, "coder").await;
        let database = test.connect(Role::Delivery).await;
        if counted_when_new {
            sqlx::query("vacuum analyze").execute(&test.owner).await.unwrap();
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {rows} rows, counted when new: {counted_when_new}");
            check_plans(&database, &account, &STATEMENTS, &tables).await;
        };
        check("empty").await;
        for sql in FULL {
            let sql = AssertSqlSafe(sql.replace("3000", &rows.to_string()));
            sqlx::query(sql).execute(&test.owner).await.unwrap();
        }
        check("full").await;
        sqlx::query("analyze").execute(&test.owner).await.unwrap();
        check("counted").await;
    }
}

const FULL: [&str; 16] = [
    "alter table task set (autovacuum_enabled = off)",
    "alter table session set (autovacuum_enabled = off)",
    "alter table notification set (autovacuum_enabled = off)",
    "alter table turn set (autovacuum_enabled = off)",
    "alter table tool_call set (autovacuum_enabled = off)",
    "alter table message set (autovacuum_enabled = off)",
    "insert into account (id, name) select 'a' || n, '' from generate_series(1, 300) n",
    "insert into agent (account_id, id, slug, name)
     select 'acme', gen_random_uuid(), 'a' || n, '' from generate_series(1, 300) n",
    "insert into task (account_id, id, display_id, title, status)
     select 'acme', 't-' || n, 't-' || n, '', 'inbox' from generate_series(1, 3000) n",
    "insert into session (account_id, id, kind, task_id, agent_id, generation, key, queued)
     select 'acme', gen_random_uuid(), 'task', 't-' || n, (select id from agent where slug = 'coder'), 1, 'k' || n, 1
     from generate_series(1, 3000) n",
    "insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind,
                               sender_id, sender_name, content_hash, state)
     select account_id, id, task_id, agent_id, id, 1, 'k', 'b', 'user', 'u', 'u', '', 'queued' from session",
    "insert into message (account_id, id, task_id, author_kind, author_id, author_name, body)
     select account_id, gen_random_uuid(), id, 'user', 'u', 'u', 'b' from task",
    "insert into instruction_text (account_id, hash, version, body)
     select 'acme', 'h' || n, 'v', 'b' from generate_series(1, 300) n",
    "insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                       profile_version, profile_hash, input, manifest, finished_at)
     select s.account_id, s.id, s.id, s.task_id, s.agent_id, 1, 1, 1, 'finished', array[s.id::text], 'default', 'v', 'h1', '', '{}',
            now()
     from session s",
    "insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments,
                            state)
     select t.account_id, gen_random_uuid(), t.session_id, t.id, 1, 1, 'c', n, t.agent_id, 'task_history', '{}', 'finished'
     from turn t, generate_series(1, 3) n",
    "insert into task_assignee (account_id, task_id, agent_id)
     select s.account_id, s.task_id, s.agent_id from session s",
];
