//! Tool policies: which tools an agent sees, and whether a call to one runs, is refused or is asked about.

use crate::string_enum::string_enum;

string_enum! {
    /// Where a policy holds, from wide to narrow.
    PolicyScope {
        Account = "account",
        Agent = "agent",
        Task = "task",
        Session = "session",
    }
}

string_enum! {
    /// What becomes of a call.
    PolicyVerdict {
        Allow = "allow",
        /// It waits until a person has approved it.
        Ask = "ask",
        Deny = "deny",
    }
}
