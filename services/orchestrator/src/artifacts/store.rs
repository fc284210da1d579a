//! Every query on artifacts. `storage::lifecycle` stores them, since agents do too.

use api::artifacts::Artifact;
use domain::{AccountId, ArtifactId};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

/// Relies on artifact_of_task.
pub const LIST: Listing = Listing {
    rows:
        "select account_id, id, task_id, name, media_type, bytes, encode(sha256, 'hex') as sha256, source, source_ref,
            created_by_kind, created_by_id, created_by_name, created_by_via, created_at
        from artifact where account_id = $1 and task_id = $2",
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(name) + coalesce(octet_length(source_ref), 0)",
    names: (
        ", k.display_id as task",
        "join task k on k.account_id = page.account_id and k.id = page.task_id",
    ),
};

/// Relies on the primary keys.
const FIND: &str = "
    select a.id, k.display_id as task, a.name, a.media_type, a.bytes, encode(a.sha256, 'hex') as sha256, a.source, a.source_ref,
           a.created_by_kind, a.created_by_id, a.created_by_name, a.created_by_via, a.created_at
    from artifact a join task k on k.account_id = a.account_id and k.id = a.task_id
    where a.account_id = $1 and a.id = $2";

pub async fn artifact_find(tx: &Tx, account: &AccountId, id: ArtifactId) -> Result<Option<Artifact>, StorageError> {
    tx.one("find artifact", FIND, [account.into(), id.into()]).await
}
