//! The plans of the statements for many calls use the indexes that the comments name, whether the tables are empty, full
//! but not analysed, analysed, or analysed while they held few rows.

use sqlx::{AssertSqlSafe, PgPool};
use storage::{
    Role,
    lifecycle::{self, CHILD_FACTS, MESSAGES_INSERT, dependencies, mail_send, memory, plan, task_context},
    question,
    session::{branch_end, branch_spawn, items_alike, mail_take},
};
use testkit::{
    Fixture, TestDatabase,
    plans::{Planned, check_plans},
    rows,
};
use tool_gateway::statements::{
    ACTIVITIES_NEWEST, AGENTS_SHARE, ARTIFACTS_FIND, ASSIGNEES, BASE_ACTIVITIES, BASE_MESSAGES, BASES_FIND, BOARD_LIST,
    BRANCH_OF_SESSION, BRANCHES_OF_SESSION, CALL_RUNNING, CALL_TAKE, CALLS_INSERT, CHILD_FIND, CHILD_QUEUE,
    CHILD_TURNS, CHILDREN_LIST, CHILDREN_ROOM, CONTEXT_OF_BRANCH, EXECUTES, FACTS, GUESTS_LIST, ITEM_SENDER, LATER,
    MAIL_READ, MEMBER_BY_ADDRESS, MESSAGES_NEWEST, PERSONA_FOR, PERSONAS_FOR, SESSIONS_LOCK_FREE, SESSIONS_OF_QUESTION,
    TASK_OF_CALL, TASKS_FIND, TURN_SURROUNDINGS, UNREAD, WORKER_TASKS,
};

