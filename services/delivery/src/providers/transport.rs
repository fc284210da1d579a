//! One HTTP exchange with a provider, bounded in time and size. Knows statuses, headers and streams, no dialect.
//!
//! Dropping the future closes the connection, which makes a provider that notices stop the turn.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout, timeout_at};

use super::bounded_json;
use super::call::ProviderAnswer;
use super::failure::{FailureClass, ProviderError, Sent};
use super::refusal::{Classify, Refusal};
use super::response::{Ending, Reader, Step, Unreadable, short};
use super::retry_after;
use super::settings::{Limits, ProviderKind, ProviderSettings};
use super::sse::Splitter;

const SESSION_KEY: HeaderName = HeaderName::from_static("x-openclaw-session-key");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What is read of an error's body.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// How long we wait for a stream to close after its last event. A connection that is read to its end can be used
/// again; one that stays open is not worth more.
const CLOSE_WAIT: Duration = Duration::from_millis(100);

/// A provider's address, credential and connections.
#[derive(Debug)]
pub(super) struct Transport {
    client: Client,
    url: Url,
    api_key: Option<SecretString>,
    limits: Limits,
    classify: Classify,
}

/// A driver could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("building the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("api_key cannot stand in a header")]
    ApiKey,
}

/// A body read in full.
pub(super) struct Fetched {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl Transport {
    /// The process must have installed a rustls crypto provider before (`rustls::crypto::ring`).
    pub(super) fn new(settings: &ProviderSettings, classify: Classify) -> Result<Self, DriverError> {
        let builder = Client::builder()
            .user_agent(concat!("signalbox/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(settings.limits.connect_timeout)
            .pool_idle_timeout(settings.pool.idle_timeout)
            .pool_max_idle_per_host(settings.pool.idle_connections_max)
            // A redirect would carry the credential and the prompt to an address that nobody configured.
            .redirect(reqwest::redirect::Policy::none())
            // Whether a call is sent again is decided with the turn in hand, not by the client.
            .retry(reqwest::retry::never());
        let builder = match settings.kind {
            ProviderKind::OpenClaw => builder.http1_only(),
            ProviderKind::OpenResponses => builder,
        };
        if let Some(key) = &settings.api_key {
            bearer(key)?;
        }
        Ok(Self {
            client: builder.build().map_err(DriverError::Client)?,
            url: settings.url.clone(),
            api_key: settings.api_key.clone(),
            limits: settings.limits,
            classify,
        })
    }

    /// Posts a call and reads its answer to the end.
    pub(super) async fn call(
        &self,
        body: Vec<u8>,
        headers: HeaderMap,
        mut on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        if body.len() > self.limits.request_bytes_max {
            let detail = format!("the request has {} bytes, request_bytes_max is less", body.len());
            return Err(ProviderError::new(FailureClass::BadRequest, Sent::No, detail));
        }
        let deadline = Instant::now() + self.limits.call_timeout_max;
        let request = self
            .client
            .post(self.url.clone())
            .headers(headers)
            .headers(self.authorization())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json;q=0.9")
            .body(body);
        let first_byte = deadline.min(Instant::now() + self.limits.first_byte_timeout);
        let response = match timeout_at(first_byte, request.send()).await {
            Ok(sent) => sent.map_err(|error| broken(error, "sending the call"))?,
            Err(_) => return Err(silent("no first byte in time")),
        };
        if !response.status().is_success() {
            return Err(self.refused(response, deadline).await);
        }
        if response
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|encoding| encoding != "identity")
        {
            return Err(malformed("the answer is compressed, which was not asked for"));
        }
        let mut reader = Reader::new(self.limits);
        let ending = match media_type(&response) {
            MediaType::EventStream => self.stream(response, &mut reader, deadline, &mut on_text).await,
            MediaType::Json => self.whole(response, deadline, &mut on_text).await,
            MediaType::Other(name) => Err(malformed(&format!("the answer is {name}"))),
        };
        match ending.map_err(|error| error.with_response_id(reader.response_id().map(str::to_owned)))? {
            Ending::Answer(answer) => Ok(answer),
            Ending::Failed {
                response_id,
                code,
                message,
            } => Err(self
                .failed(None, code.as_deref(), message.as_deref(), true)
                .with_response_id(response_id)),
        }
    }

    /// Reads something small and whole, with the same credential.
    pub(super) async fn get(&self, url: Url, bytes_max: usize) -> Result<Fetched, ProviderError> {
        let deadline = Instant::now() + self.limits.first_byte_timeout;
        let request = self
            .client
            .get(url)
            .headers(self.authorization())
            .header(ACCEPT, "application/json");
        let response = match timeout_at(deadline, request.send()).await {
            Ok(sent) => sent.map_err(|error| broken(error, "asking the provider"))?,
            Err(_) => return Err(silent("no first byte in time")),
        };
        let status = response.status();
        let body = read(response, bytes_max, deadline)
            .await
            .map_err(|error| error.into_error("a record"))?;
        Ok(Fetched { status, body })
    }

    /// A status that is not a success, as an error.
    pub(super) fn refusal(&self, status: StatusCode, body: &[u8]) -> ProviderError {
        let body = bounded_json::parse(body).unwrap_or_default();
        let error = &body["error"];
        let in_response = body["object"] == "response" || body["status"] == "failed";
        let code = error["code"].as_str().or(error["type"].as_str());
        self.failed(
            Some(status.as_u16()),
            code,
            error["message"].as_str().or(error.as_str()),
            in_response,
        )
        .with_response_id(body["id"].as_str().filter(|_| in_response).map(short))
    }

    async fn refused(&self, response: Response, deadline: Instant) -> ProviderError {
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| retry_after::parse(value, OffsetDateTime::now_utc()));
        let deadline = deadline.min(Instant::now() + self.limits.idle_timeout);
        // The status says enough if the body does not come, or is too long.
        let body = read(response, REFUSAL_BYTES_MAX, deadline).await.unwrap_or_default();
        self.refusal(status, &body).with_retry_after(retry_after)
    }

