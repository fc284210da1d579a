//! A small HTTP client for the drivers: JSON over a connection of its own for each request. Dropping the future closes the
//! connection, which is how a turn is cut. Loopback only: no TLS, no redirects, no proxies.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Uri, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Status and body of an answer; a body that is not JSON is null.
pub async fn send(
    method: Method,
    url: &str,
    token: Option<&str>,
    body: Option<&Value>,
    limit: Duration,
) -> anyhow::Result<(u16, Value)> {
    let answer = timeout(limit, exchange(method.clone(), url, token, body)).await;
    answer
        .with_context(|| format!("no answer within {limit:?}"))
        .flatten()
        .with_context(|| format!("{method} {url}"))
}

async fn exchange(
    method: Method,
    url: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> anyhow::Result<(u16, Value)> {
    let uri: Uri = url.parse().context("not a URL")?;
    ensure!(uri.scheme_str() == Some("http"), "not an http URL");
    let authority = uri.authority().context("a URL without a host")?.clone();
    let stream = TcpStream::connect((authority.host(), authority.port_u16().unwrap_or(80)));
    let stream = stream.await.context("could not connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder()
        .method(method)
        .uri(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let answered = async {
        let response = sender.send_request(request.body(Full::new(bytes))?).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let body = body
            .map_err(|error| anyhow::anyhow!("the answer's body: {error}"))?
            .to_bytes();
        anyhow::Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    };
    // Both in this future, so that dropping it drops the connection.
    let (mut answered, mut connection) = (std::pin::pin!(answered), std::pin::pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answered => answer,
        ended = &mut connection => {
            ended.context("the connection failed")?;
            answered.await
        }
    }
}
