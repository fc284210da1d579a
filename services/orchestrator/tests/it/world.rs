//! An API on its own database, its callers, and its outbox.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use contracts::{Outgoing, Root};
use orchestrator::{
    App, OrchestratorSettings,
    settings::{Providers, SignInSettings},
};
use runtime::{
    Shutdown,
    http::Health,
    settings::{HttpSettings, Models},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use storage::Role;
use testkit::TestDatabase;
use tower::ServiceExt;

pub(crate) const OPERATOR: &str = "the-operators-own-token";

pub(crate) struct World {
    pub test: TestDatabase,
    pub app: App,
    router: Router,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

/// A message in the outbox.
#[derive(Debug)]
pub(crate) struct Sent {
    pub subject: String,
    pub headers: BTreeMap<String, String>,
    pub payload: Value,
}

/// An account with a key of each role.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub id: String,
    pub admin: String,
    pub member: String,
    pub service: String,
    pub publisher: String,
    pub gateway: String,
}

/// A request under construction.
pub(crate) struct Call<'a> {
    world: &'a World,
    method: Method,
    path: String,
    token: Option<String>,
    headers: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
}

impl World {
    pub(crate) async fn new() -> World {
        World::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut OrchestratorSettings)) -> World {
        World::with_sign_in(change, SignInSettings::default()).await
    }

    pub(crate) async fn with_sign_in(change: impl FnOnce(&mut OrchestratorSettings), sign_in: SignInSettings) -> World {
        let test = TestDatabase::fresh().await;
        let mut settings = OrchestratorSettings {
            operator_token: Some(SecretString::from(OPERATOR)),
            ..OrchestratorSettings::default()
        };
        change(&mut settings);
        let database = test.connect(Role::Orchestrator).await;
        // Rows for the relay stay in the table, for the tests to read.
        let app = App::new(
            (database.clone(), database),
            Root::default(),
            (settings, Models::default(), Providers::default(), sign_in),
            Arc::new(drop),
            Shutdown::new(),
        );
        let http = HttpSettings::default();
        let health = Health::new(&http, &Shutdown::new());
        let router = runtime::http::router(orchestrator::served(app.clone()), health, &http, Shutdown::new());
        World { test, app, router }
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Call<'_> {
        Call {
            world: self,
            method,
            path: path.to_owned(),
            token: None,
            headers: Vec::new(),
            body: None,
        }
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.call(Method::GET, path).token(token).send().await
    }

    pub(crate) async fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path).token(token).json(&body).send().await
    }

    pub(crate) async fn patch(&self, token: &str, path: &str, body: Value) -> Answer {
        self.call(Method::PATCH, path).token(token).json(&body).send().await
    }

    pub(crate) async fn put(&self, token: &str, path: &str, body: Value) -> Answer {
        self.call(Method::PUT, path).token(token).json(&body).send().await
    }

    pub(crate) async fn delete(&self, token: &str, path: &str) -> Answer {
        self.call(Method::DELETE, path).token(token).send().await
    }

    /// Creates an account and its keys over the API.
    pub(crate) async fn tenant(&self, id: &str) -> Tenant {
        let made = self
            .post(OPERATOR, "/api/accounts", json!({"id": id, "name": id}))
            .await;
        assert_eq!(made.status, 201, "{made:?}");
        Tenant {
            id: id.to_owned(),
            admin: self.key(id, "admin").await,
            member: self.key(id, "member").await,
            service: self.key(id, "service").await,
            publisher: self.key(id, "publisher").await,
            gateway: self.key(id, "gateway").await,
        }
    }

    async fn key(&self, account: &str, role: &str) -> String {
        let path = format!("/api/orgs/{account}/keys");
        let made = self
            .post(OPERATOR, &path, json!({"name": format!("a {role}"), "role": role}))
            .await;
        assert_eq!(made.status, 201, "{made:?}");
        made.body["key"].as_str().unwrap().to_owned()
    }

    /// Creates an agent over the API; gives its id.
    pub(crate) async fn agent(&self, tenant: &Tenant, slug: &str) -> String {
        let made = self
            .post(
                &tenant.admin,
                &tenant.path("/agents"),
                json!({"slug": slug, "name": slug}),
            )
            .await;
        assert_eq!(made.status, 201, "{made:?}");
        made.body["id"].as_str().unwrap().to_owned()
    }

    /// Creates a task over the API.
    pub(crate) async fn task(&self, tenant: &Tenant, id: &str, assignees: &[&str]) {
        let body = json!({"id": id, "title": format!("Title of {id}"), "assignees": assignees});
        let made = self.post(&tenant.member, &tenant.path("/tasks"), body).await;
        assert_eq!(made.status, 201, "{made:?}");
    }

    /// All messages in the outbox, oldest row first.
    pub(crate) async fn sent(&self) -> Vec<Sent> {
        let sent = |message: Outgoing| Sent {
            subject: message.subject,
            headers: message
                .headers
                .0
                .into_iter()
                .map(|(name, value)| (name.into_owned(), value))
                .collect(),
            payload: serde_json::from_slice(&message.payload).unwrap(),
        };
        self.test.outbox().await.into_iter().map(sent).collect()
    }

    /// Outbox rows whose subjects have this prefix.
    pub(crate) async fn sent_on(&self, prefix: &str) -> Vec<Sent> {
        self.sent()
            .await
            .into_iter()
            .filter(|sent| sent.subject.starts_with(prefix))
            .collect()
    }

    pub(crate) async fn execute(&self, sql: impl Into<String>) {
        sqlx::query(sqlx::AssertSqlSafe(sql.into()))
            .execute(&self.test.owner)
            .await
            .unwrap();
    }
}

impl Tenant {
    /// A path in the account.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/orgs/{}{rest}", self.id)
    }
}

impl Call<'_> {
    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").raw(body.to_string())
    }

    pub(crate) fn raw(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub(crate) async fn send(self) -> Answer {
        let mut request = Request::builder().method(self.method).uri(&self.path);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(self.body.unwrap_or_default())).unwrap();
        self.world.answer(request).await
    }
}

impl World {
    pub(crate) async fn answer(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 64 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }
}

impl Answer {
    /// Asserts a problem: status, code, and words of its detail.
    pub(crate) fn is_problem(&self, status: u16, code: &str, words: &str) {
        assert_eq!(
            (self.status.as_u16(), self.body["code"].as_str()),
            (status, Some(code)),
            "{self:?}"
        );
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        let detail = self.body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{detail}");
    }

    /// The values of a member in the items of a list.
    pub(crate) fn column(&self, name: &str) -> Vec<String> {
        let items = self.body["items"]
            .as_array()
            .unwrap_or_else(|| panic!("no list: {self:?}"));
        let text = |item: &Value| {
            item[name]
                .as_str()
                .map_or_else(|| item[name].to_string(), str::to_owned)
        };
        items.iter().map(text).collect()
    }
}
