//! The bus against a real nats-server, one for each test.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail tests and say why"
)]

mod authenticity;
mod backlog;
mod callout;
mod connect;
mod consumer;
mod notifications;
mod partition;
mod publish;
mod recorded;
mod support;
mod topology;
mod users;
