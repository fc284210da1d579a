//! Where a person hears of mail, by its type.

use domain::{Digest, MessageType};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::number::Whole;

/// How a person hears of mail of one type. It is always in the inbox.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Preference {
    #[schemars(with = "MessageType")]
    pub message_type: String,
    /// Always.
    pub deliver_web: bool,
    pub deliver_slack: bool,
    pub deliver_email: bool,
    #[schemars(with = "Digest")]
    pub digest: String,
    /// The hour of the person's day, of a daily digest.
    pub digest_hour: Option<i16>,
}

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreferenceChange {
    #[serde(alias = "messageType")]
    pub message_type: MessageType,
    /// The inbox always has it: only `true`.
    #[serde(alias = "deliverWeb")]
    pub deliver_web: Option<bool>,
    #[serde(alias = "deliverSlack")]
    pub deliver_slack: Option<bool>,
    #[serde(alias = "deliverEmail")]
    pub deliver_email: Option<bool>,
    /// Of types `message` and `notification`.
    pub digest: Option<Digest>,
    /// From 0 to 23, of a daily digest. Default 8.
    #[serde(alias = "digestHour")]
    pub digest_hour: Option<Whole<0>>,
}
