//! The context of a task: what is said of it to whoever joins its work.

use domain::{Actor, ContextSize, Timestamp, TurnId};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::{number::Whole, text::Text};

/// A longer text is refused; what has more than 10,000 characters is cut.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTaskContext {
    /// What is being built, key terms, details that matter. 10,000 characters are kept, without blanks around them. The route checks
    /// the limits.
    #[schemars(with = "Text<1, BODY_BYTES_MAX>")]
    pub body: String,
    /// Only if this is the newest version; 0: only if there is none.
    pub if_version: Option<Whole<0>>,
}

/// A version. The newest counts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct TaskContext {
    pub version: i32,
    pub body: String,
    /// Unicode scalar values of the body.
    pub characters: i32,
    /// And of its end, which was cut off when it was written.
    pub cut_characters: i32,
    #[sea_orm(nested(prefix = "author_"))]
    pub author: Actor,
    /// The turn whose agent wrote it.
    pub turn_id: Option<TurnId>,
    pub created_at: Timestamp,
    /// Says that it was cut.
    #[sea_orm(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl TaskContext {
    /// With its warning, if it was cut.
    pub fn told(self) -> TaskContext {
        let (characters, cut_characters) = (self.characters, self.cut_characters);
        let size = ContextSize {
            characters,
            cut_characters,
        };
        TaskContext {
            warning: size.warning(),
            ..self
        }
    }
}
