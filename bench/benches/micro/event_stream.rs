//! A provider's streamed answer: split into events, and each event's data parsed.

use divan::{Bencher, counter::BytesCount};
use serde_json::json;

/// The splitter is private to its service, so its source file is included here, with its tests, which also run here.
#[path = "../../../services/delivery/src/providers/sse.rs"]
#[allow(dead_code, unused_imports, reason = "only its splitter is measured here")]
mod sse;

/// Bytes of one network read.
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
