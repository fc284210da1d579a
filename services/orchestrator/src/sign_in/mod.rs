//! Signing in by a one-time link, which gives the person a key of their own.

pub mod http;
pub mod page;
