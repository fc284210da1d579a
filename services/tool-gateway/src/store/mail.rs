//! Mail, as its recipient reads it.

use domain::{AccountId, MailId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

#[derive(Debug, FromQueryResult)]
pub(crate) struct MailRow {
    pub id: MailId,
    pub from_name: String,
    /// Which an answer goes to; none: a service has none.
    pub from_address: Option<String>,
    pub message_type: String,
    pub content: String,
    pub context_task_id: Option<String>,
    pub reply_to: Option<MailId>,
    pub created_at: OffsetDateTime,
}

/// Relies on the primary key, whose order is requested with the id as a range: a single value is no order. Anybody may publish an item of the type of mail: only mail to this conversation is mail.
pub const MAIL_READ: &str = "
    select m.id, m.from_name, coalesce('@user:' || m.from_user, m.from_session) as from_address, m.message_type, m.content, m.context_task_id, m.reply_to, m.created_at
    from unnest($2::uuid[]) as w (id)
    cross join lateral (
        select * from mail m where m.account_id = $1 and m.id >= w.id and m.id <= w.id order by m.id limit 1) m
    where m.to_session = $3";

/// Those of these that are for the conversation, in no order.
pub(crate) async fn mail_read(
    tx: &Tx,
    account: &AccountId,
    key: &str,
    ids: Vec<MailId>,
) -> Result<Vec<MailRow>, StorageError> {
    tx.rows("read mail", MAIL_READ, [account.into(), ids.into(), key.into()])
        .await
}
