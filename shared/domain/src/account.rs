//! An account's settings that change the pipeline's behaviour.

use crate::string_enum::string_enum;

string_enum! {
    /// Whether an agent's work on a task has a session of its own, or all of an agent's work shares one (S14).
    SessionScope { Task = "task", Agent = "agent" }
}
string_enum! {
    /// Whether the provider takes instructions apart from the input, or has them in front of it (S14).
    InstructionLayout { Layered = "layered", Inline = "inline" }
}
string_enum! {
    /// What an API key may do. `publisher` publishes notifications and reads what became of its own, `gateway` opens
    /// `/agent/*`, and neither does anything else.
    KeyRole {
        Admin = "admin", Member = "member", Service = "service", Publisher = "publisher", Gateway = "gateway"
    }
}

impl KeyRole {
    /// Whether keys of this role are for programs that forward texts of others, and act as a service themselves.
    pub fn is_for_services(self) -> bool {
        match self {
            Self::Service | Self::Publisher | Self::Gateway => true,
            Self::Admin | Self::Member => false,
        }
    }
}
