//! Rows of other services: sessions, notifications, turns, tool calls, dead letters. Inserted as the superuser.

use serde_json::{Value, json};
use testkit::{enqueued, rows};
use uuid::Uuid;

use crate::world::{Tenant, World};

/// A session that is open, or closed because its task was done.
pub(crate) async fn session(
    world: &World,
    tenant: &Tenant,
    task: &str,
    agent: &str,
    generation: i32,
    open: bool,
) -> Uuid {
    let id = Uuid::now_v7();
    let mut row = rows("session").with("account_id", &tenant.id).with("id", id);
    if !open {
        row = row.set("closed_at", "now()");
    }
    let row = row.with("task_id", task.to_ascii_lowercase()).with("agent_id", agent);
    row.with("generation", generation).insert(&world.test.owner).await;
    id
}

/// A session whose turn in progress waits for tools, and the turn.
pub(crate) async fn busy(world: &World, tenant: &Tenant, task: &str, agent: &str) -> (Uuid, Uuid) {
    let (id, turn) = (Uuid::now_v7(), Uuid::now_v7());
    let row = rows("session").with("account_id", &tenant.id).with("id", id);
    let row = row.with("task_id", task.to_ascii_lowercase()).with("agent_id", agent);
    let row = row.with("phase", "waiting").with("active_turn_id", turn);
    row.with("turn_count", 1).insert(&world.test.owner).await;
    let row = rows("turn").with("id", turn).with("state", "awaiting_tools");
    let of_session = format!("session s where s.account_id = '{}' and s.id = '{id}'", tenant.id);
    row.from(of_session).insert(&world.test.owner).await;
    (id, turn)
}

/// A session that a gate keeps from starting its second turn.
pub(crate) async fn parked(world: &World, tenant: &Tenant, task: &str, agent: &str, gate: &str) -> Uuid {
    let id = Uuid::now_v7();
    let row = rows("session").with("account_id", &tenant.id).with("id", id);
    let row = row.with("task_id", task.to_ascii_lowercase()).with("agent_id", agent);
    let row = row
        .with("phase", "backoff")
        .with("gate", gate)
        .set("gated_since", "now()");
    row.with("turn_count", 1).insert(&world.test.owner).await;
    id
}

/// A waiting notification of a session.
pub(crate) async fn queued(world: &World, tenant: &Tenant, session: Uuid, id: &str) {
    let row = enqueued(&tenant.id, session).with("id", id).with("kind", "k");
    row.insert(&world.test.owner).await;
}

/// A waiting notification with its mode, type and sender's id.
pub(crate) async fn item(
    world: &World,
    tenant: &Tenant,
    session: Uuid,
    (id, mode, kind, sender): (&str, &str, &str, &str),
) {
    let row = enqueued(&tenant.id, session)
        .with("id", id)
        .with("kind", kind)
        .with("queue_mode", mode);
    let row = row.with("sender_id", sender).with("body", format!("body of {id}"));
    let row = match mode {
        "steer" => row.set("position", "s.queue_tail - (1::bigint << 40)"),
        _ => row,
    };
    row.insert(&world.test.owner).await;
}

/// A notification with an outcome.
pub(crate) async fn notification(world: &World, tenant: &Tenant, id: &str, agent: &str, state: &str) {
    let row = rows("notification")
        .with("account_id", &tenant.id)
        .with("id", id)
        .with("agent_id", agent);
    row.with("state", state)
        .with("reason", state)
        .insert(&world.test.owner)
        .await;
}

/// The variable fields of a turn.
pub(crate) struct Ended {
    pub state: &'static str,
    pub reply: &'static str,
    pub late: bool,
    pub no_reply: bool,
}

impl Default for Ended {
    fn default() -> Self {
        Ended {
            state: "finished",
            reply: "It is done.",
            late: false,
            no_reply: false,
        }
    }
}

/// A turn of a session with one tool call, and its instructions.
pub(crate) async fn turn(world: &World, tenant: &Tenant, session: Uuid, number: i64, ended: Ended) -> Uuid {
    let id = Uuid::now_v7();
    let row = rows("turn")
        .with("id", id)
        .with("number", number)
        .with("notification_ids", "{n-1}");
    let row = row
        .with("state", ended.state)
        .with("reply", ended.reply)
        .with("late", ended.late)
        .with("no_reply", ended.no_reply);
    let row = row
        .with("manifest", json!({"parts": []}))
        .with("usage", json!({"input_tokens": 42}));
    let of_session = format!("session s where s.account_id = '{}' and s.id = '{session}'", tenant.id);
    row.from(of_session).insert(&world.test.owner).await;
    id
}

/// A tool call of a turn.
pub(crate) async fn tool_call(world: &World, tenant: &Tenant, turn: Uuid, ordinal: i32, arguments: &str) {
    let row = rows("tool_call")
        .with("call_id", format!("call-{ordinal}"))
        .with("ordinal", ordinal);
    let row = row.with("arguments", arguments).with("result", "a result");
    let of_turn = format!("turn t where t.account_id = '{}' and t.id = '{turn}'", tenant.id);
    row.from(of_turn).insert(&world.test.owner).await;
}

/// A dead letter of an account, or the operator's (`-`).
pub(crate) async fn letter(world: &World, account: &str, subject: &str, payload: &str, headers: Value) -> Uuid {
    let id = Uuid::now_v7();
    let row = rows("dead_letter")
        .with("account_id", account)
        .with("id", id)
        .with("subject", subject);
    row.with("payload", payload)
        .with("headers", headers)
        .insert(&world.test.owner)
        .await;
    id
}

/// A branch of a session's turn in progress, in this state, with its session; and a turn of it, if it has ended.
pub(crate) async fn branch(world: &World, tenant: &Tenant, parent: Uuid, state: &str) -> (Uuid, Uuid) {
    let (id, session) = (Uuid::now_v7(), Uuid::now_v7());
    let of_parent = format!("session s where s.account_id = '{}' and s.id = '{parent}'", tenant.id);
    let row = rows("branch")
        .with("id", id)
        .with("session_id", session)
        .with("state", state);
    row.with("label", "tests")
        .from(&of_parent)
        .insert(&world.test.owner)
        .await;
    let row = rows("session")
        .with("account_id", &tenant.id)
        .with("id", session)
        .with("kind", "branch");
    let row = row.with("origin_id", id).with("parent_session_id", parent);
    let row = match state {
        "live" => row,
        _ => row
            .set("closed_at", "now()")
            .with("close_reason", "folded")
            .with("turn_count", 1),
    };
    let row = row.set(
        "task_id",
        format!("(select task_id from session where id = '{parent}')"),
    );
    let row = row.set(
        "agent_id",
        format!("(select agent_id from session where id = '{parent}')"),
    );
    let key = format!(
        "'branch:{id}:agent:' || (select agent_id from session where id = '{parent}') || ':{}:v1'",
        tenant.id
    );
    row.set("key", key).insert(&world.test.owner).await;
    if state != "live" {
        let of_session = format!("session s where s.account_id = '{}' and s.id = '{session}'", tenant.id);
        rows("turn").from(of_session).insert(&world.test.owner).await;
    }
    (id, session)
}