    fn failed(
        &self,
        status: Option<u16>,
        code: Option<&str>,
        message: Option<&str>,
        in_response: bool,
    ) -> ProviderError {
        let (class, sent) = (self.classify)(Refusal {
            status,
            code,
            message,
            in_response,
        });
        let status = status.map(|status| format!("HTTP {status} "));
        let detail = [
            status.as_deref().unwrap_or_default(),
            code.unwrap_or("no code"),
            ": ",
            message.unwrap_or("-"),
        ];
        ProviderError::new(class, sent, detail.concat())
    }

    async fn stream(
        &self,
        mut response: Response,
        reader: &mut Reader,
        deadline: Instant,
        on_text: &mut (impl FnMut(&str) + Send),
    ) -> Result<Ending, ProviderError> {
        let mut splitter = Splitter::new(self.limits.event_bytes_max());
        let mut told = false;
        let mut bytes = 0;
        let mut lines = 0;
        let mut idle = Instant::now() + self.limits.idle_timeout;
        loop {
            let chunk = match timeout_at(idle.min(deadline), response.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| broken(error, "reading the stream"))?,
                Err(_) if Instant::now() >= deadline => return Err(silent("call_timeout_ms_max is over")),
                Err(_) => return Err(silent("no line in the stream for idle_timeout_ms")),
            };
            let mut events = Vec::new();
            let ended = chunk.is_none();
            match chunk {
                Some(chunk) => {
                    bytes += chunk.len();
                    let fits = splitter.push(&chunk, &mut events).is_ok();
                    if !fits || bytes > self.limits.stream_bytes_max() {
                        return Err(too_large("the stream"));
                    }
                }
                None => events = std::mem::replace(&mut splitter, Splitter::new(0)).finish(),
            }
            for event in events {
                match reader.event(&event) {
                    Ok(Step::Going) => {}
                    Ok(Step::Text(text)) => {
                        told = true;
                        on_text(&text);
                    }
                    Ok(Step::Ended(ending)) => {
                        tell_untold(&ending, told, on_text);
                        drain(response).await;
                        return Ok(ending);
                    }
                    // The last event came without its end: cut, not malformed.
                    Err(Unreadable::Malformed(_)) if ended => break,
                    Err(unreadable) => return Err(unreadable_error(unreadable)),
                }
            }
            if ended {
                return Err(ProviderError::new(
                    FailureClass::Truncated,
                    Sent::Maybe,
                    "the stream ended before the response did",
                ));
            }
            if splitter.lines() > lines {
                lines = splitter.lines();
                idle = Instant::now() + self.limits.idle_timeout;
            }
        }
    }

    async fn whole(
        &self,
        response: Response,
        deadline: Instant,
        on_text: &mut (impl FnMut(&str) + Send),
    ) -> Result<Ending, ProviderError> {
        let body = read(response, self.limits.event_bytes_max(), deadline).await;
        let body = body.map_err(|error| error.into_error("the answer"))?;
        let ending = Reader::new(self.limits).whole(&body).map_err(unreadable_error)?;
        tell_untold(&ending, false, on_text);
        Ok(ending)
    }

