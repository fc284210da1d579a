//! The bus against a real nats-server, one for each test.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]

mod connect;
mod consumer;
mod notifications;
mod partition;
mod publish;
mod support;
mod topology;
