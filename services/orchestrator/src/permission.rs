//! The permissions of roles and persons. Pure: a route has a need ([`crate::route`]), and the holder of a key covers it or not.

use domain::KeyRole;
use storage::api_key::KeyHolder;

/// What a route requires of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Need {
    /// Across accounts: the operator only.
    Operate,
    /// Administration of the account: settings, keys, agents, redriving dead letters.
    Administer,
    /// Creating, moving and assigning tasks.
    ChangeTasks,
    /// Stopping a turn, steering it, resuming work.
    Control,
    /// Answering a question whose audience the caller is in.
    Answer,
    /// Posting into a task's thread.
    PostMessages,
    /// Publishing notifications.
    Notify,
    /// Reading a notification's state. A role without [`Need::Read`] sees its own notifications only.
    FollowUp,
    /// Writing personas: one's own, or all for an admin.
    WritePersonas,
    /// Reading who the account's people are.
    ReadMembers,
    /// Reading everything in the account.
    Read,
    /// Being a person: what is one's own.
    Person,
}

impl Need {
    pub const ALL: [Need; 12] = [
        Need::Operate,
        Need::Administer,
        Need::ChangeTasks,
        Need::Control,
        Need::Answer,
        Need::PostMessages,
        Need::Notify,
        Need::FollowUp,
        Need::WritePersonas,
        Need::ReadMembers,
        Need::Read,
        Need::Person,
    ];

    /// The word in `may` of `/api/me`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operate => "operate",
            Self::Administer => "administer",
            Self::ChangeTasks => "change_tasks",
            Self::Control => "control",
            Self::Answer => "answer",
            Self::PostMessages => "post_messages",
            Self::Notify => "notify",
            Self::FollowUp => "follow_up",
            Self::WritePersonas => "write_personas",
            Self::ReadMembers => "read_members",
            Self::Read => "read",
            Self::Person => "person",
        }
    }
}

/// Whether the holder of a key covers the need: by the key's role, or by being a person.
pub fn may(holder: &KeyHolder, need: Need) -> bool {
    match need {
        Need::Person => holder.person.is_some(),
        need => permits(holder.role, need),
    }
}

/// Whether the role of a key covers the need, in the key's own account. The operator token covers every need but [`Need::Person`] and
/// is not asked here.
pub fn permits(role: KeyRole, need: Need) -> bool {
    match role {
        KeyRole::Admin => match need {
            Need::Administer
            | Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::PostMessages
            | Need::Notify
            | Need::FollowUp
            | Need::WritePersonas
            | Need::ReadMembers
            | Need::Read => true,
            Need::Operate | Need::Person => false,
        },
        KeyRole::Member => match need {
            Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::PostMessages
            | Need::Notify
            | Need::FollowUp
            | Need::WritePersonas
            | Need::ReadMembers
            | Need::Read => true,
            Need::Operate | Need::Administer | Need::Person => false,
        },
        KeyRole::Service => match need {
            Need::PostMessages | Need::Notify | Need::FollowUp | Need::Read => true,
            Need::Operate
            | Need::Administer
            | Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::WritePersonas
            | Need::ReadMembers
            | Need::Person => false,
        },
        // For a CI system or a webhook. It may not read the inputs, tool calls and replies of agents.
        KeyRole::Publisher => match need {
            Need::Notify | Need::FollowUp => true,
            Need::Operate
            | Need::Administer
            | Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::PostMessages
            | Need::WritePersonas
            | Need::ReadMembers
            | Need::Read
            | Need::Person => false,
        },
        // For the tool-gateway's `/agent/*`, where the session key decides the reach. It covers nothing here.
        KeyRole::Gateway => match need {
            Need::Operate
            | Need::Administer
            | Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::PostMessages
            | Need::Notify
            | Need::FollowUp
            | Need::WritePersonas
            | Need::ReadMembers
            | Need::Read
            | Need::Person => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_what_it_is_for() {
        let check = |role: KeyRole, has: &[Need]| {
            for need in Need::ALL {
                assert_eq!(permits(role, need), has.contains(&need), "{role} {need:?}");
            }
        };
        use Need::*;
        check(
            KeyRole::Admin,
            &[
                Administer,
                ChangeTasks,
                Control,
                Answer,
                PostMessages,
                Notify,
                FollowUp,
                WritePersonas,
                ReadMembers,
                Read,
            ],
        );
        check(
            KeyRole::Member,
            &[
                ChangeTasks,
                Control,
                Answer,
                PostMessages,
                Notify,
                FollowUp,
                WritePersonas,
                ReadMembers,
                Read,
            ],
        );
        check(KeyRole::Service, &[PostMessages, Notify, FollowUp, Read]);
        check(KeyRole::Publisher, &[Notify, FollowUp]);
        check(KeyRole::Gateway, &[]);
    }
}
