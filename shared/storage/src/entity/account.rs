//! An account: the tenant. Row type of table `account`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "account")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub name: String,
    pub coordinator_task: Option<String>,
    pub briefing: String,
    pub session_scope: String,
    pub instruction_layout: String,
    pub auto_create_tasks: bool,
    pub turns_in_flight_max: Option<i32>,
    pub created_at: OffsetDateTime,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
