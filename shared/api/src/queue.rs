//! The queue of a session: what waits in it, and edits.

use contracts::notification::{BODY_BYTES_MAX, TITLE_BYTES_MAX};
use domain::{Actor, Gate, NotificationId, QueueMode, Timestamp, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{next::Next, number::Whole, text::Text};

/// A page of the notifications that wait in a session, in their order, and those of its turn in progress.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// Another one after every change of the queue.
    pub revision: String,
    /// What keeps the queue from starting. Null if nothing does.
    #[schemars(with = "Option<Gate>")]
    pub gate: Option<String>,
    /// The turn in progress is to end.
    pub stopping: bool,
    pub running: Option<Running>,
    pub items: Vec<Item>,
    pub next_cursor: Option<String>,
}

/// The turn in progress, and the notifications that it has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Running {
    pub turn_id: Uuid,
    pub items: Vec<Item>,
}

/// A notification in its queue.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    pub id: String,
    /// From 1, which is next. Null if it does not wait.
    pub place: Option<i64>,
    #[schemars(with = "QueueMode")]
    pub queue_mode: String,
    pub author: Actor,
    pub r#type: String,
    pub title: Option<String>,
    /// Its text, cut after 2 KiB; the notification has all of it.
    pub body: String,
    /// The text is longer.
    pub body_cut: bool,
    /// For changes of it. Another one after each.
    pub revision: i32,
    pub created_at: Timestamp,
    /// Whether the caller may change its text.
    pub editable: bool,
    /// What it waits for. Null if it has ended.
    pub why: Option<Next>,
}

/// A change of a waiting notification. Absent fields stay.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemChange {
    /// The notification's, as last read.
    pub revision: Whole<0>,
    #[schemars(length(min = 1, max = BODY_BYTES_MAX))]
    pub body: Option<String>,
    pub title: Option<Text<0, TITLE_BYTES_MAX>>,
    /// `steer`: it ends the turn in progress and goes before all others.
    pub queue_mode: Option<QueueMode>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    /// The queue's, as last read.
    #[schemars(length(max = 64))]
    pub revision: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The queue's, as last read.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// All that wait, each once.
    pub items: Vec<NotificationId>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntoTurn {
    /// Only if this turn is in progress.
    pub turn_id: Option<TurnId>,
}
