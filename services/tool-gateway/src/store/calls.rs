//! The record of a call: one row, written once, with its result; or first without one, if somebody is asked. Also the savepoint in which a tool runs alone.

use contracts::{TraceContext, tool::ARGUMENTS_BYTES_MAX};
use domain::{AccountId, AgentId, CallId, Fence, Generation, QuestionId, QuestionState, SessionId, TurnId, Verdict};
use sea_orm::{ConnectionTrait, FromQueryResult, Value};
use storage::{StorageError, Tx, error::Attempt, question::Answer, statement::column};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::call::{CallFacts, CallRequest, Claims, Origin, Record, cut};

/// Maximum stored length of a tool name that the model chose.
const NAME_BYTES_MAX: usize = 128;

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct EndedCall<'c> {
    pub asked: &'c CallRequest,
    pub facts: &'c CallFacts,
    /// The turn during which it ran.
    pub turn: Option<TurnId>,
    pub record: &'c Record,
}

/// Of two deliveries of a call, the second waits here until the first commits or rolls back.
pub const CALLS_INSERT: &str = "
    insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name,
                           arguments, state, late, result, started_at, finished_at)
    select r.account_id, r.id, r.session_id, nullif(r.turn_id, '00000000-0000-0000-0000-000000000000'), r.generation, r.fence, r.call_id, r.ordinal, r.agent_id, r.name,
           r.arguments, r.state, r.late, case when r.state <> 'requested' then r.result end, r.started_at,
           case when r.state <> 'requested' then clock_timestamp() end
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::uuid[], $5::integer[], $6::bigint[], $7::text[], $8::integer[], $9::uuid[],
                $10::text[], $11::text[], $12::text[], $13::boolean[], $14::text[], $15::timestamptz[])
        as r (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments, state, late,
              result, started_at)
    order by r.account_id, r.id
    on conflict do nothing
    returning account_id, id, coalesce(finished_at, started_at) as finished_at";

#[derive(FromQueryResult)]
struct InsertedRow {
    account_id: AccountId,
    id: Uuid,
    finished_at: OffsetDateTime,
}

/// Relies on the primary key or on tool_call_session, which costs the same for a table that was empty when it was
/// analysed.
const CALL_FIND: &str = "
    select name, arguments, state, late, coalesce(result, '') as result, coalesce(finished_at, started_at) as finished_at
    from tool_call where account_id = $1 and session_id = $2 and id = $3";

pub(crate) async fn call_find(tx: &Tx, asked: &CallRequest) -> Result<Option<Record>, StorageError> {
    let values = [(&asked.account).into(), asked.session.into(), asked.id.into()];
    tx.one("read tool call", CALL_FIND, values).await
}

/// Records calls with their results; returns when each ended. None: another delivery of one of them has recorded it.
pub(crate) async fn calls_insert(
    tx: &Tx,
    calls: &[EndedCall<'_>],
) -> Result<Option<Vec<OffsetDateTime>>, StorageError> {
    fn claims<T>(call: &EndedCall<'_>, claimed: fn(&crate::call::Claims) -> T, own: T) -> T {
        match &call.asked.origin {
            Origin::Turn(claims) => claimed(claims),
            Origin::Http => own,
        }
    }
    let values = [
        column(calls, |call| call.asked.account.clone()),
        column(calls, |call| call.asked.id),
        column(calls, |call| call.asked.session),
        column(calls, |call| call.turn.map(TurnId::uuid).unwrap_or_default()),
        column(calls, |call| {
            claims(call, |claims| claims.generation, call.facts.generation)
        }),
        column(calls, |call| claims(call, |claims| claims.fence, call.facts.fence)),
        column(calls, |call| storable(&call.asked.call_id.0, usize::MAX)),
        column(calls, |call| call.asked.ordinal),
        column(calls, |call| call.facts.agent),
        column(calls, |call| storable(&call.asked.name, NAME_BYTES_MAX)),
        column(calls, |call| storable(&call.asked.arguments, ARGUMENTS_BYTES_MAX)),
        column(calls, |call| call.record.state),
        column(calls, |call| call.record.late),
        column(calls, |call| call.record.result.clone()),
        column(calls, |call| call.facts.now),
    ];
    let rows: Vec<InsertedRow> = tx.rows("record tool calls", CALLS_INSERT, values).await?;
    let ended = |call: &EndedCall<'_>| {
        let row = rows
            .iter()
            .find(|row| row.id == call.asked.id && row.account_id == call.asked.account);
        row.map(|row| row.finished_at)
    };
    Ok(calls.iter().map(ended).collect())
}

