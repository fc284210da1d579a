//! Whose words a turn is about.

use domain::{AccountId, TurnId, UserId};
use storage::{StorageError, Tx};

/// An item of the turn that another person, or another service than Signalbox, has written, or whose answer others read. Relies on primary
/// keys.
pub const TURN_FOREIGN: &str = "
    select 1 from (
        select t.account_id, unnest(t.notification_ids) as id from turn t where t.account_id = $1 and t.id = $2 offset 0) w
    left join notification n on n.account_id = any (array[w.account_id]) and n.id = w.id
    where case n.sender_kind when 'user' then n.sender_id <> $3 when 'service' then n.sender_id <> 'signalbox' when 'agent' then false else true end
       or coalesce(n.metadata #>> '{channel,surface}', 'private') <> 'private'
    limit 1";

/// Whether all that the turn is about is its person's own.
pub(crate) async fn turn_is_own(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    user: &UserId,
) -> Result<bool, StorageError> {
    let values = [account.into(), turn.into(), user.into()];
    Ok(!tx
        .exists("look whose words a turn is about", TURN_FOREIGN, values)
        .await?)
}
