//! Micro-benchmarks of the CPU's hot paths: building a prompt, signing and verifying messages, splitting a provider's stream, and
//! the decisions. `make bench` measures the cost of a whole notification.
//!
//! `make bench-micro`

mod decisions;
mod envelope;
mod event_stream;
mod prompt;

fn main() {
    divan::main();
}
