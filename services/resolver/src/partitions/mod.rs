//! Who reads which partition of the notification stream, and the reading.
//!
//! NATS promises no exclusivity, so a partition is leased in Postgres: a row with an owner (a live replica) and a fence
//! that grows with every claim. The [`keeper`] takes this replica's [`share`] of the partitions and gives up what is
//! above it. A [`reading`] of a partition goes on from the place in the row, and every batch moves the place in its own
//! transaction, guarded by the fence: a reader that was replaced moves nothing and writes nothing.

pub mod keeper;
pub mod reading;
pub mod share;
