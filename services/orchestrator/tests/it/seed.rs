//! What other services write: sessions, notifications, turns, tool calls, dead letters. Put into the database as the
//! superuser.

use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use crate::world::{Tenant, World};

/// A session that is open, or was closed because its task was done.
pub(crate) async fn session(
    world: &World,
    tenant: &Tenant,
    task: &str,
    agent: &str,
    generation: i32,
    open: bool,
) -> Uuid {
    let id = Uuid::now_v7();
    let task = task.to_ascii_lowercase();
    sqlx::query(
        "insert into session (account_id, id, kind, task_id, agent_id, generation, key, closed_at, close_reason)
         values ($1, $2, 'task', $3, $4::uuid, $5, $6, case when $7 then null else now() end,
                 case when $7 then null else 'task_done' end)",
    )
    .bind(&tenant.id)
    .bind(id)
    .bind(&task)
    .bind(agent)
    .bind(generation)
    .bind(format!("task:{task}:agent:{agent}:{}:v{generation}", tenant.id))
    .bind(open)
    .execute(&world.test.owner)
    .await
    .unwrap();
    id
}

/// A notification that waits in a session.
pub(crate) async fn queued(world: &World, tenant: &Tenant, session: Uuid, id: &str) {
    sqlx::query(
        "with counted as (update session set queued = queued + 1, queue_tail = queue_tail + 1
                          where account_id = $1 and id = $2 returning task_id, agent_id, queue_tail)
         insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, body, sender_kind,
                                   sender_id, sender_name, content_hash, state)
         select $1, $3, task_id, agent_id, $2, queue_tail, 'k', 'b', 'service', 'ci', 'CI', '', 'queued' from counted",
    )
    .bind(&tenant.id)
    .bind(session)
    .bind(id)
    .execute(&world.test.owner)
    .await
    .unwrap();
}

/// A notification that was judged.
pub(crate) async fn notification(world: &World, tenant: &Tenant, id: &str, agent: &str, state: &str) {
    sqlx::query(
        "insert into notification (account_id, id, agent_id, kind, body, sender_kind, sender_id, sender_name,
                                   content_hash, state, reason)
         values ($1, $2, $3::uuid, 'k', 'b', 'service', 'ci', 'CI', '', $4, $4)",
    )
    .bind(&tenant.id)
    .bind(id)
    .bind(agent)
    .bind(state)
    .execute(&world.test.owner)
    .await
    .unwrap();
}

/// What a turn may differ in.
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
    sqlx::query("insert into instruction_text (account_id, hash, version, body) values ($1, 'h', 'v1', 'Be brief.') on conflict do nothing")
        .bind(&tenant.id)
        .execute(&world.test.owner)
        .await
        .unwrap();
    sqlx::query(
        "insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state,
                           notification_ids, provider, profile_version, profile_hash, input, manifest, reply, usage,
                           late, no_reply, finished_at)
         select account_id, $2, id, task_id, agent_id, generation, $4, 1, $5, '{n-1}', 'default', 'v1', 'h', 'the input',
                $6, $7, $8, $9, $10, now()
         from session where account_id = $1 and id = $3",
    )
    .bind(&tenant.id)
    .bind(id)
    .bind(session)
    .bind(number)
    .bind(ended.state)
    .bind(Json(json!({"parts": []})))
    .bind(ended.reply)
    .bind(Json(json!({"input_tokens": 42})))
    .bind(ended.late)
    .bind(ended.no_reply)
    .execute(&world.test.owner)
    .await
    .unwrap();
    id
}

/// A tool call of a turn.
pub(crate) async fn tool_call(world: &World, tenant: &Tenant, turn: Uuid, ordinal: i32, arguments: &str) {
    sqlx::query(
        "insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name,
                                arguments, state, result)
         select account_id, $2, session_id, id, generation, 1, 'call-' || $4, $4, agent_id, 'task_history', $5,
                'finished', 'a result'
         from turn where account_id = $1 and id = $3",
    )
    .bind(&tenant.id)
    .bind(Uuid::now_v7())
    .bind(turn)
    .bind(ordinal)
    .bind(arguments)
    .execute(&world.test.owner)
    .await
    .unwrap();
}

/// A dead letter of an account, or of the operator's (`-`).
pub(crate) async fn letter(world: &World, account: &str, subject: &str, payload: &str, headers: Value) -> Uuid {
    let id = Uuid::now_v7();
    sqlx::query(
        "insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers)
         values ($1, $2, 'resolver', $3, 'unknown_agent', 'No such agent.', $4, $5)",
    )
    .bind(account)
    .bind(id)
    .bind(subject)
    .bind(payload)
    .bind(Json(headers))
    .execute(&world.test.owner)
    .await
    .unwrap();
    id
}
