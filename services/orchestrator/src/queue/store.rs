//! Every query on queues. The verb `storage::session::queue_edit` changes them.

use api::queue::Item;
use domain::{
    AccountId, Actor, NotificationId, NotificationState, SessionId, Timestamp, TurnId,
    next::{ItemNow, SessionNow, item_next},
    queue::{Editable, Editor},
};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, session::sessions_lock::queue_revision};

use crate::paging::{Column, Listing, Order};

/// A longer text is cut.
const SHOWN_BYTES_MAX: usize = 2_048;

/// The columns of [`ItemRow`] but its place.
macro_rules! columns {
    () => {
        "account_id, session_id, position, id, queue_mode, sender_kind, sender_id, sender_name, sender_via, kind, title,
         left(body, 2049) as body, revision, created_at, state, turn_id"
    };
}

/// Relies on notification_queue.
pub const LIST: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from notification where account_id = $1 and session_id = $2 and state = 'queued'"
    ),
    order: &[("position", Column::BigInt)],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(body) + octet_length(title)",
    names: ("", ""),
};

/// Relies on notification_queue.
pub const BEFORE: &str = "
    select count(*) as items from notification n
    where n.account_id = $1 and n.session_id = $2 and n.state = 'queued' and n.position <= $3";

/// Relies on the primary key, and on notification_queue for its place.
pub const ITEM: &str = concat!(
    "select ",
    columns!(),
    ", (select count(*) from notification q where q.account_id = n.account_id and q.session_id = n.session_id and q.state = 'queued'
        and q.position <= n.position and n.state = 'queued') as place
     from notification n where n.account_id = $1 and n.id = $2 and n.session_id = $3"
);

/// Relies on the primary keys.
pub const RUNNING: &str = concat!(
    "select ",
    columns!(),
    ", 0::bigint as place
     from (select t.account_id as of_account, i.id as item, i.number from turn t
           cross join unnest(t.notification_ids) with ordinality as i (id, number)
           where t.account_id = $1 and t.id = $2 offset 0) i
     cross join lateral (
         select * from notification n where n.account_id = i.of_account and n.id = i.item and n.state = 'running' offset 0) n
     order by i.number"
);

/// Relies on the primary key.
pub const FIND: &str = "
    select s.queue_tail, s.turn_count, s.queue_edits, s.phase, s.active_turn_id as active_turn,
           coalesce(s.stop_turn_id = s.active_turn_id, false) as stopping, s.gate, s.gate_ref, s.gated_since, s.wake_at,
           coalesce(s.wake_at <= now(), false) as due
    from session s where s.account_id = $1 and s.id = $2";

/// A notification of a session.
#[derive(Debug, FromQueryResult)]
pub struct ItemRow {
    id: NotificationId,
    queue_mode: String,
    #[sea_orm(nested(prefix = "sender_"))]
    author: Actor,
    kind: String,
    title: Option<String>,
    /// At most a character more than is shown.
    body: String,
    revision: i32,
    created_at: Timestamp,
    state: NotificationState,
    turn_id: Option<TurnId>,
    /// Among those that were read.
    place: i64,
}

/// A session's queue, without its items.
#[derive(Debug, FromQueryResult)]
pub struct QueueRow {
    queue_tail: i64,
    turn_count: i64,
    queue_edits: i64,
    #[sea_orm(nested)]
    pub now: SessionNow,
}

impl QueueRow {
    pub fn revision(&self) -> String {
        queue_revision(self.queue_tail, self.turn_count, self.queue_edits)
    }
}

impl ItemRow {
    /// As the caller sees it; `before`: items before the ones that were read.
    pub fn shown(self, before: i64, session: &SessionNow, caller: &Editor<'_>) -> Item {
        let waits = self.state == NotificationState::Queued;
        let place = Some(before + self.place).filter(|_| waits);
        let editable = caller.may_replace(&Editable {
            state: self.state,
            kind: &self.kind,
            author: &self.author,
            revision: self.revision,
        });
        let now = ItemNow {
            state: self.state,
            turn: self.turn_id,
            created_at: self.created_at,
            place: place.and_then(|place| u64::try_from(place).ok()),
        };
        let end = self.body.floor_char_boundary(SHOWN_BYTES_MAX);
        Item {
            id: self.id.to_string(),
            place,
            queue_mode: self.queue_mode,
            author: self.author,
            r#type: self.kind,
            title: self.title,
            body: self.body[..end].to_owned(),
            body_cut: end < self.body.len(),
            revision: self.revision,
            created_at: self.created_at,
            editable,
            why: item_next(&now, Some(session)).map(Into::into),
        }
    }
}

pub async fn queue_find(tx: &Tx, account: &AccountId, session: SessionId) -> Result<Option<QueueRow>, StorageError> {
    tx.one("find queue", FIND, [account.into(), session.into()]).await
}

pub async fn item_find(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    item: &NotificationId,
) -> Result<Option<ItemRow>, StorageError> {
    let values = [account.into(), item.into(), session.into()];
    tx.one("find item", ITEM, values).await
}

/// The items of a turn in progress.
pub async fn items_running(tx: &Tx, account: &AccountId, turn: TurnId) -> Result<Vec<ItemRow>, StorageError> {
    tx.rows("read the items of a turn", RUNNING, [account.into(), turn.into()])
        .await
}

#[derive(FromQueryResult)]
struct Counted {
    items: i64,
}

/// How many items wait at this position and before.
pub async fn items_before(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    position: i64,
) -> Result<i64, StorageError> {
    let values = [account.into(), session.into(), position.into()];
    let counted: Option<Counted> = tx.one("count items", BEFORE, values).await?;
    Ok(counted.map_or(0, |counted| counted.items))
}
