//! `Idempotency-Key`: one effect and one stored answer for a key, however often its request arrives. Keys belong to a principal:
//! two principals that use the same key do not share an answer.
//!
//! The answer is stored in the transaction of the effect, so neither exists without the other. While that transaction runs, an
//! advisory lock on the key refuses the same request with 409 instead of making it wait. Only successful answers are stored: a
//! refused request had no effect and may be corrected and sent again under the same key. A stored answer never holds a secret: the
//! answer that created an API key is stored without the key.

use std::marker::PhantomData;

use axum::{
    Json,
    extract::{FromRequest, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use runtime::http::{self, Problem, only, openapi::Operation};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use storage::{StorageError, Tx, entity, outbox::Owned};
use time::OffsetDateTime;

use crate::{
    app::{App, database_now},
    auth::Party,
    body::{self, BODY_REFUSALS},
    error::{ApiError, invalid_field},
    route::Described,
};

pub const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Header of a repeated answer.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

const KEY_BYTES_MAX: usize = 255;
const HEADER_PATTERN: &str = "^[ -~]{1,255}$";
const HEADER_ABOUT: &str = "1-255 printable characters. The same key and request give the stored answer again, with \
                            `Idempotency-Replayed: true`; the key with another request is a 422, one in flight a 409.";

/// The body of a POST, with the digest that identifies its request.
pub struct Post<T> {
    pub body: T,
    pub once: Once,
}

/// The bytes of a POST's body, for a route that parses them itself; `T` is the documented type.
pub struct PostBytes<T> {
    pub body: axum::body::Bytes,
    pub once: Once,
    read_as: PhantomData<T>,
}

/// The identity of an idempotent request.
#[derive(Clone, Debug)]
pub struct Once {
    key: Option<String>,
    /// SHA-256 over path and body.
    hash: [u8; 32],
}

impl<T, S: Send + Sync> FromRequest<S> for PostBytes<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = http::body(body).await?;
        if !bytes.is_empty() {
            body::content_type_check(&parts.headers)?;
        }
        let once = Once::of(&parts.headers, parts.uri.path(), &bytes)?;
        Ok(PostBytes {
            body: bytes,
            once,
            read_as: PhantomData,
        })
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Post<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let PostBytes { body, once, .. } = PostBytes::<T>::from_request(request, state).await?;
        let body = body::parse(&body)?;
        Ok(Post { body, once })
    }
}

impl<T: JsonSchema> Described for Post<T> {
    fn describe(operation: &mut Operation<'_>) {
        PostBytes::<T>::describe(operation);
    }
}

impl<T: JsonSchema> Described for PostBytes<T> {
    fn describe(operation: &mut Operation<'_>) {
        Once::describe(operation);
        operation.body::<T>(true);
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
    Ok(Some(text.to_owned()))
}

/// What a POST did: what it says of it, and the messages that follow.
#[derive(Debug)]
pub struct Done<T> {
    body: T,
    /// Nothing is left to do.
    is_over: bool,
    /// Stored instead of the body when the body holds a secret.
    kept: Option<T>,
    messages: Vec<Owned>,
}

impl<T> Done<T> {
    pub fn new(body: T) -> Done<T> {
        Done {
            body,
            is_over: false,
            kept: None,
            messages: Vec::new(),
        }
    }

    /// Nothing is left to do: answered with the second status of [`Answer`].
    pub fn over(body: T) -> Done<T> {
        Done {
            is_over: true,
            ..Done::new(body)
        }
    }

    pub fn kept_as(self, kept: T) -> Done<T> {
        let kept = Some(kept);
        Done { kept, ..self }
    }

    pub fn with(self, messages: Vec<Owned>) -> Done<T> {
        Done { messages, ..self }
    }
}

/// The answer of a successful POST, new or repeated. `OVER`: its status when nothing is left to do.
#[derive(Debug)]
pub struct Answer<const STATUS: u16, T, const OVER: u16 = STATUS> {
    response: Response,
    body: PhantomData<T>,
}

impl<const STATUS: u16, T, const OVER: u16> From<Response> for Answer<STATUS, T, OVER> {
    fn from(response: Response) -> Self {
        let body = PhantomData;
        Answer { response, body }
    }
}

impl<const STATUS: u16, T, const OVER: u16> IntoResponse for Answer<STATUS, T, OVER> {
    fn into_response(self) -> Response {
        self.response
    }
}

impl<const STATUS: u16, T: JsonSchema, const OVER: u16> Described for Answer<STATUS, T, OVER> {
    fn describe(operation: &mut Operation<'_>) {
        let status = status::<STATUS>();
        let about = match status {
            StatusCode::ACCEPTED => "Accepted for processing",
            StatusCode::OK => "OK",
            _ => "Made",
        };
        if OVER != STATUS {
            operation.answers::<T>(self::status::<OVER>(), "Nothing is left to do");
        }
        operation.answers::<T>(status, about);
    }
}

fn status<const STATUS: u16>() -> StatusCode {
    StatusCode::from_u16(STATUS).expect("a status of HTTP")
}

/// A POST in progress.
pub struct Work {
    pub tx: Tx,
    /// The transaction's timestamp, by the database's clock.
    pub now: OffsetDateTime,
}

impl Described for Once {
    fn describe(operation: &mut Operation<'_>) {
        operation.header(
            "Idempotency-Key",
            HEADER_ABOUT,
            &json!({"type": "string", "pattern": HEADER_PATTERN}),
        );
        operation.refuses(BODY_REFUSALS);
        operation.refuses(&[409, 422]);
    }
}

impl Once {
    /// `content`: the body, or what stands for it.
    pub fn of(headers: &HeaderMap, path: &str, content: &[u8]) -> Result<Once, Problem> {
        let key = key(headers)?;
        let mut hash = Sha256::new();
        hash.update(path);
        hash.update([0]);
        hash.update(content);
        let hash = hash.finalize().into();
        Ok(Once { key, hash })
    }

