//! Every query on tool policies. `storage::tool_policy` changes them.

use api::policies::ToolPolicy;
use domain::{AccountId, ToolPolicyId};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, scope_kind, scope_id, tool, visible, verdict, audience, schema_hash is not null as of_schema, revision, by_kind, by_id,
            by_name, null::text as by_via, created_at, updated_at ",
            $after
        )
    };
}

/// Ids grow in the order of creation. Relies on the primary key.
pub const LIST: Listing = Listing {
    rows: columns!("select account_id,", "from tool_policy where account_id = $1"),
    order: &[("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::text is null or scope_kind = $2) and ($3::text is null or scope_id = $3) and ($4::text is null or tool = $4)",
    ),
    bytes: "octet_length(scope_id) + octet_length(tool) + octet_length(by_name) + coalesce(octet_length(audience::text), 0)",
    names: ("", ""),
};

const FIND: &str = columns!("select", "from tool_policy where account_id = $1 and id = $2");

pub async fn policy_find(tx: &Tx, account: &AccountId, id: ToolPolicyId) -> Result<Option<ToolPolicy>, StorageError> {
    tx.one("find tool policy", FIND, [account.into(), id.into()]).await
}
