//! Sweeps: without input, safe to run twice and from every replica.

mod closed_sessions;
mod consumed_notifications;
mod refused_notifications;
mod unread_notifications;

use runtime::{Context, sweep::Sweep};
use storage::Role;
use tokio::time::MissedTickBehavior;

pub use closed_sessions::closed_sessions_remove;
pub use consumed_notifications::{consumed_notifications_purge, keep_room};
pub use refused_notifications::refused_notifications_remove;
pub use unread_notifications::{unread_since, watch_unread};

use crate::settings::ResolverSettings;

/// Runs all, now and then.
pub async fn run(context: Context, config: ResolverSettings) {
    let mut ticks = tokio::time::interval(config.sweep_interval_ms.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let [closed, refused, consumed] = ["closed_sessions", "refused_notifications", "consumed_notifications"]
        .map(|name| Sweep::new(Role::Resolver.service(), name));
    loop {
        tokio::select! {
            // A tick that is dropped was not begun.
            _ = ticks.tick() => {}
            () = context.shutdown.cancelled() => return,
        }
        let (database, stop) = (&context.database, context.shutdown.token());
        let sessions_max = config.sweep_sessions_max.get();
        closed
            .once(closed_sessions_remove(
                database,
                config.closed_sessions_days.duration(),
                sessions_max,
                &stop,
            ))
            .await;
        let refused_max = config.sweep_refused_max.get();
        refused
            .once(refused_notifications_remove(
                database,
                config.refused_days.duration(),
                refused_max,
                &stop,
            ))
            .await;
        consumed
            .once(consumed_notifications_purge(
                database,
                &context.bus,
                config.consumed_messages_kept.get(),
            ))
            .await;
    }
}
