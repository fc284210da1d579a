//! A turn, from the call that is due to the record of how it went.
//!
//! Between provider calls the turn is in Postgres: its input, and a [`journal`] of what the provider asked for. So any
//! replica carries it on. [`claim`] takes sessions and gives [`work`]; [`resume`] says what is due (pure), [`call`]
//! makes the provider call, [`settle`] says what its outcome means (pure), and [`recorder`] writes that, many turns at
//! once.

pub mod call;
pub mod claim;
pub mod journal;
pub mod recorder;
pub mod resume;
pub mod settle;
pub mod work;
