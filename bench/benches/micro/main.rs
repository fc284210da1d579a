//! What is hot in the CPU, one by one: building a prompt, signing and checking messages, cutting a provider's stream into
//! events, and the decisions. What a whole notification costs is what `make bench` measures.
//!
//! `make bench-micro`

mod decisions;
mod envelope;
mod event_stream;
mod prompt;

fn main() {
    divan::main();
}
