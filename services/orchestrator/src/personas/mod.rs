//! Personas: files that say how an agent is to be. Every change of the files is a version.

pub mod http;
pub mod store;
