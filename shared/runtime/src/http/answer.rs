//! The body of a response to an account. The request's place in the account's limits is released when the client has
//! taken the whole body or has left.
//!
//! A body is one piece of memory. hyper releases a body once it is in hyper's buffer, which is not yet sent. So the
//! body is handed out in small copies, and hyper holds at most one uncounted copy.

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderValue, header},
    response::Response,
};
use futures::{StreamExt, TryStreamExt, stream};

/// The size of a copy.
const PIECE_BYTES: usize = 64 * 1024;

/// How many bytes a body has or may have: a response has its bytes in memory, a request has at most the server's limit.
pub(super) fn bytes_of(body: &Body) -> usize {
    let upper = body.size_hint().upper().unwrap_or(u64::MAX);
    usize::try_from(upper).unwrap_or(usize::MAX)
}

/// The response, which keeps `place` until its body is gone.
pub(super) fn held(mut response: Response, place: impl Send + 'static) -> Response {
    if response.body().is_end_stream() {
        return response;
    }
    if let Some(length) = response.body().size_hint().exact() {
        // The pieces have a known total length; the router would not see it.
        response
            .headers_mut()
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    response.map(|body| {
        let pieces = body.into_data_stream();
        let pieces = pieces.map_ok(|data| stream::iter(pieces_of(data)).map(Ok::<_, axum::Error>));
        Body::from_stream(pieces.try_flatten().inspect(move |_| {
            // Moved into the stream, which is dropped with the body.
            let _ = &place;
        }))
    })
}

fn pieces_of(mut rest: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || match rest.len() {
        0 => None,
        // A copy: a slice would keep the whole body in memory.
        length => Some(Bytes::copy_from_slice(&rest.split_to(length.min(PIECE_BYTES)))),
    })
}
