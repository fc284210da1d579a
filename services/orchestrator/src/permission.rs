//! The permissions of roles. Pure: a route has a need ([`crate::route`]), and a role covers it or not.

use domain::KeyRole;

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
    /// Reading everything in the account.
    Read,
}

impl Need {
    pub const ALL: [Need; 9] = [
        Need::Operate,
        Need::Administer,
        Need::ChangeTasks,
        Need::Control,
        Need::Answer,
        Need::PostMessages,
        Need::Notify,
        Need::FollowUp,
        Need::Read,
    ];
}

/// Whether the role of a key covers the need, in the key's own account. The operator token covers every need and is not asked here.
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
            | Need::Read => true,
            Need::Operate => false,
        },
        KeyRole::Member => match need {
            Need::ChangeTasks
            | Need::Control
            | Need::Answer
            | Need::PostMessages
            | Need::Notify
            | Need::FollowUp
            | Need::Read => true,
            Need::Operate | Need::Administer => false,
        },
        KeyRole::Service => match need {
            Need::PostMessages | Need::Notify | Need::FollowUp | Need::Read => true,
            Need::Operate | Need::Administer | Need::ChangeTasks | Need::Control | Need::Answer => false,
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
            | Need::Read => false,
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
            | Need::Read => false,
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
                Read,
            ],
        );
        check(
            KeyRole::Member,
            &[ChangeTasks, Control, Answer, PostMessages, Notify, FollowUp, Read],
        );
        check(KeyRole::Service, &[PostMessages, Notify, FollowUp, Read]);
        check(KeyRole::Publisher, &[Notify, FollowUp]);
        check(KeyRole::Gateway, &[]);
    }
}
