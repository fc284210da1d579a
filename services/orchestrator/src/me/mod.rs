//! What is a person's own: `/api/me`. The account is that of the key.

pub mod http;