const STATEMENTS: [Planned; 76] = [
    (ARTIFACTS_FIND, 3, &["artifact_pkey"]),
    (CALL_RUNNING, 2, &["tool_call_pkey"]),
    (CALL_TAKE, 2, &["tool_call_pkey", "replica_pkey"]),
    (SESSIONS_LOCK_FREE, 2, &["session_pkey"]),
    (
        FACTS,
        5,
        &[
            "session_pkey",
            "account_pkey",
            "agent_pkey",
            "task_pkey",
            "task_assignee_pkey",
            "turn_pkey",
            "turn_number",
            "tool_call_turn",
            "branch_pkey",
            "orchestrator_identity_pkey",
        ],
    ),
    (AGENTS_SHARE, 2, &["agent_pkey"]),
    (TASK_OF_CALL, 3, &["session_pkey", "turn_pkey", "task_pkey"]),
    (
        branch_spawn::BASE_READ,
        5,
        &[
            "task_pkey",
            "session_pkey",
            "turn_pkey",
            "turn_number",
            "task_context_pkey",
            "message_thread",
            "activity_change",
        ],
    ),
    (
        branch_spawn::BRANCHES_COUNT,
        4,
        &["branch_live of the account", "branch_of_parent", "turn_pkey"],
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
    (BRANCHES_OF_SESSION, 3, &["branch_of_parent", "agent_pkey"]),
    (BRANCH_OF_SESSION, 3, &["branch_pkey", "agent_pkey"]),
    (
        CHILDREN_LIST,
        5,
        &[
            "task_board",
            "session_active_task",
            "session_generation",
            "agent_pkey",
            "persona_version_pkey",
            "turn_number",
            "task_assignee_pkey",
            "session_active_system",
            "account_pkey",
        ],
    ),
    (
        CHILD_FIND,
        5,
        &[
            "session_pkey",
            "task_pkey",
            "session_active_task",
            "session_generation",
            "agent_pkey",
            "persona_version_pkey",
            "turn_number",
            "task_assignee_pkey",
            "session_active_system",
            "account_pkey",
        ],
    ),
    (
        BOARD_LIST,
        6,
        &["task_board", "task_pkey", "task_assignee_pkey", "task_dependency_pkey"],
    ),
    (
        WORKER_TASKS,
        5,
        &["task_worker", "task_pkey", "task_assignee_pkey", "task_dependency_pkey"],
    ),
    (lifecycle::TASKS_LOCK, 3, &["task_pkey", "task_dependency_blocker"]),
    (lifecycle::BOARD_COUNT, 4, &["task_board"]),
    (
        dependencies::DEPENDENTS,
        2,
        &[
            "task_pkey",
            "task_assignee_pkey",
            "task_dependency_pkey",
            "question_of_task",
            "timer_of_task",
        ],
    ),
    (dependencies::WAITS_FOR, 3, &["task_dependency_pkey"]),
    (dependencies::CROWDED, 3, &["task_pkey", "task_dependency_blocker"]),
    (dependencies::ABOVE, 2, &["task_pkey"]),
    (dependencies::BELOW, 2, &["task_pkey", "task_parent"]),
    (CHILD_TURNS, 5, &["turn_number"]),
    (CHILD_QUEUE, 4, &["notification_queue", "session_pkey"]),
    (
        CHILDREN_ROOM,
        6,
        &["task_board", "session_active_task", "tool_call_turn", "account_pkey"],
    ),
    (MAIL_READ, 3, &["mail_pkey"]),
    (ITEM_SENDER, 2, &["notification_pkey"]),
    (MEMBER_BY_ADDRESS, 2, &["member_email", "orchestrator_identity_pkey"]),
    (mail_take::MAIL_WAITING, 3, &["notification_queue"]),
    (
        mail_take::MAIL_TAKE,
        4,
        &["notification_pkey", "session_pkey", "turn_pkey"],
    ),
    (mail_send::NAMESAKES, 3, &["member_pkey of the account"]),
    (
        mail_send::BY_HANDLE,
        2,
        &["orchestrator_identity_handle", "agent_orchestrator of the account"],
    ),
    (
        mail_send::BY_OWNER,
        2,
        &["orchestrator_identity_pkey", "agent_orchestrator of the account"],
    ),
    (
        mail_send::BY_TASK,
        3,
        &["task_pkey", "agent_pkey", "session_generation"],
    ),
    (mail_send::BACK, 4, &["mail_put_off"]),
    (mail_send::RATES, 6, &["mail_sent", "mail_unread"]),
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
    (task_context::CONTEXT_COPY, 4, &["task_context_pkey"]),
    (PERSONAS_FOR, 3, &["persona_slug of the account"]),
    (PERSONA_FOR, 4, &["persona_slug", "persona_pkey"]),
    (
        CHILD_FACTS,
        1,
        &["account_pkey", "agent_pkey", "agent_slug of the account"],
    ),
    (TURN_SURROUNDINGS, 3, &["turn_pkey", "notification_pkey"]),
    (items_alike::ITEMS_ALIKE, 4, &["notification_pkey"]),
    (GUESTS_LIST, 3, &["session_active_guest", "turn_number"]),
    (memory::MEMORY_WRITE, 11, &[]),
    (memory::MEMORIES_PRUNE, 5, &["memory_key"]),
    (memory::MEMORIES_PRUNE_ALL, 4, &["memory_key"]),
    (memory::MEMORIES_FIND, 6, &["memory_key"]),
    (memory::MEMORIES_TOUCH, 7, &["memory_key"]),
    (BASES_FIND, 2, &["branch_pkey", "task_pkey"]),
    (BASE_MESSAGES, 5, &["branch_pkey", "message_pkey"]),
    (BASE_ACTIVITIES, 3, &["branch_pkey", "activity_pkey", "message_pkey"]),
    (CONTEXT_OF_BRANCH, 2, &["branch_pkey", "task_context_pkey"]),
    (TASKS_FIND, 2, &["task_pkey"]),
    (ASSIGNEES, 2, &["task_assignee_pkey", "agent_pkey"]),
    (MESSAGES_NEWEST, 5, &["message_thread"]),
    (ACTIVITIES_NEWEST, 3, &["activity_change", "message_thread"]),
    (MESSAGES_INSERT, 11, &[]),
    (LATER, 3, &["timer_of_session", "turn_pkey", "timer_item"]),
    (CALLS_INSERT, 15, &[]),
    (UNREAD, 3, &["notification_queue", "turn_pkey"]),
    (
        EXECUTES,
        5,
        &[
            "task_assignee_pkey",
            "session_generation",
            "turn_number",
            "tool_call_turn",
            "question_pkey",
            "notification_pkey",
        ],
    ),
    (SESSIONS_OF_QUESTION, 3, &["session_pkey", "question_pkey"]),
    (question::QUESTION_FIND, 2, &["question_pkey", "task_pkey"]),
    (
        question::QUESTIONS_COUNT,
        3,
        &["question_of_session", "question_of_task"],
    ),
    (task_context::CONTEXT_VERSION, 3, &["task_context_pkey"]),
    (task_context::CONTEXT_FIND, 2, &["task_pkey", "task_context_pkey"]),
    (task_context::CONTEXTS_REMOVE, 3, &["task_context_pkey"]),
    (plan::PLAN_OPEN, 2, &["question_of_task"]),
    (plan::PLAN_NEXT, 2, &["question_plan", "task_pkey", "account_pkey"]),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    // A plan may also have been made after the table was analysed with no or few rows.
    for (counted_when_new, count) in [(false, 3000), (true, 3000), (false, 25), (true, 25)] {
        let test = TestDatabase::fresh().await;
        let fixture = Fixture(&test);
        let account = fixture.account("acme").await;
        let database = test.connect(Role::ToolGateway).await;
        if counted_when_new {
            sqlx::query("vacuum analyze").execute(&test.owner).await.unwrap();
        }
        fixture.agent(&account, "coder").await;
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
        "turn",
        "tool_call",
        "message",
        "activity",
        "timer",
        "branch",
    ] {
        let off = format!("alter table {table} set (autovacuum_enabled = off)");
        sqlx::query(AssertSqlSafe(off))
            .execute(owner)
            .await
            .expect("an alteration");
    }
    let many = format!("generate_series(1, {count}) n");
    let (some, coder) = (
        "generate_series(1, 300) n",
        format!("agent a, {many} where a.slug = 'coder'"),
    );
    for rows in [
        rows("account").set("id", "'a' || n").from(some),
        rows("agent").set("slug", "'a' || n").from(some),
        rows("mail").from(&many),
        rows("mail")
            .with("from_user", "u")
            .set("thread_id", "gen_random_uuid()")
            .from(some),
        rows("task").set("display_id", "'t-' || n").from(&many),
        rows("session").set("task_id", "'t-' || n").from(coder),
        rows("artifact_content")
            .set("content", "('c-' || n)::bytea")
            .from(&many),
        rows("artifact")
            .set("task_id", "'t-' || n")
            .set("sha256", "sha256(('c-' || n)::bytea)")
            .from(&many),
        rows("task_dependency")
            .set("account_id", "'acme'")
            .set("task_id", "'t-' || n")
            .set("blocked_by_task_id", "'t-' || (n - 1)")
            .set("created_at", "now()")
            .from("generate_series(2, 20) n"),
        rows("message").set("task_id", "t.id").from("task t"),
        rows("task_context").from("task t"),
        rows("memory").set("owner", "'user:u' || n").from(&many),
        rows("activity")
            .set("account_id", "t.account_id")
            .set("id", "gen_random_uuid()")
            .set("task_id", "t.id")
            .with("kind", "task.created")
            .with("actor_kind", "user")
            .with("actor_id", "u")
            .with("actor_name", "U")
            .from("task t"),
        rows("turn").set("id", "s.id").from("session s"),
        rows("branch").from("session s"),
        rows("branch").with("state", "finished").from("session s"),
        rows("timer").from("session s"),
        rows("timer")
            .with("state", "fired")
            .set("notification_id", "s.id::text")
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
