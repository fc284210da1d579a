//! Reading sessions under lock, with their turns in progress, and taking the lease of those that are carried on.

use std::collections::{BTreeSet, HashMap, HashSet};

use domain::{
    AccountId, AgentId, Fence, Generation, SessionId, TaskId, TurnId, TurnState,
    planted::{Bug, is_planted},
};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, statement::pairs};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{SessionName, TurnName};
use crate::{
    queue::{SessionFacts, TurnFacts},
    turn::{
        journal::{Journal, NO_PLACE},
        resume::ToolResult,
    },
};

/// A session, locked to the end of the transaction.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Session {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: SessionId,
    pub key: String,
    pub agent_id: Option<AgentId>,
    pub generation: Generation,
    pub fence: Fence,
    #[sea_orm(from_alias = "active_turn_id")]
    pub active_turn: Option<TurnId>,
    pub turn_count: i64,
    pub interrupted: bool,
    /// A newer version may know more than [`domain::CloseReason`].
    pub close_reason: Option<String>,
    pub lease_owner: Option<Uuid>,
    #[sea_orm(nested)]
    pub facts: SessionFacts,
    /// The account's own limit of turns at once.
    pub turns_in_flight_max: Option<i32>,
}

impl Session {
    pub fn name(&self) -> SessionName {
        (self.account.clone(), self.id)
    }
}

macro_rules! sessions_lock {
    ($wait:literal) => {
        concat!(
            "
    select s.account_id, s.id, s.key, s.agent_id, s.generation, s.phase, s.fence, s.active_turn_id, s.queued, s.turn_count,
           s.interrupted, s.closed_at is not null as closed, s.close_reason, coalesce(s.wake_at <= now(), false) as due,
           s.asked, s.lease_owner,
           (select a.turns_in_flight_max from account a where a.id = s.account_id) as turns_in_flight_max
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
    order by w.account_id, w.id for no key update of s",
            $wait
        )
    };
}

/// Relies on the primary key. Enqueuing takes the same lock, so no wake-up falls between; the order keeps two who lock
/// from waiting for each other.
pub const SESSIONS_LOCK: &str = sessions_lock!("");
/// Without those that somebody else has locked: all others would wait for them. The claimer retries locked sessions
/// ([`sessions_there`]): the holder of a lock may publish nothing after its commit.
pub const SESSIONS_LOCK_FREE: &str = sessions_lock!(" skip locked");

/// By [`SESSIONS_LOCK`] or [`SESSIONS_LOCK_FREE`].
pub async fn sessions_lock(tx: &Tx, sql: &'static str, names: &[SessionName]) -> Result<Vec<Session>, StorageError> {
    let (accounts, ids) = pairs(names);
    tx.rows("lock sessions", sql, [accounts.into(), ids.into()]).await
}

#[derive(FromQueryResult)]
struct ThereRow {
    account_id: AccountId,
    id: SessionId,
}

/// Relies on the primary key.
pub const SESSIONS_THERE: &str = "
    select s.account_id, s.id from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from session s where s.account_id = w.account_id and s.id = w.id limit 1) s";

/// Those of `names` that were not removed.
pub async fn sessions_there(tx: &Tx, names: &[SessionName]) -> Result<Vec<SessionName>, StorageError> {
    let (accounts, ids) = pairs(names);
    let values = [accounts.into(), ids.into()];
    let rows: Vec<ThereRow> = tx.rows("look for locked sessions", SESSIONS_THERE, values).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.id)).collect())
}

#[derive(FromQueryResult)]
struct AliveRow {
    id: Uuid,
}

pub const REPLICAS_ALIVE: &str = "select id from replica where id = any($1::uuid[]) and lease_until > now()";
/// As a clock would have it that is ahead by so much that a lease of the fault campaign, 4 s, looks over before it is
/// renewed.
const REPLICAS_ALIVE_PLANTED: &str =
    "select id from replica where id = any($1::uuid[]) and lease_until > now() + interval '3.8 s'";

