//! Settings that are valid and unsafe to run with. Pure: the whole list is [`check`].

use std::net::SocketAddr;

use axum::http::HeaderValue;
use config::ValueKind;
use domain::{Bytes, Millis};

use super::{Settings, source::find};
use crate::bearer;

/// An operator token can create accounts, so it must not be guessable from outside of this machine.
const OPERATOR_TOKEN_CHARS_MIN: usize = 16;
/// A lease must outlive two failed renewals. Otherwise one slow answer of the database stops all work.
const RENEWALS_PER_LEASE_MIN: u64 = 3;
const MESSAGES_PER_STREAM_MIN: u64 = 16;

/// An unsafe setting, and what it must be.
#[derive(Debug)]
pub(super) struct Unsafe {
    pub(super) setting: String,
    pub(super) problem: String,
}

impl Unsafe {
    pub(super) fn new(setting: impl Into<String>, problem: String) -> Unsafe {
        Unsafe {
            setting: setting.into(),
            problem,
        }
    }

    fn unless(is_safe: bool, setting: &str, problem: String) -> Result<(), Unsafe> {
        if is_safe {
            Ok(())
        } else {
            Err(Unsafe::new(setting, problem))
        }
    }
}

pub(super) fn check(settings: &Settings) -> Result<(), Unsafe> {
    operator_token(
        settings.text("orchestrator.listen"),
        settings.text("orchestrator.operator_token"),
    )?;
    replica_lease(settings.replica.lease_ms, settings.replica.renew_ms)?;
    let publish = settings.nats.publish_timeout_ms;
    outlives_publish("outbox.sweep_age_ms", settings.outbox.sweep_age_ms, publish)?;
    outlives_publish("outbox.claim_timeout_ms", settings.outbox.claim_timeout_ms, publish)?;
    // With an earlier check, the message may still be on its way.
    outlives_publish("outbox.unread_look_ms", settings.outbox.unread_look_ms, publish)?;
    let limits = &settings.nats.limits;
    stream_bytes(limits.notification_bytes_max, limits.message_bytes_max)?;
    body_has_room(settings.http.body_bytes_max, settings.http.account_answer_bytes_max)?;
    trace_ratio(settings.telemetry.trace_ratio)?;
    root(&settings.nats.root)?;
    settings.envelope.check()
}

/// Otherwise the largest bodies would always be refused as too many bytes at one time.
fn body_has_room(body: Bytes, account: Bytes) -> Result<(), Unsafe> {
    let (body, account) = (body.get(), account.get());
    let problem = format!("{account} is less than one body may have (http.body_bytes_max, {body})");
    Unsafe::unless(body <= account, "http.account_answer_bytes_max", problem)
}

/// Without a setting the orchestrator listens on loopback. An unreadable address counts as public.
fn operator_token(listen: Option<&str>, token: Option<&str>) -> Result<(), Unsafe> {
    let Some(token) = token else { return Ok(()) };
    let unsafe_for = |problem| Unsafe::new("orchestrator.operator_token", problem);
    let sent = HeaderValue::from_str(&format!("Bearer {token}"));
    let is_read = sent.is_ok_and(|value| matches!(bearer::token(&value), Ok(Some(read)) if read == token));
    if !is_read {
        let problem = "no request could bring it: take printable ASCII characters, no comma, and no space at its ends; \
                       `openssl rand -hex 32` makes one";
        return Err(unsafe_for(problem.to_owned()));
    }
    let loopback = listen.is_none_or(|listen| listen.parse().is_ok_and(|listen: SocketAddr| listen.ip().is_loopback()));
    if loopback || token.chars().count() >= OPERATOR_TOKEN_CHARS_MIN {
        return Ok(());
    }
    Err(unsafe_for(format!(
        "orchestrator.listen is not a loopback address, so it needs at least {OPERATOR_TOKEN_CHARS_MIN} characters"
    )))
}

