//! Reads turns in progress, whose sessions the caller has locked, and checks the holders of leases.

use std::collections::{BTreeSet, HashMap, HashSet};

use contracts::tools::submit_plan;
use domain::{AccountId, AgentId, MessageId, SessionId, TaskId, TurnContext, TurnId, TurnState};
use sea_orm::FromQueryResult;
use storage::{
    StorageError, Tx,
    breaker::Seen,
    session::{items_join::Notes, sessions_lock::LockedSession},
    statement::pairs,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    TurnName,
    journal::{Call, Journal},
};

#[derive(FromQueryResult)]
struct AliveRow {
    id: Uuid,
}

pub const REPLICAS_ALIVE: &str = "select id from replica where id = any($1::uuid[]) and lease_until > now()";

/// Sets for each session whether its lease's holder is dead. A statement of its own: the statement that waited for the
/// locks has an older snapshot of the replicas, and would miss a holder that has just registered.
///
/// A lease of `replica`, the claiming one, counts as dead: the dispatch queue never gives a session to the claim while
/// this replica works on it, so the lease is from a claim whose commit was not confirmed.
pub async fn leases_check(tx: &Tx, sessions: &mut [LockedSession], replica: Uuid) -> Result<(), StorageError> {
    let mut owners: Vec<Uuid> = sessions.iter().filter_map(|session| session.lease_owner).collect();
    owners.retain(|owner| *owner != replica);
    let no_lease = owners.is_empty() && sessions.iter().all(|session| session.lease_owner.is_none());
    if no_lease {
        return Ok(());
    }
    let alive: Vec<AliveRow> = tx
        .rows("look for holders of leases", REPLICAS_ALIVE, [owners.into()])
        .await?;
    let alive: HashSet<Uuid> = alive.into_iter().map(|row| row.id).collect();
    for session in sessions {
        session.facts.lease_dead = session.lease_owner.is_some_and(|owner| !alive.contains(&owner));
    }
    Ok(())
}

/// Claims for an account with a limit of its own run one after the other, so that two claims do not count the same free
/// place.
const IN_FLIGHT_LOCK: &str = "
    select pg_advisory_xact_lock(hashtextextended('turns in flight ' || a.id, 0))::text as locked
    from unnest($1::text[]) as a (id)";
/// Relies on index turn_open, whose order is requested: for a table that was analysed while it was empty, the primary
/// key costs the same and reads all of the account's rows. A running session has an unfinished turn.
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

/// Counts turns in flight of these accounts, over all processes; no other claim adds any until the transaction ends.
/// Accounts are locked in order, so two claims cannot deadlock.
pub async fn in_flight_lock(tx: &Tx, accounts: &BTreeSet<AccountId>) -> Result<HashMap<AccountId, i64>, StorageError> {
    const ATTEMPT: &str = "count turns in flight";
    let accounts: Vec<AccountId> = accounts.iter().cloned().collect();
    tx.execute(ATTEMPT, IN_FLIGHT_LOCK, [accounts.clone().into()]).await?;
    let rows: Vec<InFlightRow> = tx.rows(ATTEMPT, IN_FLIGHT_COUNT, [accounts.into()]).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.turns)).collect())
}

/// Questions about calls lapse before that.
const ASKED_MS_MAX: i64 = 25 * 3_600_000;

