//! The driver for servers that follow the OpenResponses specification. [`Server`] holds their differences.
//!
//! Most servers keep no record, so the outcome of a lost call stays unknown. OpenAI's API keeps a record of responses
//! that it was told to store.

use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::{StatusCode, Url};
use sha2::{Digest, Sha256};

use super::call::{CallInput, LostCall, ProviderAnswer, ProviderCall, Reconciled};
use super::failure::{FailureClass, ProviderError, Sent};
use super::refusal;
use super::request::{self, Words};
use super::response::Reader;
use super::server::{Continuation, Server};
use super::settings::ProviderSettings;
use super::transport::{DriverError, Transport, call_headers};

/// Requests encrypted reasoning, so that the next round can send it back.
const SEALED_REASONING: &[&str] = &["reasoning.encrypted_content"];
/// Length of a prompt cache key, in characters of a hash.
const CACHE_KEY_CHARS: usize = 32;

#[derive(Debug)]
pub struct OpenResponses {
    transport: Transport,
    model: String,
    stream: bool,
    server: Server,
    continuation: Continuation,
    /// The model has no encrypted reasoning, as a refusal showed. A property of the model; no part of a conversation is
    /// stored here.
    is_plain_model: AtomicBool,
}

impl OpenResponses {
    pub(super) fn new(settings: &ProviderSettings) -> Result<Self, DriverError> {
        Ok(Self {
            transport: Transport::new(settings, refusal::classify)?,
            model: settings.model.clone(),
            stream: settings.stream,
            server: settings.server,
            continuation: settings.continuation,
            is_plain_model: AtomicBool::new(false),
        })
    }

    pub(super) async fn call(
        &self,
        call: &ProviderCall,
        mut on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        let words = self.words(&call.session_key);
        let asks_for_reasoning = !words.include.is_empty();
        let mut called = self.send(call, &words, &mut on_text).await;
        if asks_for_reasoning && called.as_ref().is_err_and(refuses_reasoning) {
            self.is_plain_model.store(true, Ordering::Relaxed);
            // The server refused it before it ran, so this is no repetition.
            called = self.send(call, &self.words(&call.session_key), &mut on_text).await;
        }
        let mut answer = called?;
        if !asks_for_reasoning {
            answer.reasoning.clear();
        }
        Ok(answer)
    }

    async fn send(
        &self,
        call: &ProviderCall,
        words: &Words,
        on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        let key = words.user.as_deref();
        let headers = call_headers(key, &call.delivery_id(), call.traceparent.as_deref())?;
        let body = request::body(call, &self.model, self.stream, words);
        self.transport.call(body, headers, call.after.is_some(), on_text).await
    }

    /// The fields for this server besides those for every server.
    fn words(&self, session_key: &str) -> Words {
        if !self.server.has_openai_fields() {
            return Words {
                user: Some(session_key.to_owned()),
                ..Words::default()
            };
        }
        let is_kept = self.continuation == Continuation::Response;
        let is_plain = is_kept || self.is_plain_model.load(Ordering::Relaxed);
        Words {
            user: None,
            store: Some(is_kept),
            include: if is_plain { &[] } else { SEALED_REASONING },
            prompt_cache_key: Some(hex::encode(Sha256::digest(session_key))[..CACHE_KEY_CHARS].to_owned()),
            // The server's default is true, and our schemas have optional fields.
            strict_tools: Some(false),
        }
    }

    /// Adds a hint: the most common mistake in an entry shows only when results are handed back.
    pub(super) fn advised(&self, mut error: ProviderError, call: &ProviderCall) -> ProviderError {
        let is_refused = error.class == FailureClass::BadRequest && error.sent == Sent::No;
        let hands_results = matches!(call.input, CallInput::ToolResults { .. });
        if self.server == Server::Generic && is_refused && hands_results {
            error.detail.push_str(
                "; if the server keeps no conversation under a session key, set `server` of this provider: `signalbox \
                 provider check` says to what",
            );
        }
        error
    }

    /// The outcome of a lost call, from the server's record of its response.
    pub(super) async fn reconcile(&self, lost: &LostCall) -> Reconciled {
        if self.server != Server::OpenAi || self.continuation != Continuation::Response {
            return Reconciled::Unknown {
                reason: "the provider keeps no record of calls",
            };
        }
        let Some(id) = &lost.response_id else {
            return Reconciled::Unknown {
                reason: "the call was lost before the server named its response",
            };
        };
        let bytes_max = self.transport.limits.event_bytes_max();
        match self.transport.get(beside(&self.transport.url, id), bytes_max).await {
            Ok(record) if record.status.is_success() => self.recorded(&record.body),
            Ok(record) if record.status == StatusCode::NOT_FOUND => Reconciled::Unknown {
                reason: "the server has no record of the response",
            },
            Ok(record) => Reconciled::Unreachable(self.transport.refusal(record.status, &record.body, false)),
            Err(error) => Reconciled::Unreachable(error),
        }
    }

    fn recorded(&self, body: &[u8]) -> Reconciled {
        const UNREADABLE: Reconciled = Reconciled::Unknown {
            reason: "the server's record of the response cannot be read",
        };
        let Ok(record) = self.transport.json(body) else {
            return UNREADABLE;
        };
        match record["status"].as_str() {
            Some("queued" | "in_progress") => Reconciled::StillRunning,
            // The server noticed that the connection broke.
            Some("cancelled") => Reconciled::Failed(ProviderError::new(
                FailureClass::Truncated,
                Sent::Yes,
                "the server cancelled the response",
            )),
            _ => {
                match Reader::new(self.transport.limits, self.transport.credential.clone(), |_: &str| {}).whole(body) {
                    Ok(ending) => match self.transport.answered(ending) {
                        Ok(answer) => Reconciled::Ran(answer),
                        Err(error) => Reconciled::Failed(error),
                    },
                    Err(_) => UNREADABLE,
                }
            }
        }
    }
}

/// Recognises a model without reasoning: "Encrypted content is not supported with this model."
fn refuses_reasoning(error: &ProviderError) -> bool {
    error.class == FailureClass::BadRequest
        && error.sent == Sent::No
        && error
            .detail
            .to_ascii_lowercase()
            .contains("encrypted content is not supported")
}

/// The address of a response.
fn beside(url: &Url, id: &str) -> Url {
    let mut url = url.clone();
    url.path_segments_mut()
        .expect("invariant: http and https URLs have paths")
        .pop_if_empty()
        .push(id);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_an_address_below_its_server() {
        let check = |url: &str, id: &str, expected: &str| {
            assert_eq!(beside(&Url::parse(url).unwrap(), id).as_str(), expected);
        };
        check("https://h/v1/responses", "resp_1", "https://h/v1/responses/resp_1");
        check(
            "https://h/v1/responses?api-version=1",
            "resp_1",
            "https://h/v1/responses/resp_1?api-version=1",
        );
        check(
            "https://h/v1/responses/",
            "../../keys",
            "https://h/v1/responses/..%2F..%2Fkeys",
        );
        check("https://h", "..", "https://h/");
    }
}
