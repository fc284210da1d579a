//! A person's inbox (O12): the mail to them, which they read, answer, archive and put off.

pub mod http;
