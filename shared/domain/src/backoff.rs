//! Growing pauses between attempts.

use std::time::Duration;

/// Each pause is twice the one before, up to a limit.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause.saturating_mul(2);
        pause
    }

    /// The pause after this many earlier ones.
    pub fn after(self, pauses: u32) -> Duration {
        self.next.saturating_mul(2u32.saturating_pow(pauses)).min(self.max)
    }
}
