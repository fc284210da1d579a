//! The process that a service runs in. What a service does is its own business; here is what every one of them needs.
//!
//! In reading order: [`settings`] (what the operator wants), [`telemetry`] (what the operator sees), [`shutdown`]
//! (workers, and how they end), [`crash`] (where tests cut them off), [`http`] (a server, problems, health pages), [`outbox`] (committed messages get
//! published), [`dead`] (messages that cannot be processed), [`replica`] (the name that leases are held in),
//! [`gauges`] (what has to be asked for to be seen), [`sweep`] (what comes with the clock), [`shares`] (what one account may have
//! waiting),
//! `patience` (a start waits for its servers), [`context`] (all of it, connected), [`mod@run`] (a whole process of one
//! service).
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

pub use context::{Context, StartError};
pub use dead::DeadLetters;
pub use outbox::Outbox;
pub use replica::{EndsWith, Incarnation, Peers, Replica};
pub use run::run;
pub use settings::{Settings, SettingsError};
pub use shares::Shares;
pub use shutdown::Shutdown;
