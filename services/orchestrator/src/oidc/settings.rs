//! `[sign_in.oidc.NAME]`: the providers by which people sign in. A bad setting stops the start with one line.

use openidconnect::IssuerUrl;
use reqwest::Url;
use runtime::egress;
use secrecy::SecretString;
use serde::Deserialize;

/// `^[a-z0-9][a-z0-9-]{0,31}$`
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ProviderName(String);

impl ProviderName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ProviderName {
    type Error = &'static str;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=32).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('-');
        match fits {
            true => Ok(ProviderName(name)),
            false => Err("the name of a provider has 1 to 32 small letters, digits and hyphens"),
        }
    }
}

/// One provider.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Fields")]
pub struct OidcSettings {
    pub issuer: IssuerUrl,
    pub client_id: String,
    /// None: a public client.
    pub client_secret: Option<SecretString>,
    /// What people read on the button; else its name in the path.
    pub name: Option<String>,
    /// Whether its addresses may be non-public, and without TLS.
    pub private_addresses: bool,
}

/// The entry as the operator wrote it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    issuer: String,
    client_id: String,
    client_secret: Option<SecretString>,
    name: Option<String>,
    private_addresses: Option<bool>,
}

/// Settings of a provider that cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("issuer is not an absolute https URL (http with private_addresses) without a query or fragment")]
    Issuer,
    #[error("issuer is at an address that is not public, and private_addresses is false")]
    IssuerPrivate,
    #[error("client_id is empty")]
    ClientId,
}

impl TryFrom<Fields> for OidcSettings {
    type Error = Refused;

    fn try_from(fields: Fields) -> Result<Self, Refused> {
        let private_addresses = fields.private_addresses.unwrap_or(false);
        let url = Url::parse(&fields.issuer).map_err(|_| Refused::Issuer)?;
        if !may_ask(&url, true) || url.query().is_some() || url.fragment().is_some() {
            return Err(Refused::Issuer);
        }
        if !may_ask(&url, private_addresses) {
            return Err(if url.scheme() == "http" {
                Refused::Issuer
            } else {
                Refused::IssuerPrivate
            });
        }
        if fields.client_id.trim().is_empty() {
            return Err(Refused::ClientId);
        }
        Ok(OidcSettings {
            issuer: IssuerUrl::new(fields.issuer).map_err(|_| Refused::Issuer)?,
            client_id: fields.client_id,
            client_secret: fields.client_secret,
            name: fields.name,
            private_addresses,
        })
    }
}

/// Whether a request may go to this address: over TLS and to a public one, unless private addresses are allowed.
pub fn may_ask(url: &Url, private_addresses: bool) -> bool {
    let is_web = url.scheme() == "https" || private_addresses && url.scheme() == "http";
    let has_user = !url.username().is_empty() || url.password().is_some();
    is_web && url.has_host() && !has_user && (private_addresses || egress::host_may_be_public(url))
}

#[cfg(test)]
mod tests {
    use runtime::settings::Settings;

    use crate::settings::SignInSettings;

    fn read(toml: &str) -> Result<SignInSettings, String> {
        let settings = Settings::load_from(toml, [("", ""); 0]).map_err(|error| error.to_string())?;
        settings.section("sign_in").map_err(|error| error.to_string())
    }

    #[test]
    fn an_issuer_is_public_and_over_tls_unless_said_otherwise() {
        let check = |issuer: &str, private: bool, good: bool| {
            let entry =
                format!("[sign_in.oidc.corp]\nissuer = \"{issuer}\"\nclient_id = \"c\"\nprivate_addresses = {private}");
            let found = read(&entry);
            assert_eq!(found.is_ok(), good, "{issuer} {private}: {found:?}");
        };
        check("https://accounts.example.com", false, true);
        check("https://accounts.example.com/realms/one", false, true);
        check("http://accounts.example.com", false, false);
        check("https://10.0.0.1", false, false);
        check("https://10.0.0.1", true, true);
        check("http://127.0.0.1:9000", true, true);
        check("https://a?b", true, false);
        check("https://u:p@a", true, false);
        check("accounts.example.com", true, false);
    }

    #[test]
    fn a_provider_has_a_name_for_its_path() {
        for (name, good) in [
            ("corp", true),
            ("corp-2", true),
            ("\"Corp\"", false),
            ("\"a/b\"", false),
            ("\"-a\"", false),
        ] {
            let entry = format!("[sign_in.oidc.{name}]\nissuer = \"https://a.example\"\nclient_id = \"c\"");
            assert_eq!(read(&entry).is_ok(), good, "{name}");
        }
        assert!(read("[sign_in.oidc.corp]\nissuer = \"https://a.example\"\nclient_id = \" \"").is_err());
        assert!(read("[sign_in]\nsession_day = 1").is_err());
    }
}
