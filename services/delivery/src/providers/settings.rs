//! One provider in the operator's settings: `[providers.{name}]`. Tenants name a provider; they never describe one. All
//! values that a driver relies on are checked here, once, so that a bad setting stops the start with one line.

use std::time::Duration;

use domain::{Bytes, Count, CountOrNone, Millis};
use reqwest::{Url, header::HeaderValue};
use runtime::egress;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::openclaw::key::GatewayAgent;
use super::server::{self, Continuation, Server, ThreadBy};

/// The dialect of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ProviderKind {
    /// The OpenResponses specification.
    OpenResponses,
    /// An OpenClaw gateway.
    OpenClaw,
}

impl ProviderKind {
    /// The name in settings, metrics and traces.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// How long the provider remembers a conversation under a session key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thread {
    /// Survives a restart of the provider.
    Durable,
    /// Lost when its process ends.
    Process,
    /// Never: every call carries the whole conversation.
    None,
}

/// Who causes the side effects of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// All effects go through Signalbox's tools, which run once per call.
    GatewayOnly,
    /// The agent has tools of its own as well.
    Own,
}

/// One provider, with all defaults filled in.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Fields")]
pub struct ProviderSettings {
    pub kind: ProviderKind,
    /// Where calls are posted, path included.
    pub url: Url,
    /// Whether the address may be non-public. The author of this file decides where calls go, and providers often run
    /// next to Signalbox, so it may unless the file says otherwise.
    pub private_addresses: bool,
    pub model: String,
    pub api_key: Option<SecretString>,
    pub server: Server,
    pub thread: Thread,
    pub continuation: Continuation,
    pub effects: Effects,
    /// Request a stream. False only for providers that cannot.
    pub stream: bool,
    /// The agent of an OpenClaw gateway that runs this provider's sessions. Always set for that kind, otherwise never.
    pub gateway_agent: Option<GatewayAgent>,
    pub limits: CallLimits,
    pub pool: Pool,
    pub history: HistoryLookup,
    /// How long a thread may be unused before it is looked up. None: the provider has no record of threads.
    pub thread_check_after: Option<Duration>,
    /// What shares its quota and its credential: one breaker for all providers that name the same. None: its own name.
    pub quota_account: Option<String>,
}

/// Limits of one call.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    pub connect_timeout: Duration,
    /// From the request to the first byte of the answer.
    pub first_byte_timeout: Duration,
    /// Longest silence within an answer, from one whole line to the next.
    pub idle_timeout: Duration,
    /// Longest duration of a call.
    pub call_timeout_max: Duration,
    pub request_bytes_max: usize,
    /// Text and arguments of one answer together.
    pub answer_bytes_max: usize,
    /// Arguments of one function call.
    pub arguments_bytes_max: usize,
    /// Function calls in one answer.
    pub tool_calls_max: usize,
}

impl CallLimits {
    /// Limit of one event of a stream, or of a whole body. The last event repeats the answer, escaped, next to an echo
    /// of the request, so it may be several times the answer's size.
    pub fn event_bytes_max(&self) -> usize {
        self.answer_bytes_max.saturating_mul(4).saturating_add(1024 * 1024)
    }

    /// Limit of all bytes of a stream. Each delta is a line of JSON for a few characters, so the limit is generous: it
    /// stops a stream that never ends. [`Self::event_bytes_max`] bounds the memory.
    pub fn stream_bytes_max(&self) -> usize {
        self.event_bytes_max().saturating_mul(64)
    }
}

/// Connections to one provider.
#[derive(Debug, Clone, Copy)]
pub struct Pool {
    /// Concurrent calls; the claim takes one [`super::Driver::slot`] for each turn.
    pub in_flight_max: usize,
    /// Must be shorter than the provider keeps an idle connection open. Otherwise a call may be written into a closing
    /// connection, and its outcome is unknown.
    pub idle_timeout: Duration,
    pub idle_connections_max: usize,
}

/// Limits for reading a provider's own record of a session.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLookup {
    pub enabled: bool,
    /// How long after a loss a call may still appear in the record.
    pub settle: Duration,
    /// How long after a loss an unanswered call counts as running; then its outcome is unknown.
    pub unanswered_max: Duration,
}

