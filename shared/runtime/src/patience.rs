//! Retries a start until its dependencies answer. A step that needs Postgres or NATS is retried with growing pauses,
//! until it succeeds, fails for good, or the start's time is over (`process.dependencies_timeout_ms`). The time is one
//! for the whole start. Each failure is logged; the last one is the reason why the process ends.
//!
//! Only for the start: a running process waits for its servers without a limit.

use domain::{Backoff, error_chain};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::StartError;

pub(crate) const POSTGRES: &str = "Postgres";
pub(crate) const NATS: &str = "NATS";

/// The pause before the second attempt; doubled after each attempt.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a long attempt is logged.
const WAITING_LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Instant,
    limit: Duration,
}

impl Patience {
    /// The limit counts from now on.
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience {
            deadline: Instant::now() + limit,
            limit,
        }
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Retries until it succeeds. An attempt ends by its own limits, which are those of the settings: a migration of a
    /// large table is not aborted.
    pub(crate) async fn until_done<T>(
        &self,
        what: &'static str,
        mut attempt: impl AsyncFnMut() -> Result<T, StartError>,
    ) -> Result<T, StartError> {
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
        loop {
            let error = match log_while_waiting(what, attempt()).await {
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
            warn!(error, "{what} is not available yet; will retry");
            sleep(pause).await;
        }
    }
}

/// Waits for a dependency, and logs which one every second.
pub(crate) async fn log_while_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut lines = interval(WAITING_LINE_EVERY);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    lines.tick().await;
    loop {
        tokio::select! {
            // Pinned outside and polled again: a log line drops nothing.
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
    async fn retries_a_retryable_error() {
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
            line.starts_with("Postgres was not available within 0 s: cannot connect to the database: "),
            "{line}"
        );
        assert_eq!(tries, 2);
    }
}
