//! The patience of a start: what a process needs of Postgres and NATS before it can work is tried again, with growing
//! pauses, until it is there, or cannot be, or the start's time is over (`process.dependencies_timeout_ms`). The time is
//! one for the whole start. Each failure is a line in the log; the last one is why the process ends.
//!
//! Not for what happens later: a process that is up waits for its servers as long as it lives.

use domain::{Backoff, error_chain};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::StartError;

pub(crate) const POSTGRES: &str = "Postgres";
pub(crate) const NATS: &str = "NATS";

/// Before the second try; doubled from one to the next.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a try that takes long says so.
const WAITING_LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Instant,
    limit: Duration,
}

impl Patience {
    /// From now on.
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience {
            deadline: Instant::now() + limit,
            limit,
        }
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Tries until it is done. A try ends by limits of its own, which are those of the settings: one that migrates a
    /// large table is not cut off.
    pub(crate) async fn until_done<T, F>(
        &self,
        what: &'static str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, StartError>
    where
        F: Future<Output = Result<T, StartError>>,
    {
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
        loop {
            let error = match saying_so(what, attempt()).await {
                Err(error) if error.is_retryable() => error,
                ended => return ended,
            };
            let pause = backoff.pause();
            if self.left() <= pause {
                return Err(StartError::GaveUp {
                    what,
                    waited_s: self.limit.as_secs(),
                    source: Box::new(error),
                });
            }
            let error = error_chain(&error);
            warn!(error, "{what} cannot be used yet; trying again");
            sleep(pause).await;
        }
    }
}

/// Waits for a dependency, with one line a second that says for which.
pub(crate) async fn saying_so<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut lines = interval(WAITING_LINE_EVERY);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    lines.tick().await;
    loop {
        tokio::select! {
            // Pinned outside and polled again: a line drops nothing.
            done = &mut work => return done,
            _ = lines.tick() => info!("waiting for {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use storage::StorageError;

    use super::*;

    fn away() -> StartError {
        let source = sqlx::Error::PoolTimedOut;
        StorageError::Connect { source }.into()
    }

    async fn tries(limit: Duration, answer: impl Fn(u32) -> Result<u32, StartError>) -> (u32, Result<u32, String>) {
        let mut tries = 0;
        let patience = Patience::new(limit);
        let ended = patience.until_done(POSTGRES, || {
            tries += 1;
            std::future::ready(answer(tries))
        });
        let ended = ended.await.map_err(|error| error_chain(&error));
        (tries, ended)
    }

    #[tokio::test]
    async fn tries_again_what_may_pass() {
        let ended = tries(Duration::from_secs(60), |n| if n < 3 { Err(away()) } else { Ok(n) }).await;
        assert_eq!(ended, (3, Ok(3)));
    }

    #[tokio::test]
    async fn ends_at_once_what_will_not_pass() {
        let faults = "a hole".to_owned();
        let ended = tries(Duration::from_secs(60), |_| {
            Err(StartError::Unfit { faults: faults.clone() })
        })
        .await;
        assert_eq!(ended, (1, Err("the database is not fit for use: a hole".to_owned())));
    }

    #[tokio::test]
    async fn gives_up_when_the_time_is_over_and_says_why() {
        let (tries, ended) = tries(Duration::from_millis(150), |_| Err(away())).await;
        let line = ended.unwrap_err();
        assert!(
            line.starts_with("Postgres could not be used within 0 s: cannot connect to the database: "),
            "{line}"
        );
        assert_eq!(tries, 2);
    }
}
