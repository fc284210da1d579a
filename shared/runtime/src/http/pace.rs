//! Closes the connection of a client that takes its response or sends its body too slowly: it occupies a place, and
//! keeps the response or the body in memory. Headers have hyper's timer.
//!
//! A client is too slow if it falls behind a pace. Each second of waiting for the client adds a second of debt; each
//! second's worth of bytes that it takes or sends pays one back. So neither silence nor an occasional byte holds a
//! connection for long.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::settings::HttpSettings;

/// The minimum pace of responses and bodies, and how far a client may fall behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    debt_max: Duration,
}

impl Pace {
    pub(super) fn of(settings: &HttpSettings) -> Pace {
        Pace {
            bytes_per_second: settings.answer_bytes_per_second_min.get(),
            debt_max: settings.body_timeout_ms.duration(),
        }
    }

    /// The debt after waiting for so long for so many bytes; `None`: too much.
    fn owed(self, debt: Duration, waited: Duration, bytes: usize) -> Option<Duration> {
        let debt = debt.saturating_add(waited);
        let paid = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        (debt <= self.debt_max).then(|| debt.saturating_sub(paid))
    }
}

struct Debt {
    pace: Pace,
    owed: Duration,
    /// The start of the wait, and the time at which the debt is too large.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Debt {
    fn new(pace: Pace) -> Debt {
        Debt {
            pace,
            owed: Duration::ZERO,
            waiting: None,
        }
    }

    /// The polled result; `None` when the client has fallen behind too far.
    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Poll<Option<T>> {
        if let Poll::Ready(done) = polled {
            let waited = self.waiting.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
            let owed = self.pace.owed(self.owed, waited, bytes(&done));
            self.owed = owed.unwrap_or(self.pace.debt_max);
            return Poll::Ready(owed.map(|_| done));
        }
        let left = self.pace.debt_max.saturating_sub(self.owed);
        let (_, too_long) = self
            .waiting
            .get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        too_long.as_mut().poll(context).map(|()| None)
    }
}

/// A connection.
pub(super) struct Patience<S> {
    stream: S,
    debt: Debt,
}

impl<S> Patience<S> {
    pub(super) fn new(stream: S, pace: Pace) -> Patience<S> {
        Patience {
            stream,
            debt: Debt::new(pace),
        }
    }

    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        let within = self
            .debt
            .within(context, polled, |done| done.as_ref().map_or(0, &bytes));
        within.map(|done| {
            done.unwrap_or_else(|| {
                Err(given_up(
                    "the client took its answer more slowly than answer_bytes_per_second_min, for body_timeout_ms",
                ))
            })
        })
    }
}

fn given_up(why: &'static str) -> io::Error {
    super::refused("slow");
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// A request's body.
struct Paced {
    body: Body,
    debt: Debt,
}

pub(super) async fn paced(State(pace): State<Pace>, request: Request, next: Next) -> Response {
    let request = request.map(|body| {
        Body::new(Paced {
            body,
            debt: Debt::new(pace),
        })
    });
    next.run(request).await
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let within = self.debt.within(context, polled, |frame| match frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        });
        within
            .map(|frame| frame.unwrap_or_else(|| Some(Err(axum::Error::new(given_up("the body was sent too slowly"))))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patience<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patience<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, polled, |taken| *taken)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.within(context, polled, |taken| *taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.within(context, polled, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within(context, polled, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PACE: Pace = Pace {
        bytes_per_second: 100,
        debt_max: Duration::from_secs(10),
    };

    #[test]
    fn a_slow_client_owes_and_a_fast_one_pays_back() {
        let check = |debt: u64, waited: u64, bytes, owed: Option<u64>| {
            let found = PACE.owed(Duration::from_secs(debt), Duration::from_secs(waited), bytes);
            assert_eq!(found, owed.map(Duration::from_secs), "{debt} {waited} {bytes}");
        };
        check(0, 0, 0, Some(0));
        check(0, 0, 1_000, Some(0));
        check(0, 3, 0, Some(3));
        check(3, 3, 100, Some(5));
        check(3, 3, 10_000, Some(0));
        check(0, 10, 0, Some(10));
        check(0, 11, 0, None);
        check(9, 2, 1_000_000, None);
    }

    /// The same for a body.
    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_refused_and_one_at_the_pace_is_not() {
        let is_given_up = async |bytes: usize, every: Duration| {
            let pieces = futures::stream::iter(0..400 / bytes).then(move |_| async move {
                tokio::time::sleep(every).await;
                Ok::<_, io::Error>(vec![b'x'; bytes])
            });
            let paced = Paced {
                body: Body::from_stream(pieces),
                debt: Debt::new(PACE),
            };
            let read = crate::http::body(Body::new(paced)).await;
            read.is_err_and(|problem| problem.status().as_u16() == 408)
        };
        assert!(is_given_up(1, Duration::from_secs(9)).await);
        assert!(is_given_up(10, Duration::from_secs(1)).await);
        assert!(!is_given_up(10, Duration::from_millis(50)).await);
    }

    /// A client that sends one byte every nine seconds is never silent for ten.
    #[tokio::test(start_paused = true)]
    async fn an_occasional_byte_is_too_slow_and_the_pace_is_not() {
        let is_given_up = async |bytes: usize, every: Duration| {
            let (ours, mut theirs) = duplex(16);
            let mut ours = Patience::new(ours, PACE);
            let writing = tokio::spawn(async move { ours.write_all(&[b'x'; 4_000]).await });
            let reading = tokio::spawn(async move {
                let mut some = vec![0; bytes];
                loop {
                    tokio::time::sleep(every).await;
                    if theirs.read_exact(&mut some).await.is_err() {
                        return;
                    }
                }
            });
            let written = writing.await.unwrap();
            reading.abort();
            written.is_err()
        };
        assert!(is_given_up(1, Duration::from_secs(9)).await);
        assert!(is_given_up(10, Duration::from_secs(1)).await);
        assert!(!is_given_up(10, Duration::from_millis(50)).await);
    }
}
