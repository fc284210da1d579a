//! Every message on the wire: its subject, its headers, its payload, and the JSON Schemas written from them. Outside
//! programs rely on these names to the letter; a name changes only by a new one beside it.
//!
//! [`message`] has the table of all. The payloads: [`notification`] ([`content`]: what counts as the same one) → [`session`] → [`tool`] → [`event`], with [`dead`] for what went nowhere and
//! [`live`] for text as it is generated; [`tools`] says what agents may call. [`subject`] and [`header`] are the
//! envelope, [`addressed`] holds a payload against it, [`json`] bounds what strangers put into it, [`quote`] is how it
//! stands in a text for a model, [`outgoing`] is a message on its way to the broker. No I/O; row types and domain types live elsewhere and are converted at the edge.

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
pub mod timestamp;
pub mod tool;
pub mod tools;

pub use header::{Headers, TraceContext};
pub use message::{Stream, User};
pub use outgoing::Outgoing;
pub use subject::{Root, SubjectError, TaskToken};
pub use timestamp::Timestamp;