/// A turn in progress, with the results of its tool calls.
#[derive(Clone, Debug, FromQueryResult)]
pub struct OpenTurn {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: TurnId,
    pub session_id: SessionId,
    #[sea_orm(from_alias = "display_id")]
    pub task: Option<TaskId>,
    pub agent_id: AgentId,
    pub agent_name: String,
    pub number: i64,
    pub state: TurnState,
    pub provider: String,
    pub instructions: String,
    pub profile_version: String,
    pub input: String,
    /// The instructions are sent in front of the first item.
    pub inline: bool,
    /// None: a version began it that sent no context, and in layout `inline` has its instructions in the input.
    pub context: Option<TurnContext>,
    /// Packed.
    #[sea_orm(from_alias = "manifest_packed")]
    pub manifest: Option<Vec<u8>>,
    /// The message that its first item is about.
    pub about_message: Option<MessageId>,
    pub is_coordinator: bool,
    pub journal: Journal,
    /// The tools offered when the turn began; none when an older version began it.
    pub tools: Option<Vec<String>>,
    pub attempt: i32,
    pub failures: i32,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub sent_at: Option<OffsetDateTime>,
    pub lost_at: Option<OffsetDateTime>,
    pub notification_ids: Vec<String>,
    /// Attempts at its first notification so far, and so at all that it began with.
    pub attempts: i32,
    /// How long the turn has waited for results beyond its time; negative: it has time left, or does not wait.
    pub overdue_ms: i64,
    /// The account's active holds, counted.
    pub holds: i32,
    /// The account's tool policies, counted.
    pub tool_policies: i32,
    pub notes: Notes,
    /// The breaker of its provider; none: no call of it has failed.
    pub breaker: Option<Seen>,
    /// The epoch of that breaker in which its last call was sent, if that call failed by its provider's fault.
    pub failed_epoch: Option<i64>,
    /// What woke its agent.
    pub wake_key: Option<String>,
    /// Items with mode `inject` that wait in its session: none, one or more.
    pub injectable: i64,
    #[sea_orm(skip)]
    pub results: Vec<ToolResult>,
    /// Calls of the last answer on which somebody was asked.
    #[sea_orm(skip)]
    pub asked: Asked,
}

/// What is known of approvals that a turn waits for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Asked {
    /// How long the open one is open.
    pub open_ms: Option<i64>,
    /// How long all of them were open: time that does not count as waiting.
    pub sum_ms: i64,
    /// Whether the open one waits for its answer, and not for its run.
    pub is_undecided: bool,
}

impl OpenTurn {
    /// The calls of the last answer without a result that are due. Calls of earlier answers are no longer requested: the
    /// tool-gateway runs calls of the last answer only.
    pub fn due(&self) -> Vec<&Call> {
        let is_over = |call: &Call| self.results.iter().any(|result| result.ordinal == call.ordinal);
        let round = self.journal.last().filter(|_| self.ended_with().is_none());
        round.map_or_else(Vec::new, |round| round.due(is_over))
    }

    /// The arguments of the call that has ended the turn: one of the last answer, whose later ones are not requested, or one over
    /// HTTP.
    pub fn ended_with(&self) -> Option<&str> {
        let calls = self.journal.last().map_or(&[][..], |round| &round.calls);
        let is_own = |ordinal: i32| {
            let mut waiting = calls.iter().filter(|call| call.answered.is_none());
            ordinal == OVER_HTTP || waiting.any(|call| call.ordinal == ordinal)
        };
        let mut ending = self.results.iter().filter(|result| is_own(result.ordinal));
        ending.find_map(|result| result.ends_with.as_deref())
    }

    /// It has waited for results longer than any tool may take; or for an approval longer than any question is open.
    pub fn awaited_too_long(&self) -> bool {
        match self.asked.open_ms {
            Some(open_ms) => open_ms > ASKED_MS_MAX,
            None => self.overdue_ms > self.asked.sum_ms,
        }
    }
}

/// A recorded result of a tool call.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct ToolResult {
    pub ordinal: i32,
    pub result: String,
    /// The call's arguments, if it ends its turn.
    pub ends_with: Option<String>,
}

