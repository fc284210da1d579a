//! Authentication and authorization.
//!
//! [`guard`] stands in front of every route. It authenticates the caller (else 401), checks that the account in the path is the
//! caller's (else the same 404 as for a missing account), and checks that the caller's role permits the route (else 403). A route's
//! need is declared with the route ([`crate::route`]); the permissions of a key's holder are one
//! function, [`may`](crate::permission::may).

pub mod caller;
pub mod guard;

pub use caller::{Access, Caller, OperatorAccess, Party, PersonAccess};
