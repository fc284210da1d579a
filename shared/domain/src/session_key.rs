//! The session key: the public, permanent name of one generation of a session. Gateways fold case and identify the
//! conversation by it, so it is all lower case, contains ids and never slugs, and has a distinct prefix for each kind.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;

use crate::{AccountId, AgentId, BranchId, Generation, Owner, ReplayId, SessionId, TaskId, UserId};

/// A parsed session key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SessionKey {
    pub of: SessionOf,
    pub account: AccountId,
    pub generation: Generation,
}

/// Whose session it is, within its account.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SessionOf {
    Task {
        task: TaskId,
        agent: AgentId,
    },
    Agent(AgentId),
    /// A branch's only session.
    Branch {
        branch: BranchId,
        agent: AgentId,
    },
    /// A replay's only session.
    Replay(ReplayId),
    /// A person's orchestrator, or the account's.
    Orchestrator(Owner),
    /// A person's orchestrator, as it answers another person.
    Guest {
        owner: UserId,
        guest: UserId,
    },
}

impl SessionOf {
    /// Whose orchestrator it is, if it is one.
    pub fn orchestrator(&self) -> Option<&Owner> {
        match self {
            Self::Orchestrator(owner) => Some(owner),
            Self::Task { .. } | Self::Agent(_) | Self::Branch { .. } | Self::Replay(_) | Self::Guest { .. } => None,
        }
    }

    /// The person whose own it is.
    pub fn person(&self) -> Option<&UserId> {
        match self {
            Self::Orchestrator(owner) => owner.user(),
            Self::Guest { owner, .. } => Some(owner),
            Self::Task { .. } | Self::Agent(_) | Self::Branch { .. } | Self::Replay(_) => None,
        }
    }
}

/// A session as others name it. Ignores case, as keys do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionAddress {
    /// Of any generation; `orchestrator:org:{account}` is short for the first one.
    Key(SessionKey),
    /// `orchestrator:{user}`: a person's orchestrator, in the account of whoever names it.
    User(UserId),
}

impl SessionAddress {
    pub fn parse(text: &str) -> Result<SessionAddress, SessionKeyError> {
        if text.len() > SESSION_KEY_BYTES_MAX {
            return Err(SessionKeyError);
        }
        let folded = text.to_ascii_lowercase();
        let parts: Vec<&str> = folded.split(':').collect();
        match parts[..] {
            ["orchestrator", user] => UserId::parse(user).map(Self::User).map_err(|_| SessionKeyError),
            ["orchestrator", "org", _] => SessionKey::parse(&format!("{folded}:v1")).map(Self::Key),
            _ => SessionKey::parse(&folded).map(Self::Key),
        }
    }

    /// Whose orchestrator it is, if it is one.
    pub fn orchestrator(&self) -> Option<Owner> {
        match self {
            Self::Key(key) => key.of.orchestrator().cloned(),
            Self::User(user) => Some(Owner::User(user.clone())),
        }
    }

    /// The person whose own it is.
    pub fn person(&self) -> Option<&UserId> {
        match self {
            Self::Key(key) => key.of.person(),
            Self::User(user) => Some(user),
        }
    }

    /// The owner of the orchestrator and whom it answers, if it is a guest's.
    pub fn guest(&self) -> Option<(&UserId, &UserId)> {
        match self {
            Self::Key(SessionKey {
                of: SessionOf::Guest { owner, guest },
                ..
            }) => Some((owner, guest)),
            Self::Key(_) | Self::User(_) => None,
        }
    }

    /// Whose session it is, in this account. None: of another account.
    pub fn within(&self, account: &AccountId) -> Option<SessionOf> {
        match self {
            Self::Key(key) => (key.account == *account).then(|| key.of.clone()),
            // Keys of such an account would have two readings: it has no orchestrators.
            Self::User(_) if account.is_reserved() => None,
            Self::User(user) => Some(SessionOf::Orchestrator(Owner::User(user.clone()))),
        }
    }
}

impl fmt::Display for SessionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::User(user) => write!(f, "orchestrator:{user}"),
        }
    }
}

/// A session in a path: by its id, or by its address.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum SessionRef {
    Id(SessionId),
    Address(#[schemars(with = "String", length(max = 384))] SessionAddress),
}

