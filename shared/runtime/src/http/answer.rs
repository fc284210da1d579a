//! The body of an answer that is an account's: with it goes the account's place, until the client has taken the last of
//! it or has left.
//!
//! A body is one piece of memory. hyper lets go of it once it has put it into its buffer, which is not yet sent: so it is
//! given out in small copies, and what hyper holds that is not counted here is no more than one of them.

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

/// Given out at one time.
const PIECE_BYTES: usize = 64 * 1024;

/// How many bytes a body holds, or may: an answer's is there, a request's has at least the server's limit.
pub(super) fn bytes_of(body: &Body) -> usize {
    let upper = body.size_hint().upper().unwrap_or(u64::MAX);
    usize::try_from(upper).unwrap_or(usize::MAX)
}

/// The answer, which keeps the place until it is gone.
pub(super) fn held(mut response: Response, place: UnderWay) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        // The pieces have a length together; the router would not see it.
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
    /// Of the last frame, what is still to be given out.
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
        // A copy: a part of the whole would keep all of it in memory.
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
