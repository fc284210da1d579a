//! Runs an agent's turns: queue, lease, prompt, provider call, journal.
pub mod providers;
