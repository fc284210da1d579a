//! Dead letters: what could not be processed, why, and sending it again. Written by every service, in the transaction
//! that gives a message up; read and redriven here. What belongs to no account is the operator's.

pub mod http;
pub mod redrive;
pub mod store;
