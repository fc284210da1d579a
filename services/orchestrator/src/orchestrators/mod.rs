//! Identities of orchestrators: how they are called, how they speak, and who may ask them. A person has one from the first; the
//! account has one that is off until an admin enables it.

pub mod chat;
pub mod http;
pub mod store;
