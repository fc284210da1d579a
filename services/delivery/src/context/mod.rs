//! Where the context of a new turn comes from: [`plan`] names its one source and its thread, [`extract`] chooses what is new in
//! the task's thread, [`past`] converts the entries of an assembled prompt, [`rotate`] says when a generation is over. Pure; the rows are read by `store/past.rs` and
//! `store/context.rs`.

pub mod extract;
pub mod past;
pub mod plan;
pub mod rotate;