/// Relies on primary keys, and on notification_inject. Each turn is looked up by itself, so that the planner does not read all turns of the
/// accounts.
pub const TURNS_LOAD: &str = concat!(
    "
    select t.account_id, t.id, t.session_id, k.display_id, t.agent_id, g.name as agent_name, t.number, t.state, t.provider, t.profile_version,
           i.body as instructions, t.input, t.manifest ->> 'layout' = 'inline' as inline, t.context, t.manifest_packed,
           case when k.id = a.coordinator_task then ",
    storage::coordinates!("a", "t.agent_id"),
    " else false end as is_coordinator, t.journal, t.tools, t.attempt, t.failures, t.hops, t.traceparent, t.tracestate, t.sent_at, t.lost_at,
           t.notification_ids,
           coalesce(n.attempts, 0) as attempts, n.message_id as about_message,
           coalesce((extract(epoch from now() - t.waiting_since) * 1000)::bigint - coalesce(t.tools_wait_ms, $3), -1) as overdue_ms,
           coalesce(t.notes, '[]') as notes,
           (select count(*) from (
                select from notification n
                where n.account_id = t.account_id and n.session_id = t.session_id and n.state = 'queued' and n.queue_mode = 'inject' and n.attempts = 0
                order by n.account_id, n.session_id, n.position limit 2) n) as injectable, a.holds, a.tool_policies, t.failed_epoch, t.wake_key, ",
    storage::breaker_of!("$4", "t.provider"),
    " as breaker
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from turn t where t.account_id = w.account_id and t.id = w.id limit 1) t
    join account a on a.id = any (array[t.account_id])
    join instruction_text i on i.account_id = any (array[t.account_id]) and i.hash = t.profile_hash
    join agent g on g.account_id = any (array[t.account_id]) and g.id = t.agent_id
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id
    left join lateral (
        select n.attempts, n.message_id from notification n
        where n.account_id = t.account_id and n.id = t.notification_ids[1] offset 0) n on true"
);

#[derive(FromQueryResult)]
struct ResultRow {
    account_id: AccountId,
    turn_id: TurnId,
    #[sea_orm(nested)]
    result: ToolResult,
    is_over: bool,
    /// It is external: recorded before it runs, without anybody being asked.
    is_external: bool,
    /// From its record to its result: only a call that somebody was asked about is recorded before it runs.
    open_ms: i64,
    is_undecided: bool,
}

/// The ordinal of calls over HTTP inside a turn. No turn waits for them.
pub(super) const OVER_HTTP: i32 = 0;

/// Relies on index tool_call_turn, whose order is requested: for an empty table another index costs the same; and on
/// question_call. Of the calls over HTTP, only those that end the turn.
pub const RESULTS_LOAD: &str = "
    select c.account_id, c.turn_id, c.ordinal, coalesce(c.result, '') as result, c.finished_at is not null as is_over,
           c.runner is not null as is_external,
           (extract(epoch from coalesce(c.finished_at, now()) - c.started_at) * 1000)::bigint as open_ms,
           c.finished_at is null and exists (
               select from question q
               where q.account_id = any (array[c.account_id]) and q.tool_call = c.id and q.state = 'open' offset 0) as is_undecided,
           case when c.name = $3 and c.state = 'finished' then c.arguments end as ends_with
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (
        select * from tool_call c
        where c.account_id = w.account_id and c.turn_id = w.id and (c.ordinal > 0 or c.name = $3 and c.state = 'finished') order by c.ordinal) c";

/// `keys_json`: the keys of breakers by the names of providers.
pub async fn turns_load(
    tx: &Tx,
    turns: &[TurnName],
    tools_wait_ms_max: i64,
    keys_json: &str,
) -> Result<Vec<OpenTurn>, StorageError> {
    const ATTEMPT: &str = "load turns";
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let (accounts, ids) = pairs(turns);
    let values = [
        accounts.clone().into(),
        ids.clone().into(),
        tools_wait_ms_max.into(),
        keys_json.into(),
    ];
    let mut turns: Vec<OpenTurn> = tx.rows(ATTEMPT, TURNS_LOAD, values).await?;
    let results: Vec<ResultRow> = tx
        .rows(
            ATTEMPT,
            RESULTS_LOAD,
            [accounts.into(), ids.into(), submit_plan::NAME.into()],
        )
        .await?;
    for turn in &mut turns {
        let own = || {
            let rows = results.iter();
            rows.filter(|row| row.account_id == turn.account && row.turn_id == turn.id)
        };
        let last = turn.journal.last().map_or(&[][..], |round| &round.calls);
        let in_last = |row: &&ResultRow| last.iter().any(|call| call.ordinal == row.result.ordinal);
        turn.asked = Asked {
            open_ms: own()
                .find(|row| !row.is_over && !row.is_external)
                .map(|row| row.open_ms),
            sum_ms: own()
                .filter(in_last)
                .filter(|row| !row.is_external)
                .map(|row| row.open_ms)
                .sum(),
            is_undecided: own().any(|row| row.is_undecided),
        };
        turn.results = own().filter(|row| row.is_over).map(|row| row.result.clone()).collect();
    }
    Ok(turns)
}
