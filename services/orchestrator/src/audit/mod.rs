//! The audit of isolation: whether every byte of every prompt is known, from rows, to be of its own task. [`judge`] decides, pure: each
//! part of a prompt has one [`verdict`], by a rule of its layer. [`store`] reads a page of turns with the rows that their parts name.
//!
//! Which words go into a prompt is decided when it is built; the audit trusts none of that. It takes the manifest as a claim, holds sizes
//! and hashes against the stored texts, looks each source up, and renders it again. What it cannot prove stands in ADR 75.

mod branches;
pub mod http;
mod input;
mod instructions;
pub mod judge;
mod past;
mod results;
pub mod store;
mod thread;
pub mod verdict;

#[cfg(test)]
pub(crate) use judge::tests as judge_tests;
pub use judge::{Rendered, judge};