/// Says of each session whether nobody works under its lease. In a statement of its own: the one that waited for the
/// locks sees replicas as they were before, and would take a holder that has just entered for one that is not there.
///
/// A lease of `replica`, who is about to claim, is one of those: a session that is worked on here is not claimed here
/// (the line sees to it), so the lease was taken by a claim whose commit was not answered.
pub async fn leases_check(tx: &Tx, sessions: &mut [Session], replica: Uuid) -> Result<(), StorageError> {
    let mut owners: Vec<Uuid> = sessions.iter().filter_map(|session| session.lease_owner).collect();
    owners.retain(|owner| *owner != replica);
    let no_lease = owners.is_empty() && sessions.iter().all(|session| session.lease_owner.is_none());
    if no_lease || is_planted(Bug::LeaseEternal) {
        return Ok(());
    }
    let alive = if is_planted(Bug::LocalClock) {
        REPLICAS_ALIVE_PLANTED
    } else {
        REPLICAS_ALIVE
    };
    let alive: Vec<AliveRow> = tx.rows("look for holders of leases", alive, [owners.into()]).await?;
    let alive: HashSet<Uuid> = alive.into_iter().map(|row| row.id).collect();
    for session in sessions {
        session.facts.lease_dead = session.lease_owner.is_some_and(|owner| !alive.contains(&owner));
    }
    Ok(())
}

/// Claims for an account with a limit of its own take turns, so that two of them do not count the same free place.
const IN_FLIGHT_LOCK: &str = "
    select pg_advisory_xact_lock(hashtextextended('turns in flight ' || a.id, 0))::text as locked
    from unnest($1::text[]) as a (id)";
/// Relies on index turn_open, whose order is asked for: where the table was counted when it was empty, the primary key costs
/// the same and reads all of the account's. Who is running has a turn that has not ended.
pub const IN_FLIGHT_COUNT: &str = "
    select w.account_id, (
        select count(*) from (
            select t.id, t.session_id from turn t
            where t.account_id = w.account_id and t.finished_at is null
            order by t.account_id, t.session_id offset 0) t
        cross join lateral (
            select s.active_turn_id, s.phase from session s
            where s.account_id = w.account_id and s.id = t.session_id offset 0) s
        where s.active_turn_id = t.id and s.phase = 'running') as turns
    from unnest($1::text[]) as w (account_id)";

#[derive(FromQueryResult)]
struct InFlightRow {
    account_id: AccountId,
    turns: i64,
}

/// Turns in flight of these accounts, in all processes together; nobody else adds any until the transaction ends.
/// Accounts in order: two claims take them in the same one.
pub async fn in_flight_lock(tx: &Tx, accounts: &BTreeSet<AccountId>) -> Result<HashMap<AccountId, i64>, StorageError> {
    const ATTEMPT: &str = "count turns in flight";
    let accounts: Vec<AccountId> = accounts.iter().cloned().collect();
    tx.execute(ATTEMPT, IN_FLIGHT_LOCK, [accounts.clone().into()]).await?;
    let rows: Vec<InFlightRow> = tx.rows(ATTEMPT, IN_FLIGHT_COUNT, [accounts.into()]).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.turns)).collect())
}

/// A turn in progress, with the results of its tool calls.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Turn {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: TurnId,
    pub session_id: SessionId,
    #[sea_orm(from_alias = "display_id")]
    pub task: Option<TaskId>,
    pub agent_id: AgentId,
    pub number: i64,
    pub state: TurnState,
    pub provider: String,
    pub instructions: String,
    pub profile_version: String,
    pub input: String,
    /// The instructions stand in front of the input.
    pub inline: bool,
    pub is_coordinator: bool,
    pub journal: Journal,
    /// What it was offered when it began; absent when an older version began it.
    pub tools: Option<Vec<String>>,
    pub attempt: i32,
    pub failures: i32,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub sent_at: Option<OffsetDateTime>,
    pub lost_at: Option<OffsetDateTime>,
    pub notification_ids: Vec<String>,
    /// Attempts that its notifications have behind them.
    pub attempts: i32,
    pub awaited_too_long: bool,
    #[sea_orm(skip)]
    pub results: Vec<ToolResult>,
}

impl Turn {
    pub fn facts(&self) -> TurnFacts {
        TurnFacts {
            state: self.state,
            next: self.next().map_or(NO_PLACE, |call| call.ordinal),
            awaited_too_long: self.awaited_too_long,
        }
    }
}

/// Relies on primary keys only. A turn is looked up by itself, lest all turns of the accounts are read to find a few.
pub const TURNS_LOAD: &str = concat!(
    "
    select t.account_id, t.id, t.session_id, k.display_id, t.agent_id, t.number, t.state, t.provider, t.profile_version,
           i.body as instructions, t.input, t.manifest ->> 'layout' = 'inline' as inline,
           case when k.id = a.coordinator_task then ",
    storage::coordinates!("a", "t.agent_id"),
    " else false end as is_coordinator, t.journal, t.tools, t.attempt, t.failures, t.hops, t.traceparent, t.tracestate, t.sent_at, t.lost_at,
           t.notification_ids,
           coalesce((select max(n.attempts) from unnest(t.notification_ids) as l (id)
                     cross join lateral (select attempts from notification n
                                         where n.account_id = t.account_id and n.id = l.id limit 1) n), 0) as attempts,
           coalesce(t.waiting_since < now() - coalesce(t.tools_wait_ms, $3) * interval '1 millisecond', false) as awaited_too_long
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from turn t where t.account_id = w.account_id and t.id = w.id limit 1) t
    join account a on a.id = any (array[t.account_id])
    join instruction_text i on i.account_id = any (array[t.account_id]) and i.hash = t.profile_hash
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id"
);

