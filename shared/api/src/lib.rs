//! The bodies of the HTTP API, one file a noun: what a request asks and what is answered. The orchestrator reads and writes
//! them, clients write and read them, and the OpenAPI document is made of them.
//!
//! - A type says all that is enforced of a field before the database is asked: [`text`] for texts, `domain` for ids and words.
//!   So the document cannot differ from what is enforced.
//! - In requests, null is as good as absent, unless the field says what null means. Unknown fields are refused.
//! - Answers are rows, as a statement fills them. A word of an answer is a text, so that a client reads the words of a newer
//!   server. A field that is added gets `#[serde(default)]`, so that a client reads the answers of an older one.

pub mod accounts;
pub mod activities;
pub mod agents;
pub mod dead_letters;
pub mod keys;
pub mod list;
pub mod messages;
pub mod notifications;
pub mod problem;
pub mod sessions;
pub mod tasks;
pub mod text;
pub mod turns;

pub use list::Items;
pub use problem::Problem;
pub use text::Text;
