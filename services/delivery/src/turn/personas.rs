//! Caches versions of personas: a version never changes, and every turn of a session has the same one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use domain::PersonaText;
use storage::{
    StorageError, Tx,
    persona::{PersonaName, personas_read},
    session::sessions_lock::LockedSession,
};

use crate::store::context::QueuedItem;

/// Maximum number of cached versions, each of 64 KiB at most. The cache is cleared when it is full.
const KEPT_MAX: usize = 256;

#[derive(Debug, Default)]
pub struct Personas(Mutex<HashMap<PersonaName, Arc<PersonaText>>>);

impl Personas {
    /// Gives each item the persona of its session. Without a session that has a persona, or with cached ones, there is no statement.
    pub async fn give<'a>(
        &self,
        tx: &Tx,
        items: impl Iterator<Item = (&'a LockedSession, &'a mut QueuedItem)>,
    ) -> Result<(), StorageError> {
        let named = |(session, item): (&LockedSession, &'a mut QueuedItem)| {
            let persona = session.persona?;
            Some(((session.account.clone(), persona), item))
        };
        let asked: Vec<(PersonaName, &mut QueuedItem)> = items.filter_map(named).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut missing: Vec<PersonaName> = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let names = asked.iter().map(|(name, _)| name);
            names.filter(|name| !kept.contains_key(*name)).cloned().collect()
        };
        missing.sort();
        missing.dedup();
        let read = personas_read(tx, &missing).await?;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() + read.len() > KEPT_MAX {
            kept.retain(|name, _| asked.iter().any(|(asked, _)| asked == name));
        }
        kept.extend(read.into_iter().map(|(name, text)| (name, Arc::new(text))));
        for (name, item) in asked {
            item.persona = kept.get(&name).cloned();
        }
        Ok(())
    }
}
