//! Sweeps: without input, safe to run twice and from every replica.

mod closed_sessions;
mod consumed_notifications;
mod refused_notifications;
mod unread_notifications;

use runtime::{
    Context,
    sweep::{Sweep, Ticks},
};
use storage::Role;

pub use closed_sessions::closed_sessions_remove;
pub use consumed_notifications::{consumed_notifications_purge, keep_room};
pub use refused_notifications::refused_notifications_remove;
pub use unread_notifications::{unread_since, watch_unread};

use crate::settings::ResolverSettings;

/// Runs all sweeps at their intervals.
pub async fn run(context: Context, config: ResolverSettings) {
    let [closed, refused, consumed] = ["closed_sessions", "refused_notifications", "consumed_notifications"]
        .map(|name| Sweep::new(Role::Resolver.service(), name));
    let (database, stop) = (&context.database, context.shutdown.token());
    let mut ticks = Ticks::every(config.sweep_interval_ms.duration(), stop.clone());
    while ticks.next().await {
        let (kept, sessions_max) = (config.closed_sessions_days.duration(), config.sweep_sessions_max.get());
        closed
            .once(closed_sessions_remove(database, kept, sessions_max, &stop))
            .await;
        let (kept, refused_max) = (config.refused_days.duration(), config.sweep_refused_max.get());
        refused
            .once(refused_notifications_remove(database, kept, refused_max, &stop))
            .await;
        let kept = config.consumed_messages_kept.get();
        consumed
            .once(consumed_notifications_purge(database, &context.bus, kept))
            .await;
    }
}
