//! The files of personas, by version: a version never changes.

use domain::{AccountId, PersonaFiles, PersonaSlug, PersonaText, PersonaVersionId};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx, statement::column};

#[derive(FromQueryResult)]
struct Row {
    account_id: AccountId,
    id: PersonaVersionId,
    slug: PersonaSlug,
    number: i32,
    files: serde_json::Value,
}

/// Relies on the primary key.
pub const PERSONAS_READ: &str = "
    select v.account_id, v.id, v.slug, v.number, v.files from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    join persona_version v on v.account_id = any (array[w.account_id]) and v.id = w.id";

pub type PersonaName = (AccountId, PersonaVersionId);

/// Versions that are not there are not in the answer, nor are any that cannot be read: they stop nothing else. For none there is no
/// statement.
pub async fn personas_read(tx: &Tx, names: &[PersonaName]) -> Result<Vec<(PersonaName, PersonaText)>, StorageError> {
    const ATTEMPT: &str = "read personas";
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let values = [
        column(names, |(account, _)| account.clone()),
        column(names, |(_, id)| *id),
    ];
    let rows: Vec<Row> = tx.rows(ATTEMPT, PERSONAS_READ, values).await?;
    let read = |row: Row| {
        let files = PersonaFiles::stored(row.files).inspect_err(|error| {
            tracing::error!(account = %row.account_id, version = %row.id, %error, "a persona's files cannot be read: its sessions begin no turns");
        });
        let text = PersonaText {
            id: row.id,
            slug: row.slug,
            number: row.number,
            files: files.ok()?,
        };
        Some(((row.account_id, row.id), text))
    };
    Ok(rows.into_iter().filter_map(read).collect())
}
