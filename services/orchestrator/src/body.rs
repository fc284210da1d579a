//! Strict extractors for bodies, queries and path parameters: unknown fields are refused, the error names the field, and a text
//! that Postgres cannot store is refused here, where the sender can be told.

use std::{cell::RefCell, str::FromStr};

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, StatusCode, Uri, header, request::Parts},
};
use contracts::{
    json::{self, NotJson},
    storable::holds_nul,
};
use runtime::http::{self, Problem, openapi::Operation};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, value::MapDeserializer};
use serde_json::{Map, Value};

use crate::{error::invalid_field, objects::Given, route::Described};

/// A body of a PATCH. POST takes [`crate::idempotency::Post`].
pub struct JsonBody<T>(pub T);

/// Rejections of the body extractor.
pub const BODY_REFUSALS: &[u16] = &[400, 408, 413, 415];

impl<T: JsonSchema> Described for JsonBody<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.body::<T>(false);
        operation.refuses(BODY_REFUSALS);
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = http::body(body).await?;
        content_type_check(&parts.headers)?;
        parse(&bytes).map(JsonBody)
    }
}

/// The query of a URL. A parameter without a value counts as absent.
pub struct Query<T>(pub T);

impl<T: JsonSchema> Described for Query<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.query::<T>();
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        if query.contains("%00") {
            return Err(
                Problem::new(StatusCode::BAD_REQUEST, "invalid_field").detail("a query has no character U+0000")
            );
        }
        let has_value = |pair: &&str| pair.split_once('=').is_none_or(|(_, value)| !value.is_empty());
        let given: Vec<&str> = query.split('&').filter(has_value).collect();
        let given: Uri = format!("/?{}", given.join("&"))
            .parse()
            .expect("a query without its empty parameters is a query");
        axum::extract::Query::try_from_uri(&given)
            .map(|axum::extract::Query(query)| Query(query))
            .map_err(|rejection| {
                let what = rejection.body_text();
                let what = what
                    .strip_prefix("Failed to deserialize query string: ")
                    .unwrap_or(&what);
                Problem::new(StatusCode::BAD_REQUEST, "invalid_field").detail(what)
            })
    }
}

/// The last parameter of a path. A value that cannot be a name gets the same answer as an unknown name.
pub struct Named<T>(pub T);

impl<T: JsonSchema> Described for Named<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.names::<T>();
        operation.refuses(&[404]);
    }
}

impl<T: FromStr, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        named(names.last()).map(Named)
    }
}

/// The last two parameters of a path: a thing, and one within it.
pub struct Within<T, U>(pub T, pub U);

impl<T: JsonSchema, U: JsonSchema> Described for Within<T, U> {
    fn describe(operation: &mut Operation<'_>) {
        operation.names_outer::<T>();
        Named::<U>::describe(operation);
    }
}

impl<T: FromStr, U: FromStr, S: Send + Sync> FromRequestParts<S> for Within<T, U> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        let mut from_the_end = names.iter().rev();
        let inner = named(from_the_end.next())?;
        Ok(Within(named(from_the_end.next())?, inner))
    }
}

/// The parameters of the path.
async fn names<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Vec<String>, Problem> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    let parameters = parameters.map_err(|_| Problem::not_found())?;
    Ok(parameters.iter().map(|(_, name)| name.to_owned()).collect())
}

fn named<T: FromStr>(name: Option<&String>) -> Result<T, Problem> {
    name.and_then(|name| name.parse().ok()).ok_or_else(Problem::not_found)
}

/// `application/json`, or a type that ends in `+json`.
pub fn content_type_check(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            .detail("send JSON, with Content-Type: application/json"),
    )
}

/// Reads a JSON object. An empty body is an empty object, so that a POST without fields needs no body.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    fields(bytes).and_then(read)
}

