//! Against a server that answers as the API does.

use axum::{
    Json, Router,
    extract::{OriginalUri, Query},
    http::HeaderMap,
    routing::get,
};
use serde_json::json;
use std::collections::HashMap;

use super::*;

async fn client_of(router: Router) -> Client {
    testkit::install_tls_provider();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&base, "secret".to_owned().into()).unwrap()
}

#[tokio::test]
async fn reads_a_list_page_after_page() {
    async fn numbers(Query(query): Query<HashMap<String, String>>) -> Json<Value> {
        let from: usize = query.get("cursor").map_or(0, |cursor| cursor.parse().unwrap());
        let limit: usize = query["limit"].parse::<usize>().unwrap().min(2);
        let items: Vec<usize> = (from..5).take(limit).collect();
        let next = from + items.len();
        Json(json!({"items": items, "next_cursor": (next < 5).then(|| next.to_string())}))
    }
    let client = client_of(Router::new().route("/numbers", get(numbers))).await;
    let read = async |limit| client.list(&["numbers"], &[], limit).await.unwrap();
    assert_eq!(read(100).await, [0, 1, 2, 3, 4]);
    assert_eq!(read(3).await, [0, 1, 2]);
}

#[tokio::test]
async fn sends_its_token_and_encodes_a_stranger_s_id() {
    async fn echo(OriginalUri(uri): OriginalUri, headers: HeaderMap) -> Json<Value> {
        let token = headers["authorization"].to_str().unwrap().to_owned();
        Json(json!({"path": uri.path(), "token": token}))
    }
    let client = client_of(Router::new().fallback(get(echo))).await;
    let seen: Value = client.get(&["api", "a/b?c", "d e"], &[]).await.unwrap();
    assert_eq!(seen, json!({"path": "/api/a%2Fb%3Fc/d%20e", "token": "Bearer secret"}));
}

#[tokio::test]
async fn says_what_was_refused_and_why() {
    async fn refuse() -> (StatusCode, Json<Value>) {
        let problem = json!({"code": "invalid", "detail": "agent\nis missing"});
        (StatusCode::BAD_REQUEST, Json(problem))
    }
    let client = client_of(Router::new().route("/api/refused", get(refuse))).await;
    let error = client.get::<Value>(&["api", "refused"], &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "GET /api/refused was refused: 400 Bad Request (invalid): agent is missing"
    );
    assert!(!error.is_retryable());
    assert!(client.notification("demo", "none").await.unwrap().is_none());
    // A 404 names no more than its request does.
    let query = [("task", "DEMO-7"), ("from", "a:b"), ("limit", "50"), ("cursor", "c")];
    let error = client.get::<Value>(&["api", "none"], &query).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "GET /api/none?task=DEMO-7&from=a%3Ab was refused: 404 Not Found; not found, or the token has no access"
    );
}

#[tokio::test]
async fn says_when_nobody_answers() {
    testkit::install_tls_provider();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(&base, "secret".to_owned().into()).unwrap();
    let error = client.get::<Value>(&["api"], &[]).await.unwrap_err();
    assert!(error.is_retryable());
    let said = error.to_string();
    assert!(
        said.starts_with(&format!("Signalbox at {base} does not answer")),
        "{said}"
    );
    assert!(Client::new("not a url", "secret".to_owned().into()).is_err());
}