    /// Runs the POST and stores its answer in one transaction, then hands the outbox rows to the relay. If the request was answered
    /// before, nothing runs and the stored answer is given again.
    pub async fn run<const STATUS: u16, T: Serialize, const OVER: u16>(
        self,
        app: &App,
        party: Party<'_>,
        act: impl AsyncFnOnce(&Work) -> Result<Done<T>, ApiError>,
    ) -> Result<Answer<STATUS, T, OVER>, ApiError> {
        let tx = app.database.begin(&party.accounts).await?;
        if let Some(key) = &self.key {
            if !lock(&tx, party.owner, key).await? {
                return Err(Problem::conflict(
                    "request_in_flight",
                    "a request with this Idempotency-Key is in progress; try again shortly",
                )
                .retry_after_s(1)
                .into());
            }
            if let Some(stored) = find(&tx, &party, key).await? {
                tx.commit().await?;
                app.meters.replayed();
                return replay(stored, &self.hash).map(Answer::from);
            }
        }
        let now = database_now(&tx).await?;
        let work = Work { tx, now };
        let Done {
            body,
            is_over,
            kept,
            messages,
        } = act(&work).await?;
        let status = if is_over { status::<OVER>() } else { status::<STATUS>() };
        if let Some(key) = &self.key {
            let kept = serde_json::to_value(kept.as_ref().unwrap_or(&body));
            let kept = kept.expect("answers have string keys and no failing serializer");
            keep(&work.tx, &party, (key, &self.hash), (status, kept)).await?;
        }
        app.commit(work.tx, messages).await?;
        Ok((status, Json(body)).into_response().into())
    }
}

fn replay(stored: entity::idempotency::Model, hash: &[u8; 32]) -> Result<Response, ApiError> {
    if stored.request_hash != hash {
        return Err(Problem::unprocessable(
            "idempotency_key_reused",
            "this Idempotency-Key was used for another request; use a new key",
        )
        .into());
    }
    let status = stored
        .status
        .and_then(|status| u16::try_from(status).ok())
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or_else(|| StorageError::unreadable("read a stored answer", "it has no status"))?;
    let mut response = (status, Json(stored.body.unwrap_or(Value::Null))).into_response();
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Held to the end of the transaction. Two keys with the same hash only cost each other a 409.
///
/// The lock's name has owner and key without the principal, as in an older version: during an upgrade, a request that is repeated
/// at a replica of the other version takes the same lock.
const LOCK: &str = "select true where pg_try_advisory_xact_lock(hashtextextended($1, 0))";

async fn lock(tx: &Tx, owner: &str, key: &str) -> Result<bool, StorageError> {
    let name = format!("idempotency {owner} {key}");
    tx.exists("lock an idempotency key", LOCK, [name.into()]).await
}

/// The stored answer of this principal, or one without a principal, which an older version wrote. Relies on the primary key.
const FIND: &str = "
    select account_id, key, principal, request_hash, status, body, created_at from idempotency
    where account_id = $1 and key = $2 and principal in ($3, '') order by principal desc limit 1";

async fn find(tx: &Tx, party: &Party<'_>, key: &str) -> Result<Option<entity::idempotency::Model>, StorageError> {
    let values = [party.owner.into(), key.into(), party.principal.into()];
    tx.one("read a stored answer", FIND, values).await
}

const KEEP: &str = "
    insert into idempotency (account_id, key, principal, request_hash, status, body) values ($1, $2, $3, $4, $5, $6)";

async fn keep(
    tx: &Tx,
    party: &Party<'_>,
    (key, hash): (&str, &[u8; 32]),
    (status, body): (StatusCode, Value),
) -> Result<(), StorageError> {
    let values = [
        party.owner.into(),
        key.into(),
        party.principal.into(),
        hash.to_vec().into(),
        i32::from(status.as_u16()).into(),
        body.into(),
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
