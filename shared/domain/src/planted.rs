//! Bugs on purpose: each breaks one promise at the one place that keeps it, so that it can be seen that the fault
//! campaign would find it (`tests/chaos/planted.rs`). A checker that has never found anything is not worth much.
//!
//! What this is not: a switch of production. Without the feature `planted-bugs`, which nothing but tests enables, there
//! is no bug to choose and [`is_planted`] is a constant. With it, a process has the bugs that the variable [`VARIABLE`]
//! names when the process starts, or none.

use crate::word::words;

/// Names the bugs of this process, with commas between.
pub const VARIABLE: &str = "SIGNALBOX_PLANTED";

words! {
    Bug {
        /// The resolver does not look whether an id was accepted before.
        DedupSkipped = "dedup_skipped",
        /// The place in the stream moves before the batch is committed.
        PlaceFirst = "place_first",
        /// Messages are acknowledged before they are handled.
        AckFirst = "ack_first",
        /// An outcome is recorded whoever holds the lease by now.
        FenceDropped = "fence_dropped",
        /// Whether a lease has ended is told by the process's own clock, which is a little ahead.
        LocalClock = "local_clock",
        /// A dead process keeps its leases.
        LeaseEternal = "lease_eternal",
        /// What follows from an outcome is published before the outcome is committed.
        PublishFirst = "publish_first",
        /// New work takes a closed generation up again.
        GenerationReused = "generation_reused",
        /// A tool call that arrives again is another call.
        OnceKeyDropped = "once_key_dropped",
        /// A tool call whose outcome is not known is run again, as another call.
        UnknownRetried = "unknown_retried",
        /// A tool call does not wait for the ones before it in its answer.
        CallsUnordered = "calls_unordered",
        /// The relay reads on behind the last message that it published.
        OutboxByPosition = "outbox_by_position",
        /// What waits in a session that closes stays there.
        QueueLost = "queue_lost",
        /// Transactions see all accounts, and one query names none.
        WallsDropped = "walls_dropped",
        /// A reply that is posted again is another message.
        ReplyTwice = "reply_twice",
        /// What a turn says after its session has closed is posted all the same.
        LatePosted = "late_posted",
        /// A task that its agent moves to done keeps its sessions.
        DoneKeepsSession = "done_keeps_session",
        /// The newest of what waits comes first.
        NewestFirst = "newest_first",
        /// The API takes no notice of idempotency keys.
        KeyIgnored = "key_ignored",
        /// The log says where the database is, with its password.
        SecretLogged = "secret_logged",
    }
}

/// Whether this process has the bug.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}

/// Whether this process has the bug.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    chosen().contains(&bug)
}

/// The bugs of this process.
#[cfg(not(feature = "planted-bugs"))]
pub const fn chosen() -> &'static [Bug] {
    &[]
}

/// The bugs of this process. A name that is none is a mistake of whoever started it.
#[cfg(feature = "planted-bugs")]
pub fn chosen() -> &'static [Bug] {
    static CHOSEN: std::sync::OnceLock<Vec<Bug>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let names = names.split(',').filter(|name| !name.is_empty());
        names
            .map(|name| Bug::parse(name).unwrap_or_else(|| panic!("{VARIABLE}: no bug is called {name}")))
            .collect()
    })
}
