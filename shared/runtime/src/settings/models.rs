//! `[models.NAME]`: external models that agents may ask by tool. Every service reads the same entries: which tools are offered, what the
//! API shows, and who is called must agree. Only the tool-gateway needs the keys. All values are checked here, once, so that a bad
//! setting stops the start with one line.

use std::{collections::BTreeMap, time::Duration};

use domain::{AccountId, Count, Millis, ModelInput, ModelKind, ModelKinds};
use reqwest::{Url, header::HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::egress;

/// Beginnings of names of image formats, as in `output_format`.
const FORMATS: [&str; 3] = ["png", "jpeg", "webp"];

/// All entries, by name. Of a kind, the first by name is the default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Models(BTreeMap<String, ModelSettings>);

impl Models {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ModelSettings)> {
        self.0.iter().map(|(name, model)| (name.as_str(), model))
    }

    /// Those that an account may use.
    pub fn of(&self, account: &AccountId) -> impl Iterator<Item = (&str, &ModelSettings)> {
        self.iter().filter(|(_, model)| model.serves(account))
    }

    /// The kinds of those.
    pub fn kinds_of(&self, account: &AccountId) -> ModelKinds {
        self.of(account).map(|(_, model)| model.kind).collect()
    }

    /// Of those, the one of this kind with this name, or the default.
    pub fn find(&self, account: &AccountId, kind: ModelKind, name: Option<&str>) -> Option<(&str, &ModelSettings)> {
        let mut of_kind = self.of(account).filter(|(_, model)| model.kind == kind);
        of_kind.find(|(known, _)| name.is_none_or(|name| name == *known))
    }
}

/// One model, with all defaults filled in.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Fields")]
pub struct ModelSettings {
    pub kind: ModelKind,
    /// Where calls are posted, path included.
    pub url: Url,
    /// The model's name at that address.
    pub model: String,
    pub api_key: Option<SecretString>,
    pub accepts: Vec<ModelInput>,
    /// Whether the address may be non-public.
    pub private_addresses: bool,
    /// None: every account.
    accounts: Option<Vec<AccountId>>,
    /// Of a whole call, its repetitions included.
    pub timeout: Duration,
    /// Concurrent calls, in each process.
    pub in_flight_max: usize,
    /// The sizes of images that may be asked for; none: any.
    pub sizes: Vec<String>,
    /// The format of images to ask for.
    pub output_format: Option<String>,
}

/// The entry as the operator wrote it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: ModelKind,
    url: String,
    model: String,
    api_key: Option<SecretString>,
    accepts: Option<Vec<ModelInput>>,
    private_addresses: Option<bool>,
    accounts: Option<Vec<String>>,
    timeout_ms: Option<Millis>,
    in_flight_max: Option<Count>,
    sizes: Option<Vec<String>>,
    output_format: Option<String>,
}

/// Settings of a model that cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("url is not an absolute http or https URL without a user name, password or fragment")]
    Url,
    #[error("url is at an address that is not public, and private_addresses is false")]
    UrlPrivate,
    #[error("model is empty")]
    Model,
    #[error("api_key is no key: it is empty, begins with '$', or has a character that is not visible ASCII")]
    ApiKey,
    #[error("accounts names no account: write ids, or [\"*\"] for every account")]
    Accounts,
    #[error("accepts is empty, or lacks \"text\"")]
    Accepts,
    #[error("sizes has one that is no size: write \"auto\", or width and height as in \"1024x1024\"")]
    Sizes,
    #[error("output_format is not one of png, jpeg, webp")]
    OutputFormat,
    #[error("sizes and output_format are for kind images")]
    ImagesOnly,
}

impl TryFrom<Fields> for ModelSettings {
    type Error = Refused;

    fn try_from(fields: Fields) -> Result<Self, Refused> {
        let url = Url::parse(&fields.url).map_err(|_| Refused::Url)?;
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        if !is_web || !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(Refused::Url);
        }
        let private_addresses = fields.private_addresses.unwrap_or(false);
        if !private_addresses && !egress::host_may_be_public(&url) {
            return Err(Refused::UrlPrivate);
        }
        if fields.model.trim().is_empty() {
            return Err(Refused::Model);
        }
        if fields.api_key.as_ref().is_some_and(|key| bearer(key).is_none()) {
            return Err(Refused::ApiKey);
        }
        let accepts = fields.accepts.unwrap_or_else(|| ModelInput::ALL.to_vec());
        if !accepts.contains(&ModelInput::Text) {
            return Err(Refused::Accepts);
        }
        let is_images = fields.kind == ModelKind::Images;
        let sizes = fields.sizes.unwrap_or_default();
        if !is_images && (!sizes.is_empty() || fields.output_format.is_some()) {
            return Err(Refused::ImagesOnly);
        }
        if !sizes.iter().all(|size| is_size(size)) {
            return Err(Refused::Sizes);
        }
        let is_format = |format: &String| FORMATS.contains(&format.as_str());
        if !fields.output_format.as_ref().is_none_or(is_format) {
            return Err(Refused::OutputFormat);
        }
        Ok(ModelSettings {
            kind: fields.kind,
            url,
            model: fields.model,
            api_key: fields.api_key,
            accepts,
            private_addresses,
            accounts: accounts(fields.accounts)?,
            timeout: fields.timeout_ms.unwrap_or(Millis::new(120_000)).duration(),
            in_flight_max: fields.in_flight_max.unwrap_or(Count::new(8)).usize(),
            sizes,
            output_format: fields.output_format,
        })
    }
}

