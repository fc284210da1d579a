//! The process: settings, telemetry, shutdown, health, outbox relay.

pub mod settings;

pub use settings::{Settings, SettingsError};
