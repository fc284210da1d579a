//! Takes mail that waits in a session's queue, whose lock the caller holds: for the turn in progress, which waits for its tools and whose
//! items they become, as read where none is, or for a person, who reads it in the agent's place. Without items, a session that has no turn
//! rests, so that no sweep looks at it again; behind a gate, the item that is first now is looked at.

use domain::{NotificationId, TurnId};
use sea_orm::FromQueryResult;

use super::{SessionName, sessions_lock::queue_revision};
use crate::{StorageError, Tx};

#[derive(FromQueryResult)]
struct Waiting {
    id: String,
}

/// Relies on notification_queue, whose order is requested.
pub const MAIL_WAITING: &str = "
    select n.id from (
        select n.id, n.kind from notification n where n.account_id = $1 and n.session_id = $2 and n.state = 'queued'
        order by n.position limit $3) n
    where n.kind = 'mail'";

/// The ids of the items of mail among the first ones of the queue, in its order.
pub async fn mail_waiting(
    tx: &Tx,
    (account, session): &SessionName,
    looked_at: i64,
) -> Result<Vec<String>, StorageError> {
    let values = [account.into(), (*session).into(), looked_at.into()];
    let rows: Vec<Waiting> = tx.rows("find mail that waits", MAIL_WAITING, values).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// Takes the items `taken` off the session's counts. `$of`: whether the session rests unless it has a turn; `$also`: what else changes.
macro_rules! uncounted {
    ($of:literal, $also:literal) => {
        concat!(
            "uncounted as (
        update session s set queued = s.queued - t.taken, phase = case when t.empties then 'idle' else s.phase end,
            wake_at = case when t.empties then null when t.looks then now() else s.wake_at end,
            gate = case when t.empties then null else s.gate end, gate_ref = case when t.empties then null else s.gate_ref end,
            gated_since = case when t.empties then null else s.gated_since end, gate_looks = case when t.empties then 0 else s.gate_looks end",
            $also,
            "
        from (
            select k.taken, f.rests and f.queued <= k.taken as empties, f.rests and coalesce(f.gate <> 'stopped', false) as looks
            from (select count(*)::integer as taken from taken) k,
                 (select o.queued, o.gate, ",
            $of,
            " and o.active_turn_id is null as rests from session o
                  where o.account_id = $1 and o.id = $2 offset 0) f) t
        where s.account_id = $1 and s.id = $2 and t.taken > 0"
        )
    };
}

/// Relies on primary keys. The state is compared in a form without selectivity statistics.
pub const MAIL_TAKE: &str = concat!(
    "
    with taken as (
        update notification n set state = case when $4::uuid is null then 'delivered' else 'running' end, turn_id = $4,
            reason = case when $4::uuid is null then 'read over HTTP' end
        from (select $1 as account_id, id from unnest($3::text[]) as w (id) offset 0) w
        where n.account_id = any (array[w.account_id]) and n.id = w.id and n.session_id = $2 and coalesce(n.state = 'queued', false)
        returning n.id, n.hops
    ), ",
    uncounted!("$4::uuid is null", ""),
    "
    ), joined as (
        update turn t set notification_ids = t.notification_ids || (select coalesce(array_agg(k.id), '{}') from taken k),
            hops = greatest(t.hops, (select max(k.hops) from taken k))
        where t.account_id = $1 and t.id = $4
    )
    select id from taken"
);

/// Gives the ids of the items that were taken. `turn`: it waits for its tools.
pub async fn mail_take(
    tx: &Tx,
    (account, session): &SessionName,
    items: Vec<String>,
    turn: Option<TurnId>,
) -> Result<Vec<String>, StorageError> {
    let values = [account.into(), (*session).into(), items.into(), turn.into()];
    let rows: Vec<Waiting> = tx.rows("take mail", MAIL_TAKE, values).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// Relies on primary keys. The state is compared as above. The queue's revision changes: whoever orders it knows other items.
pub const MAIL_CANCEL: &str = concat!(
    "
    with taken as (
        update notification n set state = 'cancelled', reason = $4
        from (select $1 as account_id, id from unnest($3::text[]) as w (id) offset 0) w
        where n.account_id = any (array[w.account_id]) and n.id = w.id and n.session_id = $2 and coalesce(n.state = 'queued', false)
        returning n.id
    ), ",
    uncounted!("true", ", queue_edits = s.queue_edits + 1"),
    "
        returning s.queue_tail, s.turn_count, s.queue_edits
    )
    select k.id, u.queue_tail, u.turn_count, u.queue_edits from taken k cross join uncounted u"
);

#[derive(FromQueryResult)]
struct CancelledRow {
    id: NotificationId,
    queue_tail: i64,
    turn_count: i64,
    queue_edits: i64,
}

/// Ends the items as cancelled. Gives the ids of those that waited, and the revision of the queue from now on; none: none of them waited.
pub async fn mail_cancel(
    tx: &Tx,
    (account, session): &SessionName,
    items: Vec<String>,
    reason: &str,
) -> Result<Option<(Vec<NotificationId>, String)>, StorageError> {
    let values = [account.into(), (*session).into(), items.into(), reason.into()];
    let rows: Vec<CancelledRow> = tx.rows("cancel items of mail", MAIL_CANCEL, values).await?;
    let revision = rows
        .first()
        .map(|row| queue_revision(row.queue_tail, row.turn_count, row.queue_edits));
    let taken = rows.into_iter().map(|row| row.id).collect();
    Ok(revision.map(|revision| (taken, revision)))
}
