//! A session's log: what its agent got and did, over all generations that are kept, in segments that begin where the agent's memory
//! does. [`segments`] decides where, pure; [`page`] puts a page together, by the queries in [`store`]. [`earlier`] reads what the contexts of
//! its turns are rendered from again.

pub mod earlier;
pub mod http;
mod page;
mod segments;
pub mod store;
