//! Sweeps: without input, safe to run twice and from every replica.

mod closed_sessions;
mod consumed_notifications;
mod refused_notifications;
mod unread_notifications;

use std::time::Duration;

use runtime::Context;
use tokio::time::MissedTickBehavior;
use tracing::warn;

pub use closed_sessions::closed_sessions_remove;
pub use consumed_notifications::consumed_notifications_purge;
pub use refused_notifications::refused_notifications_remove;
pub use unread_notifications::{unread_since, watch_unread};

use crate::config::Config;

/// Runs all, now and then.
pub async fn run(context: Context, config: Config) {
    let mut ticks = tokio::time::interval(config.sweep_interval_ms.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // A tick that is dropped was not begun.
            _ = ticks.tick() => {}
            () = context.shutdown.cancelled() => return,
        }
        let kept: Duration = config.closed_sessions_kept();
        let removed = closed_sessions_remove(&context.database, kept, config.sweep_sessions_max.get()).await;
        if let Err(error) = removed {
            let error = format!("{:#}", anyhow::Error::new(error));
            warn!(error, "could not remove closed sessions");
        }
        let removed =
            refused_notifications_remove(&context.database, config.refused_kept(), config.sweep_refused_max.get())
                .await;
        if let Err(error) = removed {
            let error = format!("{:#}", anyhow::Error::new(error));
            warn!(error, "could not remove refused notifications");
        }
        let purged = consumed_notifications_purge(&context.database, &context.bus, config.consumed_messages_kept).await;
        if let Err(error) = purged {
            warn!(error = format!("{error:#}"), "could not purge consumed notifications");
        }
    }
}
