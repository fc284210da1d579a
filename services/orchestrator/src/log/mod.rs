//! A session's log: what its agent got and did, over all generations that are kept, in segments that begin where the agent's memory
//! does. [`segments`] decides where, pure; [`store`] reads a page.

pub mod http;
mod segments;
pub mod store;
