//! Closes the sessions of a person's orchestrator, when the person is removed: what waits is cancelled, and nothing that it began comes
//! back to it. Those of its guests close also when others are not to ask it any more.

use domain::{AccountId, Actor, CloseReason, Owner, UserId};

use super::question::{self, Ending, questions_end_of};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        Closing,
        sessions_close::{MEMBER_REMOVED, Scope, close},
    },
    timer::{self, timers_clear},
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
    let mut messages = closed.messages;
    let owner = Owner::User(user.clone());
    let system = Actor::system();
    let withdrawn = Ending::Withdrawn {
        by: &system,
        reason: Some(MEMBER_REMOVED),
        is_asker: true,
    };
    let asked = question::Scope::Orchestrator(&owner);
    messages.extend(questions_end_of(tx, account, asked, &withdrawn, setting).await?);
    let timers = timer::Scope::Orchestrator(&owner);
    messages.extend(timers_clear(tx, account, timers, MEMBER_REMOVED, setting).await?);
    Ok(messages)
}

/// The caller holds the owner's row, as above.
pub async fn guests_close(
    tx: &Tx,
    account: &AccountId,
    owner: &UserId,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let closing = (Closing::Ended, None);
    let scope = Scope::Guests(owner);
    let closed = close(tx, account, scope, CloseReason::Unreachable, closing, setting).await?;
    Ok(closed.messages)
}
