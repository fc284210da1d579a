//! Waits for a condition with a limit; tests do not sleep.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// Far longer than any step takes, so that only a missing event fails.
const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

/// Polls until the answer is `Some`; panics with `what` after the limit.
pub(crate) async fn eventually<T, F, Fut>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "did not happen within {LIMIT:?}: {what}");
        sleep(POLL).await;
    }
}
