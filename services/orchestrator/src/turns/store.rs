//! Every query on turns and their tool calls.

use std::collections::HashMap;

use domain::{AccountId, SessionId, TurnId};
use sea_orm::{ColumnTrait, EntityTrait, FromQueryResult, QueryFilter};
use serde_json::Value as Json;
use storage::{StorageError, Tx, entity::instruction_text, error::Attempt, statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{ToolCall, Turn};
use crate::paging::{Listing, Order, Page, Rows};

/// A turn as it is shown, but for what stands in other tables. Its journal is delivery's.
#[derive(FromQueryResult)]
pub struct Row {
    pub id: Uuid,
    pub session_id: Uuid,
    pub generation: i32,
    pub number: i64,
    pub state: String,
    pub notification_ids: Vec<String>,
    pub profile_version: String,
    pub profile_hash: String,
    pub input: String,
    pub reply: Option<String>,
    pub usage: Option<Json>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub provider: String,
    pub response_id: Option<String>,
    pub attempt: i32,
    pub task_history_called: bool,
    pub no_reply: bool,
    pub late: bool,
    pub started_at: OffsetDateTime,
    pub finished_at: Option<OffsetDateTime>,
    pub manifest: Json,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select id, session_id, generation, number, state, notification_ids, profile_version, profile_hash, input,
                reply, usage, error, error_class, provider, response_id, attempt, task_history_called, no_reply, late,
                started_at, finished_at, manifest
             from turn where account_id = $1 and ",
            $rest
        )
    };
}

/// Relies on the primary key.
const FIND: &str = select!("id = $2");

/// Relies on turn_number.
pub const LIST: Listing = Listing {
    rows: select!("session_id = $2"),
    order: &["number"],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(input) + coalesce(octet_length(reply), 0) + octet_length(manifest::text)",
    names: ("", ""),
};

/// `bytes_max`: of its tool calls.
pub async fn turn_find(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    bytes_max: usize,
) -> Result<Option<Turn>, StorageError> {
    let row = Row::find_by_statement(statement(FIND, [account.as_str().into(), turn.uuid().into()]))
        .one(&**tx)
        .await
        .attempt("find turn")?;
    Ok(whole(tx, account, row.into_iter().collect(), bytes_max).await?.pop())
}

/// A session's turns in their order.
pub async fn turn_list(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    page: &Page<'_, i64>,
) -> Result<Rows<Row>, StorageError> {
    let values = [account.as_str().into(), session.uuid().into()];
    page.read(tx, &LIST, values, |row: &Row| row.number, "list turns").await
}

/// Turns with what stands in other tables: instructions, which many turns share, and tool calls, of which all turns
/// together have so many bytes. A turn that has not all of its calls is the last one, and the first if it is alone too long.
pub async fn whole(tx: &Tx, account: &AccountId, rows: Vec<Row>, bytes_max: usize) -> Result<Vec<Turn>, StorageError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut hashes: Vec<String> = rows.iter().map(|row| row.profile_hash.clone()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    let texts = instruction_text::Entity::find()
        .filter(instruction_text::Column::AccountId.eq(account.as_str()))
        .filter(instruction_text::Column::Hash.is_in(hashes))
        .all(&**tx)
        .await
        .attempt("read instructions")?;
    let texts: HashMap<String, String> = texts.into_iter().map(|text| (text.hash, text.body)).collect();
    let mut calls = tool_calls_of(tx, account, rows.iter().map(|row| row.id).collect(), bytes_max).await?;
    let mut turns = Vec::with_capacity(rows.len());
    for row in rows {
        let instructions = texts.get(&row.profile_hash).cloned();
        let (calls, all) = calls.remove(&row.id).unwrap_or_default();
        let left_out = all.saturating_sub(calls.len());
        if left_out > 0 && !turns.is_empty() {
            break;
        }
        turns.push(Turn::new(row, instructions, calls, left_out));
        if left_out > 0 {
            break;
        }
    }
    Ok(turns)
}

#[derive(FromQueryResult)]
pub struct CallRow {
    pub id: Uuid,
    pub turn_id: Uuid,
    pub ordinal: i32,
    pub call_id: String,
    pub name: String,
    pub arguments: Option<String>,
    pub state: String,
    pub result: Option<String>,
}

/// In the order of the turns, and of each in that in which the provider asked for them. What does not fit comes without its
/// texts, to be counted. Relies on tool_call_turn.
const CALLS: &str = "
    select id, turn_id, ordinal, call_id, name, state, case when bytes_before <= $3 then arguments end as arguments,
        case when bytes_before <= $3 then result end as result
    from (
        select c.*, sum(c.bytes) over (order by c.turn, c.ordinal, c.id) - c.bytes as bytes_before
        from (
            select t.turn, c.id, c.turn_id, c.ordinal, c.call_id, c.name, c.state, c.arguments, c.result,
                octet_length(c.arguments) + coalesce(octet_length(c.result), 0) as bytes
            from unnest($2::uuid[]) with ordinality as t (id, turn)
            join tool_call c on c.account_id = $1 and c.turn_id = t.id
        ) c
    ) c
    order by turn, ordinal, id";

/// Those that fit, and how many there are, by turn.
async fn tool_calls_of(
    tx: &Tx,
    account: &AccountId,
    turns: Vec<Uuid>,
    bytes_max: usize,
) -> Result<HashMap<Uuid, (Vec<ToolCall>, usize)>, StorageError> {
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let values = [account.as_str().into(), turns.into(), bytes_max.into()];
    let rows = CallRow::find_by_statement(statement(CALLS, values))
        .all(&**tx)
        .await
        .attempt("read tool calls")?;
    let mut of_turn: HashMap<Uuid, (Vec<ToolCall>, usize)> = HashMap::new();
    for row in rows {
        let (calls, all) = of_turn.entry(row.turn_id).or_default();
        *all += 1;
        if row.arguments.is_some() {
            calls.push(row.into());
        }
    }
    Ok(of_turn)
}

/// Relies on tool_call_turn, whose entries that share an ordinal are few.
pub const CALL_LIST: Listing = Listing {
    rows: "select id, turn_id, ordinal, call_id, name, arguments, state, result
        from tool_call where account_id = $1 and turn_id = $2",
    order: &["ordinal", "id"],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(arguments) + coalesce(octet_length(result), 0)",
    names: ("", ""),
};

/// A turn's tool calls, in the order in which the provider asked for them.
pub async fn call_list(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    page: &Page<'_, (i32, Uuid)>,
) -> Result<Rows<CallRow>, StorageError> {
    let values = [account.as_str().into(), turn.uuid().into()];
    let position = |row: &CallRow| (row.ordinal, row.id);
    page.read(tx, &CALL_LIST, values, position, "list tool calls").await
}

/// Relies on the primary key.
const EXISTS: &str = "select id from turn where account_id = $1 and id = $2";

#[derive(FromQueryResult)]
struct Id {
    #[expect(dead_code, reason = "read to see that it is there")]
    id: Uuid,
}

pub async fn turn_exists(tx: &Tx, account: &AccountId, turn: TurnId) -> Result<bool, StorageError> {
    let row = Id::find_by_statement(statement(EXISTS, [account.as_str().into(), turn.uuid().into()]));
    Ok(row.one(&**tx).await.attempt("find turn")?.is_some())
}
