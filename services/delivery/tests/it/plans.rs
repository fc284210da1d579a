//! The plans of the statements of a claim and of a record use the indexes that the comments name, whether the tables
//! are empty, full but not analysed, analysed, or analysed while they held few rows.

use delivery::{
    store::{branches, claim, context, past, plans, replays, runs},
    turn::stop,
};
use sqlx::{AssertSqlSafe, PgPool};
use storage::{
    Role, breaker,
    hold::HOLDS_ACTIVE,
    lifecycle,
    session::{
        branch_end, items_alike, items_expire, items_join, session_succeed, sessions_close, sessions_lock,
        sessions_park, turns_begin, turns_record, turns_resume,
    },
    tool_policy::POLICIES_OF,
};
use testkit::{
    Fixture, TestDatabase,
    plans::{Planned, check_plans},
    rows,
};

const STATEMENTS: [Planned; 52] = [
    (
        lifecycle::HEARERS,
        6,
        &[
            "task_pkey",
            "member_pkey",
            "message_thread",
            "member_admin of the account",
            "mail_unread",
        ],
    ),
    (lifecycle::QUESTIONS_READ, 4, &["mail_question"]),
    (sessions_lock::SESSIONS_LOCK, 2, &["session_pkey", "account_pkey"]),
    (sessions_lock::SESSIONS_THERE, 2, &["session_pkey"]),
    (sessions_lock::SESSIONS_LOCK_FREE, 2, &["session_pkey", "account_pkey"]),
    (claim::REPLICAS_ALIVE, 1, &["replica_pkey"]),
    (claim::IN_FLIGHT_COUNT, 1, &["turn_open of the account", "session_pkey"]),
    (
        claim::TURNS_LOAD,
        4,
        &[
            "provider_breaker_pkey",
            "turn_pkey",
            "account_pkey",
            "instruction_text_pkey",
            "task_pkey",
            "task_assignee_pkey",
            "agent_pkey",
            "notification_pkey",
            "notification_inject",
        ],
    ),
    (claim::RESULTS_LOAD, 3, &["question_call", "tool_call_turn"]),
    (turns_resume::TURNS_RESUME, 7, &["turn_pkey", "session_pkey"]),
    (turns_resume::TURNS_WAIT, 4, &["session_pkey"]),
    (turns_resume::TURNS_DEFER, 4, &["session_pkey"]),
    (breaker::BREAKERS_LOCK, 1, &[]),
    (breaker::BREAKER_WRITE, 13, &["provider_breaker_pkey"]),
    (turns_begin::INSTRUCTIONS_KEEP, 4, &[]),
    (
        turns_begin::TURNS_BEGIN,
        32,
        &["notification_pkey", "session_pkey", "instruction_text_pkey"],
    ),
    (
        turns_record::TURNS_RECORD,
        9,
        &[
            "turn_pkey",
            "tool_call_turn",
            "session_pkey",
            "notification_pkey",
            "agent_pkey",
        ],
    ),
    (
        context::QUEUE_NEXT,
        11,
        &[
            "provider_breaker_pkey",
            "notification_queue",
            "notification_pkey",
            "turn_pkey",
            "message_thread",
            "account_pkey",
            "agent_pkey",
            "task_pkey",
        ],
    ),
    (
        context::ITEMS_COMPLETE,
        8,
        &[
            "question_notification",
            "account_pkey",
            "agent_pkey",
            "task_assignee_pkey",
            "task_context_pkey",
            "branch_item",
            "mail_pkey",
            "session_pkey",
        ],
    ),
    (
        plans::PLANS_AWAITED,
        3,
        &[
            "notification_queue",
            "question_of_task",
            "question_notification",
            "branch_item",
        ],
    ),
    (
        branches::BRANCHES_LOAD,
        4,
        &[
            "branch_pkey",
            "session_pkey",
            "turn_pkey",
            "task_context_pkey",
            "message_pkey",
            "notification_pkey",
        ],
    ),
    (
        replays::REPLAYS_LOAD,
        4,
        &[
            "replay_pkey",
            "turn_pkey",
            "session_pkey",
            "instruction_text_pkey",
            "tool_call_turn",
            "provider_breaker_pkey",
        ],
    ),
    (
        branches::RESTS_LOAD,
        2,
        &["session_pkey", "branch_live", "question_of_session", "timer_of_session"],
    ),
    (branch_end::BRANCHES_LIVE, 1, &["branch_live of the account"]),
    (
        branch_end::GROUPS_LOCK,
        2,
        &["branch_pkey", "branch_group", "agent_pkey", "task_pkey"],
    ),
    (branch_end::BRANCHES_END, 7, &["branch_pkey"]),
    (branch_end::BRANCHES_JOIN, 3, &["branch_pkey"]),
    (branch_end::ITEMS_KNOWN, 2, &["notification_pkey"]),
    (
        sessions_close::LOCK_TRIED,
        3,
        &["session_pkey", "turn_pkey", "notification_pkey"],
    ),
    (
        items_expire::ITEMS_OVERDUE,
        4,
        &["session_pkey", "notification_queue", "task_pkey"],
    ),
    (items_expire::ITEMS_EXPIRE, 3, &["notification_pkey"]),
    (runs::QUEUE_BEHIND, 6, &["notification_queue"]),
    (
        past::PAST_LOAD,
        8,
        &[
            "turn_number",
            "turn_pkey",
            "tool_call_turn",
            "branch_live",
            "agent_pkey",
        ],
    ),
    (runs::INJECTS_LOAD, 6, &["notification_inject"]),
    (items_alike::ITEMS_ALIKE, 4, &["notification_pkey"]),
    (
        items_join::ITEMS_JOIN,
        5,
        &["notification_pkey", "session_pkey", "turn_pkey"],
    ),
    (runs::STOPPED_LOAD, 2, &["turn_pkey", "notification_pkey"]),
    (stop::STOPS_FIND, 2, &["session_pkey"]),
    (sessions_park::SESSIONS_PARK, 6, &["session_pkey"]),
    (HOLDS_ACTIVE, 1, &["hold_active of the account"]),
    (POLICIES_OF, 1, &["tool_policy_scope of the account"]),
    (sessions_park::SESSIONS_UNPARK, 2, &["session_pkey"]),
    (context::OVERVIEW_LOAD, 2, &["task_newest of the account"]),
    (context::PROFILES_LAST, 3, &["turn_number"]),
    (sessions_close::LOCK, 2, &["session_pkey", "task_pkey"]),
    (sessions_close::CLOSE, 5, &["session_pkey"]),
    (sessions_close::LOCK_ITEMS, 4, &["notification_queue"]),
    (sessions_close::CANCEL, 3, &["notification_pkey"]),
    (sessions_close::UNCOUNT, 3, &["session_pkey"]),
    (sessions_close::MOVE, 4, &["notification_pkey"]),
    (
        sessions_close::OPEN_NEXT,
        12,
        &[
            "session_pkey",
            "task_pkey",
            "persona_default of the account",
            "persona_pkey",
        ],
    ),
    (
        session_succeed::SESSION_SCOPES,
        3,
        &["hold_active of the account", "tool_policy_scope of the account"],
    ),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    // A plan may also have been made after the table was analysed with no or few rows.
    for (counted_when_new, count) in [(false, 3000), (true, 3000), (false, 25), (true, 25)] {
        let test = TestDatabase::fresh().await;
        let fixture = Fixture(&test);
        let account = fixture.account("acme").await;
        fixture.agent(&account, "coder").await;
        let database = test.connect(Role::Delivery).await;
        if counted_when_new {
            sqlx::query("vacuum analyze").execute(&test.owner).await.unwrap();
        }
        let check = async |tables: &str| {
            let tables = format!("{tables}, {count} rows, counted when new: {counted_when_new}");
            check_plans(&database, &account, &STATEMENTS, &tables).await;
        };
        check("empty").await;
        fill(&test.owner, count).await;
        check("full").await;
        sqlx::query("analyze").execute(&test.owner).await.unwrap();
        check("counted").await;
    }
}

