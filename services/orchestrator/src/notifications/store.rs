//! Every query on notifications.

use api::notifications::Notification;
use contracts::notification::message_id;
use domain::{AccountId, AgentRef, NotificationId, NotificationState, TaskId};
use sea_orm::Value;
use storage::{StorageError, Tx, accepted::accepted_find, outbox::outbox_waits_for};

use super::{accepted, of_parts};
use crate::{
    agents::store::agent_columns,
    paging::{Column, Listing, Order},
};

/// A notification with the names of its agent, task and session.
macro_rules! select {
    ($content:literal, $rest:literal) => {
        concat!(
            "select n.id, coalesce(t.display_id, n.task_id) as task, n.agent_id, a.slug as agent, n.kind, n.state,
                    n.session_id, s.key as session_key, n.turn_id, n.attempts, n.reason, n.title, n.sender_kind,
                    n.sender_id, n.sender_name, n.sender_via, n.message_id, n.cause, n.hops, n.queue_mode, n.created_at, ",
            $content,
            "
             from notification n
             left join task t on t.account_id = n.account_id and t.id = n.task_id
             left join agent a on a.account_id = n.account_id and a.id = n.agent_id
             left join session s on s.account_id = n.account_id and s.id = n.session_id
             where n.account_id = $1 ",
            $rest
        )
    };
}

/// Relies on the primary key.
const FIND: &str = select!("n.body, n.metadata", "and n.id = $2");

/// A notification for several agents has one row an agent, named after it. All have the same text, which is read once. Relies on
/// the primary key, once an agent of the account; of very many agents, the youngest.
const FIND_PARTS: &str = select!(
    "case when row_number() over (order by a.slug) = 1 then n.body end as body,
     case when row_number() over (order by a.slug) = 1 then n.metadata end as metadata",
    "and n.id in (select $2 || ':' || agent.id::text from agent where agent.account_id = $1
                  order by agent.id desc limit 20000)
     order by a.slug"
);

/// Relies on notification_newest, and on agent_pkey for the agents that have or had the slug; of very many, the youngest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, agent_id, kind, state, session_id, turn_id, attempts, reason, title,
            sender_kind, sender_id, sender_name, sender_via, message_id, cause, hops, queue_mode, created_at
        from notification where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Text)],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::text is null or state = $2)
         and ($3::text is null or task_id = $3)
         and ($4::text is null or agent_id in (
             select a.id from (select n.id, n.slug from agent n where n.account_id = $1 order by n.id desc limit 20000) a
             where a.slug = $4))
         and ($5::uuid is null or agent_id = $5)",
    ),
    bytes: "octet_length(title) + octet_length(sender_name)",
    names: (
        ", coalesce(t.display_id, page.task_id) as task, a.slug as agent, s.key as session_key, null::text as body,
         null::jsonb as metadata",
        "left join task t on t.account_id = page.account_id and t.id = page.task_id
         left join agent a on a.account_id = page.account_id and a.id = page.agent_id
         left join session s on s.account_id = page.account_id and s.id = page.session_id",
    ),
};

/// The notification, its parts if it went to several agents, or its acceptance.
pub async fn notification_find(
    tx: &Tx,
    account: &AccountId,
    id: &NotificationId,
) -> Result<Option<Notification>, StorageError> {
    let values = || [account.into(), id.into()];
    let found = tx.one("find notification", FIND, values()).await?;
    if found.is_some() {
        return Ok(found);
    }
    let parts = tx.rows("find a notification's parts", FIND_PARTS, values()).await?;
    if let Some(whole) = of_parts(id.as_str(), parts) {
        return Ok(Some(whole));
    }
    let Some(row) = accepted_find(tx, account, id).await? else {
        return Ok(None);
    };
    let waits_for = outbox_waits_for(tx, account, &message_id(account, id), row.created_at).await?;
    Ok(Some(accepted(row, waits_for)))
}

/// The filters of a list.
#[derive(Debug, Default)]
pub struct Filter {
    pub state: Option<NotificationState>,
    pub task: Option<TaskId>,
    pub agent: Option<AgentRef>,
}

impl Filter {
    /// As the listing's parameters.
    pub fn values(&self) -> [Value; 4] {
        let (slug, agent_id) = agent_columns(self.agent.as_ref());
        let task = self.task.as_ref().map(TaskId::key);
        [self.state.into(), task.into(), slug.into(), agent_id.into()]
    }
}

/// Relies on the primary key.
const IS_OF: &str = "
    select id from accepted_notification where account_id = $1 and id = $2 and published_by = $3";

/// Whether this principal published the notification.
pub async fn notification_is_of(
    tx: &Tx,
    account: &AccountId,
    id: &NotificationId,
    principal: &str,
) -> Result<bool, StorageError> {
    let values = [account.into(), id.into(), principal.into()];
    tx.exists("look for an accepted notification", IS_OF, values).await
}
