//! One HTTP exchange with a provider, bounded in time and size. Handles statuses, headers and streams, not dialects.
//!
//! Dropping the future closes the connection, which makes a provider that notices stop the turn.

use std::time::SystemTime;

use contracts::json::NotJson;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use runtime::egress::{self, credential::Credential};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::body::{self, Body};
use super::call::ProviderAnswer;
use super::failure::{FailureClass, ProviderError, Sent};
use super::refusal::{Classify, Refusal};
use super::response::{Ending, short};
use super::retry_after;
use super::settings::{CallLimits, ProviderKind, ProviderSettings, bearer};

const SESSION_KEY: HeaderName = HeaderName::from_static("x-openclaw-session-key");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Bytes that are read of an error's body.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// A provider's address, credential and connections.
#[derive(Debug)]
pub(super) struct Transport {
    client: Client,
    pub(super) url: Url,
    pub(super) credential: Credential,
    pub(super) limits: CallLimits,
    classify: Classify,
}

/// Why a driver could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("building the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// A fully read body.
pub(super) struct Fetched {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl Transport {
    /// The process must have installed a rustls crypto provider before (`rustls::crypto::ring`).
    pub(super) fn new(settings: &ProviderSettings, classify: Classify) -> Result<Self, DriverError> {
        let bearer = |key| bearer(key).expect("invariant: the settings were checked");
        let authorization = settings.api_key.as_ref().map(|key| (AUTHORIZATION, bearer(key)));
        let builder = egress::client(settings.private_addresses)
            .default_headers(authorization.into_iter().collect())
            .connect_timeout(settings.limits.connect_timeout)
            .pool_idle_timeout(settings.pool.idle_timeout)
            .pool_max_idle_per_host(settings.pool.idle_connections_max);
        let builder = match settings.kind {
            ProviderKind::OpenClaw => builder.http1_only(),
            ProviderKind::OpenResponses => builder,
        };
        Ok(Self {
            client: builder.build().map_err(DriverError::Client)?,
            url: settings.url.clone(),
            credential: Credential::new(settings.api_key.as_ref()),
            limits: settings.limits,
            classify,
        })
    }

    /// Posts a call and reads its answer to the end. `goes_on`: it names an earlier response.
    pub(super) async fn call(
        &self,
        body: Vec<u8>,
        headers: HeaderMap,
        goes_on: bool,
        on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        if body.len() > self.limits.request_bytes_max {
            let detail = format!("the request has {} bytes, more than request_bytes_max", body.len());
            return Err(ProviderError::new(FailureClass::BadRequest, Sent::No, detail));
        }
        let deadline = Instant::now() + self.limits.call_timeout_max;
        let request = self
            .client
            .post(self.url.clone())
            .headers(headers)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json;q=0.9")
            .body(body);
        let first_byte = deadline.min(Instant::now() + self.limits.first_byte_timeout);
        let response = self.sent(request, first_byte, "sending the call").await?;
        if !response.status().is_success() {
            return Err(self.refused(response, deadline, goes_on).await);
        }
        if response
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|encoding| encoding != "identity")
        {
            return Err(body::malformed(
                "the answer is compressed, although no compression was requested",
            ));
        }
        let body = self.body(response, deadline);
        let ending = match media_type(&body.response).as_deref() {
            // Without a media type it counts as the requested stream.
            None | Some("text/event-stream") => body.stream(on_text).await?,
            Some(json) if json == "application/json" || json.ends_with("+json") => body.whole(on_text).await?,
            Some(other) => {
                let other = short(&self.credential.remove(other.to_owned()));
                return Err(body::malformed(&format!("the answer is {other}")));
            }
        };
        self.answered(ending)
    }

    /// Converts the end of a response: of a call's answer, or of the provider's record.
    pub(super) fn answered(&self, ending: Ending) -> Result<ProviderAnswer, ProviderError> {
        match ending {
            Ending::Answer(answer) => Ok(answer),
            Ending::Failed {
                response_id,
                code,
                message,
            } => Err(self
                .failed(Refusal {
                    status: None,
                    code: code.as_deref(),
                    message: message.as_deref(),
                    param: None,
                    goes_on: false,
                    in_response: true,
                })
                .with_response_id(response_id)),
        }
    }

