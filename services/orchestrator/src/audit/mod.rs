//! The audit of isolation: whether every byte of every prompt is known, from rows, to be of its own task. [`judge`] and [`input`]
//! decide, pure: each part of a prompt has one [`verdict`]. [`store`] reads a page of turns with the rows that their parts name.
//!
//! Who reads which parts of a prompt, and which words are whose, is decided when the prompt is built; the audit trusts none of that. It
//! takes the manifest as a claim, holds the sizes and hashes against the stored texts, looks each source up, and renders the source
//! again. What it cannot prove is written down in ADR 75.

pub mod http;
mod input;
pub mod judge;
mod place;
pub mod store;
pub mod verdict;
