//! Caches versions of personas: a version never changes, and every turn of a session has the same one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
        let mut names: Vec<PersonaName> = asked.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        // Another batch may clear the cache while this one reads.
        let mut found: HashMap<PersonaName, Arc<PersonaText>> = {
            let kept = self.kept();
            let with_text = |name: &PersonaName| Some((name.clone(), Arc::clone(kept.get(name)?)));
            names.iter().filter_map(with_text).collect()
        };
        names.retain(|name| !found.contains_key(name));
        let read = personas_read(tx, &names).await?;
        let read: Vec<_> = read.into_iter().map(|(name, text)| (name, Arc::new(text))).collect();
        found.extend(read.iter().cloned());
        for (name, item) in asked {
            item.persona = found.get(&name).cloned();
        }
        let mut kept = self.kept();
        if kept.len() + read.len() > KEPT_MAX {
            kept.clear();
        }
        kept.extend(read);
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<PersonaName, Arc<PersonaText>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
