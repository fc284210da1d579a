//! Whose words the account's orchestrator works on, and who is known by a name from outside.

use domain::{AccountId, Email, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

#[derive(Debug, FromQueryResult)]
pub(crate) struct SenderRow {
    pub kind: String,
    pub name: String,
}

/// Relies on the primary key.
pub const ITEM_SENDER: &str = "
    select n.sender_kind as kind, n.sender_name as name from notification n where n.account_id = $1 and n.id = $2";

/// Who wrote an item.
pub(crate) async fn item_sender(tx: &Tx, account: &AccountId, item: &str) -> Result<Option<SenderRow>, StorageError> {
    tx.one("read sender of item", ITEM_SENDER, [account.into(), item.into()])
        .await
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct MemberRow {
    pub user_id: UserId,
    /// Of the person's orchestrator.
    pub handle: Option<String>,
}

/// Relies on member_email and orchestrator_identity_pkey.
pub const MEMBER_BY_ADDRESS: &str = "
    select m.user_id, (
        select i.handle from orchestrator_identity i where i.account_id = m.account_id and i.owner = m.user_id offset 0) as handle
    from member m where m.account_id = $1 and m.email = $2 and m.removed_at is null";

/// The person of the account who has this address.
pub(crate) async fn member_by_address(
    tx: &Tx,
    account: &AccountId,
    address: &Email,
) -> Result<Option<MemberRow>, StorageError> {
    let values = [account.into(), address.as_str().into()];
    tx.one("find person by address", MEMBER_BY_ADDRESS, values).await
}
