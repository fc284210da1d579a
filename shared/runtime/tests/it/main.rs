//! The parts of a process that need a real Postgres and a real broker.

mod context;
mod dead;
mod outbox;
mod replica;
mod unread;
mod world;
