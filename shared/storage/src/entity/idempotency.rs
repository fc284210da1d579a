//! The answer to a POST that carried an Idempotency-Key. Row type of table `idempotency`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "idempotency")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    /// The owner: a key's id, or the operator. Empty in rows of a version that did not store it.
    #[sea_orm(primary_key, auto_increment = false)]
    pub principal: String,
    pub request_hash: Vec<u8>,
    pub status: Option<i32>,
    #[sea_orm(column_type = "JsonBinary", nullable)]
    pub body: Option<Json>,
    pub created_at: OffsetDateTime,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
