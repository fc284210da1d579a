//! The permission table. Pure: a route needs something, a role has it or has not.

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

/// Every route behind the guard: method, pattern, what it needs. A test holds it to the OpenAPI document.
pub const ROUTES: &[(&str, &str, Need)] = &[
    ("POST", "/api/accounts", Need::Operate),
    ("GET", "/api/accounts", Need::Operate),
    ("GET", "/api/dead-letters", Need::Operate),
    ("GET", "/api/dead-letters/{letter}", Need::Operate),
    ("POST", "/api/dead-letters/{letter}/redrive", Need::Operate),
    ("GET", "/api/orgs/{account}", Need::Administer),
    ("PATCH", "/api/orgs/{account}", Need::Administer),
    ("POST", "/api/orgs/{account}/keys", Need::Administer),
    ("GET", "/api/orgs/{account}/keys", Need::Administer),
    ("DELETE", "/api/orgs/{account}/keys/{key}", Need::Administer),
    ("POST", "/api/orgs/{account}/agents", Need::Administer),
    ("GET", "/api/orgs/{account}/agents", Need::Read),
    ("GET", "/api/orgs/{account}/agents/{agent}", Need::Read),
    ("PATCH", "/api/orgs/{account}/agents/{agent}", Need::Administer),
    ("DELETE", "/api/orgs/{account}/agents/{agent}", Need::Administer),
    ("POST", "/api/orgs/{account}/tasks", Need::ChangeTasks),
    ("GET", "/api/orgs/{account}/tasks", Need::Read),
    ("GET", "/api/orgs/{account}/tasks/{task}", Need::Read),
    ("PATCH", "/api/orgs/{account}/tasks/{task}", Need::ChangeTasks),
    ("GET", "/api/orgs/{account}/tasks/{task}/messages", Need::Read),
    ("POST", "/api/orgs/{account}/tasks/{task}/messages", Need::PostMessages),
    ("GET", "/api/orgs/{account}/tasks/{task}/activities", Need::Read),
    ("POST", "/api/orgs/{account}/notifications", Need::Notify),
    ("GET", "/api/orgs/{account}/notifications", Need::Read),
    (
        "GET",
        "/api/orgs/{account}/notifications/{notification}",
        Need::FollowUp,
    ),
    ("GET", "/api/orgs/{account}/sessions", Need::Read),
    ("GET", "/api/orgs/{account}/sessions/{session}", Need::Read),
    ("GET", "/api/orgs/{account}/sessions/{session}/turns", Need::Read),
    ("GET", "/api/orgs/{account}/turns/{turn}", Need::Read),
    ("GET", "/api/orgs/{account}/turns/{turn}/tool-calls", Need::Read),
    ("GET", "/api/orgs/{account}/dead-letters", Need::Read),
    ("GET", "/api/orgs/{account}/dead-letters/{letter}", Need::Read),
    (
        "POST",
        "/api/orgs/{account}/dead-letters/{letter}/redrive",
        Need::Administer,
    ),
];

/// What a route needs; `None` for one that is not in the table.
pub fn need_of(method: &str, pattern: &str) -> Option<Need> {
    // A router answers HEAD with what GET would say.
    let method = if method == "HEAD" { "GET" } else { method };
    ROUTES
        .iter()
        .find(|(route_method, route, _)| *route_method == method && *route == pattern)
        .map(|(_, _, need)| *need)
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

    #[test]
    fn what_is_not_in_the_table_needs_nobody() {
        assert_eq!(need_of("GET", "/api/accounts"), Some(Need::Operate));
        assert_eq!(need_of("HEAD", "/api/accounts"), Some(Need::Operate));
        assert_eq!(need_of("DELETE", "/api/accounts"), None);
        assert_eq!(need_of("GET", "/api/everything"), None);
    }

    #[test]
    fn no_route_is_listed_twice() {
        for (i, (method, route, _)) in ROUTES.iter().enumerate() {
            assert!(
                !ROUTES[..i].iter().any(|(m, r, _)| m == method && r == route),
                "{method} {route}"
            );
        }
    }

    #[test]
    fn only_the_operator_crosses_accounts() {
        for (method, route, need) in ROUTES {
            assert_eq!(!route.contains("{account}"), *need == Need::Operate, "{method} {route}");
        }
    }
}
