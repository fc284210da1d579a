//! Notifications that were accepted and sent to the resolver, which may not have read them yet. A lookup by id finds
//! them.

use domain::{AccountId, NotificationId, TaskId};
use sea_orm::EntityTrait;
use time::OffsetDateTime;

use crate::{StorageError, Tx, entity::accepted_notification, error::Attempt};

#[derive(Clone, Debug)]
pub struct NewAccepted<'a> {
    pub account: &'a AccountId,
    pub id: &'a NotificationId,
    pub task: Option<&'a TaskId>,
    /// The agent, as the sender spelled it.
    pub agent: Option<&'a str>,
    pub kind: &'a str,
    pub content_hash: Vec<u8>,
    /// The key that may follow the notification up; it is used for nothing else.
    pub publisher: Option<&'a str>,
    pub at: OffsetDateTime,
}

/// Relies on the primary keys. Of an account with very many agents, only the youngest 20,000 are compared.
pub const ACCEPT: &str = "
    insert into accepted_notification (account_id, id, task, agent, kind, content_hash, created_at, published_by)
    select $1, $2, $3, $4, $5, $6, $7, case
        when $8::text is null then null
        when exists (select from notification n where n.account_id = $1 and n.id = $2) then null
        when exists (
            select from (select $2 || ':' || agent.id::text as id from agent where agent.account_id = $1
                         order by agent.id desc limit 20000) part
            cross join lateral (
                select from notification n where n.account_id = $1 and n.id = part.id limit 1) n) then null
        else $8 end
    on conflict do nothing";

/// Stores that the notification was accepted, with its publisher, who may follow it up. The publisher is left out if the
/// resolver has a notification of this id, or a part of one, already. `false`: the id was accepted before, for other content.
pub async fn notification_accept(tx: &Tx, new: &NewAccepted<'_>) -> Result<bool, StorageError> {
    let values = [
        new.account.into(),
        new.id.into(),
        new.task.cloned().into(),
        new.agent.map(str::to_owned).into(),
        new.kind.into(),
        new.content_hash.clone().into(),
        new.at.into(),
        new.publisher.map(str::to_owned).into(),
    ];
    if tx.execute("accept notification", ACCEPT, values).await? == 1 {
        return Ok(true);
    }
    let accepted = accepted_find(tx, new.account, new.id).await?;
    Ok(accepted.is_none_or(|accepted| accepted.content_hash == new.content_hash))
}

pub async fn accepted_find(
    tx: &Tx,
    account: &AccountId,
    id: &NotificationId,
) -> Result<Option<accepted_notification::Model>, StorageError> {
    accepted_notification::Entity::find_by_id((account.to_string(), id.to_string()))
        .one(&**tx)
        .await
        .attempt("find an accepted notification")
}
