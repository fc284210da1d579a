//! The difference between two turns: per layer of what their models got, and in where it came from. Pure; [`http`] reads both.

pub mod http;
pub mod layers;
