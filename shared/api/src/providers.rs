//! Providers: whether calls of them are made at the moment.

use domain::Timestamp;
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

/// A provider that the account's agents name.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Provider {
    pub name: String,
    /// `closed`: its calls are made. `open`: no call is made, and work waits. `probing`: one turn tries whether it answers.
    pub state: String,
    /// While it is not closed: the class of failure, such as `quota`.
    pub class: Option<String>,
    /// While it is not closed: when it is tried again, or until when one turn tries.
    pub until: Option<Timestamp>,
    /// The end of its limit, if the provider has stated one.
    pub reset_at: Option<Timestamp>,
}

/// The breaker of a provider account, for the operator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct ProviderAccount {
    /// `quota_account` in the settings; else the provider's name.
    pub key: String,
    /// The providers that share it.
    pub providers: Vec<String>,
    pub state: String,
    /// The class of the last failure that it counted.
    pub class: Option<String>,
    /// What the provider said with it.
    pub detail: Option<String>,
    /// Failures in a row, while it is closed.
    pub failures: i32,
    /// Times in a row that it opened.
    pub opens: i32,
    pub reset_at: Option<Timestamp>,
    /// While it is open: when the next turn may try.
    pub probe_at: Option<Timestamp>,
    /// While it is probing: when another turn may try.
    pub probe_until: Option<Timestamp>,
    pub changed_at: Timestamp,
    /// Sessions of all accounts that wait for it, up to 10,000.
    #[sea_orm(skip)]
    pub parked: u64,
}

/// The body of a request to try at once.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {}
