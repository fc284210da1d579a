//! Settings that can be read and must not be run with. Pure: the whole list is [`check`].

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};

use super::{Settings, SettingsError, tree::Value};
use crate::http::bearer;

/// An operator token can make accounts, so it must not be guessable from outside of this machine.
const OPERATOR_TOKEN_CHARS_MIN: usize = 16;
/// A lease must outlive two renewals that fail, or one slow answer of the database stops all work.
const RENEWALS_PER_LEASE_MIN: u64 = 3;
const MESSAGES_PER_STREAM_MIN: i64 = 16;

pub(super) fn check(settings: &Settings) -> Result<(), SettingsError> {
    operator_token(
        settings.text("orchestrator.listen"),
        settings.text("orchestrator.operator_token"),
    )?;
    replica_lease(settings.replica.lease_ms.get(), settings.replica.renew_ms.get())?;
    let publish_ms = settings.nats.publish_timeout_ms.get();
    outlives_publish("outbox.sweep_age_ms", settings.outbox.sweep_age_ms.get(), publish_ms)?;
    outlives_publish(
        "outbox.claim_timeout_ms",
        settings.outbox.claim_timeout_ms.get(),
        publish_ms,
    )?;
    // Looked after earlier, a message may be on its way right now.
    outlives_publish(
        "outbox.unread_look_ms",
        settings.outbox.unread_look_ms.get(),
        publish_ms,
    )?;
    let limits = &settings.nats.limits;
    stream_bytes(limits.notification_bytes_max, limits.message_bytes_max)?;
    body_has_room(
        settings.http.body_bytes_max.get(),
        settings.http.account_answer_bytes_max.get(),
    )?;
    trace_ratio(settings.telemetry.trace_ratio)?;
    root(&settings.nats.root)?;
    settings.envelope.check()
}

/// Else the largest bodies would be refused for ever, as if they were too many at one time.
fn body_has_room(body: u32, account: u32) -> Result<(), SettingsError> {
    if body <= account {
        return Ok(());
    }
    Err(SettingsError::Unsafe {
        setting: "http.account_answer_bytes_max",
        problem: format!("{account} is less than one body may have (http.body_bytes_max, {body})"),
    })
}

/// Without an address the orchestrator listens on loopback; one that cannot be read counts as open to all.
fn operator_token(listen: Option<&str>, token: Option<&str>) -> Result<(), SettingsError> {
    let Some(token) = token else { return Ok(()) };
    let unsafe_for = |problem: String| SettingsError::Unsafe {
        setting: "orchestrator.operator_token",
        problem,
    };
    let sent =
        HeaderValue::from_str(&format!("Bearer {token}")).map(|value| HeaderMap::from_iter([(AUTHORIZATION, value)]));
    let is_read = sent.is_ok_and(|headers| matches!(bearer(&headers), Ok(Some(read)) if read == token));
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

fn replica_lease(lease_ms: u64, renew_ms: u64) -> Result<(), SettingsError> {
    if lease_ms >= renew_ms * RENEWALS_PER_LEASE_MIN {
        return Ok(());
    }
    Err(SettingsError::Unsafe {
        setting: "replica.lease_ms",
        problem: format!("it must be at least {RENEWALS_PER_LEASE_MIN} times replica.renew_ms ({renew_ms})"),
    })
}

/// Taken earlier, a message may be on its way right now: publishing it twice is harmless, but costs and reorders.
fn outlives_publish(setting: &'static str, value_ms: u64, publish_ms: u64) -> Result<(), SettingsError> {
    if value_ms >= publish_ms {
        return Ok(());
    }
    Err(SettingsError::Unsafe {
        setting,
        problem: format!("it must be at least nats.publish_timeout_ms ({publish_ms})"),
    })
}

/// Half full, the stream of notifications keeps nothing that was read, and an account's share of it is a quarter: both have to
/// hold several of the largest messages. A limit that is not positive is none.
fn stream_bytes(stream: i64, message: i32) -> Result<(), SettingsError> {
    let needed = i64::from(message) * MESSAGES_PER_STREAM_MIN;
    if stream <= 0 || stream >= needed {
        return Ok(());
    }
    Err(SettingsError::Unsafe {
        setting: "nats.limits.notification_bytes_max",
        problem: format!(
            "it must be at least {MESSAGES_PER_STREAM_MIN} times nats.limits.message_bytes_max ({needed} in all)"
        ),
    })
}

fn trace_ratio(ratio: f64) -> Result<(), SettingsError> {
    if (0.0..=1.0).contains(&ratio) {
        return Ok(());
    }
    Err(SettingsError::Unsafe {
        setting: "telemetry.trace_ratio",
        problem: "it must be from 0 to 1".to_owned(),
    })
}

fn root(root: &str) -> Result<(), SettingsError> {
    match contracts::Root::parse(root) {
        Ok(_) => Ok(()),
        Err(error) => Err(SettingsError::Unsafe {
            setting: "nats.root",
            problem: error.to_string(),
        }),
    }
}

impl Settings {
    fn text(&self, setting: &str) -> Option<&str> {
        match &self.tree.get(setting)?.value {
            Value::Text(text) | Value::String(text) => Some(text),
            // Of another type, the section's owner refuses it.
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::List(_) | Value::Table(_) => None,
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
        assert!(body_has_room(1_000, 1_000).is_ok());
        assert!(body_has_room(1_001, 1_000).is_err());
    }

    #[test]
    fn the_stream_holds_several_of_the_largest_messages() {
        assert!(stream_bytes(16 * 1024, 1024).is_ok());
        assert!(stream_bytes(16 * 1024 - 1, 1024).is_err());
        assert!(stream_bytes(-1, 1024).is_ok());
    }

    #[test]
    fn a_lease_outlives_two_failed_renewals() {
        assert!(replica_lease(4_000, 1_000).is_ok());
        assert!(replica_lease(3_000, 1_000).is_ok());
        assert!(replica_lease(2_999, 1_000).is_err());
    }
}
