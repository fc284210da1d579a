//! Providers: at least one, with valid settings, and a server that answers at its address. No model is called, since that costs
//! money.

use std::{collections::BTreeMap, time::Duration};

use delivery::providers::{ProviderKind, ProviderSettings};
use futures::future::join_all;
use reqwest::StatusCode;
use runtime::Settings;

use super::{Check, Finding};

const TIMEOUT: Duration = Duration::from_secs(5);

/// `has_demo_agent`: a running `up` serves `default` itself if the settings do not name it.
pub(super) async fn examine(settings: &Settings, has_demo_agent: bool) -> Vec<Finding> {
    let providers: BTreeMap<String, ProviderSettings> = match settings.section("providers") {
        Ok(providers) => providers,
        Err(error) => return vec![Finding::failed(Check::Providers, error, "correct this setting")],
    };
    if providers.is_empty() {
        return vec![none(has_demo_agent)];
    }
    let client = match reqwest::Client::builder().timeout(TIMEOUT).build() {
        Ok(client) => client,
        Err(error) => return vec![Finding::failed(Check::Providers, error, "is the machine's TLS set up?")],
    };
    join_all(providers.iter().map(|(name, provider)| async {
        let answer = client.get(provider.url.clone()).send().await;
        let status = answer.map(|response| response.status());
        judge(name, provider.kind, status.map_err(reqwest::Error::without_url))
    }))
    .await
}

fn none(has_demo_agent: bool) -> Finding {
    if has_demo_agent {
        return Finding::ok(
            Check::Providers,
            "none set: the demo agent of `signalbox up` answers for `default`",
        );
    }
    Finding::problem(
        Check::Providers,
        "none is set: every turn would fail",
        "set providers.default.server, .url and .model, or use `signalbox up`, which has a demo agent",
    )
}

/// A call is a POST with a key, so any answer to this GET shows that a server listens.
fn judge(name: &str, kind: ProviderKind, answer: Result<StatusCode, reqwest::Error>) -> Finding {
    let kind = kind.as_str();
    match answer {
        Ok(status) if status.is_server_error() => Finding::hint(
            Check::Providers,
            format!("{name} ({kind}) answers with {status}"),
            "is it overloaded, or is the URL a proxy's whose server is away?",
        ),
        Ok(_) => Finding::ok(Check::Providers, format!("{name} ({kind}) answers at its address")),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("{name} ({kind}) does not answer"));
            Finding::failed(
                Check::Providers,
                error,
                format!("is it running, and is providers.{name}.url right?"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn examined(url: &str) -> Vec<Finding> {
        testkit::install_tls_provider();
        let variables = [
            ("SIGNALBOX__PROVIDERS__DEFAULT__KIND", "openresponses"),
            ("SIGNALBOX__PROVIDERS__DEFAULT__MODEL", "demo"),
            ("SIGNALBOX__PROVIDERS__DEFAULT__URL", url),
        ];
        examine(&Settings::load_from("", variables).unwrap(), false).await
    }

    #[tokio::test]
    async fn somebody_is_at_the_address_or_not() {
        let agent = devstack::DemoAgent::start(([127, 0, 0, 1], 0).into()).await.unwrap();
        let url = agent.url();
        let findings = examined(&url).await;
        assert_eq!(
            findings,
            [Finding::ok(
                Check::Providers,
                "default (openresponses) answers at its address"
            )]
        );
        agent.stop().await;
        let findings = examined(&url).await;
        assert!(findings.len() == 1 && findings[0].is_problem(), "{findings:?}");
    }

    #[test]
    fn none_is_a_problem_but_next_to_a_demo_agent() {
        assert!(none(false).is_problem());
        assert!(!none(true).is_problem());
        assert!(!judge("default", ProviderKind::OpenClaw, Ok(StatusCode::METHOD_NOT_ALLOWED)).is_problem());
    }
}
