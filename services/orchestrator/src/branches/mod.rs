//! Branches: parts of a turn's work that other sessions do at the same time. Agents make them by a tool, and `storage::session` ends them;
//! here they are read, cancelled on request, and shown as a graph of who knew what.

pub mod graph;
pub mod http;
pub mod store;
