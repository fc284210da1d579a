//! Members: the people of an account. A member's id never changes and is never another person's; a removed member's row stays.

pub mod http;
pub mod link;
pub mod store;
