//! A notification that the API accepted and published. Row type of table `accepted_notification`; words are texts here and types at the edge.

use sea_orm::entity::prelude::*;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
#[sea_orm(table_name = "accepted_notification")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub account_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub task: Option<String>,
    pub agent: Option<String>,
    pub kind: String,
    pub content_hash: Vec<u8>,
    pub created_at: OffsetDateTime,
    /// The key that published it first.
    pub published_by: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