#[derive(FromQueryResult)]
struct ResultRow {
    account_id: AccountId,
    turn_id: TurnId,
    ordinal: i32,
    result: Option<String>,
}

/// Relies on index tool_call_turn, whose order is asked for: without it an empty table's other index costs the same. Calls
/// over HTTP inside a turn have ordinal 0: nobody waits for them.
pub const RESULTS_LOAD: &str = "
    select c.account_id, c.turn_id, c.ordinal, c.result
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (
        select * from tool_call c
        where c.account_id = w.account_id and c.turn_id = w.id and c.finished_at is not null and c.ordinal > 0 order by c.ordinal) c";

pub async fn turns_load(tx: &Tx, turns: &[TurnName], tools_wait_ms_max: i64) -> Result<Vec<Turn>, StorageError> {
    const ATTEMPT: &str = "load turns";
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let (accounts, ids) = pairs(turns);
    let values = [accounts.clone().into(), ids.clone().into(), tools_wait_ms_max.into()];
    let mut turns: Vec<Turn> = tx.rows(ATTEMPT, TURNS_LOAD, values).await?;
    let results: Vec<ResultRow> = tx.rows(ATTEMPT, RESULTS_LOAD, [accounts.into(), ids.into()]).await?;
    for turn in &mut turns {
        let own = results
            .iter()
            .filter(|result| result.account_id == turn.account && result.turn_id == turn.id);
        turn.results = own
            .map(|result| ToolResult {
                ordinal: result.ordinal,
                result: result.result.clone().unwrap_or_default(),
            })
            .collect();
    }
    Ok(turns)
}

/// Turns that are carried on: the lease, and the turn's fence, which is the lease's, so that whoever had it before can
/// change nothing. The caller holds the sessions' locks and has admitted them. Relies on primary keys; no index says which
/// turn is a session's active one.
pub const TURNS_RESUME: &str = "
    with leased as (
        update session s set phase = 'running', lease_owner = $4, fence = s.fence + 1, wake_at = null
        from unnest($1::text[], $2::uuid[], $3::uuid[]) as w (account_id, id, session_id)
        where s.account_id = any (array[w.account_id]) and s.id = w.session_id
        returning s.account_id, s.fence, case when s.active_turn_id = w.id then w.id end as turn_id
    )
    update turn t set fence = l.fence, state = 'calling', sent_at = now()
    from leased l
    where t.account_id = any (array[l.account_id]) and t.id = l.turn_id";

pub async fn turns_resume(tx: &Tx, turns: &[(SessionName, TurnId)], replica: Uuid) -> Result<(), StorageError> {
    if turns.is_empty() {
        return Ok(());
    }
    let (names, ids): (Vec<SessionName>, Vec<TurnId>) = turns.iter().cloned().unzip();
    let (accounts, sessions) = pairs(&names);
    let values = [accounts.into(), ids.into(), sessions.into(), replica.into()];
    tx.execute("resume turns", TURNS_RESUME, values).await.map(|_| ())
}

/// The next result is asked for, or the same one again: look after it later. Relies on the primary key. The caller holds the
/// rows' locks and has seen that they wait; compared here, it would be an index of its own that finds all who do.
pub const WAIT_LONGER: &str = "
    update session s set asked = w.asked, wake_at = now() + $4 * interval '1 millisecond'
    from unnest($1::text[], $2::uuid[], $3::integer[]) as w (account_id, id, asked)
    where s.account_id = any (array[w.account_id]) and s.id = w.id";

/// Each session with the place of the call that is asked for.
pub async fn wait_longer(tx: &Tx, asked: &[(SessionName, i32)], ms: i64) -> Result<(), StorageError> {
    if asked.is_empty() {
        return Ok(());
    }
    let (names, asked): (Vec<SessionName>, Vec<i32>) = asked.iter().cloned().unzip();
    let (accounts, ids) = pairs(&names);
    let values = [accounts.into(), ids.into(), asked.into(), ms.into()];
    tx.execute("wait longer", WAIT_LONGER, values).await.map(|_| ())
}
