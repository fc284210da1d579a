//! A client of Signalbox's public HTTP API with JSON, and waits for its states.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::Error;

const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Far longer than any step takes, so that only a missing event fails.
const WAIT_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

/// Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Client {
    /// A client of any Signalbox: `url` is its API's address, `token` an API key or the operator's token.
    pub fn new(url: &str, token: &str) -> Client {
        // Fails only if a provider is installed already, which suffices.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().timeout(REQUEST_LIMIT);
        Client {
            http: http.build().expect("a TLS provider is installed"),
            url: url.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
        }
    }

    /// The same client with another key.
    pub fn with_token(&self, token: &str) -> Client {
        Client {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// Status and body, whatever they are; a body that is no JSON is `null`.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), Error> {
        let what = format!("{method} {path}");
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        request = request.bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let no_answer = |source| Error::NoAnswer {
            what: what.clone(),
            source,
        };
        let response = request.send().await.map_err(no_answer)?;
        let status = response.status();
        let body = response.bytes().await.map_err(no_answer)?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn expect(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let what = format!("{method} {path}");
        let (status, body) = self.send(method, path, body).await?;
        if status.is_success() {
            return Ok(body);
        }
        Err(Error::Refused {
            what,
            status,
            body: body.to_string(),
        })
    }

    pub async fn get(&self, path: &str) -> Result<Value, Error> {
        self.expect(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.expect(Method::POST, path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.expect(Method::PATCH, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, Error> {
        self.expect(Method::DELETE, path, None).await
    }

    /// Creates an account; leaves an existing one unchanged.
    pub async fn account(&self, id: &str) -> Result<(), Error> {
        let made = self.post("/api/accounts", &json!({"id": id, "name": id})).await;
        match made {
            Err(Error::Refused {
                status: StatusCode::CONFLICT,
                ..
            }) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Creates an agent; returns it with its id.
    pub async fn agent(&self, account: &str, slug: &str) -> Result<Value, Error> {
        let path = format!("/api/orgs/{account}/agents");
        self.post(&path, &json!({"slug": slug, "name": slug})).await
    }

    pub async fn task(&self, account: &str, id: &str) -> Result<Value, Error> {
        let path = format!("/api/orgs/{account}/tasks");
        self.post(&path, &json!({"id": id, "title": id})).await
    }

    /// Publishes a notification over HTTP; returns its id.
    pub async fn notify(&self, account: &str, notification: &Value) -> Result<String, Error> {
        let path = format!("/api/orgs/{account}/notifications");
        let accepted = self.post(&path, notification).await?;
        Ok(accepted["id"].as_str().unwrap_or_default().to_owned())
    }

    /// The notification; `null` while it is unknown.
    pub async fn notification(&self, account: &str, id: &str) -> Result<Value, Error> {
        let path = format!("/api/orgs/{account}/notifications/{id}");
        match self.send(Method::GET, &path, None).await? {
            (status, body) if status.is_success() => Ok(body),
            (StatusCode::NOT_FOUND, _) => Ok(Value::Null),
            (status, body) => Err(Error::Refused {
                what: format!("GET {path}"),
                status,
                body: body.to_string(),
            }),
        }
    }

    /// Waits until a notification has the state; returns it. Retries while a service restarts.
    pub async fn until(&self, account: &str, id: &str, state: &str) -> Result<Value, Error> {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let seen = self.notification(account, id).await;
            if let Ok(found) = &seen
                && found["state"] == state
            {
                return seen;
            }
            if Instant::now() >= deadline {
                return Err(Error::TooLate {
                    what: format!("notification {id} of {account} becomes {state}"),
                    limit_s: WAIT_LIMIT.as_secs(),
                    last: seen.map_or_else(|error| error.to_string(), |found| found.to_string()),
                });
            }
            sleep(POLL).await;
        }
    }

    /// Waits for a page that answers with success.
    pub(crate) async fn until_ready(&self, path: &str, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.send(Method::GET, path, None).await {
                Ok((status, _)) if status.is_success() => return true,
                Ok(_) | Err(_) if Instant::now() >= deadline => return false,
                Ok(_) | Err(_) => sleep(POLL).await,
            }
        }
    }
}
