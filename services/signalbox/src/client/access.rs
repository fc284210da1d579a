//! The address and token of the API that a command uses: from the command line or the environment, else from the `up` that runs
//! with the same data directory.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use secrecy::SecretString;

use super::Client;
use crate::endpoints::Endpoints;

/// The API's default address.
const URL_DEFAULT: &str = "http://127.0.0.1:8080";

#[derive(Args, Debug)]
pub(crate) struct AccessArgs {
    /// Address of Signalbox's HTTP API [default: the one of a running `up`, else http://127.0.0.1:8080]
    #[arg(long, env = "SIGNALBOX_URL", value_name = "URL", help_heading = "Access")]
    url: Option<String>,
    /// An API key or the operator's token [default: the operator's token of a running `up`]
    #[arg(
        long,
        env = "SIGNALBOX_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true,
        help_heading = "Access"
    )]
    token: Option<String>,
    /// Used when no --token is given
    #[arg(long, env = "SIGNALBOX_OPERATOR_TOKEN", hide = true, hide_env_values = true)]
    operator_token: Option<String>,
    /// Data directory of a running `up`, whose endpoints.json has address and token
    #[arg(long, value_name = "DIR", default_value = ".data", help_heading = "Access")]
    data_dir: PathBuf,
}

impl AccessArgs {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let (url, token) = self.choose(Endpoints::read(&self.data_dir)?)?;
        Client::new(&url, token)
    }

    fn choose(&self, endpoints: Option<Endpoints>) -> anyhow::Result<(String, SecretString)> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let mut token = given(&self.token).or_else(|| given(&self.operator_token));
        let url = match (given(&self.url), endpoints) {
            (Some(url), found) => {
                // The token of one installation must not be sent to another.
                let same = found.filter(|found| found.http_url.trim_end_matches('/') == url.trim_end_matches('/'));
                token = token.or_else(|| same.and_then(|found| found.operator_token));
                url
            }
            (None, Some(found)) => {
                token = token.or(found.operator_token);
                found.http_url
            }
            (None, None) => URL_DEFAULT.to_owned(),
        };
        match token {
            Some(token) => Ok((url, token.into())),
            None => bail!(
                "no token for {url}: give --token or SIGNALBOX_TOKEN, or --data-dir of a running `signalbox up` \
                 (nothing found in {})",
                self.data_dir.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn check(url: Option<&str>, token: Option<&str>, is_up: bool, expected: Option<(&str, &str)>) {
        let access = AccessArgs {
            url: url.map(str::to_owned),
            token: token.map(str::to_owned),
            operator_token: None,
            data_dir: PathBuf::from(".data"),
        };
        let up = is_up.then(|| Endpoints {
            http_url: "http://127.0.0.1:9000".to_owned(),
            tool_gateway_url: String::new(),
            nats_url: String::new(),
            nats_operator_url: None,
            database_url: String::new(),
            operator_token: Some("operator".to_owned()),
            resolver_url: None,
            delivery_url: None,
        });
        let chosen = access.choose(up).ok();
        let chosen = chosen
            .as_ref()
            .map(|(url, token)| (url.as_str(), token.expose_secret()));
        assert_eq!(chosen, expected, "{url:?} {token:?} {is_up}");
    }

    #[test]
    fn what_is_named_goes_before_what_is_found() {
        check(None, None, true, Some(("http://127.0.0.1:9000", "operator")));
        check(None, Some("mine"), true, Some(("http://127.0.0.1:9000", "mine")));
        check(Some("http://far"), Some("mine"), true, Some(("http://far", "mine")));
        check(None, Some("mine"), false, Some((URL_DEFAULT, "mine")));
        check(Some(""), Some(""), true, Some(("http://127.0.0.1:9000", "operator")));
    }

    #[test]
    fn a_token_that_was_found_stays_with_its_address() {
        check(Some("http://far"), None, true, None);
        check(
            Some("http://127.0.0.1:9000/"),
            None,
            true,
            Some(("http://127.0.0.1:9000/", "operator")),
        );
        check(None, None, false, None);
    }
}
