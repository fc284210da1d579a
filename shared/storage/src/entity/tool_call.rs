//! A tool call and its one result. Row type of table `tool_call`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "tool_call")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub session_id: Uuid,
    pub turn_id: Option<Uuid>,
    pub generation: i32,
    pub fence: i64,
    pub call_id: String,
    pub ordinal: i32,
    pub agent_id: Uuid,
    pub name: String,
    pub arguments: String,
    pub state: String,
    pub result: Option<String>,
    pub late: bool,
    pub started_at: OffsetDateTime,
    pub finished_at: Option<OffsetDateTime>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
