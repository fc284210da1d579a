//! Recovery: what is done about tasks that do not move on. `storage::recovery` writes the rows; here stalled tasks are found, their
//! agents are told, and people see to the rest.

pub mod http;
pub mod store;
pub mod sweep;