/// The entry as the operator wrote it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: Option<ProviderKind>,
    url: String,
    private_addresses: Option<bool>,
    model: String,
    api_key: Option<SecretString>,
    server: Option<Server>,
    thread: Option<Thread>,
    thread_by: Option<ThreadBy>,
    effects: Option<Effects>,
    stream: Option<bool>,
    gateway_agent: Option<String>,
    connect_timeout_ms: Option<Millis>,
    first_byte_timeout_ms: Option<Millis>,
    idle_timeout_ms: Option<Millis>,
    call_timeout_ms_max: Option<Millis>,
    request_bytes_max: Option<Bytes>,
    answer_bytes_max: Option<Bytes>,
    arguments_bytes_max: Option<Bytes>,
    tool_calls_max: Option<Count>,
    in_flight_max: Option<Count>,
    pool_idle_timeout_ms: Option<Millis>,
    pool_idle_connections_max: Option<CountOrNone>,
    history: Option<bool>,
    history_settle_ms: Option<Millis>,
    history_unanswered_ms_max: Option<Millis>,
    thread_check_after_ms: Option<Millis>,
    quota_account: Option<String>,
}

/// An hour: a gateway keeps a session for long, and an operator may delete one.
const THREAD_CHECK_AFTER_MS: Millis = Millis::new(3_600_000);

/// The defaults of a kind.
struct Defaults {
    effects: Effects,
    first_byte_timeout_ms: Millis,
    idle_timeout_ms: Millis,
    call_timeout_ms_max: Millis,
    in_flight_max: Count,
    pool_idle_timeout_ms: Millis,
    history: bool,
}

impl Defaults {
    fn of(kind: ProviderKind) -> Self {
        match kind {
            ProviderKind::OpenResponses => Self {
                effects: Effects::GatewayOnly,
                first_byte_timeout_ms: Millis::new(120_000),
                idle_timeout_ms: Millis::new(120_000),
                call_timeout_ms_max: Millis::new(600_000),
                in_flight_max: Count::new(256),
                pool_idle_timeout_ms: Millis::new(30_000),
                history: false,
            },
            // The gateway is silent while it retries its own provider (170 s seen) and while a call waits for one of
            // its run slots. It closes idle connections after 5 s. It runs eight turns at once on two cores.
            ProviderKind::OpenClaw => Self {
                effects: Effects::Own,
                first_byte_timeout_ms: Millis::new(60_000),
                idle_timeout_ms: Millis::new(300_000),
                call_timeout_ms_max: Millis::new(1_800_000),
                in_flight_max: Count::new(8),
                pool_idle_timeout_ms: Millis::new(4_000),
                history: true,
            },
        }
    }
}

/// Provider settings that cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("url is not an absolute http or https URL")]
    Url,
    #[error("api_key is no key: it is empty, or has a character that is not visible ASCII")]
    ApiKey,
    #[error(
        "api_key begins with '$': variables are not expanded in this file. Leave it out and set \
         SIGNALBOX__PROVIDERS__<NAME>__API_KEY"
    )]
    ApiKeyVariable,
    #[error("url carries a user name or password; put the credential into api_key")]
    UrlCredentials,
    #[error("url is at an address that is not public, and private_addresses is false")]
    UrlPrivate,
    #[error("url of an openclaw provider must end with /v1/responses")]
    GatewayPath,
    #[error("model is empty")]
    Model,
    #[error("quota_account is no name: 1-64 visible ASCII characters without spaces")]
    QuotaAccount,
    #[error("gateway_agent is for kind openclaw only")]
    GatewayAgentUnused,
    #[error("thread_check_after_ms is for kind openclaw only: no other provider has a record of its threads")]
    ThreadCheckUnused,
    #[error(
        "name the gateway's agent: model = \"openclaw/<agent>\", or gateway_agent; letters, digits, '-' and '_' only"
    )]
    GatewayAgent,
    #[error("model and gateway_agent name different agents; the gateway would run the second and report the first")]
    GatewayAgentsDiffer,
    #[error("an openclaw gateway always keeps the conversation: thread cannot be none")]
    GatewayThread,
    #[error("an openclaw gateway finds the conversation by its session key: leave out thread_by")]
    GatewayThreadBy,
    #[error("server = \"openclaw\" and kind = \"openclaw\" go together: write both, or neither")]
    ServerOfKind,
    #[error("server = \"{0}\" is sent the whole turn with every call: leave out thread and thread_by")]
    ServerForgets(&'static str),
    #[error(
        "server = \"openai\" knows no session key: write thread = \"none\", or thread = \"durable\" to continue by \
         response id"
    )]
    OpenAiThread,
    #[error(
        "thread_by is for a server that keeps the conversation, and thread is none: write thread = \"durable\", or \
         leave out thread_by"
    )]
    ThreadByWithoutThread,
    #[error("pool_idle_timeout_ms must be below 5000 for an openclaw provider, which closes idle connections then")]
    PoolIdle,
}

