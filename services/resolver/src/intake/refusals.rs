//! What a refusal writes: a dead letter with the reason, an event, and a row that answers queries for the id (B6).

use contracts::{
    Root,
    event::{Event, NotificationEnded},
};
use domain::AccountId;
use storage::{
    Setting, StorageError, Tx,
    dead_letter::{Given, dead_letter_insert},
    outbox::Owned,
};
use time::OffsetDateTime;

use super::{batch::row, decide::Refused, received::Received};
use storage::session::items_append::NewItem;

use crate::SOURCE;

/// Writes the dead letters and returns the messages to publish. One statement each: refusals are few, and each is long.
pub async fn refusals_write(
    tx: &Tx,
    root: &Root,
    refused: &[(&Received, Refused)],
    now: OffsetDateTime,
) -> Result<Vec<Owned>, StorageError> {
    let mut messages = Vec::with_capacity(refused.len() * 2);
    for (received, refused) in refused {
        let reason = refused.refusal.reason.as_str();
        let owner: Option<&AccountId> = received.account.as_ref().filter(|_| refused.account_exists);
        let given = Given {
            account: owner,
            task: received.task.as_ref().filter(|_| refused.account_exists),
            subject: &received.subject,
            headers: &received.headers,
            payload: &received.payload,
            reason,
            detail: &refused.refusal.detail,
            attempts: 1,
            origin: received.origin(),
            at: now,
        };
        let (letter, message) = dead_letter_insert(tx, root, &given).await?;
        messages.push(message);
        // A publisher may listen for events of an account that does not exist.
        let Some(claimed) = &received.account else { continue };
        let setting = Setting {
            root,
            source: SOURCE,
            origin: received.origin(),
            now,
        };
        let ended = NotificationEnded {
            id: received.given_id.clone(),
            agent: agent_named(received),
            reason: reason.to_owned(),
            detail: refused.refusal.detail.clone(),
            dead_letter_id: Some(letter),
        };
        let (_, event) = setting.event(
            claimed,
            received.task.as_ref(),
            &letter.to_string(),
            Event::NotificationRefused(ended),
        );
        messages.push((owner.cloned(), event));
    }
    Ok(messages)
}

/// Rows of the refusals whose ids can be queried.
pub fn refusal_rows<'a>(refused: &'a [(&'a Received, Refused)]) -> Vec<NewItem<'a>> {
    refused
        .iter()
        .filter(|(_, refused)| refused.keep_row)
        .filter_map(|(received, refused)| Some((*received, refused, received.account.as_ref()?)))
        .map(|(received, refused, account)| NewItem {
            task: refused.task.as_ref(),
            agent: refused.agent,
            reason: Some(refused.refusal.to_string()),
            ..row(received, account)
        })
        .collect()
}

/// The agent as the publisher named it.
fn agent_named(received: &Received) -> Option<String> {
    use contracts::notification::Recipients;
    match &received.content.as_ref().ok()?.recipients {
        Recipients::One(agent) => Some(agent.to_string()),
        Recipients::Many(_) | Recipients::Assignees | Recipients::Session(_) => None,
    }
}
