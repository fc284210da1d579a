//! Query plans do not depend on the tables' size at planning: statements of a batch use primary keys, sweeps of expired rows use
//! the age, and lists use the index of their order, from the cursor to the end of the page.

use std::time::Duration;

use domain::AccountId;
use orchestrator::{
    activities, agents, artifacts, audit, branches, contexts, dead_letters, diff, forget,
    handlers::ended_turns::ENDED_TURNS, holds, identities, keys, log, mail, members, messages, notifications,
    orchestrators, outbound, paging::Listing, personas, policies, preferences, providers::store::PROVIDERS_OF,
    questions, queue, recovery as recoveries, replays, routing, sessions, sign_in, tasks, timers, turns,
};
use sea_orm::{ConnectionTrait, DbBackend, Statement};
use sqlx::{AssertSqlSafe, PgPool};
use storage::{
    Accounts, Database, Role, hold,
    lifecycle::{self, dependencies, memory, timers_fire},
    outbox::OUTBOX_SHARES,
    persona, question, recovery,
    session::{
        branch_end, mail_take, queue_edit, replay_begin, session_handover,
        session_release::SESSION_RELEASE,
        session_reset, session_succeed, sessions_close, sessions_lock,
        sessions_park::{self, SESSIONS_UNPARK},
        turn_stop::TURN_STOP,
    },
    timer, tool_policy,
};
use testkit::{
    Fixture, TestDatabase,
    plans::{Planned, check_plans},
    rows,
};

