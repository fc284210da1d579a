//! Signing messages between services, and verifying signatures.

use contracts::{Headers, header};
use divan::{Bencher, counter::BytesCount};
use messaging::Keyring;

const SUBJECT: &str = "signalbox.event.acme.PROJ-7.turn.finished";

fn keyring() -> Keyring {
    Keyring::new([("bench", [7; 32])], "bench").expect("the key that signs is in the ring")
}

fn headers() -> Headers {
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, "0190a7c2-7f0e-7000-8000-000000000001");
    headers.set(header::CAUSE, "n-1");
    headers.set(header::HOPS, "0");
    headers.set(
        header::TRACEPARENT,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    headers
}

#[divan::bench(args = [256, 1_024, 16_384])]
fn sign(bencher: Bencher, bytes: usize) {
    let (keyring, headers, payload) = (keyring(), headers(), vec![b'p'; bytes]);
    bencher
        .counter(BytesCount::new(bytes))
        .bench(|| keyring.sign(SUBJECT, &headers, &payload));
}

#[divan::bench(args = [256, 1_024, 16_384])]
fn verify(bencher: Bencher, bytes: usize) {
    let (keyring, mut headers, payload) = (keyring(), headers(), vec![b'p'; bytes]);
    let signature = keyring.sign(SUBJECT, &headers, &payload).expect("a key");
    headers.set(header::SIGNATURE, signature);
    keyring
        .verify(SUBJECT, &headers, &payload)
        .expect("a fresh signature is valid");
    bencher
        .counter(BytesCount::new(bytes))
        .bench(|| keyring.verify(SUBJECT, &headers, &payload));
}
