//! `Idempotency-Key`: one effect and one stored answer for a key, however often its request arrives. The key is whoever's
//! who sent it: what one principal was answered is nothing to another that chose the same.
//!
//! The answer is stored in the transaction of the effect, so there is never one without the other. While that
//! transaction runs, a lock on the key refuses the same request with 409 rather than making it wait. Only answers that
//! say "done" are stored: a refused request had no effect, and may be mended and sent again under the same key. What is
//! stored never holds a secret: the answer that made an API key is kept without the key.

use axum::{
    Json,
    extract::{FromRequest, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use domain::{
    AccountId,
    planted::{Bug, is_planted},
};
use runtime::http::{self, Problem, only};
use sea_orm::FromQueryResult;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};
use storage::{Accounts, StorageError, Tx, accounts::OPERATOR, entity, outbox::Owned};
use time::OffsetDateTime;

use crate::{
    app::{App, database_now},
    auth::{Access, caller::OPERATOR_PRINCIPAL},
    body,
    error::{ApiError, invalid_field},
};

pub const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// On an answer that is given again.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

const KEY_BYTES_MAX: usize = 255;

/// A body of a POST, with what makes its request recognisable.
pub struct Post<T> {
    pub body: T,
    pub request: Posted,
}

/// The bytes of a POST's body, for a route that reads them itself.
pub struct PostBytes {
    pub body: axum::body::Bytes,
    pub request: Posted,
}

/// Which request it is.
#[derive(Clone, Debug)]
pub struct Posted {
    key: Option<String>,
    /// SHA-256 over path and body.
    hash: [u8; 32],
}

impl<S: Send + Sync> FromRequest<S> for PostBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = http::body(body).await?;
        if !bytes.is_empty() {
            body::content_type_check(&parts.headers)?;
        }
        let key = key(&parts.headers)?;
        let mut hash = Sha256::new();
        hash.update(parts.uri.path());
        hash.update([0]);
        hash.update(&bytes);
        let request = Posted {
            key,
            hash: hash.finalize().into(),
        };
        Ok(PostBytes { body: bytes, request })
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Post<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let PostBytes { body, request } = PostBytes::from_request(request, state).await?;
        Ok(Post {
            body: body::parse(&body)?,
            request,
        })
    }
}

pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = only(headers, &HEADER)? else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    let printable = text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if text.is_empty() || text.len() > KEY_BYTES_MAX || !printable {
        return Err(invalid_field(
            "Idempotency-Key",
            format_args!("1-{KEY_BYTES_MAX} printable characters"),
        ));
    }
    Ok(Some(text.to_owned()).filter(|_| !is_planted(Bug::KeyIgnored)))
}

/// What a POST says when it did what it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    status: StatusCode,
    body: Value,
    /// What is stored in place of the body, where that holds a secret.
    kept: Option<Value>,
}

impl Answer {
    pub fn new(status: StatusCode, body: &impl Serialize) -> Answer {
        Answer {
            status,
            body: to_value(body),
            kept: None,
        }
    }

    pub fn kept_as(mut self, body: &impl Serialize) -> Answer {
        self.kept = Some(to_value(body));
        self
    }
}

fn to_value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).expect("answers have string keys and no failing serializer")
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// A POST whose effect is not yet made: its transaction, and where the answer goes.
pub struct Work {
    app: App,
    pub tx: Tx,
    /// The account, or the operator's place.
    owner: String,
    principal: String,
    request: Posted,
    /// The transaction's moment, by the database's clock.
    pub now: OffsetDateTime,
}

/// What becomes of a POST.
pub enum Begun {
    Fresh(Work),
    /// It was done before; this is what was said then.
    Replay(Response),
}

impl Work {
    /// Begins the transaction of a POST in an account.
    pub async fn begin(app: &App, access: &Access, request: Posted) -> Result<Begun, ApiError> {
        let (account, principal) = (&access.account, access.caller.principal());
        Work::begin_as(app, (account.as_str(), principal), &Accounts::one(account), request).await
    }

    /// The same for the operator's own routes; `account` is the one that they touch.
    pub async fn begin_as_operator(app: &App, account: Option<&AccountId>, request: Posted) -> Result<Begun, ApiError> {
        let accounts = Accounts::many(account).with_operator();
        Work::begin_as(app, (OPERATOR, OPERATOR_PRINCIPAL), &accounts, request).await
    }

