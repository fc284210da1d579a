//! Who is asking, and what they may do.
//!
//! [`guard`] stands in front of every route: it finds out who the caller is (else 401), whether the account in the path
//! is theirs (else the same 404 as for an account that is not there), and whether their role may do what the route does
//! (else 403). What a route needs is declared with it ([`crate::route`]), and what a role may do is one function,
//! [`permits`](crate::permission::permits).

pub mod caller;
pub mod guard;

pub use caller::{Access, Caller, OperatorAccess, Party};