const STATEMENTS: [Planned; 179] = [
    (
        storage::api_key::API_KEY_FIND,
        2,
        &["api_key_pkey", "member_pkey", "account_pkey"],
    ),
    (
        lifecycle::mail_settle::MAIL_SETTLE,
        2,
        &["mail_pkey", "notification_pkey", "turn_pkey"],
    ),
    (lifecycle::mail_settle::MAIL_RETURN, 4, &["mail_unread"]),
    (
        mail::store::FIND,
        2,
        &[
            "mail_pkey",
            "mail_answer",
            "member_pkey",
            "orchestrator_identity_pkey",
            "notification_pkey",
            "outbound_delivery_about",
            "turn_pkey",
        ],
    ),
    (
        outbound::store::DIGEST,
        2,
        &["outbound_delivery_held of the account", "outbound_delivery_held_of"],
    ),
    (outbound::store::CLAIM, 4, &["outbound_delivery_urgent of the account"]),
    (
        outbound::store::ITEMS,
        3,
        &[
            "outbound_delivery_digest",
            "outbound_delivery_pkey",
            "mail_pkey",
            "member_pkey",
        ],
    ),
    (outbound::store::END, 6, &["outbound_delivery_pkey"]),
    (outbound::store::END_DIGEST, 5, &["outbound_delivery_digest"]),
    (
        outbound::store::SIGN_IN_INSERT,
        5,
        &["outbound_delivery_sign_in", "outbound_delivery_pending of the account"],
    ),
    (
        routing::store::PLACED,
        2,
        &[
            "notification_pkey",
            "session_pkey",
            "persona_version_pkey",
            "turn_pkey",
            "notification_queue",
        ],
    ),
    (mail::store::SNOOZE_MOMENTS, 2, &["member_pkey"]),
    (mail::store::COUNT, 3, &["mail_unread", "mail_shown"]),
    (mail::store::MARK, 4, &["mail_pkey"]),
    (preferences::LIST, 2, &["notification_preference_pkey"]),
    (members::store::FIND, 2, &["member_pkey"]),
    (members::store::RETURNING, 2, &["member_removed"]),
    (
        members::store::OTHER_ADMIN,
        2,
        &["member_admin of the account", "member_pkey"],
    ),
    (members::store::KEYS_REVOKE, 3, &["api_key_person"]),
    (members::store::LINK_FIND, 2, &["member_link"]),
    (members::store::LINK_USE, 4, &["member_link"]),
    (sign_in::store::SESSION_FIND, 2, &["login_session_pkey"]),
    (
        sign_in::store::SESSIONS_TRIM,
        2,
        &["login_session_pkey", "login_session_login"],
    ),
    (sign_in::store::SESSION_END, 1, &["login_session_pkey"]),
    (sign_in::store::SESSIONS_END, 2, &["login_session_login"]),
    (sign_in::store::SESSIONS_LIST, 1, &["login_session_login"]),
    (sign_in::store::KEY_LIVES, 2, &["api_key_pkey"]),
    (sign_in::store::LOGIN_OF, 2, &["member_pkey"]),
    (sign_in::store::MEMBER_BIND, 4, &["member_pkey"]),
    (sign_in::store::IDENTITY_FIND, 2, &["login_identity_pkey"]),
    (sign_in::store::TOKEN_USE, 3, &["sign_in_token_pkey"]),
    (keys::store::OWN_KEYS, 3, &["api_key_person"]),
    (
        personas::store::FIND,
        4,
        &["persona_pkey", "persona_version_pkey", "agent_pkey"],
    ),
    (
        personas::store::FIND_BY_SLUG,
        4,
        &["persona_slug", "persona_version_pkey", "agent_pkey"],
    ),
    (personas::store::SLUGS, 3, &["persona_pkey"]),
    (personas::store::REMOVED, 2, &["persona_removed of the account"]),
    (
        personas::store::EMPTY_REMOVE,
        2,
        &["persona_pkey", "persona_version_number"],
    ),
    (
        personas::store::VERSIONS_LOCK,
        4,
        &["persona_version_number", "session_persona"],
    ),
    (personas::store::PRIVATE_REMOVE, 3, &["persona_private"]),
    (personas::store::VERSION, 3, &["persona_version_number"]),
    (
        personas::store::VERSIONS_REMOVE,
        2,
        &["session_persona", "persona_version_pkey"],
    ),
    (personas::store::DEFAULT_CLEAR, 3, &["persona_default of the account"]),
    (persona::PERSONAS_READ, 2, &["persona_version_pkey"]),
    (identities::FIND, 2, &["orchestrator_identity_pkey"]),
    (
        orchestrators::store::NOW,
        2,
        &[
            "session_active_orchestrator of the account",
            "turn_number",
            "orchestrator_identity_pkey",
        ],
    ),
    (orchestrators::chat::SAID, 3, &["notification_pkey"]),
    (orchestrators::chat::STEPS, 3, &["tool_call_turn", "question_pkey"]),
    (
        replays::store::SOURCE,
        2,
        &[
            "turn_pkey",
            "agent_pkey",
            "session_pkey",
            "instruction_text_pkey",
            "task_pkey",
        ],
    ),
    (
        replays::store::FIND,
        2,
        &["replay_pkey", "session_pkey", "turn_number", "turn_pkey"],
    ),
    (
        replay_begin::REPLAYS_COUNT,
        2,
        &["session_active_origin of the account", "replay_of_turn"],
    ),
    (
        audit::store::SOURCES,
        11,
        &[
            "notification_pkey",
            "question_notification",
            "message_pkey",
            "turn_number",
            "activity_change",
            "branch_item",
            "branch_pkey",
            "session_pkey",
            "turn_pkey",
            "agent_pkey",
            "task_context_pkey",
            "mail_pkey",
        ],
    ),
    (
        audit::store::CALLS,
        6,
        &["tool_call_turn", "task_context_pkey", "artifact_pkey", "turn_pkey"],
    ),
    (turns::store::PASTS, 3, &["turn_pkey", "tool_call_turn"]),
    (turns::store::SPAWNING, 3, &["branch_pkey", "turn_pkey"]),
    (log::store::GENERATIONS, 4, &["session_pkey", "session_generation"]),
    (log::store::TURNS, 5, &["turn_number", "session_pkey"]),
    (
        log::store::BRANCHES,
        3,
        &["tool_call_turn", "branch_group", "agent_pkey"],
    ),
    (turns::store::CALLS, 3, &["tool_call_turn", "turn_pkey"]),
    (diff::http::TOOLS, 2, &["turn_pkey"]),
    (
        ENDED_TURNS,
        2,
        &["turn_pkey", "agent_pkey", "task_pkey", "session_pkey"],
    ),
    (forget::ANSWERS, 3, &["idempotency_oldest of the account"]),
    (forget::ACCEPTED, 3, &["accepted_notification_oldest of the account"]),
    (forget::LETTERS, 3, &["dead_letter_newest of the account"]),
    (
        storage::accepted::ACCEPT,
        8,
        &["notification_pkey", "agent_pkey of the account"],
    ),
    (forget::HOLDS, 3, &["hold_ended of the account"]),
    (
        lifecycle::task_context::CONTEXT_FIND,
        2,
        &["task_pkey", "task_context_pkey"],
    ),
    (lifecycle::task_context::CONTEXTS_REMOVE, 3, &["task_context_pkey"]),
    (
        lifecycle::artifact_store::ARTIFACT_ROOM,
        5,
        &["account_pkey", "task_pkey", "artifact_pkey", "artifact_content_pkey"],
    ),
    (
        lifecycle::artifact_store::ARTIFACT_REMOVE,
        2,
        &["artifact_pkey", "task_pkey"],
    ),
    (
        lifecycle::artifact_store::CONTENT_REMOVE,
        2,
        &["artifact_content_pkey", "artifact_named"],
    ),
    (
        lifecycle::artifact_store::ARTIFACT_CONTENT,
        2,
        &["artifact_pkey", "artifact_content_pkey"],
    ),
    (lifecycle::stage::STAGES_OF, 2, &["task_stage_pkey"]),
    (lifecycle::stage::REVIEW_OPEN, 2, &["question_of_task"]),
    (
        lifecycle::stage::WORKED_SINCE,
        3,
        &[
            "task_pkey",
            "task_assignee_pkey",
            "session_active_task",
            "session_active_system",
            "turn_number",
        ],
    ),
    (
        tool_policy::POLICIES_COUNT,
        1,
        &["tool_policy_scope of the account", "account_pkey"],
    ),
    (
        tool_policy::POLICIES_VOID,
        1,
        &[
            "tool_policy_scope of the account",
            "session_pkey",
            "agent_pkey",
            "task_pkey",
        ],
    ),
    (forget::TIMERS, 3, &["timer_ended of the account"]),
    (
        timers_fire::TIMERS_DUE,
        2,
        &["timer_due_of_account of the account", "task_pkey"],
    ),
    (timers_fire::TIMERS_MARK, 5, &["timer_pkey"]),
    (timer::CLEAR_OF_TASK, 3, &["timer_of_task", "task_pkey"]),
    (timer::CLEAR_OF_AGENT_ON, 4, &["timer_of_task", "task_pkey"]),
    (timer::CLEAR_OF_AGENT, 3, &["timer_of_agent", "timer_pkey", "task_pkey"]),
    (timer::CLEAR_OF_ORCHESTRATOR, 3, &["timer_of_orchestrator", "task_pkey"]),
    (timer::CLEAR_OF_KEYS, 4, &["timer_key", "task_pkey"]),
    (
        session_handover::OF_AGENTS,
        4,
        &["session_active_task", "session_active_system"],
    ),
    (session_handover::COUNT, 4, &["session_pkey"]),
    (
        question::QUESTIONS_END_OF_AGENT_ON,
        12,
        &["question_of_task", "task_pkey"],
    ),
    (forget::QUESTIONS, 3, &["question_ended of the account"]),
    (forget::SESSIONS, 3, &["login_session_ended of the account"]),
    (forget::TOKENS, 3, &["sign_in_token_over of the account"]),
    (forget::MAIL, 3, &["mail_over of the account"]),
    (lifecycle::mail_read::MAIL_UNREAD, 3, &["mail_pkey"]),
    (lifecycle::mail_read::MAIL_SETTLE_READ, 4, &["mail_pkey"]),
    (mail_take::MAIL_CANCEL, 4, &["notification_pkey", "session_pkey"]),
    (forget::MEMORIES, 3, &["memory_faded of the account"]),
    (forget::DELIVERIES, 3, &["outbound_delivery_over of the account"]),
    (
        forget::UNSENT,
        3,
        &["outbound_delivery_pending of the account", "outbound_delivery_digest"],
    ),
    (memory::MEMORY_WRITE, 11, &[]),
    (memory::MEMORIES_PRUNE, 5, &["memory_key"]),
    (memory::MEMORIES_PRUNE_ALL, 4, &["memory_key"]),
    (memory::MEMORIES_FIND, 6, &["memory_key"]),
    (memory::MEMORIES_TOUCH, 7, &["memory_key"]),
    (
        questions::store::FIND,
        2,
        &["question_pkey", "task_pkey", "agent_pkey", "session_gated"],
    ),
    (question::QUESTION_END, 12, &["question_pkey"]),
    (question::QUESTIONS_END_OF_TASK, 11, &["question_of_task", "task_pkey"]),
    (
        question::QUESTIONS_END_OF_SESSION,
        11,
        &["question_of_session", "task_pkey"],
    ),
    (
        question::QUESTIONS_END_OF_AGENT,
        11,
        &["question_of_agent", "task_pkey"],
    ),
    (
        question::QUESTIONS_END_OF_ORCHESTRATOR,
        11,
        &["question_of_orchestrator", "task_pkey"],
    ),
    (
        question::QUESTIONS_END_OF_TURN,
        12,
        &["question_of_session", "task_pkey"],
    ),
    (lifecycle::PLANS_OF_AGENT, 2, &["question_of_agent"]),
    (forget::RECOVERIES, 3, &["recovery_ended of the account"]),
    (
        recovery::RECOVERY_NOTE,
        10,
        &[
            "task_pkey",
            "task_assignee_pkey",
            "session_active_task",
            "session_active_system",
            "turn_number",
            "notification_pkey",
            "question_of_task",
        ],
    ),
    (recovery::RECOVERY_CLOSE, 3, &["recovery_pkey", "task_pkey"]),
    (
        recovery::RECOVERIES_OF_TASK,
        3,
        &["recovery_facts", "recovery_pkey", "task_pkey"],
    ),
    (
        recovery::RECOVERIES_SUPERSEDED,
        3,
        &[
            "recovery_pkey",
            "task_pkey",
            "task_assignee_pkey",
            "session_active_task",
            "session_active_system",
            "turn_number",
            "question_of_task",
        ],
    ),
    (
        tasks::next::TASKS_NOW,
        3,
        &[
            "task_pkey",
            "account_pkey",
            "task_assignee_pkey",
            "agent_pkey",
            "session_generation",
            "session_active_task",
            "session_active_system",
            "turn_number",
            "recovery_facts",
            "question_of_task",
            "timer_of_task",
            "task_dependency_pkey",
            "branch_live of the account",
        ],
    ),
    (tasks::store::PLACES, 2, &["task_pkey", "task_dependency_pkey"]),
    (dependencies::BLOCKERS_OPEN, 2, &["task_dependency_pkey", "task_pkey"]),
    (dependencies::SATISFY, 3, &["task_dependency_blocker"]),
    (dependencies::END, 3, &["task_dependency_blocker"]),
    (dependencies::TASKS_FREE, 3, &["task_pkey"]),
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
    (dependencies::DEPENDENCIES_ADD, 4, &["task_pkey"]),
    (dependencies::WAITS_FOR, 3, &["task_dependency_pkey"]),
    (dependencies::CROWDED, 3, &["task_pkey", "task_dependency_blocker"]),
    (dependencies::ABOVE, 2, &["task_pkey"]),
    (dependencies::BELOW, 2, &["task_pkey", "task_parent"]),
    (dependencies::EDGES_BETWEEN, 3, &["task_dependency_pkey"]),
    (lifecycle::TASKS_LOCK, 3, &["task_pkey", "task_dependency_blocker"]),
    (lifecycle::BOARD_COUNT, 4, &["task_board"]),
    (
        branches::store::GRAPH,
        8,
        &["session_generation", "branch_of_task", "branch_item", "turn_number"],
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
        tasks::next::SESSIONS_NOW,
        3,
        &[
            "session_active_task",
            "task_assignee_pkey",
            "session_active_system",
            "turn_pkey",
            "notification_queue",
        ],
    ),
    (hold::HOLDS_EXPIRE, 1, &["hold_active of the account"]),
    (hold::HOLDS_COUNT, 1, &["hold_active of the account", "account_pkey"]),
    (
        hold::TURNS_IN_SCOPE,
        4,
        &["turn_open of the account", "session_pkey", "task_pkey"],
    ),
    (sessions_park::PARKED_BY, 3, &["session_gated", "task_pkey"]),
    (sessions_park::IS_PARKING, 2, &["session_gated"]),
    (holds::store::AFFECTED_OF_AGENT, 3, &["session_of_agent"]),
    (
        holds::store::AFFECTED_OF_TASK,
        3,
        &["session_active_task", "account_pkey"],
    ),
    (
        holds::store::AFFECTED_OF_ACCOUNT,
        2,
        &["turn_open of the account", "notification_queue of the account"],
    ),
    (OUTBOX_SHARES, 3, &["outbox_pkey of the account"]),
    (sessions_lock::SESSIONS_LOCK, 2, &["session_pkey", "account_pkey"]),
    (TURN_STOP, 7, &["session_pkey", "turn_pkey"]),
    (SESSIONS_UNPARK, 2, &["session_pkey"]),
    (sessions_park::CALL_AWAITS, 3, &["session_pkey"]),
    (PROVIDERS_OF, 3, &["agent_pkey of the account"]),
    (
        queue_edit::ITEM_LOCK,
        3,
        &["notification_pkey", "task_pkey", "session_pkey"],
    ),
    (queue_edit::QUEUE_PLACES, 3, &["notification_queue"]),
    (queue_edit::ITEMS_MOVE, 3, &["notification_pkey"]),
    (queue_edit::ITEM_REWRITE, 9, &["notification_pkey"]),
    (queue_edit::ITEM_WITHDRAW, 3, &["notification_pkey"]),
    (queue_edit::QUEUE_EDITED, 4, &["session_pkey", "task_pkey"]),
    (SESSION_RELEASE, 3, &["session_pkey", "task_pkey", "turn_pkey"]),
    (queue::store::ITEM, 3, &["notification_pkey", "notification_queue"]),
    (queue::store::RUNNING, 2, &["notification_pkey", "turn_pkey"]),
    (queue::store::BEFORE, 3, &["notification_queue"]),
    (
        sessions_close::OF_TASK,
        3,
        // Whatever waits in the account: items of the task are searched in its few sessions.
        &[
            "session_active_task",
            "session_active_system of the account",
            "notification_queue",
        ],
    ),
    (
        sessions_close::OF_TASK_WITH_TURNS,
        3,
        &[
            "session_active_task",
            "session_active_system of the account",
            "notification_queue",
            "turn_pkey",
        ],
    ),
    (sessions_close::OF_AGENT, 3, &["session_of_agent"]),
    (
        sessions_close::OF_USER,
        3,
        &["session_active_orchestrator", "session_active_guest", "session_guest"],
    ),
    (sessions_close::OF_GUESTS, 3, &["session_active_guest"]),
    (sessions_close::LOCK, 2, &["session_pkey", "task_pkey"]),
    (sessions_close::LOCK_WITH_OWN, 2, &["session_pkey"]),
    (sessions_close::CLOSE, 5, &["session_pkey"]),
    (sessions_close::CANCEL, 3, &["notification_pkey"]),
    (sessions_close::UNCOUNT, 3, &["session_pkey"]),
    (sessions_close::HAND_ON, 5, &["notification_pkey"]),
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
    (session_reset::RESET_ASK, 3, &["session_pkey"]),
    (sessions::store::OF_KEY, 2, &["session_key_unique"]),
    (
        sessions::store::OPEN_OF,
        2,
        &[
            "session_pkey",
            "session_active_task",
            "session_active_system",
            "session_active_orchestrator of the account",
            "session_active_guest",
        ],
    ),
    (sessions_close::LOCK_ITEMS, 4, &["notification_queue"]),
    (
        sessions_close::LOCK_TRIED,
        3,
        &["session_pkey", "turn_pkey", "notification_pkey"],
    ),
];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_tables_hold() {
    for (counted_when_new, count) in [(false, 20_000), (true, 20_000), (false, 25), (true, 25)] {
        let test = TestDatabase::fresh().await;
        let account = Fixture(&test).account("acme").await;
        let database = test.connect(Role::Orchestrator).await;
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
        "idempotency",
        "accepted_notification",
        "dead_letter",
        "notification",
        "outbox",
        "session",
        "timer",
        "branch",
        "replay",
    ] {
        let off = format!("alter table {table} set (autovacuum_enabled = off)");
        sqlx::query(AssertSqlSafe(off)).execute(owner).await.unwrap();
    }
    let (many, ago) = (
        format!("generate_series(1, {count}) n"),
        "now() - n * interval '1 minute'",
    );
    let agents = format!("agent a join {many} on a.account_id = 'acme' and a.slug = 'a' || (1 + n % 300)");
    for rows in [
        rows("agent").set("slug", "'a' || n").from("generate_series(1, 300) n"),
        rows("persona").from("generate_series(1, 500) n"),
        rows("persona_version").from("persona p"),
        rows("mail").set("surface_at", ago).from(&many),
        rows("mail").with("from_user", "u").set("archived_at", ago).from(&many),
        rows("outbound_delivery").set("next_at", ago).from(&many),
        rows("outbound_delivery")
            .with("state", "held")
            .set("destination_id", "'u' || n % 50")
            .set("next_at", ago)
            .from(&many),
        rows("outbound_delivery")
            .with("state", "sent")
            .set("next_at", "null")
            .set("ended_at", ago)
            .set("kept_until", ago)
            .from(&many),
        rows("memory")
            .set("owner", "'user:u' || n")
            .set("fades_at", ago)
            .from(&many),
        rows("idempotency")
            .set("key", "'key-' || n")
            .set("created_at", ago)
            .from(&many),
        rows("accepted_notification")
            .set("id", "'n-' || n")
            .set("created_at", ago)
            .from(&many),
        rows("dead_letter").set("created_at", ago).from(&many),
        rows("hold").set("released_at", ago).from(&many),
        rows("notification").set("id", "'n-' || n").from(&many),
        rows("outbox").with("service", "orchestrator").from(&many),
        rows("task").set("display_id", "'t-' || n").from(&many),
        rows("task_dependency")
            .set("account_id", "'acme'")
            .set("task_id", "'t-' || n")
            .set("blocked_by_task_id", "'t-' || (n - 1)")
            .set("created_at", "now()")
            .from("generate_series(2, 20) n"),
        rows("task_context").from("task t"),
        rows("artifact_content")
            .set("content", "('c-' || n)::bytea")
            .from(&many),
        rows("artifact")
            .set("task_id", "'t-' || n")
            .set("sha256", "sha256(('c-' || n)::bytea)")
            .from(&many),
        rows("session")
            .set("task_id", "'t-' || n")
            .set("key", "'task:t-' || n || ':agent:' || a.id || ':acme:v1'")
            .with("queued", 1)
            .with("queue_tail", 1)
            .from(agents),
        rows("notification").set("id", "'q-' || s.id").from("session s"),
        rows("branch").from("session s"),
        rows("branch")
            .with("state", "finished")
            .set("joined_item", "s.id::text")
            .from("session s"),
        rows("replay")
            .with("account_id", "acme")
            .set("source_turn_id", "gen_random_uuid()")
            .from(&many),
        rows("timer")
            .set("due_at", "now() - interval '1 minute'")
            .from("session s"),
        rows("timer")
            .with("state", "fired")
            .set("ended_at", "now()")
            .from("session s"),
    ] {
        rows.insert(owner).await;
    }
}

