//! Every query of this service: transaction first, account always, one statement a kind for a whole batch. Rows and
//! constants only; what they mean is decided elsewhere.
//!
//! Arrays of a statement hold no NULLs (the driver cannot bind them): an empty text, the nil UUID or zero stand for
//! "none" and are turned into NULL by the statement. None of them is a value that the column can have.

pub mod facts;
pub mod partitions;
