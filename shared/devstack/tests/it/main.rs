//! The private servers as their users see them: real programs, own directories, no remains.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml exempts test functions, and these are their helpers"
)]

mod demo_agent;
mod nats;
mod processes;
mod shared_postgres;
mod stack;
