//! The process: settings, telemetry, shutdown, health, outbox relay.

pub mod http;
pub mod settings;
pub mod shutdown;
pub mod telemetry;

pub use settings::{Settings, SettingsError};
pub use shutdown::Shutdown;
