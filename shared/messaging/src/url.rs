//! The NATS URL: the server addresses and the credentials, which must not be logged.

use std::fmt;

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;

use crate::BusError;

#[derive(Clone, PartialEq)]
pub(crate) enum UrlCredentials {
    Password {
        user: String,
        password: String,
    },
    /// A user without a password: NATS's way to write a token.
    Token(String),
}

impl fmt::Debug for UrlCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UrlCredentials::Password { user, .. } => write!(f, "Password({user}, …)"),
            UrlCredentials::Token(_) => f.write_str("Token(…)"),
        }
    }
}

/// The addresses without their credentials, and the first credentials in them. The library ignores credentials in the
/// URL, and logs whole URLs at its verbose levels.
pub(crate) fn parse_url(url: &str) -> Result<(Vec<ServerAddr>, Option<UrlCredentials>), BusError> {
    let parse = |text: &str| {
        text.parse::<ServerAddr>().map_err(|error| BusError::Url {
            reason: error.to_string(),
        })
    };
    let (mut addresses, mut credentials) = (Vec::new(), None);
    for one in url.split(',').map(str::trim) {
        let address = parse(one)?;
        if credentials.is_none() {
            credentials = address.username().map(|user| match address.password() {
                Some(password) => UrlCredentials::Password {
                    user: percent_decoded(user),
                    password: percent_decoded(password),
                },
                None => UrlCredentials::Token(percent_decoded(user)),
            });
        }
        addresses.push(parse(&without_credentials(one))?);
    }
    Ok((addresses, credentials))
}

fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Host and port, for messages.
pub(crate) fn shown(addresses: &[ServerAddr]) -> String {
    let shown: Vec<String> = addresses
        .iter()
        .map(|address| format!("{}:{}", address.host(), address.port()))
        .collect();
    shown.join(", ")
}

/// A password may contain characters that a URL encodes as `%2F`.
fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_out_of_the_url_decoded_and_do_not_stay_in_the_addresses() {
        let (addresses, credentials) =
            parse_url("nats://zoe:p%40ss%2Fw%25rd@127.0.0.1:4222, tls://[::1]:4333").unwrap();
        assert_eq!(
            credentials,
            Some(UrlCredentials::Password {
                user: "zoe".to_owned(),
                password: "p@ss/w%rd".to_owned()
            })
        );
        assert_eq!(shown(&addresses), "127.0.0.1:4222, ::1:4333");
        assert!(!format!("{addresses:?}").contains("zoe"), "{addresses:?}");
        assert_eq!(format!("{credentials:?}"), "Some(Password(zoe, …))");

        let credentials = |url: &str| parse_url(url).unwrap().1;
        assert_eq!(
            credentials("nats://secret@host"),
            Some(UrlCredentials::Token("secret".to_owned()))
        );
        assert_eq!(format!("{:?}", credentials("nats://secret@host")), "Some(Token(…))");
        assert_eq!(credentials("nats://host"), None);
        assert_eq!(credentials("host:4222"), None);
        assert!(parse_url("http://host").is_err());
    }
}
