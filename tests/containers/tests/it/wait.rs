//! Waiting for a condition with a limit: what tests do instead of sleeping.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// Far longer than anything here takes, so that only what never happens fails.
const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

/// Asks until the answer is `Some`; panics with `what` when the limit is over.
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
