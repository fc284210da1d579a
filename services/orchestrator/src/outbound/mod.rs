//! What people are told outside of Signalbox: by e-mail. Rows are written with what they are about (`storage::lifecycle::announce`, and
//! [`store::sign_in_insert`] for sign-in links) and sent from here, at least once.
//!
//! In reading order: [`schedule`] (when a failed attempt is followed by another one), [`text`] (what an e-mail says), [`smtp`] (the mail
//! server), [`store`] (every query), [`compose`] (from a row to an e-mail), [`sender`] (who sends what is due).

pub mod compose;
pub mod schedule;
pub mod sender;
pub mod smtp;
pub mod store;
pub mod text;
