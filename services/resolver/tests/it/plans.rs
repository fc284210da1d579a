//! The plans of a batch's statements use the indexes that the comments name, whether the tables are empty, full but not
//! analysed, analysed, or analysed while they held few rows. A prepared plan outlives all of these states. The relay's
//! statements are here, too.

use resolver::store::facts;
use sqlx::AssertSqlSafe;
use storage::{
    outbox::{
        OUTBOX_CLAIM, OUTBOX_DELETE,
        unread::{OUTBOX_LOOK, OUTBOX_STORED},
    },
    session::{item_enter, items_append, items_refuse, sessions_lock, sessions_open, sessions_remove, turn_stop},
};
use testkit::{
    Rows,
    plans::{Planned, check_plans},
    rows,
};

use crate::scene::{Scene, scene};

/// `BATCH_ENTER` without the partition's row, of which there are few.
const KNOWN: &str = concat!("with moved as (values (1)), ", storage::items_append_known!());

const STATEMENTS: [Planned; 20] = [
    (
        facts::ORCHESTRATORS_FIND,
        2,
        &[
            "orchestrator_identity_pkey",
            "member_pkey",
            "agent_orchestrator of the account",
        ],
    ),
    (
        facts::GUESTS_FIND,
        3,
        &[
            "orchestrator_identity_pkey",
            "member_pkey",
            "agent_orchestrator of the account",
        ],
    ),
    (
        sessions_open::SESSIONS_NEWEST_OF_GUESTS,
        5,
        &["session_of_guest", "member_pkey", "orchestrator_identity_pkey"],
    ),
    (
        sessions_lock::CONVERSATIONS_LOCK_ALL,
        16,
        &[
            "session_active_task",
            "session_active_system",
            "session_active_orchestrator of the account",
            "session_active_guest",
            "session_pkey",
        ],
    ),
    (
        sessions_open::SESSIONS_NEWEST_OF_ORCHESTRATORS,
        4,
        &["session_generation", "member_pkey"],
    ),
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
        KNOWN,
        33,
        &[
            "session_pkey",
            "account_pkey",
            "agent_pkey",
            "task_pkey",
            "task_assignee_pkey",
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
        &["session_generation", "agent_pkey", "task_pkey"],
    ),
    (
        sessions_open::SESSIONS_NEWEST_OF_AGENTS,
        3,
        &["session_generation", "agent_pkey"],
    ),
    (
        sessions_open::SESSIONS_OPEN,
        10,
        &["task_pkey", "persona_default of the account", "persona_pkey"],
    ),
    (items_append::ITEMS_APPEND, 24, &["session_pkey"]),
    (items_append::ITEMS_REQUEUE, 24, &["notification_pkey", "session_pkey"]),
    (turn_stop::TURN_STOP, 7, &["session_pkey", "turn_pkey"]),
    (item_enter::ITEM_KNOWN, 2, &["notification_pkey"]),
    (items_refuse::REFUSED_REPLACE, 2, &["notification_pkey"]),
    (OUTBOX_DELETE, 2, &["outbox_pkey"]),
    (OUTBOX_STORED, 4, &["outbox_pkey"]),
    (OUTBOX_CLAIM, 5, &["outbox_unsent", "outbox_pkey"]),
    (OUTBOX_LOOK, 6, &["outbox_unread", "outbox_pkey"]),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    // A plan may also have been made after the table was analysed with no or few rows.
    for (counted_when_new, count) in [(false, 5000), (true, 5000), (false, 25), (true, 25)] {
        let scene = scene().await;
        if counted_when_new {
            scene.execute("vacuum analyze").await;
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {count} rows, counted when new: {counted_when_new}");
            check_plans(&scene.database, &scene.account, &STATEMENTS, &tables).await;
        };
        check("empty").await;
        fill(&scene, open(count)).await;
        check("full").await;
        scene.execute("analyze").await;
        check("counted").await;
    }
}

/// A delete statement gets its rows by id, and finds their dependent rows.
const REMOVALS: [Planned; 10] = [
    (sessions_remove::LOCK, 2, &["session_pkey"]),
    (
        sessions_remove::BEFORE,
        2,
        &["session_pkey", "session_generation", "session_of_guest"],
    ),
    (sessions_remove::EMPTY[0], 3, &["tool_call_session"]),
    (sessions_remove::EMPTY[1], 3, &["turn_number"]),
    (sessions_remove::EMPTY[2], 3, &["notification_ended"]),
    (sessions_remove::BRANCHES_REMOVE, 2, &["session_pkey", "branch_pkey"]),
    (sessions_remove::REPLAYS_REMOVE, 2, &["session_pkey", "replay_pkey"]),
    (sessions_remove::EMPTIED, 2, &["session_pkey"]),
    (
        sessions_remove::SUPERSEDED,
        2,
        &["session_pkey", "session_generation", "session_of_guest"],
    ),
    (items_refuse::REFUSED_REMOVE, 2, &["notification_pkey"]),
];

#[tokio::test]
async fn every_removal_goes_by_its_index_whatever_the_tables_hold() {
    for (counted_when_new, count) in [(false, 20_000), (true, 20_000), (false, 25), (true, 25)] {
        let scene = scene().await;
        if counted_when_new {
            scene.execute("vacuum analyze").await;
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {count} rows, counted when new: {counted_when_new}");
            check_plans(&scene.database, &scene.account, &REMOVALS, &tables).await;
        };
        check("empty").await;
        fill(&scene, closed(count)).await;
        check("full").await;
        scene.execute("analyze").await;
        check("counted").await;
    }
}

/// Of one account: each session has two closed generations, with a turn, a call and a notification.
fn closed(count: u32) -> Vec<Rows> {
    let many = format!("generate_series(1, {count}) n");
    vec![
        rows("session")
            .set("user_id", "'u-' || n")
            .set("generation", "g")
            .set("closed_at", "now() - interval '40 days'")
            .set("emptied_at", "case g when 1 then now() end")
            .from(format!("{many}, generate_series(1, 2) g where n % 2 = 0 or g = 2")),
        rows("turn").set("id", "s.id").from("session s"),
        rows("tool_call").set("id", "t.id").from("turn t"),
        rows("notification")
            .set("id", "s.id")
            .with("state", "delivered")
            .from("session s"),
        rows("notification").set("id", "'refused-' || n").from(many),
    ]
}

fn open(count: u32) -> Vec<Rows> {
    let (many, some) = (format!("generate_series(1, {count}) n"), "generate_series(1, 300) n");
    vec![
        rows("outbox").with("service", "orchestrator").from(&many),
        rows("agent").set("slug", "'a' || n").from(some),
        rows("account").set("id", "'a' || n").from(some),
        rows("task").set("display_id", "'t-' || n").from(&many),
        rows("session")
            .set("task_id", "'t-' || n")
            .from(format!("agent a, {many} where a.slug = 'coder'")),
        rows("notification").set("id", "s.id").from("session s"),
    ]
}

async fn fill(scene: &Scene, all: Vec<Rows>) {
    for table in ["notification", "session", "task", "turn", "tool_call", "outbox"] {
        let off = format!("alter table {table} set (autovacuum_enabled = off)");
        sqlx::query(AssertSqlSafe(off))
            .execute(&scene.test.owner)
            .await
            .unwrap();
    }
    for rows in all {
        rows.insert(&scene.test.owner).await;
    }
}