/// Lists, their numbers of parameters, and the index of each order.
const LISTS: [(Listing, usize, &str); 32] = [
    (replays::store::LIST, 2, "replay_of_turn"),
    (messages::store::LIST, 2, "message_thread"),
    (mail::store::INBOX, 9, "mail_shown"),
    (mail::store::ARCHIVED, 9, "mail_archived"),
    (mail::store::ROUTED, 7, "mail_newest"),
    (mail::store::OF_SESSION, 2, "mail_of_session"),
    (artifacts::store::LIST, 2, "artifact_of_task"),
    (activities::LIST, 2, "activity_change"),
    (contexts::VERSIONS, 2, "task_context_pkey"),
    (keys::store::LIST, 1, "api_key_oldest"),
    (keys::store::OWN, 2, "api_key_person"),
    (members::store::LIST, 2, "member_pkey"),
    (personas::store::LIST, 3, "persona_pkey"),
    (orchestrators::chat::LIST, 2, "turn_of_person"),
    (personas::store::VERSIONS, 2, "persona_version_number"),
    (agents::store::LIST, 4, "orchestrator_identity_handle"),
    (tasks::store::LIST, 2, "task_newest"),
    (tasks::store::ON_BOARD, 3, "task_board_newest"),
    (notifications::store::LIST, 5, "notification_newest"),
    (branches::store::LIST, 3, "branch_of_task"),
    (sessions::store::LIST, 8, "session_newest"),
    (sessions::store::OF_PARENT, 8, "session_of_parent"),
    (holds::store::LIST, 4, "hold_pkey"),
    (policies::store::LIST, 4, "tool_policy_pkey"),
    (questions::store::LIST, 5, "question_pkey"),
    (recoveries::store::LIST, 3, "recovery_newest"),
    (timers::store::LIST, 3, "timer_pkey"),
    (queue::store::LIST, 2, "notification_queue"),
    (dead_letters::store::LIST, 1, "dead_letter_newest"),
    (turns::store::LIST, 2, "turn_number"),
    (audit::store::LIST, 6, "turn_pkey"),
    (audit::store::OF_SESSION, 4, "turn_number"),
];

