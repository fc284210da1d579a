//! `signalbox health`: reads `/readyz` of the services on this machine and turns it into an exit code. For container engines: the
//! image has no shell and no curl.
//!
//! The command finds the services by asking every address, so the same line fits every container and a process with all four.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use futures::future::join_all;
use reqwest::{Client, StatusCode, Url};
use runtime::{Settings, http::local_url};
use serde_json::Value;

use crate::{
    cli::HealthArgs,
    ports::listen_settings,
    print::{code, print, print_json},
};

/// Longer than `/readyz` gives its own checks by default, shorter than a container engine's patience.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The answer of a page.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    /// The failed checks, each with its message.
    amiss: Vec<String>,
}

pub(crate) async fn run(args: &HealthArgs, json: bool) -> anyhow::Result<ExitCode> {
    // The target is this machine or was named explicitly, so a proxy from the environment is ignored.
    let client = Client::builder().no_proxy().timeout(ANSWER_LIMIT).build()?;
    let seen = match &args.url {
        Some(url) => vec![(url.to_string(), ask(&client, url.clone()).await?)],
        None => listening(&client, listen_settings(&Settings::load()?)?).await?,
    };
    if json {
        let answers = seen
            .iter()
            .map(|(whom, answer)| (whom.clone(), answer.status.as_u16().into()));
        print_json(&answers.collect::<serde_json::Map<_, _>>())?;
    } else {
        for (whom, Answer { status, amiss }) in &seen {
            let why = if amiss.is_empty() { "" } else { "; " };
            print(&format!("{whom}: {status}{why}{}", amiss.join(", ")))?;
        }
    }
    Ok(code(are_well(&seen)))
}

/// The services that answer at the addresses of the settings. A service that does not listen runs elsewhere.
async fn listening(
    client: &Client,
    services: Vec<(&'static str, SocketAddr)>,
) -> anyhow::Result<Vec<(String, Answer)>> {
    let answers = services.into_iter().map(|(service, address)| async move {
        let url = format!("{}/readyz", local_url(address));
        let url = Url::parse(&url).context("an address makes a URL")?;
        match ask(client, url).await {
            Ok(answer) => Ok(Some((service.to_owned(), answer))),
            Err(error) if is_nobody(&error) => Ok(None),
            Err(error) => Err(error.context(format!("{service} at {address}"))),
        }
    });
    let answers: Vec<_> = join_all(answers).await.into_iter().collect::<anyhow::Result<_>>()?;
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    if answers.is_empty() {
        bail!("no service listens here");
    }
    Ok(answers)
}

async fn ask(client: &Client, url: Url) -> anyhow::Result<Answer> {
    let response = client.get(url).send().await?;
    let status = response.status();
    // Optional detail: a page that is not JSON adds nothing.
    let page: Value = response.json().await.unwrap_or_default();
    let amiss = amiss(&page);
    Ok(Answer { status, amiss })
}

/// Failed checks of a page like `/readyz`.
fn amiss(page: &Value) -> Vec<String> {
    let checks = page["checks"].as_object().into_iter().flatten();
    let said = checks.filter_map(|(name, said)| said.as_str().map(|said| (name, said)));
    said.filter(|(_, said)| *said != "ok")
        .map(|(name, said)| format!("{name}: {said}"))
        .collect()
}

fn is_nobody(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<reqwest::Error>()
        .is_some_and(reqwest::Error::is_connect)
}

fn are_well(seen: &[(String, Answer)]) -> bool {
    seen.iter().all(|(_, answer)| answer.status.is_success())
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::get};
    use tokio::net::TcpListener;

    use super::*;

    async fn serving(status: StatusCode, page: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/readyz", get(move || async move { (status, page) }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// The port of a closed listener.
    async fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    async fn seen(services: Vec<(&'static str, SocketAddr)>) -> anyhow::Result<Vec<(String, Answer)>> {
        testkit::install_tls_provider();
        let client = Client::builder().no_proxy().timeout(ANSWER_LIMIT).build().unwrap();
        listening(&client, services).await
    }

    #[tokio::test]
    async fn asks_those_that_listen_here_and_leaves_out_the_others() {
        let (ready, nobody) = (serving(StatusCode::OK, "").await, nobody().await);
        let seen = seen(vec![("delivery", ready), ("resolver", nobody)]).await.unwrap();
        let (status, amiss) = (StatusCode::OK, Vec::new());
        assert_eq!(seen, [("delivery".to_owned(), Answer { status, amiss })]);
    }

    #[tokio::test]
    async fn nobody_at_all_is_no_health() {
        assert!(seen(vec![("delivery", nobody().await)]).await.is_err());
    }

    #[tokio::test]
    async fn one_that_is_not_ready_is_enough() {
        let (ready, waits) = (
            serving(StatusCode::OK, r#"{"checks": {"bus": "ok"}}"#).await,
            serving(
                StatusCode::SERVICE_UNAVAILABLE,
                r#"{"checks": {"bus": "not connected", "database": "ok"}}"#,
            )
            .await,
        );
        let seen = seen(vec![("delivery", ready), ("resolver", waits)]).await.unwrap();
        assert_eq!(seen[0].1.amiss, [""; 0]);
        assert_eq!(seen[1].1.amiss, ["bus: not connected"]);
        assert!(!are_well(&seen) && are_well(&seen[..1]));
    }
}
