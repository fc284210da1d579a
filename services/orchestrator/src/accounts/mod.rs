//! Accounts: the tenants and their pipeline settings (S6, S14). The operator creates them.

pub mod http;
pub mod store;
