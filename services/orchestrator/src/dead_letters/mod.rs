//! Dead letters: messages that could not be processed, with the reason, and their redrive. Every service writes them, in the
//! transaction that drops the message; they are read and redriven here. The operator owns dead letters without an account.

pub mod http;
pub mod redrive;
pub mod store;
