//! Consumers of the orchestrator.
//!
//! | subject | durable | handler |
//! |---|---|---|
//! | `{root}.event.*.*.turn.finished` | `orchestrator_turn_finished` | [`turn_finished`] |

pub mod ended_turns;
pub mod turn_finished;
