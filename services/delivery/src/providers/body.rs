//! Reads the body of an answer, as a stream of events or in one piece, within its limits of time and size, and
//! classifies read errors. The result is a whole answer or an error.

use std::time::Duration;

use reqwest::Response;
use runtime::egress::credential::Credential;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::{FailureClass, ProviderError, Sent};
use super::response::{Ending, Reader, Unreadable};
use super::settings::CallLimits;
use super::sse::Splitter;

/// How long to wait for a stream to close after its last event. A connection that was read to its end can be reused; a
/// longer wait is not worth it.
const CLOSE_WAIT: Duration = Duration::from_millis(100);

/// An unread body.
pub(super) struct Body {
    pub(super) response: Response,
    pub(super) limits: CallLimits,
    /// Removed from what is read.
    pub(super) credential: Credential,
    /// The deadline of the whole call.
    pub(super) deadline: Instant,
}

impl Body {
    pub(super) async fn stream(mut self, on_text: impl FnMut(&str) + Send) -> Result<Ending, ProviderError> {
        let mut reader = Reader::new(self.limits, self.credential.clone(), on_text);
        let ending = self.ending(&mut reader).await;
        let ending = ending.map_err(|error| error.with_response_id(reader.response_id().map(str::to_owned)))?;
        let _ = timeout(CLOSE_WAIT, async {
            while let Ok(Some(_)) = self.response.chunk().await {}
        })
        .await;
        Ok(ending)
    }

    pub(super) async fn whole(self, on_text: impl FnMut(&str) + Send) -> Result<Ending, ProviderError> {
        let reader = Reader::new(self.limits, self.credential.clone(), on_text);
        let bytes_max = self.limits.event_bytes_max();
        let body = self.read(bytes_max, "the answer").await?;
        reader.whole(&body).map_err(unreadable)
    }

    /// Reads the whole body. `what` names it in an error.
    pub(super) async fn read(mut self, bytes_max: usize, what: &str) -> Result<Vec<u8>, ProviderError> {
        let mut body = Vec::new();
        loop {
            match timeout_at(self.deadline, self.response.chunk()).await {
                Err(_) => return Err(silent(&format!("{what} did not end in time"))),
                Ok(Err(error)) => return Err(broken(error, &format!("reading {what}"), &self.credential)),
                Ok(Ok(None)) => return Ok(body),
                Ok(Ok(Some(chunk))) if body.len() + chunk.len() > bytes_max => return Err(too_large(what)),
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            }
        }
    }

    async fn ending(&mut self, reader: &mut Reader<impl FnMut(&str) + Send>) -> Result<Ending, ProviderError> {
        let mut splitter = Splitter::new(self.limits.event_bytes_max());
        let (mut bytes, mut lines) = (0, 0);
        let mut idle = Instant::now() + self.limits.idle_timeout;
        loop {
            let chunk = match timeout_at(idle.min(self.deadline), self.response.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| broken(error, "reading the stream", &self.credential))?,
                Err(_) if Instant::now() >= self.deadline => return Err(silent("call_timeout_ms_max exceeded")),
                Err(_) => return Err(silent("the stream had no new line within idle_timeout_ms")),
            };
            let Some(chunk) = chunk else {
                return last_events(splitter, reader);
            };
            bytes += chunk.len();
            let mut events = Vec::new();
            if splitter.push(&chunk, &mut events).is_err() || bytes > self.limits.stream_bytes_max() {
                return Err(too_large("the stream"));
            }
            for event in &events {
                if let Some(ending) = reader.event(event).map_err(unreadable)? {
                    return Ok(ending);
                }
            }
            if splitter.lines() > lines {
                lines = splitter.lines();
                idle = Instant::now() + self.limits.idle_timeout;
            }
        }
    }
}

/// Handles the end of the stream. The remaining bytes may be the last event without its blank line, or a part of one.
fn last_events(splitter: Splitter, reader: &mut Reader<impl FnMut(&str)>) -> Result<Ending, ProviderError> {
    for event in &splitter.finish() {
        match reader.event(event) {
            Ok(Some(ending)) => return Ok(ending),
            Ok(None) | Err(Unreadable::Malformed(_)) => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    Err(ProviderError::new(
        FailureClass::Truncated,
        Sent::Maybe,
        "the stream ended before the response did",
    ))
}

/// Classifies a connection error. Its causes may quote the server: the names of its certificate, the data of a GOAWAY.
pub(super) fn broken(error: reqwest::Error, attempted: &str, credential: &Credential) -> ProviderError {
    let (class, sent) = if error.is_builder() {
        (FailureClass::BadRequest, Sent::No)
    } else if error.is_connect() {
        (FailureClass::Refused, Sent::No)
    } else {
        (FailureClass::Truncated, Sent::Maybe)
    };
    let error = error.without_url();
    let mut detail = format!("{attempted}: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        detail = format!("{detail}: {cause}");
        source = cause.source();
    }
    ProviderError::new(class, sent, credential.remove(detail))
}

pub(super) fn silent(detail: &str) -> ProviderError {
    ProviderError::new(FailureClass::Timeout, Sent::Maybe, detail)
}

pub(super) fn malformed(detail: &str) -> ProviderError {
    ProviderError::new(FailureClass::Malformed, Sent::Maybe, detail)
}

fn too_large(what: &str) -> ProviderError {
    ProviderError::new(FailureClass::TooLarge, Sent::Maybe, format!("{what} is too large"))
}

fn unreadable(error: Unreadable) -> ProviderError {
    let class = match error {
        Unreadable::Malformed(_) => FailureClass::Malformed,
        Unreadable::TooLarge(_) => FailureClass::TooLarge,
        Unreadable::EndedEarly => FailureClass::Truncated,
    };
    ProviderError::new(class, Sent::Maybe, error.to_string())
}
