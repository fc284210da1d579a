//! Typed ids, session keys, value types and state machines that more than one service needs. No I/O, no async, no clock.
