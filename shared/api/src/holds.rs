//! Holds: what people have paused.

use domain::{Actor, HoldId, HoldRunning, HoldScope, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::text::Text;

/// Pauses: no turn starts in what it covers, whoever sends notifications. The same caller's hold on the same thing is changed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHold {
    pub scope: Scope,
    pub reason: Option<Reason>,
    /// When it ends by itself. If absent, it lasts until it is released.
    pub until: Option<Timestamp>,
    /// What becomes of turns in progress: `finish` if absent.
    pub running: Option<HoldRunning>,
    /// Only count what it would affect.
    pub dry_run: Option<bool>,
}

/// What a hold covers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    pub kind: HoldScope,
    /// The id of the account, task, agent or session; for an agent also its slug.
    pub id: ScopeId,
}

pub type ScopeId = Text<1, 128>;
pub type Reason = Text<0, 1024>;

/// A hold that was set, or that would be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Placed {
    /// Null for a dry run.
    pub id: Option<HoldId>,
    pub affected: Affected,
}

/// What a hold covers now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Affected {
    /// Turns in progress.
    pub turns: i64,
    /// Notifications that wait.
    pub items: i64,
    /// Sessions with a turn in progress or a notification that waits.
    pub sessions: i64,
    /// There may be more: the first 10,000 are counted, and of a task its own sessions.
    #[serde(default)]
    pub at_least: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Hold {
    pub id: HoldId,
    #[sea_orm(nested(prefix = "scope_"))]
    pub scope: HeldScope,
    pub reason: String,
    /// Who made it.
    #[sea_orm(nested(prefix = "by_"))]
    pub by: Actor,
    #[schemars(with = "HoldRunning")]
    pub running: String,
    pub until: Option<Timestamp>,
    pub created_at: Timestamp,
    /// No turn starts in what it covers.
    pub active: bool,
    /// When it ended. Null while it is active.
    pub released_at: Option<Timestamp>,
    /// Who released it. Null if its time was over.
    pub released_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct HeldScope {
    #[schemars(with = "HoldScope")]
    pub kind: String,
    /// As it is compared: tasks in lower case.
    pub id: String,
}
