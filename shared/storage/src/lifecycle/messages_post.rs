//! Posts messages to tasks' threads: of people by API, or of agents by tool.

use contracts::event::{Event, MessagePosted};
use domain::{AccountId, Actor, AgentId, MessageId, TaskId, TurnId};
use time::OffsetDateTime;

use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    statement::{column, uuid_array},
};

#[derive(Clone, Debug)]
pub struct NewMessage<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    /// Derived from the content if the same message may be posted twice (a turn's reply); else random.
    pub id: MessageId,
    pub author: &'a Actor,
    pub body: &'a str,
    pub turn: Option<TurnId>,
    /// The agents that it wakes.
    pub woke: &'a [AgentId],
    pub at: OffsetDateTime,
}

pub const MESSAGES_INSERT: &str = "
    insert into message (account_id, id, task_id, author_kind, author_id, author_name, author_via, body, turn_id, created_at, woke)
    select r.account_id, r.id, r.task_id, r.author_kind, r.author_id, r.author_name, nullif(r.author_via, ''), r.body,
           nullif(r.turn_id, '00000000-0000-0000-0000-000000000000'), r.created_at, nullif(r.woke, '{}')::uuid[]
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::uuid[],
                $10::timestamptz[], $11::text[])
        as r (account_id, id, task_id, author_kind, author_id, author_name, author_via, body, turn_id, created_at, woke)
    order by r.account_id, r.id
    on conflict do nothing";

/// Posts those messages whose ids do not exist. Each is told by [`message_posted`].
pub async fn messages_post(tx: &Tx, new: &[NewMessage<'_>]) -> Result<(), StorageError> {
    let values = [
        column(new, |one| one.account.clone()),
        column(new, |one| one.id),
        column(new, |one| one.task.key()),
        column(new, |one| one.author.kind),
        column(new, |one| one.author.id.clone()),
        column(new, |one| one.author.name.clone()),
        column(new, |one| one.author.via.clone().unwrap_or_default()),
        column(new, |one| one.body.to_owned()),
        column(new, |one| one.turn.map(TurnId::uuid).unwrap_or_default()),
        column(new, |one| one.at),
        column(new, |one| uuid_array(one.woke.iter().map(|agent| agent.uuid()))),
    ];
    tx.execute("post messages", MESSAGES_INSERT, values).await.map(|_| ())
}

/// The event of a posted message.
pub fn message_posted(
    setting: &Setting<'_>,
    (account, task): (&AccountId, Option<&TaskId>),
    id: MessageId,
    author: &Actor,
    turn: Option<TurnId>,
) -> Owned {
    let posted = MessagePosted {
        message_id: id,
        author: author.clone(),
        turn_id: turn,
    };
    setting.event(account, task, &id.to_string(), Event::MessagePosted(posted))
}
