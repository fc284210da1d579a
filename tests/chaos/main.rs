//! The fault campaign: real processes, real servers, and everything that can go wrong with them, from one seed. It runs,
//! lets things calm down, and has a checker decide by what was written down whether anything was lost, done twice or
//! shown to the wrong eyes. Where a decision of the services is wrong is not found here but in their own tests and in the
//! simulation; this finds what only whole processes do.

#![allow(
    dead_code,
    reason = "the campaign is being put together; what is not used in the end goes"
)]

mod records;

fn main() {}
