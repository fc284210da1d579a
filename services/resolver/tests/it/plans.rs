//! How the statements of a batch find their rows: by the index that each is said to rely on, whether the tables are
//! empty, full but not yet counted, counted, or counted when they held little. A prepared plan outlives all of them. The relay's statements are here, too.

use resolver::store::facts;
use sqlx::AssertSqlSafe;
use storage::{
    outbox::{
        OUTBOX_CLAIM, OUTBOX_DELETE,
        unread::{OUTBOX_LOOK, OUTBOX_STORED},
    },
    session::{item_enter, items_append, items_refuse, sessions_lock, sessions_open, sessions_remove},
};
use testkit::plans::{Planned, check_plans};

use crate::scene::scene;

const STATEMENTS: [Planned; 13] = [
    (
        facts::FACTS_FIND,
        13,
        &[
            "account_pkey",
            "agent_pkey",
            "agent_slug",
            "task_pkey",
            "task_assignee_pkey",
            "message_pkey",
            "notification_pkey",
        ],
    ),
    (
        sessions_lock::CONVERSATIONS_LOCK,
        7,
        &["session_active_task", "session_active_system", "session_pkey"],
    ),
    (
        sessions_open::SESSIONS_NEWEST_OF_TASKS,
        4,
        &["session_generation", "agent_pkey"],
    ),
    (
        sessions_open::SESSIONS_NEWEST_OF_AGENTS,
        3,
        &["session_generation", "agent_pkey"],
    ),
    (sessions_open::SESSIONS_OPEN, 7, &[]),
    (items_append::ITEMS_APPEND, 22, &["session_pkey"]),
    (items_append::ITEMS_REQUEUE, 22, &["notification_pkey", "session_pkey"]),
    (item_enter::ITEM_KNOWN, 2, &["notification_pkey"]),
    (items_refuse::REFUSED_REPLACE, 2, &["notification_pkey"]),
    (OUTBOX_DELETE, 2, &["outbox_pkey"]),
    (OUTBOX_STORED, 4, &["outbox_pkey"]),
    (OUTBOX_CLAIM, 5, &["outbox_unsent", "outbox_pkey"]),
    (OUTBOX_LOOK, 6, &["outbox_unread", "outbox_pkey"]),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    // A plan may also have been made when a table had been counted and held next to nothing, or a few rows.
    for (counted_when_new, rows) in [(false, 5000), (true, 5000), (false, 25), (true, 25)] {
        let scene = scene().await;
        if counted_when_new {
            scene.execute("vacuum analyze").await;
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {rows} rows, counted when new: {counted_when_new}");
            check_plans(&scene.database, &scene.account, &STATEMENTS, &tables).await;
        };
        check("empty").await;
        let full = AssertSqlSafe(FULL.replace("5000", &rows.to_string()));
        sqlx::raw_sql(full).execute(&scene.test.owner).await.unwrap();
        check("full").await;
        scene.execute("analyze").await;
        check("counted").await;
    }
}

/// What removes is given its rows, and finds what hangs on them.
const REMOVALS: [Planned; 8] = [
    (sessions_remove::LOCK, 2, &["session_pkey"]),
    (sessions_remove::BEFORE, 2, &["session_pkey", "session_generation"]),
    (sessions_remove::EMPTY[0], 3, &["tool_call_session"]),
    (sessions_remove::EMPTY[1], 3, &["turn_number"]),
    (sessions_remove::EMPTY[2], 3, &["notification_ended"]),
    (sessions_remove::EMPTIED, 2, &["session_pkey"]),
    (sessions_remove::SUPERSEDED, 2, &["session_pkey", "session_generation"]),
    (items_refuse::REFUSED_REMOVE, 2, &["notification_pkey"]),
];

#[tokio::test]
async fn every_removal_goes_by_its_index_whatever_the_tables_hold() {
    for (counted_when_new, rows) in [(false, 20_000), (true, 20_000), (false, 25), (true, 25)] {
        let scene = scene().await;
        if counted_when_new {
            scene.execute("vacuum analyze").await;
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {rows} rows, counted when new: {counted_when_new}");
            check_plans(&scene.database, &scene.account, &REMOVALS, &tables).await;
        };
        check("empty").await;
        let full = AssertSqlSafe(CLOSED.replace("20000", &rows.to_string()));
        sqlx::raw_sql(full).execute(&scene.test.owner).await.unwrap();
        check("full").await;
        scene.execute("analyze").await;
        check("counted").await;
    }
}

/// Of one account: each session has two closed generations, with a turn, a call and a notification.
const CLOSED: &str = "
    alter table notification set (autovacuum_enabled = off);
    alter table session set (autovacuum_enabled = off);
    alter table turn set (autovacuum_enabled = off);
    alter table tool_call set (autovacuum_enabled = off);
    insert into instruction_text (account_id, hash, version, body) values ('acme', 'h', 'v', 'b');
    insert into session (account_id, id, kind, user_id, generation, key, closed_at, close_reason, emptied_at)
    select 'acme', gen_random_uuid(), 'orchestrator', 'u-' || n, g, 'k' || n || '-' || g, now() - interval '40 days', 'reset',
           case g when 1 then now() end
    from generate_series(1, 20000) n, generate_series(1, 2) g where n % 2 = 0 or g = 2;
    insert into turn (account_id, id, session_id, agent_id, generation, number, fence, state, notification_ids, provider,
                      profile_version, profile_hash, input, manifest, finished_at)
    select account_id, id, id, id, 1, 1, 1, 'finished', '{}', 'default', 'v', 'h', '', '{}', now() from session;
    insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments,
                           state)
    select account_id, id, id, id, 1, 1, 'c', 1, id, 'task_history', '{}', 'finished' from session;
    insert into notification (account_id, id, session_id, position, kind, body, sender_kind, sender_id, sender_name,
                              content_hash, state)
    select account_id, id::text, id, 1, 'k', 'b', 'user', 'u', 'u', '', 'delivered' from session;
    insert into notification (account_id, id, kind, body, sender_kind, sender_id, sender_name, content_hash, state)
    select 'acme', 'refused-' || n, 'k', 'b', 'user', 'u', 'u', '', 'refused' from generate_series(1, 20000) n";

const FULL: &str = "
    alter table notification set (autovacuum_enabled = off);
    alter table session set (autovacuum_enabled = off);
    alter table task set (autovacuum_enabled = off);
    alter table outbox set (autovacuum_enabled = off);
    insert into outbox (account_id, id, service, subject, headers, payload)
    select 'acme', gen_random_uuid(), 'orchestrator', 's', '{}', '' from generate_series(1, 5000) n;
    insert into agent (account_id, id, slug, name)
    select 'acme', gen_random_uuid(), 'a' || n, '' from generate_series(1, 300) n;
    insert into account (id, name) select 'a' || n, '' from generate_series(1, 300) n;
    insert into task (account_id, id, display_id, title, status)
    select 'acme', 't-' || n, 't-' || n, '', 'inbox' from generate_series(1, 5000) n;
    insert into session (account_id, id, kind, task_id, agent_id, generation, key)
    select 'acme', gen_random_uuid(), 'task', 't-' || n, (select id from agent where slug = 'coder'), 1, 'k' || n
    from generate_series(1, 5000) n;
    insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind,
                              sender_id, sender_name, content_hash, state)
    select account_id, id, task_id, agent_id, id, 1, 'k', 'b', 'user', 'u', 'u', '', 'queued' from session";
