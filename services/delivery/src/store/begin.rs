//! Writing new turns: the turn, its instructions' text, the item it took, the session's counters.

use domain::{AccountId, TurnId};
use sea_orm::ConnectionTrait;
use serde::Serialize;
use storage::{StorageError, Tx, error::Attempt, statement};
use uuid::Uuid;

/// A row of `turn`, as far as its beginning is concerned.
#[derive(Clone, Debug, Serialize)]
pub struct NewTurn {
    pub account_id: AccountId,
    pub id: TurnId,
    pub session_id: Uuid,
    /// As compared.
    pub task_id: Option<String>,
    pub agent_id: Uuid,
    pub generation: i32,
    pub number: i64,
    pub fence: i64,
    pub notification_id: String,
    pub provider: String,
    pub profile_version: String,
    pub profile_hash: String,
    #[serde(skip)]
    pub instructions: String,
    pub input: String,
    pub manifest: serde_json::Value,
    /// Names of the tools that it is offered: the tool-gateway lets its calls use no others.
    pub tools: Vec<String>,
    /// How long its calls count.
    pub tools_wait_ms: i64,
    pub cause: String,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

pub const INSTRUCTIONS_KEEP: &str = "
    insert into instruction_text (account_id, hash, version, body)
    select r.account_id, r.hash, r.version, r.body
    from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as r (account_id, hash, version, body)
    on conflict do nothing";

/// Written as `calling` before the first byte leaves: whoever finds it after a crash knows that it may have been sent.
pub const TURNS_INSERT: &str = "
    insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                      profile_version, profile_hash, input, manifest, tools, tools_wait_ms, cause, hops, traceparent, tracestate,
                      sent_at)
    select r.account_id, r.id, r.session_id, r.task_id, r.agent_id, r.generation, r.number, r.fence, 'calling',
           array[r.notification_id], r.provider, r.profile_version, r.profile_hash, r.input, r.manifest, r.tools,
           r.tools_wait_ms, r.cause, r.hops, r.traceparent, r.tracestate, now()
    from jsonb_to_recordset($1) as r (
        account_id text, id uuid, session_id uuid, task_id text, agent_id uuid, generation integer, number bigint, fence bigint,
        notification_id text, provider text, profile_version text, profile_hash text, input text, manifest jsonb, tools text[],
        tools_wait_ms bigint, cause text, hops integer, traceparent text, tracestate text)";

/// Relies on the primary key. The state is asked for in a way that promises nothing to the planner: by the index of what
/// is queued, all of that would be read.
pub const ITEMS_TAKE: &str = "
    update notification n set state = 'running', turn_id = w.turn_id, reason = null
    from unnest($1::text[], $2::text[], $3::uuid[]) as w (account_id, id, turn_id)
    where n.account_id = any (array[w.account_id]) and n.id = w.id and coalesce(n.state = 'queued', false)";

pub const SESSIONS_OCCUPY: &str = "
    update session s set active_turn_id = w.turn_id, queued = s.queued - 1, turn_count = w.number, interrupted = false
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::bigint[]) as w (account_id, id, turn_id, number)
    where s.account_id = any (array[w.account_id]) and s.id = w.id";

pub async fn turns_begin(tx: &Tx, turns: &[NewTurn]) -> Result<(), StorageError> {
    if turns.is_empty() {
        return Ok(());
    }
    let accounts: Vec<String> = turns.iter().map(|turn| turn.account_id.to_string()).collect();
    let sessions: Vec<Uuid> = turns.iter().map(|turn| turn.session_id).collect();
    let ids: Vec<Uuid> = turns.iter().map(|turn| turn.id.uuid()).collect();
    let texts = |of: fn(&NewTurn) -> &str| turns.iter().map(|turn| of(turn).to_owned()).collect::<Vec<String>>();

    // In one order everywhere: two batches that keep the same new text must not wait for each other.
    let mut kept: Vec<(String, String, String, String)> = turns
        .iter()
        .map(|turn| {
            (
                turn.account_id.to_string(),
                turn.profile_hash.clone(),
                turn.profile_version.clone(),
                turn.instructions.clone(),
            )
        })
        .collect();
    kept.sort();
    kept.dedup();
    let column = |n: usize| {
        let of = |row: &(String, String, String, String)| [&row.0, &row.1, &row.2, &row.3][n].clone();
        kept.iter().map(of).collect::<Vec<String>>()
    };
    let values = [column(0).into(), column(1).into(), column(2).into(), column(3).into()];
    tx.execute_raw(statement(INSTRUCTIONS_KEEP, values))
        .await
        .attempt("keep instructions")?;

    let rows = serde_json::to_value(turns).expect("rows are texts, numbers and JSON");
    tx.execute_raw(statement(TURNS_INSERT, [rows.into()]))
        .await
        .attempt("begin turns")?;
    let values = [
        accounts.clone().into(),
        texts(|turn| &turn.notification_id).into(),
        ids.clone().into(),
    ];
    tx.execute_raw(statement(ITEMS_TAKE, values))
        .await
        .attempt("take items")?;
    let numbers: Vec<i64> = turns.iter().map(|turn| turn.number).collect();
    let values = [accounts.into(), sessions.into(), ids.into(), numbers.into()];
    tx.execute_raw(statement(SESSIONS_OCCUPY, values))
        .await
        .attempt("occupy sessions")
        .map(|_| ())
}
