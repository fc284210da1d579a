//! Tests of storage against a real Postgres, one binary.

mod cancelled_begin;
mod lifecycle;
mod walls;
