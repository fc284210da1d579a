//! Agents: the named workers of an account. The id never changes and stands in every key; the slug may change (S11).

pub mod http;
pub mod store;

pub const PROVIDER_DEFAULT: &str = "default";
