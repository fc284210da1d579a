//! The addresses in `[email]`: the mail server's, with its password, and the sender's.

use lettre::{AsyncSmtpTransport, Tokio1Executor, message::Mailbox};
use reqwest::Url;
use secrecy::SecretString;
use serde::Deserialize;

/// Where e-mail goes, with the password for it. A password goes over TLS only.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct SmtpUrl(pub(crate) SecretString);

impl TryFrom<String> for SmtpUrl {
    type Error = &'static str;
    fn try_from(url: String) -> Result<Self, Self::Error> {
        const FORM: &str = "expected smtps://user:password@host, smtp://user:password@host?tls=required, or smtp://host without a password";
        let read = Url::parse(&url).map_err(|_| FORM)?;
        let has_host = read.host_str().is_some_and(|host| !host.is_empty());
        let has_password = read.password().is_some();
        let is_safe = match (read.scheme(), read.query()) {
            ("smtps", None) | ("smtp", Some("tls=required")) => true,
            ("smtp", None) => !has_password,
            (_, _) => false,
        };
        let has_login = has_password != read.username().is_empty();
        match has_host && is_safe && has_login && AsyncSmtpTransport::<Tokio1Executor>::from_url(&url).is_ok() {
            true => Ok(SmtpUrl(SecretString::from(url))),
            false => Err(FORM),
        }
    }
}

/// Who the e-mail is from.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct FromAddress(pub(crate) Mailbox);

impl TryFrom<String> for FromAddress {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mailbox = text
            .parse::<Mailbox>()
            .map_err(|_| "expected an e-mail address, as in Signalbox <signalbox@example.com>");
        mailbox.map(FromAddress)
    }
}
