//! What the prompts of orchestrators say of them. It is not kept by a generation, which may last for months: the next turn has a change.

use domain::{AccountId, Handle, Owner, Style, UserId, identity::IdentityText};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx, statement::pairs};

#[derive(FromQueryResult)]
struct Row {
    account_id: AccountId,
    user_id: Option<UserId>,
    person: Option<String>,
    name: String,
    handle: Handle,
    style: Style,
    instructions: String,
    revision: i32,
}

/// Relies on primary keys.
pub const IDENTITIES_READ: &str = "
    select i.account_id, i.user_id, m.name as person, i.name, i.handle, i.style, i.instructions, i.revision
    from unnest($1::text[], $2::text[]) as w (account_id, owner)
    join orchestrator_identity i on i.account_id = any (array[w.account_id]) and i.owner = w.owner
    left join member m on m.account_id = any (array[w.account_id]) and m.user_id = i.user_id";

/// An orchestrator, within its account.
pub type OrchestratorName = (AccountId, Owner);

/// Those that are not there are not in the answer. For none there is no statement.
pub async fn identities_read(
    tx: &Tx,
    names: &[OrchestratorName],
) -> Result<Vec<(OrchestratorName, IdentityText)>, StorageError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let key = |owner: &Owner| owner.user().map_or_else(String::new, ToString::to_string);
    let names: Vec<(AccountId, String)> = names
        .iter()
        .map(|(account, owner)| (account.clone(), key(owner)))
        .collect();
    let (accounts, owners) = pairs(&names);
    let rows: Vec<Row> = tx
        .rows("read identities", IDENTITIES_READ, [accounts.into(), owners.into()])
        .await?;
    let read = rows.into_iter().map(|row| {
        let owner = Owner::from(row.user_id);
        let text = IdentityText {
            owner: owner.clone(),
            person: row.person,
            name: row.name,
            handle: row.handle,
            style: row.style,
            instructions: row.instructions,
            revision: row.revision,
        };
        ((row.account_id, owner), text)
    });
    Ok(read.collect())
}

/// Relies on orchestrator_identity_handle.
const HANDLE: &str = "select 1 from orchestrator_identity where account_id = $1 and handle = $2";

/// Whether an orchestrator has the handle. The caller has locked the account.
pub async fn is_handle(tx: &Tx, account: &AccountId, handle: &str) -> Result<bool, StorageError> {
    tx.exists("find handle", HANDLE, [account.into(), handle.into()]).await
}
