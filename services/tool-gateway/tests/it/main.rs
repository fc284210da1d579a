//! The tool-gateway against a real Postgres and a real broker, spoken to as delivery and agents speak to it: over the
//! bus and over HTTP. What it did is read from the database and from the bus.

mod capability;
mod effects;
mod history;
mod http;
mod late;
mod once;
mod world;
