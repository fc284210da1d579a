//! Restate: a virtual object per session keeps the order; its journal holds the outcome of the turn.

use std::{env, net::SocketAddr, sync::Arc};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Uri, header::CONTENT_TYPE};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use restate_sdk::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::{NoTls, Statement};

#[derive(Clone, Serialize, Deserialize)]
struct Turn {
    /// The notification's number, and that of its pair.
    place: i64,
    session: i64,
    body: String,
}

struct Session(Arc<Servers>);

#[object(name = "session")]
impl Session {
    #[handler]
    async fn turn(&self, ctx: ObjectContext<'_>, Json(turn): Json<Turn>) -> Result<(), HandlerError> {
        let servers = Arc::clone(&self.0);
        ctx.run(|| async move { Ok(servers.turn(turn).await?) })
            .name("turn")
            .await?;
        Ok(())
    }
}

struct Servers {
    provider: Uri,
    http: Client<HttpConnector, Full<Bytes>>,
    /// Statements are pipelined.
    postgres: tokio_postgres::Client,
    insert: Statement,
}

impl Servers {
    async fn turn(&self, turn: Turn) -> anyhow::Result<()> {
        let body = json!({"model": "bench", "input": turn.body}).to_string();
        let request = Request::post(self.provider.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let response = self.http.request(request).await?;
        ensure!(response.status().is_success(), "provider: {}", response.status());
        let answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        let reply = answer["output"][0]["content"][0]["text"].as_str().context("no text")?;
        self.postgres
            .execute(&self.insert, &[&turn.place, &turn.session, &reply])
            .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (postgres, connection) = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let insert = postgres
        .prepare("insert into turn (place, session_id, reply) values ($1, $2, $3) on conflict do nothing")
        .await?;
    let servers = Arc::new(Servers {
        provider: env::var("PROVIDER_URL")?.parse()?,
        http: Client::builder(TokioExecutor::new()).build_http(),
        postgres,
        insert,
    });
    let address: SocketAddr = format!("127.0.0.1:{}", env::var("PORT")?).parse()?;
    let endpoint = Endpoint::builder().bind(Session(servers)).build();
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = HttpServer::new(endpoint).listen_and_serve(address) => {}
        _ = stop.recv() => {}
    }
    Ok(())
}
