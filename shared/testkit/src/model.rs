//! A scripted external model, with good and bad answers, that keeps the bytes that it was sent. It speaks both protocols, since a
//! script says its answers byte for byte.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::json;
use tokio::net::TcpListener;

/// A request, as the model received it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub headers: HeaderMap,
    pub body: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Says {
    pub after: Duration,
    pub status: u16,
    pub retry_after: Option<&'static str>,
    pub body: String,
}

impl Says {
    /// Any body with any status.
    pub fn plain(status: u16, body: impl Into<String>) -> Says {
        Says {
            after: Duration::ZERO,
            status,
            retry_after: None,
            body: body.into(),
        }
    }

    /// A text, in the OpenResponses protocol.
    pub fn text(text: &str) -> Says {
        let part = json!({"type": "output_text", "text": text});
        let usage = json!({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7});
        let message = json!({"type": "message", "content": [part]});
        let body = json!({"status": "completed", "output": [message], "usage": usage});
        Says::plain(200, body.to_string())
    }

    /// Images as base64, in the protocol for images.
    pub fn images(encoded: &[&str]) -> Says {
        let data: Vec<_> = encoded.iter().map(|image| json!({"b64_json": image})).collect();
        let body = json!({"data": data, "usage": {"total_tokens": 9}});
        Says::plain(200, body.to_string())
    }

    /// The same after so many seconds.
    pub fn after(self, seconds: u64) -> Says {
        let after = Duration::from_secs(seconds);
        Says { after, ..self }
    }

    pub fn retry_after(self, seconds: &'static str) -> Says {
        let retry_after = Some(seconds);
        Says { retry_after, ..self }
    }
}

type Script = dyn Fn(usize, &str) -> Says + Send + Sync;

#[derive(Clone)]
struct Shared {
    sent: Arc<Mutex<Vec<Sent>>>,
    script: Arc<Script>,
}

/// A model at `/v1` of a port of its own.
pub struct StubModel {
    address: SocketAddr,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl StubModel {
    /// `script`: the answer to the request of this number, from 1, with this body.
    pub async fn start(script: impl Fn(usize, &str) -> Says + Send + Sync + 'static) -> StubModel {
        let sent: Arc<Mutex<Vec<Sent>>> = Arc::default();
        let shared = Shared {
            sent: Arc::clone(&sent),
            script: Arc::new(script),
        };
        let router = Router::new().route("/v1", post(answer)).with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, router).await });
        StubModel { address, sent }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Every request so far.
    pub fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let body = String::from_utf8_lossy(&body).into_owned();
    let number = {
        let mut sent = shared.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push(Sent {
            headers,
            body: body.clone(),
        });
        sent.len()
    };
    let says = (shared.script)(number, &body);
    tokio::time::sleep(says.after).await;
    let status = StatusCode::from_u16(says.status).expect("a status of HTTP");
    let mut response = (status, says.body).into_response();
    if let Some(seconds) = says.retry_after {
        let value = HeaderValue::from_static(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}
