//! Mail between people, orchestrators and sessions; a person's inbox.

use domain::{
    Deliver, DeliveryState, MailId, MailWhy, MessageType, NotificationId, QuestionId, ReceiptState, TaskId, Timestamp,
    TurnId, notification::RouteSource,
};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::text::Text;

pub type MailText = Text<1, { domain::mail::HTTP_BYTES_MAX }>;
pub type MailAddress = Text<1, 384>;

/// Mail to a person, an orchestrator or a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMail {
    /// `@handle`: an orchestrator. `@user:{id}`, an id or a name: the person. A session's id or key, or `orchestrator:{user}`.
    pub to: MailAddress,
    pub content: MailText,
    /// Default `message`.
    #[serde(alias = "messageType")]
    pub message_type: Option<MessageType>,
    #[serde(alias = "contextTaskId")]
    pub context_task_id: Option<TaskId>,
    /// Of mail to an agent: when it gets it. Default `turn`.
    pub deliver: Option<Deliver>,
}

/// A reply to mail.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReply {
    pub content: MailText,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Mail {
    pub id: MailId,
    pub from: MailParty,
    pub to: MailParty,
    #[schemars(with = "MessageType")]
    pub message_type: String,
    pub content: String,
    /// Why it was written.
    #[schemars(with = "MailWhy")]
    pub why: String,
    pub context_task_id: Option<String>,
    /// The key of the sender's conversation; of a reply, that of what it answers.
    pub context_session: Option<String>,
    pub context_ref: Option<String>,
    pub reply_to: Option<MailId>,
    pub thread_id: MailId,
    /// The question of which it tells. A reply does not answer the question.
    #[serde(default)]
    pub question_id: Option<QuestionId>,
    pub read_at: Option<Timestamp>,
    pub archived_at: Option<Timestamp>,
    pub snoozed_until: Option<Timestamp>,
    pub created_at: Timestamp,
    pub receipt: Receipt,
    /// Where its person hears of it; for the person alone.
    #[serde(default)]
    pub deliveries: Vec<Delivery>,
}

/// Where a person hears of mail.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// `web`: the inbox, which always has it; `email`; or `slack`, if e-mail is sent instead.
    pub way: String,
    #[schemars(with = "DeliveryState")]
    pub state: String,
    pub at: Timestamp,
    /// Why it was not sent, or not yet.
    pub reason: Option<String>,
}

/// Who wrote mail, or whom it is for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MailParty {
    /// `person`, `session` or `service`.
    pub kind: String,
    /// Of a person or service: its id.
    pub id: Option<String>,
    pub session_key: Option<String>,
    pub name: String,
    /// Of an orchestrator, after an `@`.
    #[serde(default)]
    pub handle: Option<String>,
}

/// What has become of mail.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    pub state: ReceiptState,
    pub at: Timestamp,
    /// The turn that has it.
    pub turn_id: Option<TurnId>,
    pub turn_number: Option<i64>,
    pub answered_by: Option<MailId>,
    /// Why it came back, or who took it.
    pub reason: Option<String>,
}

/// Mail that was accepted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    #[serde(flatten)]
    pub mail: Mail,
    /// Of mail to an agent.
    pub notification_id: Option<NotificationId>,
}

/// Mail, as the routing log has it: without its text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Routed {
    #[schemars(with = "RouteSource")]
    pub source: String,
    pub id: MailId,
    /// The item of mail to an agent, which has a route.
    pub notification_id: Option<String>,
    pub from: MailParty,
    pub to: MailParty,
    #[schemars(with = "MessageType")]
    pub message_type: String,
    #[schemars(with = "MailWhy")]
    pub why: String,
    pub context_task_id: Option<String>,
    pub created_at: Timestamp,
    pub receipt: Receipt,
}

/// What a person has not read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InboxCount {
    /// At most 1,000.
    pub unread: i64,
    /// There are more.
    pub more: bool,
    pub by_type: ByType,
    /// When mail that was put off comes back next.
    pub next_surfaces_at: Option<Timestamp>,
    /// Where mail may be put off to with one click.
    pub snooze_moments: SnoozeMoments,
}

/// In the person's time zone.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct SnoozeMoments {
    /// Today at 18:00; null if that is past.
    pub evening: Option<Timestamp>,
    /// At 9:00.
    pub tomorrow: Timestamp,
    /// The next Monday that is not today, at 9:00.
    pub monday: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ByType {
    pub message: i64,
    pub notification: i64,
    pub question: i64,
    pub escalation: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Default `true`.
    pub read: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadMany {
    pub ids: MailIds,
}

/// Mail to a session that a person reads in the agent's place.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadWaiting {
    /// Absent: the mail among the first 200 items of the queue.
    pub ids: Option<MailIds>,
}

/// Pieces of mail that one request is about.
pub const IDS_MAX: usize = 200;

/// Pieces of mail, by their ids.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<MailId>")]
#[schemars(inline, !try_from)]
pub struct MailIds(#[schemars(length(min = 1, max = IDS_MAX))] pub Vec<MailId>);

impl TryFrom<Vec<MailId>> for MailIds {
    type Error = String;
    fn try_from(ids: Vec<MailId>) -> Result<Self, String> {
        if (1..=IDS_MAX).contains(&ids.len()) {
            Ok(MailIds(ids))
        } else {
            Err(format!("{} ids; from 1 to {IDS_MAX} are taken", ids.len()))
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    pub archived: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snooze {
    /// From five minutes to 90 days from now; null: it is back.
    pub until: Option<Timestamp>,
}

/// Which changed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Marked {
    pub changed: u64,
}
