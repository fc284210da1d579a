//! Accounts: the tenants, and their choices that change what the pipeline does (S6, S14). Made by the operator.

pub mod http;
pub mod store;
