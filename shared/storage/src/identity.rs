//! What the prompts of orchestrators say of them. It is not kept by a generation, which may last for months: the next turn has a change.

use domain::{
    AccountId, Handle, Owner, Reachable, SessionOf, Style, UserId,
    identity::{GuestText, IdentityText},
};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx, statement::column};

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
    reachable: Reachable,
    guest: Option<UserId>,
}

/// Relies on primary keys.
pub const IDENTITIES_READ: &str = "
    select i.account_id, i.user_id, m.name as person, i.name, i.handle, i.style, i.instructions, i.revision, i.reachable,
           nullif(w.guest, '') as guest
    from unnest($1::text[], $2::text[], $3::text[]) as w (account_id, owner, guest)
    join orchestrator_identity i on i.account_id = any (array[w.account_id]) and i.owner = w.owner
    left join member m on m.account_id = any (array[w.account_id]) and m.user_id = i.user_id";

/// An orchestrator, within its account, and whom it answers instead of its person.
pub type OrchestratorName = (AccountId, Owner, Option<UserId>);

/// Of an orchestrator's session, or one of its guests. None: it is another one's.
pub fn orchestrator_name(account: &AccountId, of: &SessionOf) -> Option<OrchestratorName> {
    let (owner, guest) = match of {
        SessionOf::Orchestrator(owner) => (owner.clone(), None),
        SessionOf::Guest { owner, guest } => (Owner::User(owner.clone()), Some(guest.clone())),
        SessionOf::Task { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => return None,
    };
    Some((account.clone(), owner, guest))
}

/// Those that are not there are not in the answer. For none there is no statement.
pub async fn identities_read(
    tx: &Tx,
    names: &[OrchestratorName],
) -> Result<Vec<(OrchestratorName, IdentityText)>, StorageError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let key = |user: Option<&UserId>| user.map_or_else(String::new, ToString::to_string);
    let values = [
        column(names, |(account, ..)| account.clone()),
        column(names, |(_, owner, _)| key(owner.user())),
        column(names, |(.., guest)| key(guest.as_ref())),
    ];
    let rows: Vec<Row> = tx.rows("read identities", IDENTITIES_READ, values).await?;
    let read = rows.into_iter().map(|row| {
        let owner = Owner::from(row.user_id);
        let name = (row.account_id, owner.clone(), row.guest.clone());
        let reachable = row.reachable;
        let guest = row.guest.map(|user| GuestText { user, reachable });
        let text = IdentityText {
            owner,
            guest,
            person: row.person,
            name: row.name,
            handle: row.handle,
            style: row.style,
            instructions: row.instructions,
            revision: row.revision,
        };
        (name, text)
    });
    Ok(read.collect())
}

/// Relies on orchestrator_identity_handle.
const HANDLE: &str = "select 1 from orchestrator_identity where account_id = $1 and handle = $2";

/// Whether an orchestrator has the handle. The caller has locked the account.
pub async fn is_handle(tx: &Tx, account: &AccountId, handle: &str) -> Result<bool, StorageError> {
    tx.exists("find handle", HANDLE, [account.into(), handle.into()]).await
}
