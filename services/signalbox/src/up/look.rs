//! Reads a notification from the API and makes a row of it.

use api::{notifications::Notification, turns::Turn};
use contracts::dead::DeadLetter;
use domain::{AccountId, NotificationState};
use serde_json::Value;

use super::{row::Row, sample::SampleLine};
use crate::client::{ApiError, Client};

/// One row, or one for each agent of a fan-out. None: the API does not know the notification, or not yet.
pub(super) async fn rows(client: &Client, account: &AccountId, id: &str) -> Result<Vec<Row>, ApiError> {
    let Some(whole) = client.notification(account.as_str(), id).await? else {
        return Ok(Vec::new());
    };
    if whole.parts.is_empty() {
        return Ok(vec![row(client, account, &whole).await?]);
    }
    let mut rows = Vec::new();
    for part in &whole.parts {
        if let Some(part) = client.notification(account.as_str(), &part.id).await? {
            rows.push(row(client, account, &part).await?);
        }
    }
    Ok(rows)
}

/// The outcome of a line, once all of its notifications have one.
pub(super) async fn outcome(client: &Client, line: &SampleLine) -> Result<Option<Vec<Row>>, ApiError> {
    let rows = rows(client, &line.account, line.id.as_str()).await?;
    Ok((!rows.is_empty() && rows.iter().all(has_outcome)).then_some(rows))
}

async fn row(client: &Client, account: &AccountId, notification: &Notification) -> Result<Row, ApiError> {
    let turn: Option<Turn> = match &notification.turn_id {
        Some(turn) => {
            let path = ["api", "orgs", account.as_str(), "turns", &turn.to_string()];
            ApiError::not_found_as_none(client.get(&path, &[]).await)?
        }
        None => None,
    };
    Ok(Row::new(account.as_str(), notification, turn.as_ref()))
}

pub(super) fn has_outcome(row: &Row) -> bool {
    row.state().is_some_and(NotificationState::is_outcome)
}

/// The row of a notification that the API does not know, from its dead letter: its account does not exist, or it could not be
/// parsed.
pub(super) fn dead_row(letter: &DeadLetter, line: Option<&SampleLine>) -> Row {
    let payload: Value = serde_json::from_str(&letter.payload).unwrap_or_default();
    let field = |name: &str| payload[name].as_str().map(str::to_owned);
    let account = line.map(|line| &line.account).or(letter.account.as_ref());
    let id = line.map(|line| line.id.to_string());
    Row {
        account: account.map(ToString::to_string).unwrap_or_default(),
        notification: id.or_else(|| field("id")).unwrap_or_default(),
        task: line.and_then(|line| line.task.0.as_ref()).map(ToString::to_string),
        agent: field("agent"),
        state: NotificationState::Refused.to_string(),
        session_id: None,
        session_key: None,
        turn: None,
        tools: Vec::new(),
        reply: None,
        reason: Some(format!("{}: {}", letter.reason, letter.detail)),
        is_again: false,
    }
}
