//! Who did something. The name is for people; the id and the kind are what rules look at.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::word::words;

words! {
    ActorKind { User = "user", Agent = "agent", Service = "service" }
}

/// The author of a message, the sender of a notification, the one who moved a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Actor {
    pub kind: ActorKind,
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    #[schemars(length(max = 128))]
    pub name: String,
}

impl Actor {
    /// Signalbox itself, for what no person, agent or publisher did.
    pub fn system() -> Actor {
        Actor {
            kind: ActorKind::Service,
            id: "signalbox".to_owned(),
            name: "Signalbox".to_owned(),
        }
    }

    pub fn is_person(&self) -> bool {
        self.kind == ActorKind::User
    }
}
