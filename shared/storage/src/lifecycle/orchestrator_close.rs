//! Closes the session of a person's orchestrator, when the person is removed: what waits is cancelled, and nothing that it began comes
//! back to it.

use domain::{AccountId, CloseReason, UserId};

use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        Closing,
        sessions_close::{Scope, close},
    },
};

/// The caller holds the person's row, so that no session opens for them meanwhile. Gives the messages for the outbox.
pub async fn orchestrator_close(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let closing = (Closing::Ended, None);
    let closed = close(
        tx,
        account,
        Scope::User(user),
        CloseReason::MemberRemoved,
        closing,
        setting,
    )
    .await?;
    Ok(closed.messages)
}