async fn fill(owner: &PgPool, count: u32) {
    for table in [
        "task",
        "session",
        "notification",
        "turn",
        "tool_call",
        "message",
        "branch",
        "replay",
    ] {
        let off = format!("alter table {table} set (autovacuum_enabled = off)");
        sqlx::query(AssertSqlSafe(off)).execute(owner).await.unwrap();
    }
    let many = format!("generate_series(1, {count}) n");
    let (some, coder) = (
        "generate_series(1, 300) n",
        format!("agent a, {many} where a.slug = 'coder'"),
    );
    for rows in [
        rows("account").set("id", "'a' || n").from(some),
        rows("agent").set("slug", "'a' || n").from(some),
        rows("task").set("display_id", "'t-' || n").from(&many),
        rows("session")
            .set("task_id", "'t-' || n")
            .with("queued", 1)
            .from(coder),
        rows("notification").set("id", "s.id").from("session s"),
        rows("message").set("task_id", "t.id").from("task t"),
        rows("instruction_text")
            .with("account_id", "acme")
            .with("version", "v")
            .with("body", "b")
            .set("hash", "'h' || n")
            .from(some),
        rows("turn")
            .set("id", "s.id")
            .set("notification_ids", "array[s.id::text]")
            .with("profile_hash", "h1")
            .from("session s"),
        rows("replay").from("turn t"),
        rows("branch").from("session s"),
        rows("branch")
            .with("state", "finished")
            .set("joined_item", "s.id::text")
            .from("session s"),
        rows("tool_call")
            .set("ordinal", "n")
            .from("turn t, generate_series(1, 3) n"),
        rows("task_assignee")
            .set("account_id", "s.account_id")
            .set("task_id", "s.task_id")
            .set("agent_id", "s.agent_id")
            .from("session s"),
    ] {
        rows.insert(owner).await;
    }
}
