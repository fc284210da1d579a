//! A message of a task's thread. Row type of table `message`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "message")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub task_id: String,
    pub author_kind: String,
    pub author_id: String,
    pub author_name: String,
    pub author_via: Option<String>,
    pub body: String,
    pub turn_id: Option<Uuid>,
    pub created_at: OffsetDateTime,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
