//! The process that a service runs in: what every service needs besides its own work.
//!
//! In reading order: [`settings`] (the operator's configuration), [`telemetry`] (logs, traces, metrics), [`shutdown`]
//! (workers and how they end), [`crash`] (crash points for tests), [`http`] (a server, problems, health pages),
//! [`outbox`] (publishes committed messages), [`dead`] (messages that cannot be processed), [`replica`] (the id under
//! which leases are held), [`gauges`] (polled metrics), [`sweep`] (periodic work), [`shares`] (limits on an account's
//! backlog), [`turns`] (a queue whose owners take turns), `patience` (a start waits for its servers), [`context`] (all of it, connected), [`mod@run`] (a whole
//! process of one service).
//!
//! The only shared crate that sees both storage and messaging.

mod bearer;
mod bury;
pub mod context;
pub mod crash;
pub mod dead;
pub mod egress;
pub mod gauges;
pub mod http;
pub mod outbox;
mod patience;
pub mod replica;
pub mod run;
pub mod settings;
pub mod shares;
pub mod shutdown;
pub mod sweep;
pub mod telemetry;
pub mod turns;

pub use context::{Context, StartError};
pub use dead::DeadLetters;
pub use outbox::Outbox;
pub use replica::{EndsWith, Incarnation, Peers, Replica};
pub use run::run;
pub use settings::{Settings, SettingsError};
pub use shares::Shares;
pub use shutdown::Shutdown;
