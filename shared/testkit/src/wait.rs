//! Waits for a condition with a limit, instead of sleeping.

use std::{future::Future, time::Duration};

/// Far longer than any wait should take.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Polls until the answer is `Some`; panics with `what` after the limit.
pub async fn eventually<T, F, Fut>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "did not happen within {LIMIT:?}: {what}"
        );
        tokio::time::sleep(POLL).await;
    }
}
