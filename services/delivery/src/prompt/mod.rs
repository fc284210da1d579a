//! What the model is sent: `instructions` (policy and profile, resent every turn), `input` (this notification and a
//! short extract of the thread), and the manifest that says what went in and from where. Pure: the same facts give the
//! same bytes, between marks that follow from the turn and a secret ([`Marks`]), and the profile's hash stands on every turn. Pinned by golden files (tests/it/prompt.rs). [`Profiles`] keeps
//! instructions that were made already.
//!
//! Instructions are layered in a fixed order, and earlier wins: policy, safety, coordinator block, role; persona,
//! repository notes and task context will follow in that order.

mod input;
mod instructions;
mod manifest;
mod marks;
mod profiles;
mod text;

pub use input::{InputFacts, Interruption, OverviewEntry, THREAD_COUNTED_MAX, TaskFacts, ThreadMessage, input};
pub use instructions::{InstructionFacts, PROFILE_VERSION, Profile, ToolNames, instructions};
pub use manifest::{Manifest, Part};
pub use marks::{LABEL as MARKS_LABEL, MarkSecret, Marks};
pub use profiles::Profiles;
