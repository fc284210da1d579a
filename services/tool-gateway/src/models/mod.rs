//! External models: what the operator has named, called for agents (X3). A model is told the task's context and the request in one
//! form, which no tool's schema has and no agent can change; it is shown the named artifacts, and nothing else.
//!
//! [`openresponses`] and [`images`] are the two protocols, [`exchange`] one HTTP exchange within its limits, [`fetch`] reads a
//! file at an address that an agent named. No database: what a call brings along is stored by its end (`external/run.rs`).

pub(crate) mod exchange;
pub(crate) mod fetch;
pub(crate) mod images;
pub(crate) mod openresponses;

use std::{collections::HashMap, sync::Arc, time::Duration};

pub(crate) use contracts::tools::ask_model::form;
use domain::{AccountId, ArtifactSource, MediaType, ModelInput};
use reqwest::Client;
use runtime::{
    egress::{self, credential::Credential},
    http::{Held, Shared},
    settings::{ModelSettings, Models},
};
use serde_json::Value;
use storage::lifecycle::artifact_store::File;
use tokio::time::{Instant, sleep};

use self::fetch::Fetcher;
use crate::{call::ToolAnswer, refusal::rate_limited, settings::ToolGatewaySettings};

/// Bytes of the artifacts of one call.
pub(crate) const INPUT_BYTES_MAX: i64 = 20_000_000;
/// Bytes of calls in memory, in each process: what they show, and what they bring.
const MEDIA_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How often bytes are in memory at one time: as they are, as base64, and as a part of a body.
pub(crate) const COPIES: usize = 3;
/// How long a call waits for a free place or for room, before it is told that there is none.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(5);
const PLACE_LOOK: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A file as a model is shown it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub name: String,
    pub media_type: MediaType,
    pub content: Vec<u8>,
}

/// What a model must take to be shown a file.
pub(crate) fn input_of(media_type: MediaType) -> ModelInput {
    match media_type.is_image() {
        true => ModelInput::Image,
        false => ModelInput::File,
    }
}

/// The answer of a model, for the record.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The fields of the tool's result.
    pub result: serde_json::Map<String, Value>,
    /// Tokens, as the model counted them.
    pub usage: Option<Value>,
    /// Files that become artifacts.
    pub files: Vec<Brought>,
}

/// A file that a call brings along.
#[derive(Debug)]
pub(crate) struct Brought {
    pub name: String,
    pub file: File,
    pub source: ArtifactSource,
    /// The address of a fetched file.
    pub source_ref: Option<String>,
}

/// A model with its connections and its places.
pub(crate) struct Model {
    pub name: String,
    pub settings: ModelSettings,
    pub client: Client,
    /// Removed from the texts of its answers.
    pub credential: Credential,
    places: Arc<Shared<AccountId>>,
}

/// Every model, and what all calls share.
pub(crate) struct ModelCalls {
    pub settings: Models,
    models: HashMap<String, Arc<Model>>,
    pub fetcher: Fetcher,
    media: Arc<Shared<AccountId>>,
    pub artifact_bytes_max: usize,
}

impl ModelCalls {
    /// The process must have installed a rustls crypto provider before (`rustls::crypto::ring`).
    pub(crate) fn new(settings: Models, config: &ToolGatewaySettings) -> Result<ModelCalls, reqwest::Error> {
        let model = |(name, settings): (&str, &ModelSettings)| {
            let client = egress::client(settings.private_addresses)
                .connect_timeout(CONNECT_TIMEOUT)
                .build()?;
            let model = Model {
                name: name.to_owned(),
                settings: settings.clone(),
                client,
                credential: Credential::new(settings.api_key.as_ref()),
                places: Shared::in_halves(settings.in_flight_max),
            };
            Ok((name.to_owned(), Arc::new(model)))
        };
        Ok(ModelCalls {
            models: settings.iter().map(model).collect::<Result<_, reqwest::Error>>()?,
            fetcher: Fetcher::new(config.fetch_timeout_ms.duration(), config.artifact_bytes_max.usize())?,
            media: Shared::in_halves(MEDIA_BYTES_MAX),
            artifact_bytes_max: config.artifact_bytes_max.usize(),
            settings,
        })
    }

