//! Keys that were valid at their last lookup. This cache admits no request: every request's key is looked up again. It
//! decides which limit a request counts against before that.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use domain::ApiKey;

/// The number of slots; 8 bytes each. A key that another one evicts counts as unknown again.
const KEYS_MAX: usize = 65_536;

/// A slot for each hash with a secret seed, so that a client cannot choose which key to evict.
#[derive(Debug)]
pub(super) struct KnownKeys {
    places: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for KnownKeys {
    fn default() -> KnownKeys {
        KnownKeys {
            places: (0..KEYS_MAX).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl KnownKeys {
    fn place(&self, key: &ApiKey) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key.expose());
        let at = usize::try_from(hash % KEYS_MAX as u64).expect("below a usize");
        (&self.places[at], hash)
    }

    pub(super) fn holds(&self, key: &ApiKey) -> bool {
        let (place, hash) = self.place(key);
        place.load(Ordering::Relaxed) == hash
    }

    pub(super) fn note(&self, key: &ApiKey) {
        let (place, hash) = self.place(key);
        place.store(hash, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, key: &ApiKey) {
        let (place, hash) = self.place(key);
        // A slot that another key has taken stays.
        let _ = place.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
