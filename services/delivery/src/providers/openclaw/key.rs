//! Session keys in an OpenClaw gateway's form: `agent:{gateway agent}:{session key}`.
//!
//! The agent must be in the key: with two agents configured a bare key is an error 500. The gateway folds case, so two
//! keys that differ only in case would share one history. Our keys are lower case by construction, and another key is
//! refused here rather than folded.

use std::fmt;

use crate::providers::failure::{FailureClass, ProviderError, Sent};
use crate::providers::settings::SettingsError;

/// An agent configured in the gateway, as it stands in keys. Not Signalbox's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAgent(String);

impl fmt::Display for GatewayAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl GatewayAgent {
    /// From `model = "openclaw/<agent>"`, or from `gateway_agent` where the model names none. The gateway silently
    /// prefers the key's agent to the model's, so two different names are an error.
    pub(in crate::providers) fn from_settings(model: &str, gateway_agent: Option<&str>) -> Result<Self, SettingsError> {
        let named_by_model = match model.strip_prefix("openclaw") {
            Some("" | "/default") => None,
            Some(rest) => Some(rest.strip_prefix('/').ok_or(SettingsError::GatewayAgent)?),
            None => return Err(SettingsError::GatewayAgent),
        };
        let named = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            let valid = !name.is_empty() && name.chars().all(plain);
            valid
                .then(|| Self(name.to_ascii_lowercase()))
                .ok_or(SettingsError::GatewayAgent)
        };
        match (
            named_by_model.map(named).transpose()?,
            gateway_agent.map(named).transpose()?,
        ) {
            (Some(model), Some(setting)) if model != setting => Err(SettingsError::GatewayAgentsDiffer),
            (Some(agent), _) | (None, Some(agent)) => Ok(agent),
            (None, None) => Err(SettingsError::GatewayAgent),
        }
    }

    /// The gateway's key for one of our sessions. An error: it would fold the session key into another, or the key
    /// cannot be sent in a header.
    pub(in crate::providers) fn key_of(&self, session_key: &str) -> Result<GatewayKey, ProviderError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '-' | '_' | '.');
        if session_key.is_empty() || session_key.starts_with(':') || !session_key.chars().all(plain) {
            let detail = "session key is not made of a-z, 0-9, ':', '-', '_' and '.'";
            return Err(ProviderError::new(FailureClass::BadRequest, Sent::No, detail));
        }
        Ok(GatewayKey(format!("agent:{}:{session_key}", self.0)))
    }
}

/// A session key as the gateway stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::providers) struct GatewayKey(String);

impl GatewayKey {
    pub(in crate::providers) fn as_str(&self) -> &str {
        &self.0
    }

    /// For a path segment. The colon is the only character of a key that needs escaping.
    pub(in crate::providers) fn in_path(&self) -> String {
        self.0.replace(':', "%3A")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(model: &str, setting: Option<&str>) -> Result<String, SettingsError> {
        GatewayAgent::from_settings(model, setting).map(|agent| agent.0)
    }

    #[test]
    fn takes_the_agent_from_the_model_or_the_setting() {
        assert_eq!(agent("openclaw/Alpha", None).as_deref(), Ok("alpha"));
        assert_eq!(agent("openclaw/alpha", Some("ALPHA")).as_deref(), Ok("alpha"));
        assert_eq!(agent("openclaw", Some("beta")).as_deref(), Ok("beta"));
        assert_eq!(agent("openclaw/default", Some("beta")).as_deref(), Ok("beta"));
        assert_eq!(
            agent("openclaw/alpha", Some("beta")),
            Err(SettingsError::GatewayAgentsDiffer)
        );
        assert_eq!(agent("openclaw-alpha", None), Err(SettingsError::GatewayAgent));
        assert_eq!(agent("openclaw/", None), Err(SettingsError::GatewayAgent));
    }

    #[test]
    fn puts_the_agent_in_front_and_refuses_what_would_be_folded() {
        let alpha = GatewayAgent("alpha".into());
        let key = alpha.key_of("task:t-1:agent:0190:acme:v2").unwrap();
        assert_eq!(key.as_str(), "agent:alpha:task:t-1:agent:0190:acme:v2");
        assert_eq!(key.in_path(), "agent%3Aalpha%3Atask%3At-1%3Aagent%3A0190%3Aacme%3Av2");
        for unusable in ["", ":x", "task:T:agent:a", "task:ü", "task:a\r\nx: y", "a/b"] {
            assert!(alpha.key_of(unusable).is_err(), "{unusable:?}");
        }
    }
}