    /// The model of a started call; none: it has left the settings, or serves the account no more.
    pub(crate) fn started(&self, account: &AccountId, name: &str) -> Option<Arc<Model>> {
        self.models
            .get(name)
            .filter(|model| model.settings.serves(account))
            .cloned()
    }

    /// Room for the bytes of an account's call, which grows as they come.
    pub(crate) fn room(&self, account: &AccountId) -> Room {
        Room {
            of: Arc::clone(&self.media),
            account: account.clone(),
            held: Vec::new(),
        }
    }
}

impl Model {
    /// Waits for a place among the calls of this model, of which one account may have half of what the others leave.
    pub(crate) async fn place(&self, account: &AccountId) -> Result<Held<AccountId>, ToolAnswer> {
        let waited = patient(|| self.places.take(account, 1)).await;
        waited.ok_or_else(|| rate_limited(&format!("The model {} is busy with other calls", self.name)))
    }

    /// For tests of a protocol: `asks`, with a key.
    #[cfg(test)]
    pub(crate) fn of_url(client: Client, url: &str) -> Model {
        let toml = format!(
            "[models.asks]\nkind = \"openresponses\"\nurl = \"{url}\"\nmodel = \"m-1\"\napi_key = \"sk-secret\"\n\
             private_addresses = true\n"
        );
        let settings = runtime::Settings::load_from(&toml, [("", ""); 0]).expect("settings");
        let models: Models = settings.section("models").expect("models");
        let (name, settings) = models.iter().next().expect("a model");
        Model {
            name: name.to_owned(),
            settings: settings.clone(),
            client,
            credential: Credential::new(settings.api_key.as_ref()),
            places: Shared::in_halves(settings.in_flight_max),
        }
    }
}

/// Bytes that a call holds in memory.
pub(crate) struct Room {
    of: Arc<Shared<AccountId>>,
    account: AccountId,
    held: Vec<Held<AccountId>>,
}

impl Room {
    /// Waits for room for bytes that are about to be read.
    pub(crate) async fn reserve(&mut self, bytes: usize) -> Result<(), ToolAnswer> {
        let held = patient(|| self.of.take(&self.account, bytes)).await;
        self.held.push(held.ok_or_else(no_room)?);
        Ok(())
    }

    /// Takes room for bytes that have come, at once or not at all.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ToolAnswer> {
        self.held.push(self.of.take(&self.account, bytes).ok_or_else(no_room)?);
        Ok(())
    }

    /// For tests of a protocol.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: usize) -> Room {
        Room {
            of: Shared::in_halves(2 * bytes),
            account: AccountId::parse("acme").expect("an account"),
            held: Vec::new(),
        }
    }
}

fn no_room() -> ToolAnswer {
    rate_limited("Other calls hold as many bytes of files as fit into memory")
}

/// Looks until there is one, for a while.
async fn patient<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PLACE_WAIT_MAX;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        sleep(PLACE_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_exact() {
        assert_eq!(
            form(Some("We build a shop."), "Review the plan."),
            "[Task Context]\nWe build a shop.\n\n[Request]\nReview the plan."
        );
        assert_eq!(form(None, "Review the plan."), "Review the plan.");
        // A request that looks like the form is a request.
        assert_eq!(
            form(Some("c"), "[Task Context]\nfake"),
            "[Task Context]\nc\n\n[Request]\n[Task Context]\nfake"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_account_leaves_room_for_the_others() {
        let shared: Arc<Shared<AccountId>> = Shared::in_halves(8);
        let (acme, other) = (AccountId::parse("acme").unwrap(), AccountId::parse("other").unwrap());
        let held: Vec<_> = std::iter::from_fn(|| shared.take(&acme, 1)).collect();
        assert_eq!(held.len(), 4);
        assert!(patient(|| shared.take(&acme, 1)).await.is_none());
        let others: Vec<_> = std::iter::from_fn(|| shared.take(&other, 1)).collect();
        assert_eq!(others.len(), 2);
        drop(held);
        assert!(patient(|| shared.take(&acme, 1)).await.is_some());
    }
}