/// The plan of a list's whole statement, in its own kind of transaction.
async fn plan_of(database: &Database, account: &AccountId, sql: &str, parameters: usize) -> String {
    let tx = database
        .begin_list(&Accounts::one(account), Duration::from_secs(60))
        .await
        .unwrap();
    for sql in [
        "set local plan_cache_mode = force_generic_plan",
        &format!("prepare listed as {sql}"),
    ] {
        tx.execute_unprepared(sql).await.unwrap();
    }
    let nulls = vec!["null"; parameters].join(", ");
    let explain = format!("explain execute listed({nulls})");
    let lines = tx
        .query_all_raw(Statement::from_string(DbBackend::Postgres, explain))
        .await
        .unwrap();
    tx.execute_unprepared("deallocate listed").await.unwrap();
    tx.rollback().await.unwrap();
    let lines: Vec<String> = lines.iter().map(|line| line.try_get_by_index(0).unwrap()).collect();
    lines.join("\n")
}

/// The rows of a list come from its index in their order: no sort, so that reading ends with the page.
#[tokio::test]
async fn lists_are_read_in_the_order_of_their_index() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("acme").await;
    let database = test.connect(Role::Orchestrator).await;
    for tables in ["empty", "counted when new"] {
        for (listing, own, index) in LISTS {
            for goes_on in [false, true] {
                let sql = listing.sql(own, goes_on);
                let parameters = own + 3 + if goes_on { listing.order.len() } else { 0 };
                let plan = plan_of(&database, &account, &sql, parameters).await;
                assert!(plan.contains(&format!("using {index} on ")), "{tables}: {sql}\n{plan}");
                // Nodes above are for the page's rows, which may be sorted again.
                let (_, looked_at) = plan.split_once("WindowAgg").unwrap();
                let is_in_order = !looked_at.contains("Sort  (") && !plan.contains("Seq Scan");
                assert!(is_in_order, "{tables}: {sql}\n{plan}");
                if goes_on {
                    let (_, after) = plan.split_once(&format!("using {index} on ")).unwrap();
                    let condition = after.lines().nth(1).unwrap();
                    let (last, _) = listing.order[listing.order.len() - 1];
                    assert!(
                        condition.contains("Index Cond") && condition.contains(last),
                        "{tables}: {sql}\n{plan}"
                    );
                }
            }
        }
        sqlx::query("vacuum analyze").execute(&test.owner).await.unwrap();
    }
}
