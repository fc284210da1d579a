//! The board: tasks that wait for others, below others. Pure.

use std::collections::{HashMap, VecDeque};

use crate::{TaskId, TaskStatus};

/// Tasks above a task, at most.
pub const PARENTS_MAX: usize = 8;
/// Tasks that one task waits for, at most.
pub const BLOCKERS_MAX: usize = 32;
/// Tasks of one board that have not ended, at most.
pub const OPEN_MAX: i64 = 500;
/// Tasks of one list.
pub const LISTED_MAX: i64 = 200;

impl TaskStatus {
    /// Whether a task may be moved there while it waits for another one.
    pub fn is_free_of_blockers(self) -> bool {
        match self {
            Self::Blocked | Self::Cancelled | Self::Archived => true,
            Self::Inbox
            | Self::Assigned
            | Self::Pending
            | Self::InProgress
            | Self::Review
            | Self::AwaitingApproval
            | Self::Done
            | Self::Failed => false,
        }
    }

    /// Whether a task that is to wait for another one is moved to `blocked`: nobody works on it yet.
    pub fn is_before_work(self) -> bool {
        match self {
            Self::Inbox | Self::Assigned | Self::Pending => true,
            Self::InProgress
            | Self::Review
            | Self::Blocked
            | Self::AwaitingApproval
            | Self::Done
            | Self::Failed
            | Self::Cancelled
            | Self::Archived => false,
        }
    }

    /// Whether a task that has come there is not going to be done by itself: whoever waits for it has to decide.
    pub fn is_dead_end(self) -> bool {
        match self {
            Self::Failed | Self::Cancelled | Self::Archived => true,
            Self::Inbox
            | Self::Assigned
            | Self::Pending
            | Self::InProgress
            | Self::Review
            | Self::Blocked
            | Self::AwaitingApproval
            | Self::Done => false,
        }
    }
}

/// The way from a task along what waits for what, back to the task: `A → B → A`. None: there is none. `edges`: who waits, and for what.
pub fn ring(task: &TaskId, edges: &[(TaskId, TaskId)]) -> Option<String> {
    let mut of: HashMap<&TaskId, Vec<&TaskId>> = HashMap::new();
    for (from, to) in edges {
        of.entry(from).or_default().push(to);
    }
    let mut came_from: HashMap<&TaskId, &TaskId> = HashMap::new();
    let mut next = VecDeque::from([task]);
    while let Some(at) = next.pop_front() {
        for to in of.get(at).into_iter().flatten().copied() {
            if to == task {
                let mut way = vec![task.to_string(), at.to_string()];
                let mut back = at;
                while back != task {
                    back = came_from[back];
                    way.push(back.to_string());
                }
                way.reverse();
                return Some(way.join(" → "));
            }
            if !came_from.contains_key(to) {
                came_from.insert(to, at);
                next.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(text: &str) -> Vec<(TaskId, TaskId)> {
        let id = |text: &str| TaskId::parse(text).unwrap();
        let edge = |edge: &str| {
            let (from, to) = edge.split_once('>').unwrap();
            (id(from), id(to))
        };
        text.split_whitespace().map(edge).collect()
    }

    #[test]
    fn a_ring_is_named() {
        let check = |text: &str, expected: Option<&str>| {
            let found = ring(&TaskId::parse("a").unwrap(), &edges(text));
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("", None);
        check("a>b b>c a>c", None);
        check("b>c c>b a>d", None);
        check("a>a", Some("a → a"));
        check("a>b b>a", Some("a → b → a"));
        check("a>b b>c c>a a>d d>e", Some("a → b → c → a"));
        check("a>b b>c c>d d>a a>c", Some("a → c → d → a"));
    }

    #[test]
    fn statuses_are_of_three_kinds() {
        for status in TaskStatus::ALL {
            assert!(!(status.is_before_work() && status.is_free_of_blockers()), "{status}");
            assert!(!(status.is_before_work() && status.is_dead_end()), "{status}");
        }
    }
}
