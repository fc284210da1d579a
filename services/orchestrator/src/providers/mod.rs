//! Providers: which of them take no calls at the moment. Delivery keeps their breakers; here they are read, and tried at once.

pub mod http;
pub mod store;
