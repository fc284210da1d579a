//! A unit of work that people and agents share. Row type of table `task`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "task")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub display_id: String,
    pub title: String,
    pub description: String,
    pub status: String,
    pub blocked_owner: Option<String>,
    pub blocked_action: Option<String>,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
    pub plan_gate: Option<String>,
    pub plan_audience: Option<Vec<String>>,
    pub task_context: String,
    pub persona_id: Option<Uuid>,
    pub persona_by: Option<String>,
    pub board: Option<String>,
    pub result: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