/// The header that carries the credential.
pub(super) fn bearer(key: &SecretString) -> Result<HeaderValue, SettingsError> {
    let key = key.expose_secret();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(SettingsError::ApiKey);
    }
    if key.starts_with('$') {
        return Err(SettingsError::ApiKeyVariable);
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| SettingsError::ApiKey)?;
    value.set_sensitive(true);
    Ok(value)
}

impl TryFrom<Fields> for ProviderSettings {
    type Error = SettingsError;

    fn try_from(fields: Fields) -> Result<Self, SettingsError> {
        let kind = fields.kind.unwrap_or(match fields.server {
            Some(Server::OpenClaw) => ProviderKind::OpenClaw,
            _ => ProviderKind::OpenResponses,
        });
        let defaults = Defaults::of(kind);
        let url = checked_url(&fields.url, kind)?;
        let private_addresses = fields.private_addresses.unwrap_or(true);
        if !private_addresses && !egress::host_may_be_public(&url) {
            return Err(SettingsError::UrlPrivate);
        }
        fields.api_key.as_ref().map(bearer).transpose()?;
        if fields.model.trim().is_empty() {
            return Err(SettingsError::Model);
        }
        let names_an_account =
            |name: &String| (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        if fields
            .quota_account
            .as_ref()
            .is_some_and(|name| !names_an_account(name))
        {
            return Err(SettingsError::QuotaAccount);
        }
        let gateway_agent = match kind {
            ProviderKind::OpenClaw => Some(GatewayAgent::from_settings(
                &fields.model,
                fields.gateway_agent.as_deref(),
            )?),
            ProviderKind::OpenResponses if fields.gateway_agent.is_some() => {
                return Err(SettingsError::GatewayAgentUnused);
            }
            ProviderKind::OpenResponses => None,
        };
        let thread_check_after = match (kind, fields.thread_check_after_ms) {
            (ProviderKind::OpenClaw, after) => Some(after.unwrap_or(THREAD_CHECK_AFTER_MS).duration()),
            (ProviderKind::OpenResponses, Some(_)) => return Err(SettingsError::ThreadCheckUnused),
            (ProviderKind::OpenResponses, None) => None,
        };
        let (server, thread, continuation) = server::continued(kind, fields.server, fields.thread, fields.thread_by)?;
        let stream = fields.stream.unwrap_or(true);
        // Without a stream the first byte arrives with the last.
        let first_byte_default = if stream {
            defaults.first_byte_timeout_ms
        } else {
            defaults.call_timeout_ms_max
        };
        let limits = CallLimits {
            connect_timeout: fields.connect_timeout_ms.unwrap_or(Millis::new(5_000)).duration(),
            first_byte_timeout: fields.first_byte_timeout_ms.unwrap_or(first_byte_default).duration(),
            idle_timeout: fields.idle_timeout_ms.unwrap_or(defaults.idle_timeout_ms).duration(),
            call_timeout_max: fields
                .call_timeout_ms_max
                .unwrap_or(defaults.call_timeout_ms_max)
                .duration(),
            request_bytes_max: fields.request_bytes_max.unwrap_or(Bytes::new(8 * 1024 * 1024)).usize(),
            answer_bytes_max: fields.answer_bytes_max.unwrap_or(Bytes::new(1024 * 1024)).usize(),
            arguments_bytes_max: fields.arguments_bytes_max.unwrap_or(Bytes::new(256 * 1024)).usize(),
            tool_calls_max: fields.tool_calls_max.unwrap_or(Count::new(64)).usize(),
        };
        let in_flight_max = fields.in_flight_max.unwrap_or(defaults.in_flight_max).usize();
        let pool = Pool {
            in_flight_max,
            idle_timeout: fields
                .pool_idle_timeout_ms
                .unwrap_or(defaults.pool_idle_timeout_ms)
                .duration(),
            // Fewer would be opened again for the next turns.
            idle_connections_max: fields
                .pool_idle_connections_max
                .map_or(in_flight_max, |most| most.get() as usize),
        };
        if kind == ProviderKind::OpenClaw && pool.idle_timeout >= Duration::from_secs(5) {
            return Err(SettingsError::PoolIdle);
        }
        let history = HistoryLookup {
            enabled: fields.history.unwrap_or(defaults.history),
            settle: fields.history_settle_ms.unwrap_or(Millis::new(10_000)).duration(),
            unanswered_max: fields
                .history_unanswered_ms_max
                .unwrap_or(Millis::new(120_000))
                .duration(),
        };
        Ok(Self {
            kind,
            url,
            private_addresses,
            model: fields.model,
            api_key: fields.api_key,
            server,
            thread,
            continuation,
            effects: fields.effects.unwrap_or(defaults.effects),
            stream,
            gateway_agent,
            limits,
            pool,
            history,
            thread_check_after,
            quota_account: fields.quota_account,
        })
    }
}

fn checked_url(text: &str, kind: ProviderKind) -> Result<Url, SettingsError> {
    let url = Url::parse(text).map_err(|_| SettingsError::Url)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(SettingsError::Url);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(SettingsError::UrlCredentials);
    }
    // The session history's path is derived from this path; `/v1/responses/` is a 404 there.
    if kind == ProviderKind::OpenClaw && !url.path().ends_with(super::openclaw::RESPONSES_PATH) {
        return Err(SettingsError::GatewayPath);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "`json!` reads best where it is used")]

    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Result<ProviderSettings, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    fn openclaw(extra: Value) -> Result<ProviderSettings, String> {
        let mut value =
            json!({"kind": "openclaw", "url": "http://127.0.0.1:18789/v1/responses", "model": "openclaw/alpha"});
        value
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        parse(value)
    }

    #[test]
    fn the_kind_follows_from_the_server() {
        let of = |server: &str, model: &str| {
            parse(json!({"server": server, "url": "http://h/v1/responses", "model": model}))
        };
        assert_eq!(of("openclaw", "openclaw/alpha").unwrap().kind, ProviderKind::OpenClaw);
        assert_eq!(of("vllm", "m").unwrap().kind, ProviderKind::OpenResponses);
    }

    #[test]
    fn fills_in_defaults_by_kind() {
        let plain = parse(json!({"kind": "openresponses", "url": "http://h/v1/responses", "model": "m"})).unwrap();
        assert_eq!((plain.thread, plain.effects), (Thread::Durable, Effects::GatewayOnly));
        assert!(plain.gateway_agent.is_none() && !plain.history.enabled && plain.stream);

        let gateway = openclaw(json!({})).unwrap();
        assert_eq!((gateway.thread, gateway.effects), (Thread::Durable, Effects::Own));
        assert!(gateway.history.enabled);
        assert!(
            gateway.limits.idle_timeout >= Duration::from_secs(170),
            "the gateway is silent while it retries"
        );
        assert!(
            gateway.pool.idle_timeout < Duration::from_secs(5),
            "the gateway closes idle connections"
        );
    }

    #[test]
    fn refuses_settings_that_cannot_work() {
        fn check(settings: Result<ProviderSettings, String>, says: &str) {
            let error = settings.expect_err(says);
            assert!(error.contains(says), "{error}");
        }
        let plain = |url: &str| parse(json!({"kind": "openresponses", "url": url, "model": "m"}));
        check(plain("not a url"), "absolute http or https");
        check(plain("file:///etc/passwd"), "absolute http or https");
        check(plain("http://user:secret@h/v1"), "put the credential into api_key");
        for key in ["two\nlines", "", "…", "two words"] {
            check(openclaw(json!({"api_key": key})), "api_key is no key");
        }
        check(openclaw(json!({"api_key": "$KEY"})), "variables are not expanded");
        check(
            parse(json!({"kind": "openresponses", "url": "http://h", "model": " "})),
            "model is empty",
        );
        check(
            parse(json!({"kind": "openresponses", "url": "http://h", "model": "m", "urll": 1})),
            "unknown field",
        );
        check(
            parse(json!({"kind": "openresponses", "url": "http://h", "model": "m", "gateway_agent": "a"})),
            "kind openclaw only",
        );
        for name in ["", "two words", "k\u{f6}nto", &"x".repeat(65)] {
            check(openclaw(json!({"quota_account": name})), "quota_account is no name");
        }
        check(openclaw(json!({"model": "openclaw"})), "name the gateway's agent");
        check(openclaw(json!({"model": "gpt-5"})), "name the gateway's agent");
        check(openclaw(json!({"gateway_agent": "a:b"})), "name the gateway's agent");
        check(openclaw(json!({"gateway_agent": "beta"})), "name different agents");
        check(openclaw(json!({"url": "http://h/v1/responses/"})), "must end with");
        check(openclaw(json!({"thread": "none"})), "thread cannot be none");
        check(openclaw(json!({"pool_idle_timeout_ms": 5000})), "below 5000");
        check(
            openclaw(json!({"idle_timeout_ms": 0})),
            "expected a whole number of milliseconds from 1",
        );
    }

    #[test]
    fn never_shows_the_credential() {
        let settings = openclaw(json!({"api_key": "s3cr3t-value"})).unwrap();
        assert!(settings.api_key.is_some());
        assert!(!format!("{settings:?}").contains("s3cr3t"));
    }
}
