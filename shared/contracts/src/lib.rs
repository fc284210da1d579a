//! Every message on the wire: its subject, its headers, its payload, and the JSON Schemas generated from them. Other
//! programs rely on these names; a name is only ever replaced by adding a new one beside it.
//!
//! [`message`] has the table of all messages. The payloads: [`notification`] ([`content`]: when two are the same) →
//! [`session`] → [`tool`] → [`event`], with [`dead`] for dead letters and [`live`] for text as it is generated;
//! [`tools`] defines the tools of agents. [`subject`] and [`header`] are the envelope, [`addressed`] compares a payload
//! with it, [`json`] limits JSON from publishers, [`quote`] quotes their texts for a model, [`outgoing`] is a message
//! to be published. No I/O; row types and domain types are defined elsewhere and converted at the edge.

pub mod addressed;
pub mod content;
pub mod dead;
pub mod event;
pub mod header;
pub mod json;
pub mod live;
pub mod message;
pub mod notification;
pub mod outgoing;
pub mod quote;
pub mod session;
pub mod storable;
pub mod subject;
pub mod tool;
pub mod tools;

pub use domain::Timestamp;
pub use header::{Headers, TraceContext};
pub use message::{Stream, User};
pub use outgoing::Outgoing;
pub use subject::{Root, SubjectError, TaskToken};