/// The fields of a JSON object.
pub fn fields(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    let malformed = |what: String| Problem::new(StatusCode::BAD_REQUEST, "malformed").detail(what);
    match json::read(bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(malformed("the body is JSON, but not an object".to_owned())),
        Err(error @ (NotJson::Syntax(_) | NotJson::TooDeep { .. })) => Err(malformed(format!("the body is {error}"))),
        Err(error @ NotJson::TooManyValues { .. }) => {
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large").detail(format!("the body has {error}")))
        }
    }
}

fn read<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Problem> {
    if let Some((name, _)) = fields
        .iter()
        .find(|(name, value)| name.contains('\0') || holds_nul(value))
    {
        return Err(invalid_field(
            &name.replace('\0', "\u{fffd}"),
            "a text holds the character U+0000",
        ));
    }
    // serde names the mistake but not its place; the field that was read last is the place.
    let last = RefCell::new(String::new());
    let entries = fields.into_iter().map(|(name, value)| {
        last.borrow_mut().clone_from(&name);
        (name, Given(value))
    });
    T::deserialize(MapDeserializer::new(entries)).map_err(|error: serde_json::Error| {
        let what = error.to_string();
        if what.starts_with("missing field") || what.starts_with("unknown field") {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_field").detail(what)
        } else {
            invalid_field(&last.borrow(), what)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{
        accounts::AccountChange, agents::AgentChange, holds::NewHold, messages::NewMessage, policies::NewToolPolicy,
        stages::NewStages, tasks::TaskChange,
    };
    use axum::{http::HeaderValue, response::IntoResponse};
    use domain::ReplaySpec;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read for its errors")]
    struct Body {
        title: String,
        limit: Option<u32>,
    }

    async fn detail(json: &str) -> (String, String) {
        let problem = parse::<Body>(json.as_bytes()).unwrap_err();
        let code = problem.code().to_owned();
        let body = axum::body::to_bytes(problem.into_response().into_body(), 1 << 16)
            .await
            .unwrap();
        let value: Value = serde_json::from_slice(&body).unwrap();
        (code, value["detail"].as_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn what_is_wrong_is_named() {
        let check = async |json: &str, code: &str, words: &[&str]| {
            let (found, detail) = detail(json).await;
            assert_eq!(found, code, "{json}: {detail}");
            for word in words {
                assert!(detail.contains(word), "{json}: {detail}");
            }
        };
        check("nonsense", "malformed", &["not JSON"]).await;
        check("[1]", "malformed", &["not an object"]).await;
        check("", "invalid_field", &["missing field `title`"]).await;
        check(r#"{"title": 7}"#, "invalid_field", &["title:", "expected a string"]).await;
        check(
            r#"{"title": "a", "limit": "b"}"#,
            "invalid_field",
            &["limit:", "expected u32"],
        )
        .await;
        check(
            r#"{"title": "a", "tilte": "b"}"#,
            "invalid_field",
            &["unknown field `tilte`"],
        )
        .await;
        check(r#"{"title": "a\u0000b"}"#, "invalid_field", &["title", "U+0000"]).await;
        check(
            &format!(r#"{{"title": {}1{}}}"#, "[".repeat(5000), "]".repeat(5000)),
            "malformed",
            &["nested deeper than 64"],
        )
        .await;
        check(
            &format!(r#"{{"title": [{}0]}}"#, "0,".repeat(100_000)),
            "too_large",
            &["more than 100000 values"],
        )
        .await;
    }

    /// serde reads a structure from a list of its values, too.
    #[test]
    fn a_list_is_no_structure() {
        fn check<T: DeserializeOwned>(place: &str, good: &str, bad: &[&str]) {
            assert!(parse::<T>(good.as_bytes()).is_ok(), "{good}");
            for json in bad {
                let problem = parse::<T>(json.as_bytes()).err().map(|problem| format!("{problem:?}"));
                let problem = problem.unwrap_or_else(|| panic!("taken: {json}"));
                let words = format!("{place}: invalid type: sequence, expected an object");
                assert!(
                    problem.contains("invalid_field") && problem.contains(&words),
                    "{json}: {problem}"
                );
            }
        }
        check::<TaskChange>(
            "blocked_on",
            r#"{"blocked_on": {"owner": "role:admin", "action": "decide it"}, "assignees": ["coder"]}"#,
            &[
                r#"{"blocked_on": ["role:admin", "decide it"]}"#,
                r#"{"blocked_on": []}"#,
            ],
        );
        check::<TaskChange>(
            "plan_gate",
            r#"{"plan_gate": null}"#,
            &[r#"{"plan_gate": ["off", null]}"#],
        );
        check::<NewHold>(
            "scope",
            r#"{"scope": {"kind": "task", "id": "t-1"}}"#,
            &[r#"{"scope": ["task", "t-1"]}"#],
        );
        check::<NewMessage>(
            "author",
            r#"{"body": "b", "author": {"kind": "user", "id": "ann"}}"#,
            &[r#"{"body": "b", "author": ["user", "ann", null]}"#],
        );
        check::<NewToolPolicy>(
            "scope",
            r#"{"scope": {"kind": "task", "id": "t-1"}, "tool": "*"}"#,
            &[r#"{"tool": "*", "scope": ["task", "t-1"]}"#],
        );
        check::<NewStages>(
            "stages",
            r#"{"stages": [{"name": "a"}, {"name": "b", "audience": ["role:admin"]}]}"#,
            &[
                r#"{"stages": [["a", null]]}"#,
                r#"{"stages": [{"name": "a"}, ["b", ["role:admin"]]]}"#,
            ],
        );
        check::<AccountChange>(
            "rotation",
            r#"{"rotation": {"tokens_max": null}, "plan_gate": {"mode": "off"}}"#,
            &[r#"{"rotation": [null, null]}"#],
        );
        check::<AgentChange>(
            "rotation",
            r#"{"rotation": {"failures_max": 3.0}}"#,
            &[r#"{"rotation": [3]}"#, r#"{"rotation": [null, null, null, true]}"#],
        );
        check::<ReplaySpec>(
            "profile",
            r#"{"profile": {"role": "r"}}"#,
            &[r#"{"profile": [null, "r"]}"#],
        );
        // A list stays one, and is read to its end.
        assert!(parse::<TaskChange>(br#"{"assignees": {"0": "coder"}}"#).is_err());
    }

    #[tokio::test]
    async fn a_parameter_without_a_value_is_absent_and_a_wrong_one_is_named() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Asked {
            task: Option<String>,
            limit: Option<u32>,
        }
        let read = async |query: &str| {
            let request = axum::http::Request::get(format!("/list{query}")).body(()).unwrap();
            let read = Query::<Asked>::from_request_parts(&mut request.into_parts().0, &()).await;
            read.map(|Query(asked)| (asked.task, asked.limit))
        };
        let none = (None, None);
        for query in ["", "?", "?task=", "?task=&limit=", "?&task=&"] {
            assert_eq!(read(query).await.unwrap(), none, "{query}");
        }
        assert_eq!(
            read("?task=a%20b&limit=3").await.unwrap(),
            (Some("a b".to_owned()), Some(3))
        );
        for (query, words) in [("?limit=x", "limit: invalid digit"), ("?tsk=a", "unknown field `tsk`")] {
            let problem = format!("{:?}", read(query).await.unwrap_err());
            assert!(
                problem.contains("invalid_field") && problem.contains(words),
                "{query}: {problem}"
            );
        }
    }

    #[test]
    fn only_json_is_read() {
        let check = |kind: &'static str, good: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(content_type_check(&headers).is_ok(), good, "{kind}");
        };
        check("application/json", true);
        check("application/JSON; charset=utf-8", true);
        check("application/cloudevents+json", true);
        check("text/plain", false);
        check("application/x-www-form-urlencoded", false);
        assert!(content_type_check(&HeaderMap::new()).is_err());
    }
}
