//! The record of a call: one row, written once, with its result. Also the savepoint in which its tool runs.

use contracts::tool::ARGUMENTS_BYTES_MAX;
use domain::TurnId;
use sea_orm::ConnectionTrait;
use storage::{StorageError, Tx, error::Attempt};

use crate::call::{CallRequest, Origin, Record, cut};

/// Maximum stored length of a tool name that the model chose.
const NAME_BYTES_MAX: usize = 128;

/// Records the call if it is new and its session exists. Of two concurrent deliveries, the second waits here until the
/// first commits or rolls back. A session without an agent makes no calls.
const CALL_INSERT: &str = "
    insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name,
                           arguments, state, started_at)
    select s.account_id, $3, s.id, $4, coalesce($5, s.generation), coalesce($6, s.fence), $7, $8, s.agent_id, $9,
           $10, 'running', clock_timestamp()
    from session s where s.account_id = $1 and s.id = $2 and s.agent_id is not null
    on conflict do nothing";

/// `false`: the record exists already, or the session does not exist.
pub(crate) async fn call_insert(tx: &Tx, asked: &CallRequest) -> Result<bool, StorageError> {
    let claims = match &asked.origin {
        Origin::Turn(claims) => Some(claims),
        Origin::Http => None,
    };
    let values = [
        (&asked.account).into(),
        asked.session.into(),
        asked.id.into(),
        claims.map(|claims| claims.turn).into(),
        claims.map(|claims| claims.generation).into(),
        claims.map(|claims| claims.fence).into(),
        storable(&asked.call_id.0, usize::MAX).into(),
        asked.ordinal.into(),
        storable(&asked.name, NAME_BYTES_MAX).into(),
        storable(&asked.arguments, ARGUMENTS_BYTES_MAX).into(),
    ];
    Ok(tx.execute("record tool call", CALL_INSERT, values).await? == 1)
}

/// Removes NUL, which Postgres cannot store in a text.
fn storable(text: &str, bytes_max: usize) -> String {
    cut(text, bytes_max).replace('\0', "\u{fffd}")
}

/// Whether the request equals the one recorded under the same id.
pub(crate) fn is_same_request(asked: &CallRequest, record: &Record) -> bool {
    record.name == storable(&asked.name, NAME_BYTES_MAX)
        && record.arguments == storable(&asked.arguments, ARGUMENTS_BYTES_MAX)
}

const CALL_FIND: &str = "
    select name, arguments, state, late, coalesce(result, '') as result, coalesce(finished_at, started_at) as finished_at
    from tool_call where account_id = $1 and id = $2";

pub(crate) async fn call_find(tx: &Tx, asked: &CallRequest) -> Result<Option<Record>, StorageError> {
    let values = [(&asked.account).into(), asked.id.into()];
    tx.one("read tool call", CALL_FIND, values).await
}

const CALL_FINISH: &str = "
    update tool_call set state = $3, late = $4, result = $5, turn_id = coalesce(turn_id, $6), finished_at = $7
    where account_id = $1 and id = $2";

/// Writes the result. `turn`: for a call over HTTP, the turn during which it ran.
pub(crate) async fn call_finish(
    tx: &Tx,
    asked: &CallRequest,
    record: &Record,
    turn: Option<TurnId>,
) -> Result<(), StorageError> {
    let values = [
        (&asked.account).into(),
        asked.id.into(),
        record.state.into(),
        record.late.into(),
        record.result.as_str().into(),
        turn.into(),
        record.finished_at.into(),
    ];
    tx.execute("finish tool call", CALL_FINISH, values).await.map(|_| ())
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
