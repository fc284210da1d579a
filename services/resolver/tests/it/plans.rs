//! How the statements of a batch find their rows: by the index that each is said to rely on, whether the tables are
//! empty, full but not yet counted, or counted. A prepared plan outlives all three.

use resolver::store::{facts, notifications, sessions};
use sea_orm::{ConnectionTrait, Statement};
use storage::{Accounts, Tx, outbox::OUTBOX_DELETE};

use crate::scene::{Scene, scene};

/// Statement, its parameters, and the indexes by which it may find rows.
const STATEMENTS: [(&str, usize, &[&str]); 8] = [
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
        sessions::SESSIONS_LOCK,
        7,
        &["session_active_task", "session_active_system", "session_pkey"],
    ),
    (
        sessions::SESSIONS_NEWEST_OF_TASKS,
        4,
        &["session_generation", "agent_pkey"],
    ),
    (
        sessions::SESSIONS_NEWEST_OF_AGENTS,
        3,
        &["session_generation", "agent_pkey"],
    ),
    (sessions::SESSIONS_OPEN, 7, &[]),
    (notifications::NOTIFICATIONS_ENTER, 21, &["session_pkey"]),
    (
        notifications::NOTIFICATIONS_REQUEUE,
        21,
        &["notification_pkey", "session_pkey"],
    ),
    (OUTBOX_DELETE, 2, &["outbox_pkey"]),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    let scene = scene().await;
    check(&scene, "empty").await;
    scene
        .execute(
            "alter table notification set (autovacuum_enabled = off);
             alter table session set (autovacuum_enabled = off);
             alter table task set (autovacuum_enabled = off);
             alter table outbox set (autovacuum_enabled = off);
             insert into outbox (account_id, id, service, subject, headers, payload)
             select 'acme', gen_random_uuid(), 'orchestrator', 's', '{}', '' from generate_series(1, 5000) n;
             insert into task (account_id, id, display_id, title, status)
             select 'acme', 't-' || n, 't-' || n, '', 'inbox' from generate_series(1, 5000) n;
             insert into session (account_id, id, kind, task_id, agent_id, generation, key)
             select 'acme', gen_random_uuid(), 'task', 't-' || n, (select id from agent where slug = 'coder'), 1, 'k' || n
             from generate_series(1, 5000) n;
             insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind,
                                       sender_id, sender_name, content_hash, state)
             select account_id, id, task_id, agent_id, id, 1, 'k', 'b', 'user', 'u', 'u', '', 'queued' from session",
        )
        .await;
    check(&scene, "full").await;
    scene.execute("analyze").await;
    check(&scene, "counted").await;
}

async fn check(scene: &Scene, tables: &str) {
    for (sql, parameters, indexes) in STATEMENTS {
        let tx = scene.database.begin(&Accounts::one(&scene.account)).await.unwrap();
        let plan = plan(&tx, sql, parameters).await;
        tx.rollback().await.unwrap();
        let used: Vec<&str> = plan
            .lines()
            .filter_map(|line| {
                let (_, rest) = line
                    .split_once(" using ")
                    .or_else(|| line.split_once("Bitmap Index Scan on "))?;
                rest.split_whitespace().next()
            })
            .collect();
        for index in indexes {
            assert!(used.contains(index), "{tables}: {index} is not used\n{plan}");
        }
        for index in &used {
            assert!(indexes.contains(index), "{tables}: {index} is used\n{plan}");
        }
        assert!(!plan.contains("Seq Scan"), "{tables}\n{plan}");
    }
}

/// The plan that the service's own connections keep.
async fn plan(tx: &Tx, sql: &str, parameters: usize) -> String {
    let nulls = vec!["null"; parameters].join(", ");
    tx.execute_unprepared("set local plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    tx.execute_unprepared(&format!("prepare of_a_batch as {sql}"))
        .await
        .unwrap();
    let explain = Statement::from_string(
        sea_orm::DbBackend::Postgres,
        format!("explain execute of_a_batch({nulls})"),
    );
    let lines = tx.query_all_raw(explain).await.unwrap();
    tx.execute_unprepared("deallocate of_a_batch").await.unwrap();
    let lines: Vec<String> = lines.iter().map(|line| line.try_get_by_index(0).unwrap()).collect();
    lines.join("\n")
}
