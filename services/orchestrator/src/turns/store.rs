//! Every query on turns and their tool calls.

use std::collections::HashMap;

use domain::{AccountId, SessionId, TurnId};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::{instruction_text, tool_call, turn},
    error::Attempt,
};
use uuid::Uuid;

use super::{ToolCall, Turn};
use crate::paging::{Page, Rows};

pub async fn turn_find(tx: &Tx, account: &AccountId, turn: TurnId) -> Result<Option<Turn>, StorageError> {
    let row = turn::Entity::find_by_id((account.to_string(), turn.uuid()))
        .one(&**tx)
        .await
        .attempt("find turn")?;
    Ok(whole(tx, account, row.into_iter().collect()).await?.pop())
}

/// A session's turns in their order. Relies on turn_number.
pub async fn turn_list(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    page: &Page<'_, i64>,
) -> Result<Rows<turn::Model>, StorageError> {
    let mut query = turn::Entity::find()
        .filter(turn::Column::AccountId.eq(account.as_str()))
        .filter(turn::Column::SessionId.eq(session.uuid()));
    if let Some(after) = page.after {
        query = query.filter(turn::Column::Number.gt(after));
    }
    let rows = query
        .order_by_asc(turn::Column::Number)
        .limit(page.rows())
        .all(&**tx)
        .await
        .attempt("list turns")?;
    Ok(page.cut(rows, |row| row.number))
}

/// Turns with what stands in other tables: instructions, which many turns share, and tool calls.
pub async fn whole(tx: &Tx, account: &AccountId, rows: Vec<turn::Model>) -> Result<Vec<Turn>, StorageError> {
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
    let mut calls = tool_calls_of(tx, account, rows.iter().map(|row| row.id).collect()).await?;
    let turn = |row: turn::Model| {
        let instructions = texts.get(&row.profile_hash).cloned();
        let calls = calls.remove(&row.id).unwrap_or_default();
        Turn::new(row, instructions, calls)
    };
    Ok(rows.into_iter().map(turn).collect())
}

/// In the order in which the provider asked for them. Relies on tool_call_turn.
async fn tool_calls_of(
    tx: &Tx,
    account: &AccountId,
    turns: Vec<Uuid>,
) -> Result<HashMap<Uuid, Vec<ToolCall>>, StorageError> {
    let rows = tool_call::Entity::find()
        .filter(tool_call::Column::AccountId.eq(account.as_str()))
        .filter(tool_call::Column::TurnId.is_in(turns))
        .order_by_asc(tool_call::Column::Ordinal)
        .all(&**tx)
        .await
        .attempt("read tool calls")?;
    let mut of_turn: HashMap<Uuid, Vec<ToolCall>> = HashMap::new();
    for row in rows {
        if let Some(turn) = row.turn_id {
            of_turn.entry(turn).or_default().push(row.into());
        }
    }
    Ok(of_turn)
}
