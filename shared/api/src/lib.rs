//! The bodies of the HTTP API, one file a noun: requests and responses. The orchestrator reads and writes them, clients
//! write and read them, and the OpenAPI document is generated from them.
//!
//! - A type declares every check on a field that needs no database: [`text`] for texts, [`number`] for numbers,
//!   `domain` for ids and words. So the document cannot differ from the checks.
//! - In requests, null counts as absent, unless the field's documentation says otherwise. Unknown fields are refused.
//! - Responses are rows, as a statement returns them. A word in a response is a text, so that a client can read the
//!   words of a newer server. A new field gets `#[serde(default)]`, so that a client can read the responses of an older
//!   one.

pub mod accounts;
pub mod activities;
pub mod agents;
pub mod artifacts;
pub mod audit;
pub mod branches;
pub mod contexts;
pub mod dead_letters;
pub mod diff;
pub mod directory;
pub mod event_consumers;
pub mod holds;
pub mod keys;
pub mod list;
pub mod log;
pub mod mail;
pub mod members;
pub mod memories;
pub mod messages;
pub mod models;
pub mod next;
pub mod notifications;
pub mod number;
pub mod orchestrators;
pub mod personas;
pub mod policies;
pub mod preferences;
pub mod problem;
pub mod providers;
pub mod questions;
pub mod queue;
pub mod recoveries;
pub mod replays;
pub mod sessions;
pub mod stages;
pub mod tasks;
pub mod text;
pub mod timers;
pub mod turns;

pub use list::Items;
pub use problem::Problem;
pub use text::Text;