fn accounts(named: Option<Vec<String>>) -> Result<Option<Vec<AccountId>>, Refused> {
    match named.as_deref() {
        None => Ok(None),
        Some([every]) if every == "*" => Ok(None),
        Some([]) => Err(Refused::Accounts),
        Some(names) => {
            let parsed: Option<Vec<AccountId>> = names.iter().map(|name| AccountId::parse(name).ok()).collect();
            parsed.map(Some).ok_or(Refused::Accounts)
        }
    }
}

/// `auto`, or width and height.
fn is_size(size: &str) -> bool {
    let is_number = |text: &str| (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    size == "auto"
        || size
            .split_once('x')
            .is_some_and(|(width, height)| is_number(width) && is_number(height))
}

/// The header that carries the credential; none: it cannot.
fn bearer(key: &SecretString) -> Option<HeaderValue> {
    let key = key.expose_secret();
    let is_key = !key.is_empty() && !key.starts_with('$') && key.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value = is_key
        .then(|| HeaderValue::from_str(&format!("Bearer {key}")).ok())
        .flatten()?;
    value.set_sensitive(true);
    Some(value)
}

impl ModelSettings {
    pub fn serves(&self, account: &AccountId) -> bool {
        self.accounts.as_ref().is_none_or(|accounts| accounts.contains(account))
    }

    /// The header that carries the credential, if there is one.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.api_key.as_ref().and_then(bearer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn read(toml: &str) -> Result<Models, String> {
        let settings = Settings::load_from(toml, [("", ""); 0]).map_err(|error| error.to_string())?;
        settings.section("models").map_err(|error| error.to_string())
    }

    #[test]
    fn an_entry_says_who_is_asked_and_by_whom() {
        let models = read(
            "[models.b]\nkind = \"openresponses\"\nurl = \"https://h/v1/responses\"\nmodel = \"m\"\n
             [models.a]\nkind = \"openresponses\"\nurl = \"https://h/v1/responses\"\nmodel = \"m\"\naccounts = [\"acme\"]\n
             [models.paint]\nkind = \"images\"\nurl = \"http://127.0.0.1:1/v1/images\"\nmodel = \"m\"\nprivate_addresses = true
             accounts = [\"*\"]\nsizes = [\"auto\", \"1024x1024\"]\noutput_format = \"webp\"\n",
        )
        .unwrap();
        let (acme, other) = (AccountId::parse("acme").unwrap(), AccountId::parse("other").unwrap());
        let find = |account, kind, name| models.find(account, kind, name).map(|(name, _)| name);
        assert_eq!(find(&acme, ModelKind::OpenResponses, None), Some("a"));
        assert_eq!(find(&other, ModelKind::OpenResponses, None), Some("b"));
        assert_eq!(find(&other, ModelKind::OpenResponses, Some("a")), None);
        assert_eq!(find(&acme, ModelKind::OpenResponses, Some("paint")), None);
        assert_eq!(find(&acme, ModelKind::Images, None), Some("paint"));
        let kinds = models.kinds_of(&acme);
        assert!(kinds.has(ModelKind::Images) && kinds.has(ModelKind::OpenResponses));
        assert_eq!(Models::default().kinds_of(&acme), ModelKinds::default());
    }

    #[test]
    fn an_entry_that_cannot_work_stops_the_start() {
        const FIELDS: [(&str, &str); 3] = [
            ("kind", "\"openresponses\""),
            ("url", "\"https://h/v1/responses\""),
            ("model", "\"m\""),
        ];
        let check = |key: &str, value: &str, words: &str| {
            let kept = FIELDS.iter().copied().filter(|(known, _)| *known != key);
            let fields = kept.chain([(key, value)]);
            let fields: String = fields.map(|(key, value)| format!("{key} = {value}\n")).collect();
            match read(&format!("[models.x]\n{fields}")) {
                Ok(_) => assert_eq!(words, "", "{key} = {value}"),
                Err(error) => assert!(!words.is_empty() && error.contains(words), "{key} = {value}: {error}"),
            }
        };
        check("kind", "\"images\"", "");
        check("kind", "\"audio\"", "audio");
        check("url", "\"ftp://h/\"", "url is not");
        check("url", "\"/v1\"", "url is not");
        check("url", "\"https://u:p@h/\"", "url is not");
        check("url", "\"https://127.0.0.1/\"", "not public");
        check("url", "\"https://0x7f.1/\"", "not public");
        check("url", "\"https://[::1]/\"", "not public");
        check("model", "\" \"", "model is empty");
        check("api_key", "\"sk-1\"", "");
        check("api_key", "\"\"", "no key");
        check("api_key", "\"$KEY\"", "no key");
        check("api_key", "\"a b\"", "no key");
        check("accepts", "[\"image\"]", "accepts");
        check("accepts", "[\"text\"]", "");
        check("accounts", "[]", "accounts");
        check("accounts", "[\"acme\", \"*\"]", "accounts");
        check("accounts", "[\"Acme\"]", "accounts");
        check("sizes", "[\"1024x1024\"]", "for kind images");
        check("output_format", "\"png\"", "for kind images");
        let images = |line: &str| {
            let entry = "[models.x]\nkind = \"images\"\nurl = \"https://h/v1\"\nmodel = \"m\"\n";
            read(&format!("{entry}{line}")).is_ok()
        };
        assert!(
            images("sizes = [\"auto\", \"1x1\"]") && !images("sizes = [\"1024\"]") && !images("sizes = [\"1x-1\"]")
        );
        assert!(images("output_format = \"webp\"") && !images("output_format = \"svg\""));
    }
}
