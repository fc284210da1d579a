//! A reason for an agent to act, and what became of it. Row type of table `notification`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "notification")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub task_id: Option<String>,
    pub agent_id: Option<Uuid>,
    pub session_id: Option<Uuid>,
    pub position: Option<i64>,
    pub kind: String,
    pub title: Option<String>,
    pub body: String,
    pub message_id: Option<Uuid>,
    pub sender_kind: String,
    pub sender_id: String,
    pub sender_name: String,
    pub sender_via: Option<String>,
    pub queue_mode: String,
    #[sea_orm(column_type = "JsonBinary")]
    pub metadata: Json,
    pub content_hash: Vec<u8>,
    pub state: String,
    pub reason: Option<String>,
    pub turn_id: Option<Uuid>,
    pub attempts: i32,
    pub cause: Option<String>,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub created_at: OffsetDateTime,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
