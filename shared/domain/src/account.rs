//! An account's choices that change what the pipeline does.

use crate::word::words;

words! {
    /// Whether an agent's work on a task has a session of its own, or all of an agent's work shares one (S14).
    SessionScope { Task = "task", Agent = "agent" }
}
words! {
    /// Whether the provider takes instructions apart from the input, or has them in front of it (S14).
    InstructionLayout { Layered = "layered", Inline = "inline" }
}
words! {
    /// What an API key may do. `gateway` opens `/agent/*` and nothing else.
    KeyRole { Admin = "admin", Member = "member", Service = "service", Gateway = "gateway" }
}

impl KeyRole {
    /// Whether keys of this role are for programs that carry others' words here, and act as a service themselves.
    pub fn is_for_services(self) -> bool {
        match self {
            Self::Service | Self::Gateway => true,
            Self::Admin | Self::Member => false,
        }
    }
}
