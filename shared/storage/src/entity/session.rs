//! One generation of a session: its lease, its queue's counters, its ending. Row type of table `session`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "session")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub kind: String,
    pub task_id: Option<String>,
    pub agent_id: Option<Uuid>,
    pub user_id: Option<String>,
    pub generation: i32,
    pub key: String,
    pub opened_at: OffsetDateTime,
    pub closed_at: Option<OffsetDateTime>,
    pub close_reason: Option<String>,
    pub phase: String,
    pub fence: i64,
    pub lease_owner: Option<Uuid>,
    pub wake_at: Option<OffsetDateTime>,
    pub active_turn_id: Option<Uuid>,
    pub queued: i32,
    pub queue_tail: i64,
    pub turn_count: i64,
    pub provider_thread: Option<String>,
    pub interrupted: bool,
    pub mismatch: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
