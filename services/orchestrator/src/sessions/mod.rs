//! Sessions and their generations. The resolver opens them, delivery runs them; they are read here.

pub mod http;
pub mod store;
