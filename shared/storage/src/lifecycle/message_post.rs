//! Posts a message to a task's thread: of a person by API, or of an agent by tool.

use contracts::event::{Event, MessagePosted};
use domain::{AccountId, Actor, MessageId, TaskId, TurnId};

use crate::{Setting, StorageError, Tx, outbox::Owned};

#[derive(Clone, Debug)]
pub struct NewMessage<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    /// Derived from the content if the same message may be posted twice (a turn's reply); else random.
    pub id: MessageId,
    pub author: &'a Actor,
    pub body: &'a str,
    pub turn: Option<TurnId>,
}

const MESSAGE_INSERT: &str = "
    insert into message (account_id, id, task_id, author_kind, author_id, author_name, body, turn_id, created_at, author_via)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict do nothing";

/// Posts the message; `None` if a message with this id exists already. Returns the messages for the outbox.
pub async fn message_post(
    tx: &Tx,
    new: &NewMessage<'_>,
    setting: &Setting<'_>,
) -> Result<Option<Vec<Owned>>, StorageError> {
    let values = [
        new.account.into(),
        new.id.into(),
        new.task.key().into(),
        new.author.kind.into(),
        new.author.id.as_str().into(),
        new.author.name.as_str().into(),
        new.body.into(),
        new.turn.into(),
        setting.now.into(),
        new.author.via.clone().into(),
    ];
    if tx.execute("post message", MESSAGE_INSERT, values).await? == 0 {
        return Ok(None);
    }
    let posted = MessagePosted {
        message_id: new.id,
        author: new.author.clone(),
        turn_id: new.turn,
    };
    Ok(Some(vec![setting.event(
        new.account,
        Some(new.task),
        &new.id.to_string(),
        Event::MessagePosted(posted),
    )]))
}
