//! `[orchestrator]`, `[sign_in]`, `[email]` and `[outbound]`: the listen address and the operator's limits. Limits that clients rely on (such as the length of a title) are
//! constants next to their type.

use std::{collections::BTreeMap, net::SocketAddr};

use axum::http::Uri;
use runtime::{
    section,
    settings::{ArtifactBytes, Bytes, Count, Days, Hours, Millis},
};
use secrecy::SecretString;
use serde::Deserialize;

use crate::{
    email::{FromAddress, SmtpUrl},
    oidc::settings::{OidcSettings, ProviderName},
};

section! {
    #[derive(Debug)]
    pub struct OrchestratorSettings {
        #[serde(deserialize_with = "runtime::settings::address")]
        pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
        /// The public address of this API, as in `https://signalbox.example.com`. Links and the OpenAPI document begin with it.
        /// Default: the listen address.
        pub public_url: Option<PublicUrl> = None,
        /// Creates accounts and may do everything in all of them (`SIGNALBOX_OPERATOR_TOKEN`). Without it accounts cannot be
        /// created.
        pub operator_token: Option<SecretString> = None,
        /// Seeds of NATS' own form (`signalbox nats-keys`): with both, API keys open NATS (docs/publishing.md).
        pub callout_issuer_seed: Option<SecretString> = None,
        pub callout_xkey_seed: Option<SecretString> = None,
        /// Items of a page if the request names no limit.
        pub list_items_default: Count = Count::new(50),
        /// The largest limit of a request; a higher one is lowered to it.
        pub list_items_max: Count = Count::new(200),
        /// Bytes of a page; the item that would exceed it begins the next page. A page has at least one item.
        pub list_bytes_max: Bytes = Bytes::new(2 * 1024 * 1024),
        /// Rows that a filter scans for one page. A page of a selective filter has few items, or none, and a cursor.
        pub scan_rows_max: Count = Count::new(20_000),
        /// Timeout of a statement that reads a list.
        pub list_timeout_ms: Millis = Millis::new(1_000),
        /// Turns hold whole prompts, so a page has fewer of them.
        pub list_turns_max: Count = Count::new(50),
        /// How long the answer of a POST with an `Idempotency-Key` is kept.
        pub answers_kept_hours: Hours = Hours::new(24),
        /// How long an accepted notification is known by its id before the resolver has written its row. Equal to the stream's
        /// retention. With a longer time, a notification that was deleted after processing would be reported as queued.
        pub accepted_kept_hours: Hours = Hours::new(7 * 24),
        /// Retention of dead letters, redriven or not.
        pub dead_letters_kept_days: Days = Days::new(90),
        /// Retention of holds, timers and recoveries that have ended.
        pub control_kept_days: Days = Days::new(90),
        /// Retention of mail: to a session, after its outcome; to a person, after it was archived. What is in an inbox stays.
        pub mail_kept_days: Days = Days::new(365),
        /// Bytes of one artifact; a larger upload is answered with 413.
        pub artifact_bytes_max: ArtifactBytes = ArtifactBytes::new(15_000_000),
        /// Bytes of an account's artifacts, each content counted once; an upload beyond them is answered with 409.
        pub artifact_account_bytes_max: Bytes = Bytes::new(2 * 1024 * 1024 * 1024),
        /// Replays of an account in progress; a further one is answered with 429.
        pub replays_in_flight_account_max: Count = Count::new(4),
        /// Replays of one turn; a further one is answered with 409.
        pub replays_per_turn_max: Count = Count::new(20),
        /// How long an orchestrator is at rest until it is shown as hibernated, in minutes.
        pub orchestrator_idle_min: Count = Count::new(15),
        /// Open sessions on the board of one orchestrator; the tool-gateway reads it too.
        pub children_open_max: Count = domain::session::CHILDREN_OPEN_MAX_DEFAULT,
        /// How long nothing moves a task on until it counts as stalled.
        pub stall_after_ms: Millis = Millis::new(10 * 60 * 1000),
        /// How often stalled tasks are looked for.
        pub liveness_interval_ms: Millis = Millis::new(60 * 1000),
        pub forget_interval_ms: Millis = Millis::new(10 * 60 * 1000),
        /// How often due timers, holds that have something left to do, and mail whose item has ended, are looked for.
        pub timer_interval_ms: Millis = Millis::new(1_000),
        /// Timers of an account that are fired in one transaction.
        pub timers_batch_max: Count = Count::new(200),
        /// Replies posted in one transaction.
        pub replies_batch_max: Count = Count::new(256),
        /// Attempts after which an event becomes a dead letter.
        pub replies_attempts_max: Count = Count::new(10),
        /// Delay before a failed reply is retried.
        pub replies_retry_ms: Millis = Millis::new(1_000),
    }
}

