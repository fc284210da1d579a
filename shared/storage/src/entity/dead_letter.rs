//! A message that could not be processed, with the reason. Row type of table `dead_letter`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "dead_letter")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    pub service: String,
    pub subject: String,
    pub reason: String,
    pub detail: String,
    pub payload: String,
    #[sea_orm(column_type = "JsonBinary")]
    pub headers: Json,
    pub attempts: i32,
    pub created_at: OffsetDateTime,
    pub redriven_at: Option<OffsetDateTime>,
    pub redrives: i32,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
