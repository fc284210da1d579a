//! Who asks over HTTP: the bearer of a gateway key, for a session of its account.

use std::time::Instant;

use axum::http::{HeaderMap, header};
use domain::{AccountId, ApiKey, KeyRole, SessionId, SessionKey};
use runtime::http::{AccountLimits, Problem, UnderWay};
use storage::{Accounts, Database, api_key::api_key_holder};

use super::routes::failed;
use crate::store;

pub(super) const SESSION_KEY_HEADER: &str = "x-openclaw-session-key";

#[derive(Debug)]
pub(super) struct Caller {
    pub account: AccountId,
    pub session: SessionId,
    /// Its account's place, held until the request is answered.
    _under_way: UnderWay,
}

/// Finds the session. One that is another account's, one that was made up and one whose time is over (S12) are not
/// there, all three alike.
pub(super) async fn caller(
    database: &Database,
    limits: &AccountLimits,
    headers: &HeaderMap,
) -> Result<Caller, Problem> {
    let key = bearer(headers).ok_or_else(Problem::unauthorized)?;
    let account = key.account().clone();
    let tx = database.begin(&Accounts::one(&account)).await.map_err(failed)?;
    let holder = api_key_holder(&tx, &key).await.map_err(failed)?;
    let holder = holder.ok_or_else(Problem::unauthorized)?;
    let under_way = limits.enter(&account, Instant::now())?;
    if holder.role != KeyRole::Gateway {
        return Err(Problem::forbidden("this needs a key with the role gateway"));
    }
    let given = headers.get(SESSION_KEY_HEADER).ok_or_else(|| {
        Problem::invalid(format!(
            "send the key of your session in the header {SESSION_KEY_HEADER}"
        ))
    })?;
    let session = match given.to_str().ok().and_then(session_key) {
        Some(key) => store::session_find(&tx, &account, &key).await.map_err(failed)?,
        None => None,
    };
    tx.commit().await.map_err(failed)?;
    let session = session.ok_or_else(no_session)?;
    Ok(Caller {
        account,
        session,
        _under_way: under_way,
    })
}

pub(super) fn no_session() -> Problem {
    Problem::not_found().detail("there is no such session")
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<ApiKey> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    ApiKey::parse(key.trim()).ok()
}

/// A key in any case, as it is or as a gateway names it: `agent:{its own agent}:{key}`.
pub(crate) fn session_key(text: &str) -> Option<SessionKey> {
    let text = text.trim();
    let bare = match text.split_once(':') {
        Some((first, rest)) if first.eq_ignore_ascii_case("agent") => rest.split_once(':')?.1,
        _ => text,
    };
    SessionKey::parse(bare).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

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
    }

    #[test]
    fn only_a_bearer_of_a_well_formed_key_is_read() {
        let check = |value: &str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            assert_eq!(bearer(&headers).is_some(), expected, "{value}");
        };
        let key = ApiKey::from_random(&AccountId::parse("acme").unwrap(), [7; 40]);
        check(&format!("Bearer {}", key.expose()), true);
        check(&format!("bearer {}", key.expose()), true);
        check(&format!("Basic {}", key.expose()), false);
        check(key.expose(), false);
        check("Bearer secret", false);
        check("Bearer ", false);
        assert!(bearer(&HeaderMap::new()).is_none());
    }
}