fn replica_lease(lease: Millis, renew: Millis) -> Result<(), Unsafe> {
    let (lease, renew) = (lease.get(), renew.get());
    let problem = format!("it must be at least {RENEWALS_PER_LEASE_MIN} times replica.renew_ms ({renew})");
    Unsafe::unless(lease >= renew * RENEWALS_PER_LEASE_MIN, "replica.lease_ms", problem)
}

/// Claimed earlier, a message may still be on its way: publishing it twice is harmless, but costs time and changes the
/// order.
fn outlives_publish(setting: &str, value: Millis, publish: Millis) -> Result<(), Unsafe> {
    let problem = format!("it must be at least nats.publish_timeout_ms ({})", publish.get());
    Unsafe::unless(value >= publish, setting, problem)
}

/// A half-full stream of notifications keeps no message that was read, and an account's share of it is a quarter: both
/// must hold several of the largest messages.
fn stream_bytes(stream: Bytes, message: Bytes) -> Result<(), Unsafe> {
    let needed = message.get() * MESSAGES_PER_STREAM_MIN;
    let problem =
        format!("it must be at least {MESSAGES_PER_STREAM_MIN} times nats.limits.message_bytes_max ({needed} in all)");
    Unsafe::unless(stream.get() >= needed, "nats.limits.notification_bytes_max", problem)
}

fn trace_ratio(ratio: f64) -> Result<(), Unsafe> {
    let problem = "it must be from 0 to 1".to_owned();
    Unsafe::unless((0.0..=1.0).contains(&ratio), "telemetry.trace_ratio", problem)
}

fn root(root: &str) -> Result<(), Unsafe> {
    let parsed = contracts::Root::parse(root);
    parsed
        .map(drop)
        .map_err(|error| Unsafe::new("nats.root", error.to_string()))
}

impl Settings {
    /// A value of another type is refused by the section's owner.
    fn text(&self, setting: &str) -> Option<&str> {
        match &find(&self.config.cache, setting)?.kind {
            ValueKind::String(text) => Some(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_token_that_no_request_could_bring_is_refused() {
        let check = |token, safe| assert_eq!(operator_token(None, Some(token)).is_ok(), safe, "{token:?}");
        check("operator-token of {a} test/+=~", true);
        for token in [
            "one,two",
            ",",
            "",
            " token",
            "token ",
            "to\nken",
            "to\u{7f}ken",
            "tökén",
            " ",
        ] {
            check(token, false);
        }
    }

    #[test]
    fn a_short_operator_token_is_for_loopback_only() {
        let check =
            |listen, token, safe| assert_eq!(operator_token(listen, token).is_ok(), safe, "{listen:?} {token:?}");
        check(None, Some("short"), true);
        check(Some("127.0.0.1:8080"), Some("short"), true);
        check(Some("[::1]:8080"), Some("short"), true);
        check(Some("0.0.0.0:8080"), Some("short"), false);
        check(Some("0.0.0.0:8080"), Some("fifteen-chars-x"), false);
        check(Some("0.0.0.0:8080"), Some("sixteen-chars-xx"), true);
        check(Some("0.0.0.0:8080"), None, true);
        check(Some("localhost:8080"), Some("short"), false);
    }

    #[test]
    fn the_largest_body_has_room() {
        let check = |body, safe| assert_eq!(body_has_room(Bytes::new(body), Bytes::new(1_000)).is_ok(), safe);
        check(1_000, true);
        check(1_001, false);
    }

    #[test]
    fn the_stream_holds_several_of_the_largest_messages() {
        let check = |stream, safe| assert_eq!(stream_bytes(Bytes::new(stream), Bytes::new(1024)).is_ok(), safe);
        check(16 * 1024, true);
        check(16 * 1024 - 1, false);
    }

    #[test]
    fn a_lease_outlives_two_failed_renewals() {
        let check = |lease, safe| assert_eq!(replica_lease(Millis::new(lease), Millis::new(1_000)).is_ok(), safe);
        check(4_000, true);
        check(3_000, true);
        check(2_999, false);
    }
}
