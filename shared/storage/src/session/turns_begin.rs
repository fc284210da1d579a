//! Writes new turns: the turn, the text of its instructions, its item, the session's lease and counters.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::{
    AccountId, AgentId, InstructionLayout, SessionPhase, TaskId, TurnContext, TurnRef, TurnState, UserId,
    progress::{Streak, Wake},
};
use sea_orm::{DbErr, Value};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::sessions_lock::SessionThread;
use crate::{StorageError, Tx, error::Attempt, statement::column};

/// A row of `turn`, as it is when the turn begins.
#[derive(Clone, Debug)]
pub struct NewTurn {
    pub turn: TurnRef,
    pub agent_id: AgentId,
    /// The person whose orchestrator's it is.
    pub owner: Option<UserId>,
    pub number: i64,
    /// Its items, in the order of the queue: one, or a run.
    pub notification_ids: Vec<String>,
    pub provider: String,
    pub profile_version: String,
    pub profile_hash: String,
    pub instructions: Arc<str>,
    pub input: String,
    pub layout: InstructionLayout,
    /// Packed.
    pub manifest: Vec<u8>,
    /// Names of the offered tools: the tool-gateway refuses all others.
    pub tools: Vec<String>,
    /// How long its tool calls are valid.
    pub tools_wait_ms: i64,
    pub hops: i32,
    /// What wakes the agent.
    pub wake: Wake,
    /// The session's turns without progress before it.
    pub streak: Streak,
    pub context: TurnContext,
    /// The rule by which its generation was opened, with its figures: of a generation's first turn.
    pub rotated_because: Option<String>,
    /// The session's thread from now on.
    pub thread: SessionThread,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    /// The session's phase after the claim.
    pub phase: SessionPhase,
    pub state: TurnState,
}

pub const INSTRUCTIONS_KEEP: &str = "
    insert into instruction_text (account_id, hash, version, body)
    select r.account_id, r.hash, r.version, r.body
    from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as r (account_id, hash, version, body)
    on conflict do nothing";

/// Begins turns in one statement: the lease with its fence and the session's counters, the items, and the turn itself. Its
/// state is written before the first byte is sent to the provider: a process that finds the turn after a crash knows that
/// it may have been sent. The caller holds the sessions' locks and has admitted them. A
/// turn whose instructions are not stored is not written: it could never be loaded. Relies on the primary keys. The
/// state is compared in a form without selectivity statistics: the planner would otherwise read the whole index of
/// queued items.
pub const TURNS_BEGIN: &str = "
    with given as materialized (
        select * from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::integer[], $7::bigint[], $8::bigint[],
                             $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                             $16::bigint[], $17::integer[], $18::text[], $19::text[], $20::text[], $21::text[],
                             $22::bytea[], $24::text[], $25::integer[], $26::text[], $27::timestamptz[],
                             $28::text[]::jsonb[], $29::text[], $30::text[]::jsonb[], $31::text[], $32::text[])
            as r (account_id, id, session_id, task_id, agent_id, generation, number, fence, items, provider,
                  profile_version, profile_hash, input, layout, tools, tools_wait_ms, hops, traceparent, tracestate, phase, state,
                  manifest, wake_key, streak, streak_key, streak_since, context, rotated_because, thread, thread_at,
                  user_id)
    ), taken as (
        update notification n set state = 'running', turn_id = i.turn_id, reason = null
        from (select account_id, id as turn_id, unnest(items::text[]) as id from given) i
        where n.account_id = any (array[i.account_id]) and n.id = i.id and coalesce(n.state = 'queued', false)
    ), occupied as (
        update session s set phase = g.phase, lease_owner = $23, fence = g.fence, wake_at = null, active_turn_id = g.id,
            queued = s.queued - cardinality(g.items::text[]), turn_count = g.number, interrupted = false, stopped_turn_id = null,
            gate = null, gate_ref = null, gated_since = null, gate_looks = 0, streak = g.streak,
            streak_key = nullif(g.streak_key, ''), streak_since = nullif(g.streak_since, 'epoch'),
            thread = g.thread, provider_thread = nullif(g.thread_at, '')
        from given g
        where s.account_id = any (array[g.account_id]) and s.id = g.session_id
    )
    insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                      profile_version, profile_hash, input, manifest, manifest_packed, tools, tools_wait_ms, cause, hops,
                      traceparent, tracestate, sent_at, wake_key, context, thread, rotated_because, user_id)
    select g.account_id, g.id, g.session_id, nullif(g.task_id, ''), g.agent_id, g.generation, g.number, g.fence, g.state,
           g.items::text[], g.provider, g.profile_version, g.profile_hash, g.input,
           jsonb_build_object('layout', g.layout), g.manifest,
           string_to_array(g.tools, ','), g.tools_wait_ms, (g.items::text[])[1], g.hops, nullif(g.traceparent, ''),
           nullif(g.tracestate, ''), now(), g.wake_key, g.context, (g.context ->> 'thread')::integer, nullif(g.rotated_because, ''),
           nullif(g.user_id, '')
    from given g
    cross join lateral (select 1 from instruction_text i where i.account_id = g.account_id and i.hash = g.profile_hash limit 1) i";

