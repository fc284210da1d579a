//! Takes mail that waits in a session's queue, whose lock the caller holds: for the turn in progress, which waits for its tools and whose
//! items they become, or as read where none is. Without items, a session that has no turn rests, so that no sweep looks at it again; behind a
//! gate, the item that is first now is looked at.

use domain::TurnId;
use sea_orm::FromQueryResult;

use super::SessionName;
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

/// Relies on primary keys. The state is compared in a form without selectivity statistics.
pub const MAIL_TAKE: &str = "
    with taken as (
        update notification n set state = case when $4::uuid is null then 'delivered' else 'running' end, turn_id = $4,
            reason = case when $4::uuid is null then 'read over HTTP' end
        from (select $1 as account_id, id from unnest($3::text[]) as w (id) offset 0) w
        where n.account_id = any (array[w.account_id]) and n.id = w.id and n.session_id = $2 and coalesce(n.state = 'queued', false)
        returning n.id, n.hops
    ), uncounted as (
        update session s set queued = s.queued - t.taken, phase = case when t.empties then 'idle' else s.phase end,
            wake_at = case when t.empties then null when t.looks then now() else s.wake_at end,
            gate = case when t.empties then null else s.gate end, gate_ref = case when t.empties then null else s.gate_ref end,
            gated_since = case when t.empties then null else s.gated_since end, gate_looks = case when t.empties then 0 else s.gate_looks end
        from (
            select k.taken, f.rests and f.queued <= k.taken as empties, f.rests and coalesce(f.gate <> 'stopped', false) as looks
            from (select count(*)::integer as taken from taken) k,
                 (select o.queued, o.gate, $4::uuid is null and o.active_turn_id is null as rests from session o
                  where o.account_id = $1 and o.id = $2 offset 0) f) t
        where s.account_id = $1 and s.id = $2 and t.taken > 0
    ), joined as (
        update turn t set notification_ids = t.notification_ids || (select coalesce(array_agg(k.id), '{}') from taken k),
            hops = greatest(t.hops, (select max(k.hops) from taken k))
        where t.account_id = $1 and t.id = $4
    )
    select id from taken";

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