section! {
    /// `[sign_in]`: how long links and browser sessions last, and by which providers people sign in.
    #[derive(Debug)]
    pub struct SignInSettings {
        /// How long a link of the operator's is good, in minutes, if the request does not say.
        pub link_min: Count = Count::new(15),
        /// How long an invitation is good.
        pub invite_days: Days = Days::new(7),
        /// How long a browser stays signed in.
        pub session_days: Days = Days::new(30),
        /// How long a browser stays signed in without a request.
        pub idle_days: Days = Days::new(7),
        /// OpenID providers, by the name in their path.
        pub oidc: BTreeMap<ProviderName, OidcSettings> = BTreeMap::new(),
    }
}

section! {
    /// `[email]`: the server that takes e-mail to people. Without it none is sent, and people hear of their mail in the inbox.
    #[derive(Debug)]
    pub struct EmailSettings {
        /// `smtps://user:password@host`, `smtp://user:password@host?tls=required`, or `smtp://host:25` for a relay in your own network, which
        /// gets no password. It holds a password, so it is not shown.
        pub smtp_url: Option<SmtpUrl> = None,
        /// `Signalbox <signalbox@example.com>`: who the e-mail is from. Needed with `smtp_url`.
        pub from: Option<FromAddress> = None,
    }
}

section! {
    /// `[outbound]`: how deliveries leave, in each process.
    #[derive(Debug)]
    pub struct OutboundSettings {
        /// Deliveries at one time.
        pub in_flight_max: Count = Count::new(64),
        /// Deliveries at one time to a destination. E-mail has one server: here it is an account, so that none takes all places.
        pub in_flight_destination_max: Count = Count::new(4),
        /// Deliveries of an account that wait. Of more, each ends at once; the inbox has the mail.
        pub pending_account_max: Count = Count::new(50_000),
        /// How long one attempt may take.
        pub timeout_ms: Millis = Millis::new(15_000),
        /// How often due deliveries are looked for.
        pub sweep_ms: Millis = Millis::new(1_000),
    }
}

/// What delivery's settings say of providers, as far as a replay asks. Where this service has no such settings, delivery refuses.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(transparent)]
pub struct Providers(BTreeMap<String, Provider>);

impl Providers {
    pub fn find(&self, name: &str) -> Option<&Provider> {
        self.0.get(name)
    }

    /// This service has no settings of providers.
    pub fn are_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

/// `[providers.NAME]`, of which this service reads who has effects. Delivery checks the entries.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Provider(BTreeMap<String, serde_json::Value>);

impl Provider {
    /// Its agents have tools of their own.
    pub fn has_effects(&self) -> bool {
        let said = |key: &str| self.0.get(key).and_then(serde_json::Value::as_str);
        let is_gateway = || ["kind", "server"].into_iter().any(|key| said(key) == Some("openclaw"));
        said("effects").map_or_else(is_gateway, |effects| effects == "own")
    }
}

/// Scheme, host and port only; no slash at the end.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicUrl(String);

impl PublicUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PublicUrl {
    type Error = &'static str;
    fn try_from(url: String) -> Result<Self, Self::Error> {
        let url = url.strip_suffix('/').unwrap_or(&url);
        let origin = Uri::try_from(url).ok().and_then(|uri| {
            let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
            let is_web = scheme == "http" || scheme == "https";
            (is_web && !authority.as_str().contains('@')).then(|| format!("{scheme}://{authority}"))
        });
        // A URL with a path, a query or more differs from its own origin.
        match origin {
            Some(origin) if origin == url => Ok(PublicUrl(origin)),
            Some(_) | None => Err("expected http:// or https:// with a host, such as https://signalbox.example.com"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_effects_if_it_says_so_or_is_a_gateway() {
        let check = |toml: &str, expected: bool| {
            let provider: Provider = serde_json::from_str(toml).unwrap();
            assert_eq!(provider.has_effects(), expected, "{toml}");
        };
        check("{}", false);
        check(r#"{"url": "http://h", "model": "m", "effects": "own"}"#, true);
        check(r#"{"kind": "openclaw"}"#, true);
        check(r#"{"server": "openclaw"}"#, true);
        check(r#"{"kind": "openclaw", "effects": "gateway_only"}"#, false);
        check(r#"{"kind": "openresponses"}"#, false);
    }

    #[test]
    fn the_public_address_is_an_origin() {
        let check = |url: &str, expected: Option<&str>| {
            let read = PublicUrl::try_from(url.to_owned()).ok();
            assert_eq!(read.as_ref().map(|PublicUrl(url)| url.as_str()), expected, "{url}");
        };
        check("https://signalbox.example.com", Some("https://signalbox.example.com"));
        check("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080"));
        check("http://[::1]:8080", Some("http://[::1]:8080"));
        for bad in [
            "",
            "signalbox.example.com",
            "ftp://signalbox.example.com",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://a#b",
            "https://user:secret@a",
            "https://a//",
        ] {
            check(bad, None);
        }
    }
}
