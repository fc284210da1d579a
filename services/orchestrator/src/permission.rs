//! What a role may do. Pure: a route needs something ([`crate::route`]), a role has it or has not.

use domain::KeyRole;

/// What a route asks of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Need {
    /// Across accounts: the operator alone.
    Operate,
    /// The account itself: settings, keys, agents, sending dead letters again.
    Administer,
    /// Making, moving and assigning tasks.
    ChangeTasks,
    /// Speaking in a task's thread.
    PostMessages,
    /// Waking agents.
    Notify,
    /// Seeing what became of a notification: whoever may not [`Need::Read`], of their own.
    FollowUp,
    /// Seeing what is there and what happened.
    Read,
}

impl Need {
    pub const ALL: [Need; 7] = [
        Need::Operate,
        Need::Administer,
        Need::ChangeTasks,
        Need::PostMessages,
        Need::Notify,
        Need::FollowUp,
        Need::Read,
    ];
}

/// Whether a key's role has it, in the key's own account. The operator token has everything and is not asked here.
pub fn permits(role: KeyRole, need: Need) -> bool {
    match role {
        KeyRole::Admin => match need {
            Need::Administer | Need::ChangeTasks | Need::PostMessages | Need::Notify | Need::FollowUp | Need::Read => {
                true
            }
            Need::Operate => false,
        },
        KeyRole::Member => match need {
            Need::ChangeTasks | Need::PostMessages | Need::Notify | Need::FollowUp | Need::Read => true,
            Need::Operate | Need::Administer => false,
        },
        KeyRole::Service => match need {
            Need::PostMessages | Need::Notify | Need::FollowUp | Need::Read => true,
            Need::Operate | Need::Administer | Need::ChangeTasks => false,
        },
        // For a CI or a webhook: what agents were told, did and said is not theirs to see.
        KeyRole::Publisher => match need {
            Need::Notify | Need::FollowUp => true,
            Need::Operate | Need::Administer | Need::ChangeTasks | Need::PostMessages | Need::Read => false,
        },
        // Opens the tool-gateway's `/agent/*`, where the session key says what is in reach, and nothing here.
        KeyRole::Gateway => match need {
            Need::Operate
            | Need::Administer
            | Need::ChangeTasks
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
            &[Administer, ChangeTasks, PostMessages, Notify, FollowUp, Read],
        );
        check(KeyRole::Member, &[ChangeTasks, PostMessages, Notify, FollowUp, Read]);
        check(KeyRole::Service, &[PostMessages, Notify, FollowUp, Read]);
        check(KeyRole::Publisher, &[Notify, FollowUp]);
        check(KeyRole::Gateway, &[]);
    }
}
