//! Gives the items of orchestrators what their prompts say of them, as it is now.

use std::collections::HashMap;

use domain::{SessionKey, SessionKind};
use storage::{
    StorageError, Tx,
    identity::{OrchestratorName, identities_read, orchestrator_name},
    session::sessions_lock::LockedSession,
};

use crate::store::context::QueuedItem;

/// Without an orchestrator's session there is no statement.
pub(super) async fn identities_give<'a>(
    tx: &Tx,
    items: impl Iterator<Item = (&'a LockedSession, &'a mut QueuedItem)>,
) -> Result<(), StorageError> {
    let named = items.filter(|(session, _)| matches!(session.kind, SessionKind::Orchestrator | SessionKind::Guest));
    let named = named.filter_map(|(session, item)| {
        let key = SessionKey::parse(&session.key).ok()?;
        Some((orchestrator_name(&session.account, &key.of)?, item))
    });
    let asked: Vec<(OrchestratorName, &mut QueuedItem)> = named.collect();
    let names: Vec<OrchestratorName> = asked.iter().map(|(name, _)| name.clone()).collect();
    let mut read: HashMap<_, _> = identities_read(tx, &names).await?.into_iter().collect();
    for (name, item) in asked {
        item.identity = read.remove(&name);
    }
    Ok(())
}
