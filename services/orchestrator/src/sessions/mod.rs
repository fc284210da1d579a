//! Sessions and their generations. The resolver opens them, delivery runs them; here they are read, stopped and resumed.

pub mod http;
pub mod store;
