//! Sessions: which generations there are and were. Opened by the resolver, run by delivery, read here.

pub mod http;
pub mod store;
