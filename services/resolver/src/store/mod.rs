//! Every query of this service: transaction first, account always, one statement per kind for a whole batch. Rows and
//! constants only; decisions are made elsewhere.
//!
//! Array parameters hold no NULLs (the driver cannot bind them): an empty text, the nil UUID or zero stand for "none",
//! and the statement turns them into NULL. None of them is a valid value of its column.

pub mod facts;
pub mod partitions;
