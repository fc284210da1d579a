//! Fails waiting items of a session that have waited too long. The caller holds the session's lock, and writes the dead letters.

use std::time::Duration;

use domain::{AgentId, NotificationId, SessionEvent, TaskId, Timestamp};
use sea_orm::{FromQueryResult, Value};
use time::OffsetDateTime;

use super::{queue_edit::QUEUE_EDITED, sessions_lock::LockedSession};
use crate::{StorageError, Tx, statement::column};

/// An item that has failed.
#[derive(Clone, Debug, FromQueryResult)]
pub struct ExpiredItem {
    pub id: NotificationId,
    pub agent_id: Option<AgentId>,
    /// As its client spelled it.
    pub task: Option<TaskId>,
    created_at: OffsetDateTime,
    gated_since: Option<OffsetDateTime>,
    #[sea_orm(skip)]
    pub reason: String,
}

/// In their order. Relies on notification_queue, whose order is requested, and on the primary keys of sessions and tasks.
pub const ITEMS_OVERDUE: &str = "
    select n.id, n.agent_id, n.created_at, s.gated_since, k.display_id as task
    from (select * from session s where s.account_id = $1 and s.id = $2) s
    cross join lateral (
        select n.* from notification n
        where n.account_id = any (array[s.account_id]) and n.session_id = s.id and n.state = 'queued'
          and coalesce(n.created_at < now() - $3 * interval '1 second', false)
        order by n.account_id, n.session_id, n.position limit $4 for no key update) n
    left join task k on k.account_id = any (array[n.account_id]) and k.id = n.task_id";

/// Relies on the primary key.
pub const ITEMS_EXPIRE: &str = "
    update notification n set state = 'failed', reason = f.reason
    from (select $1::text as account_id, f.* from unnest($2::text[], $3::text[]) as f (id, reason) offset 0) f
    where n.account_id = any (array[f.account_id]) and n.id = f.id";

/// What the session's expired items did.
#[derive(Debug, Default)]
pub struct Expired {
    pub items: Vec<ExpiredItem>,
    /// Nothing waits any more.
    pub is_empty: bool,
}

/// Fails the items that were accepted longer ago than `age`, at most so many.
pub async fn items_expire(
    tx: &Tx,
    session: &LockedSession,
    age: Duration,
    items_max: i64,
) -> Result<Expired, StorageError> {
    let of_session = || [Value::from(&session.account), session.id.into()];
    let values = of_session()
        .into_iter()
        .chain([age.as_secs_f64().into(), items_max.into()]);
    let mut items: Vec<ExpiredItem> = tx.rows("find overdue items", ITEMS_OVERDUE, values).await?;
    if items.is_empty() {
        return Ok(Expired::default());
    }
    for item in &mut items {
        item.reason = item.because(session);
    }
    let values = [
        (&session.account).into(),
        column(&items, |item| item.id.clone()),
        column(&items, |item| item.reason.clone()),
    ];
    tx.execute("fail overdue items", ITEMS_EXPIRE, values).await?;
    let count = i32::try_from(items.len()).expect("a page of items");
    let left = session.facts.queued - count;
    // A session without items rests; a turn in progress ends by itself.
    let rests = session.facts.state().on(SessionEvent::Emptied).ok();
    let rests = rests.filter(|_| left <= 0 && session.active_turn.is_none());
    let phase = rests.map(|state| state.phase);
    let values = of_session().into_iter().chain([count.into(), phase.into()]);
    tx.execute("count expired items", QUEUE_EDITED, values).await?;
    Ok(Expired {
        items,
        is_empty: rests.is_some(),
    })
}

impl ExpiredItem {
    fn because(&self, session: &LockedSession) -> String {
        let since = |at: OffsetDateTime| Timestamp::from(at.replace_nanosecond(0).expect("0 is in range"));
        match (session.gate, self.gated_since) {
            (Some(gate), Some(gated)) => {
                format!("expired: waited for {gate} since {}", since(gated.max(self.created_at)))
            }
            (Some(_) | None, _) => format!("expired: waited for its turn since {}", since(self.created_at)),
        }
    }
}