/// A call on record, locked. Relies on the primary key.
#[derive(Debug, FromQueryResult)]
pub(crate) struct CallRow {
    pub session_id: SessionId,
    pub turn_id: Option<TurnId>,
    pub generation: Generation,
    pub fence: Fence,
    pub call_id: CallId,
    pub ordinal: i32,
    pub agent_id: AgentId,
    #[sea_orm(nested)]
    pub record: Record,
}

impl CallRow {
    /// The call as it was requested.
    pub(crate) fn asked(&self, account: &AccountId, id: Uuid, trace: &TraceContext) -> CallRequest {
        CallRequest {
            account: account.clone(),
            session: self.session_id,
            id,
            call_id: self.call_id.clone(),
            ordinal: self.ordinal,
            name: self.record.name.clone(),
            arguments: self.record.arguments.clone(),
            origin: match self.turn_id.filter(|_| self.ordinal > 0) {
                Some(turn) => Origin::Turn(Claims {
                    turn,
                    task: None,
                    session_key: String::new(),
                    generation: self.generation,
                    fence: self.fence,
                    agent: self.agent_id,
                }),
                None => Origin::Http,
            },
            trace: trace.clone(),
        }
    }
}

const CALL_LOCK: &str = "
    select session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments, state, late, coalesce(result, '') as result,
           coalesce(finished_at, started_at) as finished_at
    from tool_call where account_id = $1 and id = $2 for update";

/// Locks a recorded call: of two that run it, the second waits and finds the result.
pub(crate) async fn call_lock(tx: &Tx, account: &AccountId, call: Uuid) -> Result<Option<CallRow>, StorageError> {
    tx.one("lock tool call", CALL_LOCK, [account.into(), call.into()]).await
}

const CALL_END: &str = "
    update tool_call set state = $3, late = $4, result = $5, finished_at = clock_timestamp()
    where account_id = $1 and id = $2 and finished_at is null returning finished_at";

#[derive(FromQueryResult)]
pub(super) struct EndedRow {
    pub(super) finished_at: OffsetDateTime,
}

/// Records the result of a call that was asked about; returns when it ended. The caller holds its lock.
pub(crate) async fn call_end(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
    record: &Record,
) -> Result<OffsetDateTime, StorageError> {
    const ATTEMPT: &str = "end tool call";
    let (late, result) = (record.late, record.result.clone());
    let values: [Value; 5] = [
        account.into(),
        call.into(),
        record.state.into(),
        late.into(),
        result.into(),
    ];
    let row: Option<EndedRow> = tx.one(ATTEMPT, CALL_END, values).await?;
    row.map(|row| row.finished_at)
        .ok_or_else(|| StorageError::unreadable(ATTEMPT, "it has ended"))
}

/// The question about a call.
#[derive(Debug, FromQueryResult)]
pub(crate) struct CallQuestion {
    pub id: QuestionId,
    pub state: QuestionState,
    pub verdict: Option<Verdict>,
    pub answer: Option<Answer>,
    pub ended_by_name: Option<String>,
}

/// Locked, so that an answer that is being written counts. Relies on question_call.
const CALL_QUESTION: &str = "
    select id, state, verdict, answer, ended_by_name from question where account_id = $1 and tool_call = $2 for share";

pub(crate) async fn call_question(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
) -> Result<Option<CallQuestion>, StorageError> {
    tx.one("read question of call", CALL_QUESTION, [account.into(), call.into()])
        .await
}

/// Removes NUL, which Postgres cannot store in a text.
fn storable(text: &str, bytes_max: usize) -> String {
    cut(text, bytes_max).replace('\0', "\u{fffd}")
}

/// The arguments as they are recorded.
pub(crate) fn recorded(arguments: &str) -> String {
    storable(arguments, ARGUMENTS_BYTES_MAX)
}

/// Whether the request equals the one recorded under the same id.
pub(crate) fn is_same_request(asked: &CallRequest, record: &Record) -> bool {
    record.name == storable(&asked.name, NAME_BYTES_MAX)
        && record.arguments == storable(&asked.arguments, ARGUMENTS_BYTES_MAX)
}

/// Opens a savepoint and sets a timeout for the statements after it.
pub(crate) async fn savepoint(tx: &Tx, statement_timeout_ms: u64) -> Result<(), StorageError> {
    let sql = format!("savepoint tool; set local statement_timeout = {statement_timeout_ms}");
    tx.execute_unprepared(&sql).await.attempt("begin tool").map(|_| ())
}

/// Undoes the tool's writes, its error state and its timeout.
pub(crate) async fn savepoint_rollback(tx: &Tx) -> Result<(), StorageError> {
    let undone = tx.execute_unprepared("rollback to savepoint tool").await;
    undone.attempt("undo tool").map(|_| ())
}
