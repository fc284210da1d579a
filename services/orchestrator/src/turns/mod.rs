//! Turns: prompt, tool calls, reply, cost. Delivery and the tool-gateway write them; they are read here.

pub mod http;
pub mod store;
