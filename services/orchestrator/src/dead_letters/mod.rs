//! Dead letters: what could not be processed, why, and sending it again. Written by every service, in the transaction
//! that gives a message up; read and redriven here. What belongs to no account is the operator's.

pub mod http;
pub mod redrive;
pub mod store;

use contracts::Timestamp;
use serde::Serialize;
use storage::entity;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::moment;

#[derive(Debug, Serialize, ToSchema)]
pub struct DeadLetter {
    pub id: Uuid,
    /// Where it was published.
    pub subject: String,
    /// One word, for programs.
    pub reason: String,
    /// One sentence, for people.
    pub detail: String,
    /// The message as it came; what was no UTF-8 is replaced.
    pub payload: String,
    pub attempts: i32,
    /// The service that gave it up.
    pub service: String,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub redriven_at: Option<Timestamp>,
    /// How often it was sent again.
    pub redrives: i32,
}

impl From<entity::dead_letter::Model> for DeadLetter {
    fn from(row: entity::dead_letter::Model) -> Self {
        DeadLetter {
            id: row.id,
            subject: row.subject,
            reason: row.reason,
            detail: row.detail,
            payload: row.payload,
            attempts: row.attempts,
            service: row.service,
            created_at: row.created_at.into(),
            redriven_at: row.redriven_at.map(Into::into),
            redrives: row.redrives,
        }
    }
}
