//! Event consumers of an account: their names are in the account's row, the consumers themselves on the broker.

pub mod http;
pub mod store;
