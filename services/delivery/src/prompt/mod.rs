//! Builds a prompt: `instructions` (policy and profile, resent every turn), `input` (the notification and a short
//! extract of the thread), and the manifest of their parts and sources. Pure: the same facts give the same bytes, with
//! marks derived from the turn and a secret ([`Marks`]). The profile's hash is stored with every turn. Golden files pin
//! the texts (tests/it/prompt.rs). [`Profiles`] caches instructions.
//!
//! Instructions are layered in a fixed order, and earlier layers win: policy, safety, coordinator block, role. Persona,
//! repository notes and task context will follow in that order.

mod input;
mod instructions;
mod marks;
mod note;
mod profiles;
mod text;

pub use input::{
    Further, InputFacts, OverviewEntry, Stopped, THREAD_COUNTED_MAX, TaskFacts, ThreadExtract, ThreadMessage, input,
    tells_of_interruption,
};
pub use instructions::{InstructionFacts, PROFILE_VERSION, Profile, ToolNames, instructions};
pub use marks::{LABEL as MARKS_LABEL, MarkSecret, Marks};
pub use note::{Injected, note};
pub use profiles::Profiles;
