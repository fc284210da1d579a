//! A turn, from the call that is due to the record of how it went.
//!
//! Between provider calls the turn is in Postgres: its input, and a [`journal`] of what the provider asked for. So any
//! replica carries it on. [`claim`] takes sessions; [`begin`] makes [`work`] of them, and [`resume`] says what is due of
//! a turn in progress (both pure); [`call`] makes the provider call. [`settle`] says what its outcome means and
//! [`change`] what that makes of the rows (both pure); [`recorder`] writes it, many turns at once. Both transactions
//! send [`messages`].

pub mod begin;
pub mod call;
pub mod change;
pub mod claim;
pub mod journal;
pub mod messages;
pub mod recorder;
pub mod resume;
pub mod settle;
pub mod work;