impl FromStr for SessionRef {
    type Err = SessionKeyError;
    fn from_str(text: &str) -> Result<Self, SessionKeyError> {
        match SessionId::parse(text) {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => SessionAddress::parse(text).map(Self::Address),
        }
    }
}

/// The name of a provider's thread: the key of its session, with the thread's number from the second on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ThreadName {
    pub key: SessionKey,
    /// From 1.
    pub thread: i32,
}

impl ThreadName {
    /// Of a key in its stored form.
    pub fn text(key: &str, thread: i32) -> String {
        match thread {
            ..=1 => key.to_owned(),
            n => format!("{key}:t{n}"),
        }
    }

    /// Parses a name, ignoring case. A name has one spelling, as a key has.
    pub fn parse(text: &str) -> Result<ThreadName, SessionKeyError> {
        let number = |digits: &str| digits.parse().ok().filter(|n: &i32| *n >= 2 && n.to_string() == digits);
        let numbered = text.rsplit_once(':').and_then(|(key, end)| {
            let digits = end.strip_prefix(['t', 'T'])?;
            Some((key, number(digits)?))
        });
        let (key, thread) = numbered.unwrap_or((text, 1));
        let key = SessionKey::parse(key)?;
        Ok(ThreadName { key, thread })
    }
}

impl fmt::Display for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ThreadName::text(&self.key.to_string(), self.thread))
    }
}

/// Longer than any valid key; longer headers are not parsed.
pub const SESSION_KEY_BYTES_MAX: usize = 384;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a session key")]
pub struct SessionKeyError;

impl SessionKey {
    /// Parses a key, ignoring case. The short forms of orchestrators name no generation, so they are not keys ([`SessionAddress`]).
    pub fn parse(text: &str) -> Result<Self, SessionKeyError> {
        if text.len() > SESSION_KEY_BYTES_MAX {
            return Err(SessionKeyError);
        }
        let folded = text.to_ascii_lowercase();
        // A key has one spelling: `v01` or a UUID without hyphens must not be a second name of the same session.
        read(&folded)
            .filter(|key| key.to_string() == folded)
            .ok_or(SessionKeyError)
    }
}

