//! A provider's answer, streamed word by word: cut into events, and each event's data parsed.

use divan::{Bencher, counter::BytesCount};
use serde_json::json;

/// Not public, since nobody but its service should use it; so its text is taken, tests included, which run there.
#[path = "../../../services/delivery/src/providers/sse.rs"]
#[allow(dead_code, unused_imports, reason = "only its splitter is measured here")]
mod sse;

/// As much as arrives at once.
const CHUNK_BYTES: usize = 1_400;

fn stream(words: usize) -> Vec<u8> {
    let event = |number| {
        let data = json!({"type": "response.output_text.delta", "sequence_number": number, "item_id": "msg_1",
            "output_index": 0, "content_index": 0, "delta": "word "});
        format!("event: response.output_text.delta\ndata: {data}\n\n")
    };
    (0..words).map(event).collect::<String>().into_bytes()
}

fn events(stream: &[u8]) -> Vec<sse::Event> {
    let mut splitter = sse::Splitter::new(1 << 20);
    let mut events = Vec::new();
    for chunk in stream.chunks(CHUNK_BYTES) {
        splitter.push(chunk, &mut events).expect("no event is too large");
    }
    events
}

#[divan::bench(args = [20, 1_000])]
fn split(bencher: Bencher, words: usize) {
    let stream = stream(words);
    assert_eq!(events(&stream).len(), words);
    bencher.counter(BytesCount::new(stream.len())).bench(|| events(&stream));
}

#[divan::bench(args = [20, 1_000])]
fn split_and_parse(bencher: Bencher, words: usize) {
    let stream = stream(words);
    bencher.counter(BytesCount::new(stream.len())).bench(|| {
        let events = events(&stream).into_iter();
        events
            .map(|event| contracts::json::read(event.data.as_bytes()).expect("JSON"))
            .collect::<Vec<_>>()
    });
}