/// Begins turns under a replica's lease. Texts of instructions that are `kept` already are not sent again.
pub async fn turns_begin(tx: &Tx, turns: &[NewTurn], replica: Uuid, kept: &KeptTexts) -> Result<(), StorageError> {
    const ATTEMPT: &str = "begin turns";
    if turns.is_empty() {
        return Ok(());
    }
    instructions_keep(tx, turns, kept).await?;
    fn text(text: &Option<impl ToString>) -> String {
        text.as_ref().map(ToString::to_string).unwrap_or_default()
    }
    let values: [Value; 32] = [
        column(turns, |new| new.turn.account.clone()),
        column(turns, |new| new.turn.id),
        column(turns, |new| new.turn.session),
        column(turns, |new| text(&new.turn.task.as_ref().map(TaskId::key))),
        column(turns, |new| new.agent_id),
        column(turns, |new| new.turn.generation),
        column(turns, |new| new.number),
        column(turns, |new| new.turn.fence),
        column(turns, |new| text_array(&new.notification_ids)),
        column(turns, |new| new.provider.clone()),
        column(turns, |new| new.profile_version.clone()),
        column(turns, |new| new.profile_hash.clone()),
        column(turns, |new| new.input.clone()),
        column(turns, |new| new.layout),
        column(turns, |new| new.tools.join(",")),
        column(turns, |new| new.tools_wait_ms),
        column(turns, |new| new.hops),
        column(turns, |new| text(&new.traceparent)),
        column(turns, |new| text(&new.tracestate)),
        column(turns, |new| new.phase),
        column(turns, |new| new.state),
        column(turns, |new| new.manifest.clone()),
        replica.into(),
        column(turns, |new| new.wake.to_string()),
        column(turns, |new| new.streak.turns),
        column(turns, |new| text(&new.streak.key)),
        column(turns, |new| new.streak.since.unwrap_or(OffsetDateTime::UNIX_EPOCH)),
        column(turns, |new| json(&new.context)),
        column(turns, |new| text(&new.rotated_because)),
        column(turns, |new| json(&new.thread)),
        column(turns, |new| text(&new.thread.at)),
        column(turns, |new| text(&new.owner)),
    ];
    let begun = tx.execute(ATTEMPT, TURNS_BEGIN, values).await?;
    let asked = turns.len();
    if begun != asked as u64 {
        let why = format!("the instructions of {begun} of {asked} turns are stored; will store all of them again");
        return Err(DbErr::Custom(why)).attempt(ATTEMPT);
    }
    Ok(())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts and numbers serialise")
}

/// Texts as one text that Postgres reads as an array.
fn text_array(texts: &[String]) -> String {
    let quoted = texts
        .iter()
        .map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")));
    format!("{{{}}}", quoted.collect::<Vec<String>>().join(","))
}

async fn instructions_keep(tx: &Tx, turns: &[NewTurn], kept: &KeptTexts) -> Result<(), StorageError> {
    // In one order everywhere: two batches that store the same new text must not deadlock.
    let new: BTreeMap<(String, &str), &NewTurn> = turns
        .iter()
        .filter(|new| !kept.has(new))
        .map(|new| ((new.turn.account.to_string(), new.profile_hash.as_str()), new))
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&NewTurn) -> &str| new.values().map(|turn| of(turn).to_owned()).collect::<Vec<String>>();
    let values = [
        column(|new| new.turn.account.as_str()).into(),
        column(|new| &new.profile_hash).into(),
        column(|new| &new.profile_version).into(),
        column(|new| &new.instructions).into(),
    ];
    tx.execute("store instructions", INSTRUCTIONS_KEEP, values)
        .await
        .map(|_| ())
}

/// Instructions that this process knows to be stored. No transaction removes a text; but a restored backup may lack
/// some, so the cache is cleared when a claim fails.
#[derive(Debug, Default)]
pub struct KeptTexts(Mutex<HashSet<(AccountId, String)>>);

impl KeptTexts {
    /// More than accounts have agents; at this size the cache is cleared.
    const MAX: usize = 16_384;

    fn has(&self, new: &NewTurn) -> bool {
        // A hash is short, and so is an account's id.
        self.known()
            .contains(&(new.turn.account.clone(), new.profile_hash.clone()))
    }

    /// Adds the instructions of committed turns.
    pub fn add(&self, turns: &[NewTurn]) {
        let mut known = self.known();
        if known.len() >= KeptTexts::MAX {
            known.clear();
        }
        known.extend(
            turns
                .iter()
                .map(|new| (new.turn.account.clone(), new.profile_hash.clone())),
        );
    }

    pub fn forget(&self) {
        self.known().clear();
    }

    fn known(&self) -> MutexGuard<'_, HashSet<(AccountId, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
