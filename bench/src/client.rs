//! A minimal HTTP client: for the floor, for requests of people, and for reading the provider's record.

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Keeps its connections open.
#[derive(Clone)]
pub(crate) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Caller {
    pub(crate) fn new(connections_max: usize) -> Caller {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(connections_max)
            .build(connector);
        Caller { client }
    }

    pub(crate) async fn post(&self, url: hyper::Uri, body: Vec<u8>) -> anyhow::Result<Bytes> {
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .context("could not build a request")?;
        whole(self.client.request(request).await.context("no answer")?).await
    }

    /// A request with a key of the API's.
    pub(crate) async fn ask(&self, method: Method, url: &str, key: &str, body: Vec<u8>) -> anyhow::Result<Bytes> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(AUTHORIZATION, format!("Bearer {key}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .context("could not build a request")?;
        whole(self.client.request(request).await.context("no answer")?).await
    }

    pub(crate) async fn get(&self, url: &str) -> anyhow::Result<Bytes> {
        let response = self.client.get(url.parse().context("invalid URL")?).await;
        whole(response.with_context(|| format!("{url} did not answer"))?).await
    }
}

async fn whole(response: Response<Incoming>) -> anyhow::Result<Bytes> {
    let status = response.status();
    if !status.is_success() {
        bail!("answered with {status}");
    }
    Ok(response
        .into_body()
        .collect()
        .await
        .context("could not read the answer")?
        .to_bytes())
}
