//! The body of a response to an account. The request's place in the account's limits is released when the client has
//! taken the whole body or has left.
//!
//! A body is one piece of memory. hyper releases a body once it is in hyper's buffer, which is not yet sent. So the
//! body is handed out in small copies, and hyper holds at most one uncounted copy.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderValue, header},
    response::Response,
};
use http_body::{Frame, SizeHint};

use super::account::UnderWay;

/// The size of a copy.
const PIECE_BYTES: usize = 64 * 1024;

/// How many bytes a body has or may have: a response has its bytes in memory, a request has at most the server's limit.
pub(super) fn bytes_of(body: &Body) -> usize {
    let upper = body.size_hint().upper().unwrap_or(u64::MAX);
    usize::try_from(upper).unwrap_or(usize::MAX)
}

/// The response, which keeps the request in progress until its body is gone.
pub(super) fn held(mut response: Response, place: UnderWay) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        // The pieces have a known total length; the router would not see it.
        response
            .headers_mut()
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    response.map(|inner| {
        Body::new(Held {
            inner,
            rest: Bytes::new(),
            _place: place,
        })
    })
}

struct Held {
    inner: Body,
    /// The rest of the last frame.
    rest: Bytes,
    _place: UnderWay,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.len() > PIECE_BYTES => self.rest = data,
                    Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        // A copy: a slice would keep the whole body in memory.
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.size_hint();
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        match inner.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => SizeHint::default(),
        }
    }
}
