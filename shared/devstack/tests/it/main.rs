//! The private servers as their users see them: real programs, own directories, nothing left behind.

mod nats;
mod processes;
mod shared_postgres;
mod stack;
