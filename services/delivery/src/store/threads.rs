//! Caches the extracts of threads in the prompts of this process: a message never changes, so a claim reads only the
//! bodies that the session's last prompt did not have.

use std::{collections::HashMap, sync::Arc};

use domain::MessageId;
use quick_cache::{Weighter, sync::Cache};

use super::SessionName;
use crate::prompt::{ThreadExtract, ThreadMessage};

/// Of all cached messages, about.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The cache grows beyond this number.
const SESSIONS_EXPECTED: usize = 1_024;

#[derive(Clone)]
struct Bytes;

impl Weighter<SessionName, ThreadExtract> for Bytes {
    fn weight(&self, _: &SessionName, extract: &ThreadExtract) -> u64 {
        const FIXED: usize = 256;
        let bytes = extract
            .iter()
            .map(|message| FIXED + message.body.len() + message.author.name.len());
        (FIXED + bytes.sum::<usize>()) as u64
    }
}

pub struct Threads(Cache<SessionName, ThreadExtract, Bytes>);

impl Default for Threads {
    fn default() -> Threads {
        Threads(Cache::with_weighter(SESSIONS_EXPECTED, BYTES_MAX, Bytes))
    }
}

impl Threads {
    /// The cached extracts of these sessions.
    pub fn known(&self, names: &[SessionName]) -> HashMap<SessionName, ThreadExtract> {
        let known = names.iter().map(|name| Some((name.clone(), self.0.get(name)?)));
        known.flatten().collect()
    }

    /// The messages `ids`, each of which is in the cached extract or was read.
    pub fn extract(
        ids: impl Iterator<Item = MessageId>,
        known: Option<&ThreadExtract>,
        read: Vec<ThreadMessage>,
    ) -> ThreadExtract {
        let known = known.into_iter().flat_map(|extract| extract.iter().cloned());
        let mut messages: HashMap<MessageId, Arc<ThreadMessage>> = known
            .chain(read.into_iter().map(Arc::new))
            .map(|message| (message.id, message))
            .collect();
        ids.filter_map(|id| messages.remove(&id)).collect()
    }

    /// Of committed transactions only: a reply that was rolled back may be posted with another text under the same id.
    pub fn keep(&self, extracts: impl IntoIterator<Item = (SessionName, ThreadExtract)>) {
        for (name, extract) in extracts {
            self.0.insert(name, extract);
        }
    }
}
