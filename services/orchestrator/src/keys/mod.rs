//! API keys of an account. The form of a key and its digest are `domain::api_key`.

pub mod http;
pub mod store;
