//! The session key: the public, permanent name of one generation of a session. Gateways fold case and identify the
//! conversation by it, so it is all lower case, contains ids and never slugs, and has a distinct prefix for each kind.

use std::fmt;

use crate::{AccountId, AgentId, Generation, TaskId, UserId};

/// A parsed session key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SessionKey {
    Task {
        task: TaskId,
        agent: AgentId,
        account: AccountId,
        generation: Generation,
    },
    System {
        agent: AgentId,
        account: AccountId,
        generation: Generation,
    },
    Orchestrator {
        account: AccountId,
        user: UserId,
        generation: Generation,
    },
    AccountOrchestrator {
        account: AccountId,
        generation: Generation,
    },
}

/// Longer than any valid key; longer headers are not parsed.
pub const SESSION_KEY_BYTES_MAX: usize = 320;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a session key")]
pub struct SessionKeyError;

impl SessionKey {
    pub fn account(&self) -> &AccountId {
        match self {
            Self::Task { account, .. }
            | Self::System { account, .. }
            | Self::Orchestrator { account, .. }
            | Self::AccountOrchestrator { account, .. } => account,
        }
    }

    pub fn generation(&self) -> Generation {
        match self {
            Self::Task { generation, .. }
            | Self::System { generation, .. }
            | Self::Orchestrator { generation, .. }
            | Self::AccountOrchestrator { generation, .. } => *generation,
        }
    }

    /// The same session's key in another generation.
    pub fn with_generation(mut self, next: Generation) -> SessionKey {
        match &mut self {
            Self::Task { generation, .. }
            | Self::System { generation, .. }
            | Self::Orchestrator { generation, .. }
            | Self::AccountOrchestrator { generation, .. } => *generation = next,
        }
        self
    }

    /// Parses a key, ignoring case. The older forms `orchestrator:{user}` and `orchestrator:org:{account}` name no
    /// generation, so they are not keys; a caller that accepts them looks the current generation up.
    pub fn parse(text: &str) -> Result<Self, SessionKeyError> {
        if text.len() > SESSION_KEY_BYTES_MAX {
            return Err(SessionKeyError);
        }
        let folded = text.to_ascii_lowercase();
        let parts: Vec<&str> = folded.split(':').collect();
        let account = |t: &str| AccountId::parse(t).map_err(|_| SessionKeyError);
        let agent = |t: &str| AgentId::parse(t).map_err(|_| SessionKeyError);
        let key = match parts[..] {
            ["task", task, "agent", agent_id, account_id, version] => Self::Task {
                task: TaskId::parse(task).map_err(|_| SessionKeyError)?,
                agent: agent(agent_id)?,
                account: account(account_id)?,
                generation: generation(version)?,
            },
            ["system", "agent", agent_id, account_id, version] => Self::System {
                agent: agent(agent_id)?,
                account: account(account_id)?,
                generation: generation(version)?,
            },
            ["orchestrator", "org", account_id, version] => Self::AccountOrchestrator {
                account: account(account_id)?,
                generation: generation(version)?,
            },
            ["orchestrator", account_id, user, version] => Self::Orchestrator {
                account: account(account_id)?,
                user: UserId::parse(user).map_err(|_| SessionKeyError)?,
                generation: generation(version)?,
            },
            _ => return Err(SessionKeyError),
        };
        // A key has one spelling: `v01` or a UUID without hyphens must not be a second name of the same session.
        if key.to_string() == folded {
            Ok(key)
        } else {
            Err(SessionKeyError)
        }
    }
}

fn generation(text: &str) -> Result<Generation, SessionKeyError> {
    let number = text
        .strip_prefix('v')
        .ok_or(SessionKeyError)?
        .parse::<i32>()
        .map_err(|_| SessionKeyError)?;
    if number < 1 {
        Err(SessionKeyError)
    } else {
        Ok(Generation(number))
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task {
                task,
                agent,
                account,
                generation,
            } => {
                write!(f, "task:{}:agent:{agent}:{account}:v{generation}", task.key())
            }
            Self::System {
                agent,
                account,
                generation,
            } => write!(f, "system:agent:{agent}:{account}:v{generation}"),
            Self::Orchestrator {
                account,
                user,
                generation,
            } => {
                write!(f, "orchestrator:{account}:{user}:v{generation}")
            }
            Self::AccountOrchestrator { account, generation } => write!(f, "orchestrator:org:{account}:v{generation}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGENT: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn every_kind_reads_back() {
        for text in [
            format!("task:proj-7:agent:{AGENT}:acme:v2"),
            format!("system:agent:{AGENT}:acme:v1"),
            "orchestrator:acme:ann:v3".to_owned(),
            "orchestrator:org:acme:v12".to_owned(),
        ] {
            assert_eq!(SessionKey::parse(&text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn gateways_fold_case_and_so_do_we() {
        let key = SessionKey::parse(&format!("TASK:PROJ-7:agent:{AGENT}:ACME:V2")).unwrap();
        assert_eq!(key.to_string(), format!("task:proj-7:agent:{AGENT}:acme:v2"));
    }

    #[test]
    fn a_second_spelling_is_no_key() {
        let bare = AGENT.replace('-', "");
        for text in [
            format!("task:t:agent:{bare}:acme:v1"),
            format!("task:t:agent:{AGENT}:acme:v01"),
            format!("task:t:agent:{AGENT}:acme:v+1"),
            format!("task:t:agent:{AGENT}:acme:v0"),
            format!("task:t:agent:{AGENT}:acme:1"),
            format!("task:t:agent:{AGENT}:acme"),
            "orchestrator:acme".to_owned(),
            "main".to_owned(),
            "x".repeat(400),
        ] {
            assert_eq!(SessionKey::parse(&text), Err(SessionKeyError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_has_one_spelling(text in ".{0,80}") {
            if let Ok(key) = SessionKey::parse(&text) {
                prop_assert_eq!(key.to_string(), text.to_ascii_lowercase());
            }
        }
    }
}