    async fn begin_as(
        app: &App,
        (owner, principal): (&str, &str),
        accounts: &Accounts,
        request: Posted,
    ) -> Result<Begun, ApiError> {
        let tx = app.database.begin(accounts).await?;
        if let Some(key) = &request.key {
            if !lock(&tx, owner, key).await? {
                return Err(Problem::conflict(
                    "request_in_flight",
                    "a request with this Idempotency-Key is being worked on; ask again in a moment",
                )
                .retry_after_s(1)
                .into());
            }
            if let Some(stored) = find(&tx, (owner, principal), key).await? {
                tx.commit().await?;
                app.meters.replayed();
                return replay(stored, &request.hash).map(Begun::Replay);
            }
        }
        let now = database_now(&tx).await?;
        Ok(Begun::Fresh(Work {
            app: app.clone(),
            tx,
            owner: owner.to_owned(),
            principal: principal.to_owned(),
            request,
            now,
        }))
    }

    /// Stores the answer, commits, hands what follows to the relay, and answers.
    pub async fn finish(self, answer: Answer, messages: Vec<Owned>) -> Result<Response, ApiError> {
        if let Some(key) = &self.request.key {
            keep(
                &self.tx,
                (&self.owner, &self.principal),
                key,
                &self.request.hash,
                &answer,
            )
            .await?;
        }
        self.app.commit(self.tx, messages).await?;
        Ok(answer.into_response())
    }
}

fn replay(stored: entity::idempotency::Model, hash: &[u8; 32]) -> Result<Response, ApiError> {
    if stored.request_hash != hash {
        return Err(Problem::unprocessable(
            "idempotency_key_reused",
            "this Idempotency-Key was used for another request; take a new one",
        )
        .into());
    }
    let status = stored
        .status
        .and_then(|status| u16::try_from(status).ok())
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or_else(|| StorageError::unreadable("give an answer again", "it has no status"))?;
    let mut response = (status, Json(stored.body.unwrap_or(Value::Null))).into_response();
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

#[derive(FromQueryResult)]
struct Locked {
    locked: bool,
}

/// Held to the end of the transaction. Two keys that share a hash only cost each other a 409.
///
/// By owner and key, without the principal, as an older version takes it: a request that went to a replica of that version and
/// is repeated to one of this version is one.
const LOCK: &str = "select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as locked";

async fn lock(tx: &Tx, owner: &str, key: &str) -> Result<bool, StorageError> {
    let name = format!("idempotency {owner} {key}");
    let locked: Option<Locked> = tx.one("lock an idempotency key", LOCK, [name.into()]).await?;
    Ok(locked.is_some_and(|row| row.locked))
}

/// The stored answer of this principal; or one without a principal, which an older version wrote. Relies on the primary key.
const FIND: &str = "
    select account_id, key, principal, request_hash, status, body, created_at from idempotency
    where account_id = $1 and key = $2 and principal in ($3, '') order by principal desc limit 1";

async fn find(
    tx: &Tx,
    (owner, principal): (&str, &str),
    key: &str,
) -> Result<Option<entity::idempotency::Model>, StorageError> {
    let values = [owner.into(), key.into(), principal.into()];
    tx.one("look for a stored answer", FIND, values).await
}

const KEEP: &str = "
    insert into idempotency (account_id, key, principal, request_hash, status, body) values ($1, $2, $3, $4, $5, $6)";

async fn keep(
    tx: &Tx,
    (owner, principal): (&str, &str),
    key: &str,
    hash: &[u8; 32],
    answer: &Answer,
) -> Result<(), StorageError> {
    let body = answer.kept.as_ref().unwrap_or(&answer.body);
    let values = [
        owner.into(),
        key.into(),
        principal.into(),
        hash.to_vec().into(),
        i32::from(answer.status.as_u16()).into(),
        body.clone().into(),
    ];
    tx.execute("store an answer", KEEP, values).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_printable_and_has_an_end() {
        let check = |value: &[u8], good: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, HeaderValue::from_bytes(value).unwrap());
            assert_eq!(key(&headers).is_ok(), good, "{value:?}");
        };
        check(b"a", true);
        check(b"order 7 ~", true);
        check(&[b'x'; 255], true);
        check(&[b'x'; 256], false);
        check(b"", false);
        check(b"a\tb", false);
        check("é".as_bytes(), false);
        assert_eq!(key(&HeaderMap::new()).unwrap(), None);
        let mut twice = HeaderMap::new();
        twice.append(HEADER, HeaderValue::from_static("a"));
        twice.append(HEADER, HeaderValue::from_static("a"));
        assert!(key(&twice).is_err());
    }
}
