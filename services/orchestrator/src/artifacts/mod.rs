//! Artifacts: files of tasks. `storage::lifecycle::artifact_store` stores and removes them; here they are uploaded, listed and read.

pub mod http;
pub mod store;
