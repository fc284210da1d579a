//! One run of an agent: input, journal, reply. Row type of table `turn`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "turn")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub session_id: Uuid,
    pub task_id: Option<String>,
    pub agent_id: Uuid,
    pub generation: i32,
    pub number: i64,
    pub fence: i64,
    pub state: String,
    pub notification_ids: Vec<String>,
    pub provider: String,
    pub profile_version: String,
    pub profile_hash: String,
    pub input: String,
    #[sea_orm(column_type = "JsonBinary")]
    pub manifest: Json,
    #[sea_orm(column_type = "JsonBinary")]
    pub journal: Json,
    pub tools: Option<Vec<String>>,
    pub tools_wait_ms: Option<i64>,
    pub attempt: i32,
    pub failures: i32,
    pub rounds: i32,
    pub calls_requested: i32,
    pub waiting_since: Option<OffsetDateTime>,
    pub lost_at: Option<OffsetDateTime>,
    pub response_id: Option<String>,
    pub reply: Option<String>,
    #[sea_orm(column_type = "JsonBinary", nullable)]
    pub usage: Option<Json>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub task_history_called: bool,
    pub no_reply: bool,
    pub late: bool,
    pub cause: Option<String>,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub started_at: OffsetDateTime,
    pub sent_at: Option<OffsetDateTime>,
    pub finished_at: Option<OffsetDateTime>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
