//! The record of an external call, from its start to its result; and the artifacts that such calls show.

use domain::{AccountId, ArtifactId, MediaType, TaskId};
use sea_orm::{FromQueryResult, Value};
use storage::{Database, StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{CallRow, EndedRow};
use crate::call::{Outside, Record};

/// The caller holds the record's lock, or has just written it.
const CALL_START: &str = "
    update tool_call set state = 'running', runner = $3, due_at = clock_timestamp() + $4 * interval '1 millisecond', model = $5, request = $6
    where account_id = $1 and id = $2 and state = 'requested'";

/// A recorded call without a result begins to run.
pub(crate) async fn call_start(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
    runner: Uuid,
    outside: &Outside,
) -> Result<(), StorageError> {
    let timeout_ms = i64::try_from(outside.timeout.as_millis()).unwrap_or(i64::MAX);
    let values: [Value; 6] = [
        account.into(),
        call.into(),
        runner.into(),
        timeout_ms.into(),
        outside.model.as_str().into(),
        written(&outside.request),
    ];
    tx.execute("start external call", CALL_START, values).await.map(|_| ())
}

fn written(request: &impl serde::Serialize) -> Value {
    let json = serde_json::to_value(request);
    json.expect("a request has string keys").into()
}

/// A call that a runner runs.
#[derive(Debug, FromQueryResult)]
pub(crate) struct RunningRow {
    #[sea_orm(nested)]
    pub call: CallRow,
    pub runner: Uuid,
    pub model: String,
    pub request: serde_json::Value,
    /// Negative: its time is over.
    pub left_ms: i64,
}

/// Relies on the primary key, whose order is requested: for an empty table another index costs the same.
pub const CALL_RUNNING: &str = "
    select session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments, state, late, '' as result,
           started_at as finished_at, runner, coalesce(model, '') as model, coalesce(request, '{}') as request,
           coalesce((extract(epoch from due_at - clock_timestamp()) * 1000)::bigint, 0) as left_ms
    from tool_call
    where account_id = $1 and id between $2 and $2 and coalesce(state = 'running', false)
    order by account_id, id for update";

/// Locks a running call; none: it has ended.
pub(crate) async fn call_running(tx: &Tx, account: &AccountId, call: Uuid) -> Result<Option<RunningRow>, StorageError> {
    tx.one("lock external call", CALL_RUNNING, [account.into(), call.into()])
        .await
}

const CALL_FINISH: &str = "
    update tool_call set state = $3, late = $4, result = $5, usage = $6, finished_at = clock_timestamp()
    where account_id = $1 and id = $2 and finished_at is null returning finished_at";

/// Records the result of a call; the caller holds its lock. Returns when it ended.
pub(crate) async fn call_finish(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
    record: &Record,
    usage: Option<serde_json::Value>,
) -> Result<OffsetDateTime, StorageError> {
    const ATTEMPT: &str = "finish external call";
    let values: [Value; 6] = [
        account.into(),
        call.into(),
        record.state.into(),
        record.late.into(),
        record.result.as_str().into(),
        usage.into(),
    ];
    let row: Option<EndedRow> = tx.one(ATTEMPT, CALL_FINISH, values).await?;
    row.map(|row| row.finished_at)
        .ok_or_else(|| StorageError::unreadable(ATTEMPT, "it has ended"))
}

/// Calls that run without a worker of this process.
#[derive(Debug, FromQueryResult)]
pub(crate) struct LeftCall {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: Uuid,
    /// Its runner is gone; else it is this process.
    pub is_orphan: bool,
}

/// Running calls of this runner, and of runners that are gone.
pub(crate) async fn calls_running(
    database: &Database,
    runner: Uuid,
    rows_max: i32,
) -> Result<Vec<LeftCall>, StorageError> {
    let sql = "select * from tool_call_running($1, $2)";
    let values = [runner.into(), rows_max.into()];
    database.query_alone("find external calls", sql, values).await
}

/// Relies on the primary keys, and requests the order of that of the calls, as CALL_RUNNING does.
pub const CALL_TAKE: &str = "
    select c.name, c.runner, coalesce((c.request ->> 'tries')::integer, 1) as tries, coalesce(c.due_at > clock_timestamp(), false) as has_time
    from tool_call c
    where c.account_id = $1 and c.id between $2 and $2 and coalesce(c.state = 'running', false)
      and not exists (select from replica r where r.id = c.runner and r.lease_until > now() offset 0)
    order by c.account_id, c.id for update of c skip locked";

/// A call whose runner is gone.
#[derive(Debug, FromQueryResult)]
pub(crate) struct OrphanRow {
    pub name: String,
    pub tries: i32,
    pub has_time: bool,
}

/// Locks a call whose runner is gone; none: it has ended, or another replica has it.
pub(crate) async fn call_take(tx: &Tx, account: &AccountId, call: Uuid) -> Result<Option<OrphanRow>, StorageError> {
    tx.one("lock orphaned call", CALL_TAKE, [account.into(), call.into()])
        .await
}

const CALL_KEEP: &str = "
    update tool_call set runner = $3 where account_id = $1 and id = $2 and state = 'running' and runner = any($4::uuid[])";

/// Gives a call of one of the names to the runner. False: it has ended, or another runner has it.
pub(crate) async fn call_keep(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
    (runner, names): (Uuid, Vec<Uuid>),
) -> Result<bool, StorageError> {
    let values: [Value; 4] = [account.into(), call.into(), runner.into(), names.into()];
    let kept = tx.execute("keep external call", CALL_KEEP, values).await;
    kept.map(|rows| rows > 0)
}

const CALL_RUNNER: &str = "
    update tool_call set runner = $3, request = jsonb_set(coalesce(request, '{}'), '{tries}', to_jsonb($4::integer))
    where account_id = $1 and id = $2";

/// Gives a call to another runner. The caller holds its lock.
pub(crate) async fn call_runner(
    tx: &Tx,
    account: &AccountId,
    call: Uuid,
    (runner, tries): (Uuid, i32),
) -> Result<(), StorageError> {
    let values: [Value; 4] = [account.into(), call.into(), runner.into(), tries.into()];
    tx.execute("take orphaned call", CALL_RUNNER, values).await.map(|_| ())
}

/// An artifact of a task, without its content.
#[derive(Clone, Debug, FromQueryResult)]
pub(crate) struct ArtifactRow {
    pub id: ArtifactId,
    pub name: String,
    pub media_type: MediaType,
    pub bytes: i32,
}

/// Relies on the primary key.
pub const ARTIFACTS_FIND: &str = "
    select a.id, a.name, a.media_type, a.bytes
    from unnest($3::uuid[]) with ordinality as w (id, place)
    cross join lateral (
        select * from artifact a where a.account_id = $1 and a.id = w.id and a.task_id = $2 offset 0) a
    order by w.place";

/// Those of the artifacts that the task has, in the order in which they are named.
pub(crate) async fn artifacts_find(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    ids: &[ArtifactId],
) -> Result<Vec<ArtifactRow>, StorageError> {
    let values = [account.into(), task.key().into(), ids.to_vec().into()];
    tx.rows("find artifacts", ARTIFACTS_FIND, values).await
}
