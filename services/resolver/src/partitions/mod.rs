//! Leases and reads the partitions of the notification stream.
//!
//! NATS promises no exclusivity, so a partition is leased in Postgres: a row with an owner (a live replica) and a fence
//! that grows with every claim. The [`keeper`] claims this replica's [`share`] of the partitions and releases the rest.
//! A reader ([`reading`]) starts at the offset in the row. Every batch moves the offset in its own transaction, guarded
//! by the fence: a replaced reader writes nothing.

pub mod keeper;
pub mod reading;
pub mod share;
