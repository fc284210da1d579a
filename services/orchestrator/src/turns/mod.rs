//! Turns: prompt, tool calls, reply, cost. Delivery and the tool-gateway write them; they are read here. [`sent`] says which texts a
//! model got.

pub mod http;
pub mod sent;
pub mod store;