fn read(folded: &str) -> Option<SessionKey> {
    let parts: Vec<&str> = folded.split(':').collect();
    let (of, account, version) = match parts[..] {
        ["task", task, "agent", agent, account, version] => {
            let (task, agent) = (TaskId::parse(task).ok()?, AgentId::parse(agent).ok()?);
            (SessionOf::Task { task, agent }, account, version)
        }
        ["system", "agent", agent, account, version] => {
            (SessionOf::Agent(AgentId::parse(agent).ok()?), account, version)
        }
        ["branch", branch, "agent", agent, account, version] => {
            let (branch, agent) = (BranchId::parse(branch).ok()?, AgentId::parse(agent).ok()?);
            (SessionOf::Branch { branch, agent }, account, version)
        }
        ["replay", replay, account, version] => (SessionOf::Replay(ReplayId::parse(replay).ok()?), account, version),
        ["orchestrator", "org", account, version] => (SessionOf::Orchestrator(Owner::Account), account, version),
        ["orchestrator", account, owner, "guest", guest, version] => {
            let (owner, guest) = (UserId::parse(owner).ok()?, UserId::parse(guest).ok()?);
            (SessionOf::Guest { owner, guest }, account, version)
        }
        ["orchestrator", account, user, version] => {
            let owner = Owner::User(UserId::parse(user).ok()?);
            (SessionOf::Orchestrator(owner), account, version)
        }
        _ => return None,
    };
    let generation = version.strip_prefix('v')?.parse().ok().filter(|number| *number >= 1);
    Some(SessionKey {
        of,
        account: AccountId::parse(account).ok()?,
        generation: Generation(generation?),
    })
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = &self.account;
        match &self.of {
            SessionOf::Task { task, agent } => write!(f, "task:{}:agent:{agent}:{account}", task.key()),
            SessionOf::Agent(agent) => write!(f, "system:agent:{agent}:{account}"),
            SessionOf::Branch { branch, agent } => write!(f, "branch:{branch}:agent:{agent}:{account}"),
            SessionOf::Replay(replay) => write!(f, "replay:{replay}:{account}"),
            SessionOf::Orchestrator(Owner::User(user)) => write!(f, "orchestrator:{account}:{user}"),
            SessionOf::Orchestrator(Owner::Account) => write!(f, "orchestrator:org:{account}"),
            SessionOf::Guest { owner, guest } => write!(f, "orchestrator:{account}:{owner}:guest:{guest}"),
        }?;
        write!(f, ":v{}", self.generation)
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
            format!("branch:{AGENT}:agent:{AGENT}:acme:v1"),
            format!("replay:{AGENT}:acme:v1"),
            "orchestrator:acme:ann:v3".to_owned(),
            "orchestrator:org:acme:v12".to_owned(),
            "orchestrator:acme:ann:guest:bob:v1".to_owned(),
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
            format!("branch:{bare}:agent:{AGENT}:acme:v1"),
            format!("branch:{AGENT}:{AGENT}:acme:v1"),
            format!("replay:{bare}:acme:v1"),
            "orchestrator:acme".to_owned(),
            "orchestrator:acme:ann:guest:bob".to_owned(),
            "orchestrator:acme:ann:guest:v1".to_owned(),
            "main".to_owned(),
            "x".repeat(400),
        ] {
            assert_eq!(SessionKey::parse(&text), Err(SessionKeyError), "{text}");
        }
    }

    #[test]
    fn a_session_is_named_by_a_key_or_a_short_form() {
        let ann = || SessionOf::Orchestrator(Owner::User(UserId::parse("ann").unwrap()));
        let of_bob = || {
            let [owner, guest] = ["bob", "ann"].map(|user| UserId::parse(user).unwrap());
            SessionOf::Guest { owner, guest }
        };
        let [acme, other] = ["acme", "other"].map(|text| AccountId::parse(text).unwrap());
        let task = SessionKey::parse(&format!("task:proj-7:agent:{AGENT}:acme:v2")).unwrap();
        for (text, of, elsewhere) in [
            ("orchestrator:Ann", ann(), Some(ann())),
            ("orchestrator:acme:ann:v7", ann(), None),
            ("orchestrator:org:ACME", SessionOf::Orchestrator(Owner::Account), None),
            ("orchestrator:acme:Bob:guest:ann:v1", of_bob(), None),
            (&task.to_string(), task.of.clone(), None),
        ] {
            let address = SessionAddress::parse(text).unwrap();
            assert_eq!(address.within(&acme), Some(of), "{text}");
            assert_eq!(address.within(&other), elsewhere, "{text}");
            assert_eq!(SessionAddress::parse(&address.to_string()), Ok(address), "{text}");
        }
        for bad in [
            "",
            "ann",
            "orchestrator:",
            "orchestrator:org:",
            "orchestrator:a b",
            "orchestrator:acme:ann",
            "task:proj-7",
        ] {
            assert_eq!(SessionAddress::parse(bad), Err(SessionKeyError), "{bad}");
        }
    }

    #[test]
    fn a_thread_is_named_after_its_session() {
        let key = format!("task:t:agent:{AGENT}:acme:v1");
        for (text, thread) in [
            (key.clone(), 1),
            (format!("{key}:t2"), 2),
            (format!("{key}:T12").to_uppercase(), 12),
        ] {
            let name = ThreadName::parse(&text).unwrap();
            assert_eq!((name.key.to_string(), name.thread), (key.clone(), thread));
            assert_eq!(name.to_string(), text.to_ascii_lowercase());
            assert_eq!(ThreadName::text(&key, thread), text.to_ascii_lowercase());
        }
        for end in [
            ":t0",
            ":t1",
            ":t01",
            ":t",
            ":t-2",
            ":t+2",
            ":t2:t3",
            ":t99999999999",
            ":tx",
            ":2",
        ] {
            assert_eq!(ThreadName::parse(&format!("{key}{end}")), Err(SessionKeyError), "{end}");
        }
        assert!(
            SessionKey::parse(&format!("{key}:t2")).is_err(),
            "a thread is no session"
        );
    }

    proptest! {
        #[test]
        fn never_panics_and_has_one_spelling(text in ".{0,80}") {
            if let Ok(key) = SessionKey::parse(&text) {
                prop_assert_eq!(key.to_string(), text.to_ascii_lowercase());
            }
            if let Ok(name) = ThreadName::parse(&text) {
                prop_assert_eq!(name.to_string(), text.to_ascii_lowercase());
            }
        }
    }
}
