//! The process: settings, telemetry, shutdown, health, outbox relay.
