//! Integration tests of this service, one binary.

mod providers;