    fn authorization(&self) -> HeaderMap {
        let value = self
            .api_key
            .as_ref()
            .map(|key| bearer(key).expect("invariant: the key was checked in `new`"));
        value
            .into_iter()
            .map(|value| (reqwest::header::AUTHORIZATION, value))
            .collect()
    }
}

/// The headers that name a call.
pub(super) fn call_headers(
    session_key: &str,
    delivery_id: &str,
    traceparent: Option<&str>,
) -> Result<HeaderMap, ProviderError> {
    let key = HeaderValue::from_str(session_key).map_err(|_| {
        ProviderError::new(
            FailureClass::BadRequest,
            Sent::No,
            "the session key cannot stand in a header",
        )
    })?;
    let id = HeaderValue::from_str(delivery_id).expect("invariant: a delivery id is a UUID and a number");
    let mut headers = HeaderMap::from_iter([(SESSION_KEY, key), (IDEMPOTENCY_KEY, id)]);
    // A trace is worth nothing compared to the call: one that cannot be sent is left out.
    if let Some(trace) = traceparent.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(TRACEPARENT, trace);
    }
    Ok(headers)
}

fn bearer(key: &SecretString) -> Result<HeaderValue, DriverError> {
    let mut value =
        HeaderValue::from_str(&format!("Bearer {}", key.expose_secret())).map_err(|_| DriverError::ApiKey)?;
    value.set_sensitive(true);
    Ok(value)
}

enum MediaType {
    EventStream,
    Json,
    Other(String),
}

/// A stream that does not say what it is was asked for; anything else must say that it is JSON.
fn media_type(response: &Response) -> MediaType {
    let Some(value) = response.headers().get(CONTENT_TYPE) else {
        return MediaType::EventStream;
    };
    let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    match value.split(';').next().unwrap_or_default().trim() {
        "text/event-stream" => MediaType::EventStream,
        json if json == "application/json" || json.ends_with("+json") => MediaType::Json,
        other => MediaType::Other(short(other)),
    }
}

/// Text that no delta told.
fn tell_untold(ending: &Ending, told: bool, on_text: &mut impl FnMut(&str)) {
    if let Ending::Answer(answer) = ending
        && !told
        && !answer.text.is_empty()
    {
        on_text(&answer.text);
    }
}

async fn drain(mut response: Response) {
    let _ = timeout(CLOSE_WAIT, async { while let Ok(Some(_)) = response.chunk().await {} }).await;
}

enum Unread {
    Silent,
    TooLong,
    Broken(reqwest::Error),
}

impl Unread {
    fn into_error(self, what: &str) -> ProviderError {
        match self {
            Self::Silent => silent(&format!("{what} did not end in time")),
            Self::TooLong => too_large(what),
            Self::Broken(error) => broken(error, &format!("reading {what}")),
        }
    }
}

async fn read(mut response: Response, bytes_max: usize, deadline: Instant) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    loop {
        match timeout_at(deadline, response.chunk()).await {
            Err(_) => return Err(Unread::Silent),
            Ok(Err(error)) => return Err(Unread::Broken(error)),
            Ok(Ok(None)) => return Ok(body),
            Ok(Ok(Some(chunk))) if body.len() + chunk.len() > bytes_max => return Err(Unread::TooLong),
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
    }
}

/// A connection that could not be made, or broke.
fn broken(error: reqwest::Error, attempted: &str) -> ProviderError {
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
    ProviderError::new(class, sent, detail)
}

fn silent(detail: &str) -> ProviderError {
    ProviderError::new(FailureClass::Timeout, Sent::Maybe, detail)
}

fn malformed(detail: &str) -> ProviderError {
    ProviderError::new(FailureClass::Malformed, Sent::Maybe, detail)
}

fn too_large(what: &str) -> ProviderError {
    ProviderError::new(FailureClass::TooLarge, Sent::Maybe, format!("{what} is too large"))
}

fn unreadable_error(unreadable: Unreadable) -> ProviderError {
    let class = match unreadable {
        Unreadable::Malformed(_) => FailureClass::Malformed,
        Unreadable::TooLarge(_) => FailureClass::TooLarge,
        Unreadable::EndedEarly => FailureClass::Truncated,
    };
    ProviderError::new(class, Sent::Maybe, unreadable.to_string())
}
