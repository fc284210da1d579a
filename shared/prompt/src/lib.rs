//! The texts that a model gets: `instructions` (policy and profile, resent every turn), the entries of an assembled context,
//! `input` (the notification and what is new in its task's thread), and the [`manifest`] of their parts and sources. Pure: the
//! same facts give the same bytes, with marks derived from the turn and a secret ([`Marks`]), or read from a recorded text. The
//! one renderer of all of them: delivery writes prompts by it, and an audit renders a part's source again and compares the hash.
//! The profile's hash is stored with every turn. Golden files pin the texts (tests/it/golden.rs).
//!
//! Instructions are layered in a fixed order, and earlier layers win: policy, the persona's SAFETY.md, coordinator block, an
//! orchestrator's blocks, a subagent's block, role, the persona's other files, and last the task's context. Repository notes will come before that.

mod answered;
pub mod entry;
mod input;
mod instructions;
pub mod manifest;
mod marks;
mod note;
mod text;
pub mod told;

pub use answered::{NOT_RECORDED, RESULT_MISSING, arguments_too_large};
pub use entry::{
    CalledTool, Item, Past, PastLimits, PastTurn, entries_left_out, entry_input_cut, entry_reply_cut, past,
    past_and_base, spawning,
};
pub use input::{
    Extract, Further, InputFacts, MailFacts, OverviewEntry, Stopped, Subagent, THREAD_COUNTED_MAX, TaskFacts,
    ThreadMessage, at_work, briefing, description, input, interruption, is_thread_heading, notification, overview,
    run_headings, run_item, stopped, task_state, tells_of_interruption, tells_of_stopped, tells_who_stopped,
    thread_message,
};
pub use instructions::{
    FilledIn, InstructionFacts, KnownContext, PROFILE_VERSION, Profile, ToolNames, filled_in, identity_block,
    identity_source, instructions, persona_block, persona_source, persona_sources, role_block, task_context,
};
pub use manifest::Manifest;
pub use marks::{LABEL as MARKS_LABEL, MarkSecret, Marks};
pub use note::{Injected, note, note_parts};
pub use text::ModelText;
