//! A client of the public HTTP API. The command uses only what every other program can use. Answers are kept as received, for
//! `--json`; [`read_as`] reads the fields that a table shows.

mod access;
mod error;

use std::time::Duration;

use anyhow::Context;
use api::{
    Items, Problem,
    accounts::NewAccount,
    agents::{Agent, NewAgent},
    members::NewMember,
    notifications::{Accepted, Notification},
};
use reqwest::{Method, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

pub(crate) use access::AccessArgs;
pub(crate) use error::ApiError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Items requested at a time; the API's own limit may be lower.
pub(crate) const PAGE_ITEMS: usize = 100;

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    token: SecretString,
}

impl Client {
    pub(crate) fn new(base: &str, token: SecretString) -> anyhow::Result<Client> {
        let base = Url::parse(base)
            .ok()
            .filter(|url| url.has_host() && !url.cannot_be_a_base());
        let base = base.ok_or_else(|| anyhow::anyhow!("the URL of Signalbox is not of the form http://host:port"))?;
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        if is_loopback(&base) {
            // A proxy from the environment is ignored, whether or not `NO_PROXY` is set.
            http = http.no_proxy();
        }
        Ok(Client {
            http: http.build()?,
            base,
            token,
        })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Result<T, ApiError> {
        self.send(Method::GET, path, query, None).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_value(body).expect("bodies have string keys");
        self.send(Method::POST, path, &[], Some(&body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_value(body).expect("bodies have string keys");
        self.send(Method::PATCH, path, &[], Some(&body)).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_value(body).expect("bodies have string keys");
        self.send(Method::PUT, path, &[], Some(&body)).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ApiError> {
        self.send(Method::DELETE, path, &[], None).await
    }

    /// Items of a list, page by page, up to `limit`.
    pub(crate) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        limit: usize,
    ) -> Result<Vec<Value>, ApiError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        while items.len() < limit {
            let page = (limit - items.len()).min(PAGE_ITEMS).to_string();
            let mut asked = query.to_vec();
            asked.push(("limit", &page));
            if let Some(cursor) = &cursor {
                asked.push(("cursor", cursor));
            }
            let Items {
                items: more,
                next_cursor,
            } = self.get(path, &asked).await?;
            items.extend(more);
            cursor = next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        items.truncate(limit);
        Ok(items)
    }

    /// `None` for 404: missing and no access have the same answer.
    pub(crate) async fn notification(&self, account: &str, id: &str) -> Result<Option<Notification>, ApiError> {
        let found = self.get(&["api", "orgs", account, "notifications", id], &[]).await;
        ApiError::not_found_as_none(found)
    }

    /// Publishes a notification; gives its id.
    pub(crate) async fn notify(&self, account: &str, notification: &Value) -> Result<String, ApiError> {
        let path = ["api", "orgs", account, "notifications"];
        let Accepted { id } = self.post(&path, notification).await?;
        Ok(id)
    }

    /// Creates an account; leaves an existing one unchanged.
    pub(crate) async fn account_ensure(&self, account: &NewAccount) -> Result<(), ApiError> {
        self.ensure(&["api", "accounts"], account).await
    }

    /// Adds a person. A member of that id stays unchanged.
    pub(crate) async fn member_ensure(&self, account: &str, member: &NewMember) -> Result<(), ApiError> {
        self.ensure(&["api", "orgs", account, "members"], member).await
    }

    async fn ensure(&self, path: &[&str], new: &impl Serialize) -> Result<(), ApiError> {
        match self.post::<Value>(path, new).await {
            Ok(_) => Ok(()),
            Err(ApiError::Refused { status, .. }) if status == StatusCode::CONFLICT => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates an agent; leaves an existing one with that slug unchanged.
    pub(crate) async fn agent_ensure(&self, account: &str, agent: &NewAgent) -> Result<(), ApiError> {
        let slug = String::from(agent.slug.clone());
        let found = self.get::<Agent>(&["api", "orgs", account, "agents", &slug], &[]).await;
        if ApiError::not_found_as_none(found)?.is_some() {
            return Ok(());
        }
        self.post::<Agent>(&["api", "orgs", account, "agents"], agent)
            .await
            .map(drop)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<T, ApiError> {
        let mut url = self.base.clone();
        // Segments may be foreign ids: pushed one by one, each is encoded.
        url.path_segments_mut()
            .expect("new() checked that the URL is a base")
            .pop_if_empty()
            .extend(path);
        let what = format!("{method} {}{}", url.path(), named_in(&url, query));
        let mut request = self
            .http
            .request(method, url)
            .query(query)
            .bearer_auth(self.token.expose_secret());
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|source| ApiError::NoAnswer {
            origin: self.base.origin().ascii_serialization(),
            source: source.without_url(),
        })?;
        read(what, response).await
    }
}

async fn read<T: DeserializeOwned>(what: String, response: Response) -> Result<T, ApiError> {
    let status = response.status();
    let unreadable = |source| ApiError::Unreadable {
        what: what.clone(),
        source,
    };
    let body = response.bytes().await.map_err(|source| ApiError::Broken {
        what: what.clone(),
        source: source.without_url(),
    })?;
    if status.is_success() {
        // An answer without content is read as `null`.
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        return serde_json::from_slice(body).map_err(unreadable);
    }
    let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
    Err(ApiError::Refused {
        what,
        status,
        code: problem.code,
        detail: problem.detail.unwrap_or_default(),
    })
}

/// The part of a query that names what was asked for: pages are left out.
fn named_in(url: &Url, query: &[(&str, &str)]) -> String {
    let mut url = url.clone();
    let named = query.iter().filter(|(name, _)| !matches!(*name, "limit" | "cursor"));
    url.query_pairs_mut().extend_pairs(named);
    match url.query() {
        Some("") | None => String::new(),
        Some(query) => format!("?{query}"),
    }
}

/// Reads a value of the API into the type that a table shows.
pub(crate) fn read_as<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    T::deserialize(value).context("the answer does not match the API")
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
