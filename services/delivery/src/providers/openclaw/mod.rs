//! The OpenClaw dialect: the gateway's differences from the OpenResponses specification.
//!
//! A session is chosen by a key that must name one of the gateway's agents ([`key`]). Tool names carry a prefix and
//! texts a delivery id ([`wording`]). The gateway has no idempotency: a call that is posted twice runs twice, so a lost
//! call is looked up in the session's history ([`history`]). All of this was recorded from a running gateway; the tests
//! replay the recordings.

mod history;
pub(super) mod key;
pub(super) mod wording;

use self::key::GatewayAgent;
use super::call::{LostCall, ProviderAnswer, ProviderCall, Reconciled, SessionCheck, ThreadCheck};
use super::failure::{FailureClass, ProviderError, Sent};
use super::refusal::{self, Refusal};
use super::request::{self, Words};
use super::settings::{HistoryLookup, ProviderSettings};
use super::transport::{DriverError, Transport, call_headers};

/// The gateway's endpoint, below any prefix of a proxy. Exact: a trailing slash is a 404.
pub(super) const RESPONSES_PATH: &str = "/v1/responses";

/// The gateway's text for an answer without visible text.
const NO_ANSWER: &str = "No response from OpenClaw.";
/// The start of the gateway's notice when the answer was cut at the token limit. Only a body in one piece has it, a
/// stream does not.
const CUT_NOTICE: &str = "\n\n⚠️ Reply truncated at the model's output token limit.";

#[derive(Debug)]
pub struct OpenClaw {
    transport: Transport,
    model: String,
    stream: bool,
    agent: GatewayAgent,
    history: HistoryLookup,
}

impl OpenClaw {
    pub(super) fn new(settings: &ProviderSettings, agent: GatewayAgent) -> Result<Self, DriverError> {
        Ok(Self {
            transport: Transport::new(settings, classify)?,
            // A gateway with several agents refuses the bare `openclaw`, even with a key that names one.
            model: format!("openclaw/{agent}"),
            stream: settings.stream,
            agent,
            history: settings.history,
        })
    }

    pub(super) async fn call(
        &self,
        call: &ProviderCall,
        on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        let key = self.agent.key_of(&call.session_key)?;
        let headers = call_headers(Some(key.as_str()), &call.delivery_id(), call.traceparent.as_deref())?;
        let words = Words {
            user: Some(key.as_str().to_owned()),
            ..Words::default()
        };
        let body = request::body(&wording::reworded(call), &self.model, self.stream, &words);
        self.transport.call(body, headers, false, on_text).await.map(tidied)
    }

    /// The outcome of a lost call, from the session's history.
    pub(super) async fn reconcile(&self, lost: &LostCall) -> Reconciled {
        if !self.history.enabled {
            return Reconciled::Unknown {
                reason: "history lookups are disabled",
            };
        }
        let Ok(key) = self.agent.key_of(&lost.session_key) else {
            return Reconciled::DidNotRun; // a call on this key is refused before it is sent
        };
        let marker = wording::marker(&lost.delivery_id);
        match history::record(&self.transport, &key, &marker, lost.response_id.as_deref()).await {
            Ok(record) => history::decide(&record, &key, lost, self.history),
            Err(error) => Reconciled::Unreachable(error),
        }
    }

    /// Whether the gateway still has the thread of this call: it begins an empty one without a word.
    pub(super) async fn thread_check(&self, call: &ProviderCall) -> ThreadCheck {
        match self.agent.key_of(&call.session_key) {
            Ok(key) if self.history.enabled => history::thread_check(&self.transport, &key).await,
            Ok(_) | Err(_) => ThreadCheck::NotChecked,
        }
    }

    /// Checks whether this call ran under the requested key. Worth one request after the first turn of a generation: if
    /// a proxy drops the header, the gateway silently opens a session of its own.
    pub(super) async fn session_check(&self, call: &ProviderCall) -> SessionCheck {
        if !self.history.enabled {
            return SessionCheck::NotChecked {
                reason: "history lookups are disabled".to_owned(),
            };
        }
        let marker = wording::marker(&call.delivery_id());
        let checked = async {
            let key = self.agent.key_of(&call.session_key)?;
            let record = history::record(&self.transport, &key, &marker, None).await?;
            Ok(history::check_session(&record, &key, &marker))
        };
        checked
            .await
            .unwrap_or_else(|error: ProviderError| SessionCheck::NotChecked {
                reason: error.to_string(),
            })
    }
}

/// The agent's text and our tool names, without the gateway's substitutes.
fn tidied(mut answer: ProviderAnswer) -> ProviderAnswer {
    answer.reasoning.clear(); // the gateway keeps it
    for call in &mut answer.calls {
        call.name = wording::tool_name_off_wire(&call.name).to_owned();
    }
    if answer.text == NO_ANSWER {
        answer.text.clear();
    }
    if answer.incomplete_reason.is_some()
        && let Some(cut) = answer.text.find(CUT_NOTICE)
    {
        answer.text.truncate(cut);
    }
    answer
}

/// The gateway's deviations from the general table. Its own failure is `gateway_unavailable`. An `api_error` is its
/// model's failure, already retried for minutes; as "internal error" it can be anything: a run timeout, a bad key, a
/// cooldown.
fn classify(refusal: Refusal<'_>) -> (FailureClass, Sent) {
    let upstream = refusal
        .message
        .is_some_and(|text| text.contains("upstream provider") || text.contains("overloaded"));
    match refusal.code {
        Some("gateway_unavailable") => (FailureClass::ServerError, Sent::No),
        Some("proxy_attribution_required") => (FailureClass::BadRequest, Sent::No),
        Some("api_error") if refusal.in_response && !upstream => (FailureClass::Failed, Sent::Yes),
        _ => refusal::classify(refusal),
    }
}
