//! Authenticates an HTTP caller: the bearer of a gateway key, for a session of its account.

use axum::http::{HeaderMap, HeaderName, request::Parts};
use domain::{AccountId, ApiKey, KeyRole, SessionId, SessionOf, ThreadName};
use runtime::http::{AccountLimits, Problem, UnderWay, only};
use storage::{Accounts, Database, api_key::api_key_holder};

use super::routes::failed;
use crate::store;

pub(super) const SESSION_KEY_HEADER: &str = "x-openclaw-session-key";
/// Maximum length of a gateway's own name for its agent.
const GATEWAY_AGENT_BYTES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Caller {
    pub account: AccountId,
    pub session: SessionId,
    /// The account's place among concurrent requests, held until the answer was sent.
    pub under_way: UnderWay,
}

/// Finds the session. The answer is the same 404 for another account's session, an invented one, an expired one (S12)
/// and, with a key for one agent, another agent's session.
pub(super) async fn caller(callers: &Database, parts: &Parts) -> Result<Caller, Problem> {
    let headers = &parts.headers;
    let key = bearer(headers)?.ok_or_else(Problem::unauthorized)?;
    let account = key.account().clone();
    let look_up = async {
        let tx = callers.begin(&Accounts::one(&account)).await.map_err(failed)?;
        let holder = api_key_holder(&tx, &key).await.map_err(failed)?;
        Ok(holder.map(|holder| (holder, tx)))
    };
    let admitted = AccountLimits::admit(&parts.extensions, &key, look_up);
    let ((holder, tx), under_way) = admitted.await?.ok_or_else(Problem::unauthorized)?;
    if holder.role != KeyRole::Gateway {
        return Err(Problem::forbidden("this needs a key with the role gateway"));
    }
    let given = only(headers, &HeaderName::from_static(SESSION_KEY_HEADER))?.ok_or_else(|| {
        Problem::invalid(format!(
            "send the key of your session, and no other, in the header {SESSION_KEY_HEADER}"
        ))
    })?;
    let session = match given.to_str().ok().and_then(session_key) {
        Some(key) => store::session_find(&tx, &account, &key, holder.agent)
            .await
            .map_err(failed)?,
        None => None,
    };
    tx.commit().await.map_err(failed)?;
    let session = session.ok_or_else(no_session)?;
    Ok(Caller {
        account,
        session,
        under_way,
    })
}

pub(super) fn no_session() -> Problem {
    Problem::not_found().detail("there is no such session")
}

/// `None`: no bearer token, or not an API key.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<ApiKey>, Problem> {
    let token = runtime::http::bearer(headers)?;
    Ok(token.and_then(|token| ApiKey::parse(token).ok()))
}

/// Parses a session key, or the name of one of its threads, in any case, plain or in a gateway's form: `agent:{its own agent}:{key}`.
pub(crate) fn session_key(text: &str) -> Option<ThreadName> {
    let text = text.trim();
    let bare = match text.split_once(':') {
        Some((first, rest)) if first.eq_ignore_ascii_case("agent") => {
            let (agent, key) = rest.split_once(':')?;
            key_prefix_check(agent)?;
            key
        }
        _ => text,
    };
    // A replay has no effects, so its key opens nothing.
    let opens = |name: &ThreadName| !matches!(name.key.of, SessionOf::Replay(_));
    ThreadName::parse(bare).ok().filter(opens)
}

/// A gateway's agent, in the form that delivery's settings accept.
fn key_prefix_check(agent: &str) -> Option<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    ((1..=GATEWAY_AGENT_BYTES_MAX).contains(&agent.len()) && agent.bytes().all(plain)).then_some(())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};

    use super::*;

    #[test]
    fn a_session_key_is_read_in_every_form_that_gateways_give_it() {
        const KEY: &str = "task:proj-7:agent:0190b5a8-0000-7000-8000-000000000001:acme:v2";
        let check = |text: &str, expected: bool| {
            let read = session_key(text).map(|key| key.to_string());
            assert_eq!(read.as_deref() == Some(KEY), expected, "{text}");
        };
        check(KEY, true);
        check(&KEY.to_uppercase(), true);
        check(&format!(" {KEY} "), true);
        check(&format!("agent:main:{KEY}"), true);
        check(&format!("AGENT:Main:{}", KEY.to_uppercase()), true);
        check(&format!("agent:{KEY}"), false);
        check(&format!("agent:main:agent:main:{KEY}"), false);
        check("agent:main", false);
        check("", false);
        check(&format!("agent::{KEY}"), false);
        check(&format!("agent:ma in:{KEY}"), false);
        check(&format!("agent:{}:{KEY}", "x".repeat(64)), true);
        check(&format!("agent:{}:{KEY}", "x".repeat(65)), false);
        check(&format!("{KEY}\u{0}"), false);
        check(&format!("{KEY}:v2"), false);
        let thread = |text: &str| session_key(text).map(|name| name.thread);
        assert_eq!(thread(KEY), Some(1));
        assert_eq!(thread(&format!("agent:main:{KEY}:t2")), Some(2));
        for end in [":t0", ":t1", ":t01"] {
            assert_eq!(thread(&format!("{KEY}{end}")), None, "{end}");
        }
        // A second spelling of the same session
        check(&KEY.replace(":v2", ":v02"), false);
        check(&KEY.replace("0190b5a8-0000", "0190b5a80000"), false);
        // A replay calls no tool.
        assert_eq!(session_key("replay:0190b5a8-0000-7000-8000-000000000001:acme:v1"), None);
        // Older forms that name no generation
        assert_eq!(session_key("orchestrator:ann"), None);
        assert_eq!(session_key("orchestrator:org:acme"), None);
    }

    #[test]
    fn only_a_bearer_of_a_well_formed_key_is_read() {
        let check = |value: &str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            assert_eq!(bearer(&headers).unwrap().is_some(), expected, "{value}");
        };
        let key = ApiKey::from_random(&AccountId::parse("acme").unwrap(), [7; 40]);
        check(&format!("Bearer {}", key.expose()), true);
        check(&format!("bearer {}", key.expose()), true);
        check(&format!("Basic {}", key.expose()), false);
        check(key.expose(), false);
        check("Bearer secret", false);
        check("Bearer ", false);
        assert!(bearer(&HeaderMap::new()).unwrap().is_none());
    }
}
