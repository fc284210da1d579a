//! Every query on notifications.

use api::{next::Next, notifications::Notification};
use contracts::notification::message_id;
use domain::{
    AccountId, AgentRef, NotificationId, NotificationState, TaskId, TurnId,
    next::{ItemNow, SessionNow, item_next},
};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx, accepted::accepted_find, outbox::outbox_waits_for};

use super::{accepted, of_parts};
use crate::{
    agents::store::agent_columns,
    paging::{Column, Listing, Order},
};

/// A notification, with the present state of its session.
#[derive(FromQueryResult)]
pub struct NotificationRow {
    #[sea_orm(nested)]
    notification: Notification,
    #[sea_orm(nested(prefix = "now_"))]
    session: Option<SessionNow>,
}

impl NotificationRow {
    pub fn told(self) -> Notification {
        let mut told = self.notification;
        // Words of a newer version have no next step here.
        let now = NotificationState::parse(&told.state).map(|state| ItemNow {
            state,
            turn: told.turn_id.map(TurnId),
            created_at: told.created_at,
            place: None,
        });
        told.why = now
            .and_then(|now| item_next(&now, self.session.as_ref()))
            .map(Next::from);
        told
    }
}

/// The columns of [`SessionNow`], of a session `s`.
macro_rules! session_now {
    () => {
        "s.phase as now_phase, s.active_turn_id as now_active_turn, coalesce(s.stop_turn_id = s.active_turn_id, false) as now_stopping,
         s.gate as now_gate, s.gate_ref as now_gate_ref, s.gated_since as now_gated_since, s.wake_at as now_wake_at,
         coalesce(s.wake_at <= now(), false) as now_due"
    };
}

/// A notification with the names of its agent, task and session.
macro_rules! select {
    ($content:literal, $rest:literal) => {
        concat!(
            "select n.id, coalesce(t.display_id, n.task_id) as task, n.agent_id, a.slug as agent, n.kind, n.state,
                    n.session_id, s.key as session_key, n.turn_id, n.attempts, n.reason, n.title, n.sender_kind,
                    n.sender_id, n.sender_name, n.sender_via, n.message_id, n.cause, n.hops, n.queue_mode, n.revision, n.created_at, ",
            session_now!(),
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
const FIND: &str = select!(", n.body, n.metadata", "and n.id = $2");

/// A notification for several agents has one row an agent, named after it. All have the same text, which is read once. Relies on
/// the primary key, once an agent of the account; of very many agents, the youngest.
const FIND_PARTS: &str = select!(
    ", case when row_number() over (order by a.slug) = 1 then n.body end as body,
     case when row_number() over (order by a.slug) = 1 then n.metadata end as metadata",
    "and n.id in (select $2 || ':' || agent.id::text from agent where agent.account_id = $1
                  order by agent.id desc limit 20000)
     order by a.slug"
);

/// Relies on notification_newest, and on agent_pkey for the agents that have or had the slug; of very many, the youngest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, agent_id, kind, state, session_id, turn_id, attempts, reason, title,
            sender_kind, sender_id, sender_name, sender_via, message_id, cause, hops, queue_mode, revision, created_at
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
        concat!(
            ", coalesce(t.display_id, page.task_id) as task, a.slug as agent, s.key as session_key, null::text as body,
             null::jsonb as metadata, ",
            session_now!()
        ),
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
    let found: Option<NotificationRow> = tx.one("find notification", FIND, values()).await?;
    if let Some(found) = found {
        return Ok(Some(found.told()));
    }
    let parts: Vec<NotificationRow> = tx.rows("find a notification's parts", FIND_PARTS, values()).await?;
    if let Some(whole) = of_parts(id.as_str(), parts.into_iter().map(NotificationRow::told).collect()) {
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
