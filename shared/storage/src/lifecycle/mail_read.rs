//! A person reads mail that waits in a conversation's queue, in the agent's place: its item ends as cancelled, and the mail has the receipt
//! `read`, so that it does not go back to whoever wrote it. A claim and `check_messages` take the same items under the same lock.

use contracts::event::{Event, MailChange, NotificationEnded, QueueChanged};
use domain::{AccountId, Actor, Conversation, Generation, MailId, NotificationId, QueueOp, TaskId, mail};
use sea_orm::FromQueryResult;

use super::mail_settle::changed;
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        mail_take::{mail_cancel, mail_waiting},
        sessions_lock::conversations_lock,
    },
};

/// Pieces of mail that one request reads; of the queue, so many items are looked at.
pub const READ_MAX: usize = 200;

#[derive(FromQueryResult)]
struct OfConversation {
    id: MailId,
}

/// Of these, those that are for the conversation and have no outcome: anybody may publish an item of the type of mail. Relies on the primary
/// key: session and outcome are compared in forms that no index has.
pub const MAIL_UNREAD: &str = "
    select m.id from (select $1 as account_id, id from unnest($2::uuid[]) as w (id) offset 0) w
    join mail m on m.account_id = any (array[w.account_id]) and m.id = w.id
    where coalesce(m.to_session = $3, false) and coalesce(m.settled_at, 'infinity') = 'infinity'
    for no key update of m";

/// Relies on the primary key.
pub const MAIL_SETTLE_READ: &str = "
    update mail m set outcome = 'read', reason = $3, settled_at = $4
    from (select $1 as account_id, id from unnest($2::uuid[]) as w (id) offset 0) w
    where m.account_id = any (array[w.account_id]) and m.id = w.id";

/// What is read of a conversation's mail: these, or the mail among the first items of its queue. `task`: the conversation's, as it is shown.
/// Gives how many pieces were read, and the messages for the outbox.
pub async fn mail_read(
    tx: &Tx,
    (conversation, task): (&Conversation, Option<&TaskId>),
    ids: Option<Vec<MailId>>,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<(u64, Vec<Owned>), StorageError> {
    let account = &conversation.account;
    let Some(session) = conversations_lock(tx, &[conversation]).await?.remove(&0) else {
        return Ok((0, Vec::new()));
    };
    let name = (account.clone(), session.id);
    let ids = match ids {
        Some(ids) => ids,
        None => {
            let waiting = mail_waiting(tx, &name, READ_MAX as i64).await?;
            waiting.iter().filter_map(|item| mail::of_item(item)).collect()
        }
    };
    let key = conversation.key(Generation::FIRST).to_string();
    let values = [account.into(), ids.into(), key.into()];
    let unread: Vec<OfConversation> = tx.rows("find mail that waits", MAIL_UNREAD, values).await?;
    let items = unread.iter().map(|row| mail::item_of(row.id)).collect();
    let reason = format!("read: by {}", by.name);
    let Some((items, revision)) = mail_cancel(tx, &name, items, &reason).await? else {
        return Ok((0, Vec::new()));
    };
    let read: Vec<MailId> = items.iter().filter_map(|item| mail::of_item(item.as_str())).collect();
    let values = [
        account.into(),
        read.clone().into(),
        reason.clone().into(),
        setting.now.into(),
    ];
    tx.execute("settle mail that was read", MAIL_SETTLE_READ, values)
        .await?;

    let edit = format!("{}:read:{revision}", session.id);
    let queue = QueueChanged {
        session_id: session.id,
        session_key: conversation.key(session.generation).to_string(),
        generation: session.generation,
        agent_id: Some(conversation.agent),
        op: QueueOp::Withdraw,
        item: None,
        revision,
        by: by.clone(),
    };
    let mut messages = vec![setting.event(account, task, &edit, Event::QueueChanged(queue))];
    let ended = |item: &NotificationId| cancelled((account, task), (conversation, item), &reason, setting);
    messages.extend(items.iter().map(ended));
    let settled = |mail: &MailId| changed(account, (*mail, None), MailChange::Read, setting);
    messages.extend(read.iter().map(settled));
    Ok((read.len() as u64, messages))
}

fn cancelled(
    (account, task): (&AccountId, Option<&TaskId>),
    (conversation, item): (&Conversation, &NotificationId),
    reason: &str,
    setting: &Setting<'_>,
) -> Owned {
    let ended = NotificationEnded {
        id: Some(item.clone()),
        agent: Some(conversation.agent.to_string()),
        reason: "cancelled".to_owned(),
        detail: reason.to_owned(),
        dead_letter_id: None,
    };
    setting.event(account, task, item.as_str(), Event::NotificationCancelled(ended))
}