    /// Reads a small body in full, with the same credential.
    pub(super) async fn get(&self, url: Url, bytes_max: usize) -> Result<Fetched, ProviderError> {
        let deadline = Instant::now() + self.limits.first_byte_timeout;
        let request = self.client.get(url).header(ACCEPT, "application/json");
        let response = self.sent(request, deadline, "asking the provider").await?;
        let status = response.status();
        let body = self.body(response, deadline).read(bytes_max, "a record").await?;
        Ok(Fetched { status, body })
    }

    /// Converts an error status into an error. `goes_on`: as for [`Self::call`].
    pub(super) fn refusal(&self, status: StatusCode, body: &[u8], goes_on: bool) -> ProviderError {
        let raw = self.credential.remove(String::from_utf8_lossy(body).into_owned());
        let raw = match (status.as_u16(), raw.trim()) {
            (404 | 405, raw) => format!(
                "{}; is the path of url right? Most servers have /v1/responses",
                short(raw)
            ),
            (_, "") => "-".to_owned(),
            (_, raw) => short(raw),
        };
        let body = self.json(body).unwrap_or_default();
        let error = &body["error"];
        let in_response = body["object"] == "response" || body["status"] == "failed";
        let code = error["code"].as_str().or(error["type"].as_str());
        self.failed(Refusal {
            status: Some(status.as_u16()),
            code,
            message: error["message"].as_str().or(error.as_str()).or(Some(&raw)),
            param: error["param"].as_str(),
            goes_on,
            in_response,
        })
        .with_response_id(body["id"].as_str().filter(|_| in_response).map(short))
    }

    async fn refused(&self, response: Response, deadline: Instant, goes_on: bool) -> ProviderError {
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| retry_after::parse(value, SystemTime::now()));
        let deadline = deadline.min(Instant::now() + self.limits.idle_timeout);
        // The status suffices if the body is missing or too long.
        let body = self
            .body(response, deadline)
            .read(REFUSAL_BYTES_MAX, "the refusal")
            .await;
        let body = body.unwrap_or_default();
        self.refusal(status, &body, goes_on).with_retry_after(retry_after)
    }

    fn failed(&self, refusal: Refusal<'_>) -> ProviderError {
        let (class, sent) = (self.classify)(refusal);
        let Refusal {
            status, code, message, ..
        } = refusal;
        let status = status.map(|status| format!("HTTP {status} "));
        let detail = [
            status.as_deref().unwrap_or_default(),
            code.unwrap_or("no code"),
            ": ",
            message.unwrap_or("-"),
        ];
        ProviderError::new(class, sent, self.credential.remove(detail.concat()))
    }

    /// Parses a body. Its texts do not repeat the credential.
    pub(super) fn json(&self, body: &[u8]) -> Result<Value, NotJson> {
        let mut value = contracts::json::read(body)?;
        self.credential.remove_from_json(&mut value);
        Ok(value)
    }

    fn body(&self, response: Response, deadline: Instant) -> Body {
        Body {
            response,
            limits: self.limits,
            credential: self.credential.clone(),
            deadline,
        }
    }

    async fn sent(
        &self,
        request: RequestBuilder,
        deadline: Instant,
        attempted: &str,
    ) -> Result<Response, ProviderError> {
        match timeout_at(deadline, request.send()).await {
            Ok(sent) => sent.map_err(|error| body::broken(error, attempted, &self.credential)),
            Err(_) => Err(body::silent("no first byte within first_byte_timeout_ms")),
        }
    }
}

/// The headers that identify a call. `session_key`: for a server that uses one.
pub(super) fn call_headers(
    session_key: Option<&str>,
    delivery_id: &str,
    traceparent: Option<&str>,
) -> Result<HeaderMap, ProviderError> {
    let id = HeaderValue::from_str(delivery_id).expect("invariant: a delivery id is a UUID and a number");
    let mut headers = HeaderMap::from_iter([(IDEMPOTENCY_KEY, id)]);
    if let Some(key) = session_key {
        let key = HeaderValue::from_str(key).map_err(|_| {
            let detail = "the session key is not a valid header value";
            ProviderError::new(FailureClass::BadRequest, Sent::No, detail)
        })?;
        headers.insert(SESSION_KEY, key);
    }
    // A trace context that cannot be sent is left out: the call matters more.
    if let Some(trace) = traceparent.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(TRACEPARENT, trace);
    }
    Ok(headers)
}

/// The name of the media type, in lower case.
fn media_type(response: &Response) -> Option<String> {
    let value = response.headers().get(CONTENT_TYPE)?;
    let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    value.split(';').next().map(|name| name.trim().to_owned())
}
