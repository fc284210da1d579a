//! Replies of turns that a delivery of the previous version recorded enter their threads, a batch at a time. A delivery
//! of this version posts a reply with its record (`turns_record`). A turn's reply is one message, however often it is
//! posted: its id follows from the turn.

use contracts::event::{Event, MessagePosted};
use domain::{AccountId, Actor, MessageId, TaskId, TurnId};
use uuid::Uuid;

use crate::{Setting, StorageError, Tx, outbox::Owned, statement::column};

#[derive(Clone, Debug)]
pub struct Reply<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub turn: TurnId,
    /// The agent of the turn.
    pub author: &'a Actor,
    pub body: &'a str,
    /// When the turn ended: the message's time, and part of what makes its event deterministic.
    pub setting: Setting<'a>,
}

/// Namespace of ids that are derived from their content.
const REPLIES: Uuid = Uuid::from_u128(0x51b0_4e91_0000_4000_8000_0000_0000_0001);

/// The id of the message of a turn's reply.
pub fn reply_message_id(turn: TurnId) -> MessageId {
    MessageId(Uuid::new_v5(&REPLIES, turn.uuid().as_bytes()))
}

const REPLIES_INSERT: &str = "
    insert into message (account_id, id, task_id, author_kind, author_id, author_name, body, turn_id, created_at)
    select account_id, id, task_id, 'agent', author_id, author_name, body, turn_id, created_at
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::timestamptz[])
        as r (account_id, id, task_id, author_id, author_name, body, turn_id, created_at)
    on conflict do nothing";

/// Posts the replies that are not in their thread yet. Returns every reply's event, also for replies that were there:
/// their event may not have been sent, and has the same id again.
pub async fn replies_post(tx: &Tx, replies: &[Reply<'_>]) -> Result<Vec<Owned>, StorageError> {
    if replies.is_empty() {
        return Ok(Vec::new());
    }
    let values = [
        column(replies, |reply| reply.account.clone()),
        column(replies, |reply| reply_message_id(reply.turn)),
        column(replies, |reply| reply.task.key()),
        column(replies, |reply| reply.author.id.clone()),
        column(replies, |reply| reply.author.name.clone()),
        column(replies, |reply| reply.body.to_owned()),
        column(replies, |reply| reply.turn),
        column(replies, |reply| reply.setting.now),
    ];
    tx.execute("post replies", REPLIES_INSERT, values).await?;
    Ok(replies.iter().map(posted).collect())
}

fn posted(reply: &Reply<'_>) -> Owned {
    let id = reply_message_id(reply.turn);
    let posted = MessagePosted {
        message_id: id,
        author: reply.author.clone(),
        turn_id: Some(reply.turn),
    };
    reply.setting.event(
        reply.account,
        Some(reply.task),
        &id.to_string(),
        Event::MessagePosted(posted),
    )
}
