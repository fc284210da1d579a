//! I30: a branch lives below an open generation, ends once with its session, and its result is one item of its parent: its own, or
//! that of the call that made it. In the end none lives, and each parent that was there to read it has its item. Always, except the last.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Violation,
    evidence::{BranchRow, Evidence},
};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I30",
        expected,
        found,
    }
}

fn of(branch: &BranchRow) -> String {
    format!("branch {} of {}", branch.id, branch.account_id)
}

/// Always.
pub(super) fn live_below_open_generations(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for branch in &evidence.rows.branches {
        let session = |id: &str| evidence.sessions.get(&(branch.account_id.as_str(), id)).copied();
        let is_open = |id: &str| session(id).is_some_and(|session| session.closed_at.is_none());
        if branch.is_live() && !(is_open(&branch.session_id) && is_open(&branch.parent_session_id)) {
            let what = "a live branch's session and its parent's generation are open";
            found.push(broken(what, of(branch)));
        }
        let reason = match branch.state.as_str() {
            "live" => continue,
            "finished" | "failed" => "folded",
            other => other,
        };
        let closed = session(&branch.session_id).and_then(|session| session.close_reason.as_deref());
        if closed != Some(reason) {
            let what = "an ended branch's session is closed, with its outcome";
            found.push(broken(
                what,
                format!("{} is {}, its session {closed:?}", of(branch), branch.state),
            ));
        }
    }
    found
}

/// Always.
pub(super) fn told_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut named: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for branch in &evidence.rows.branches {
        let group = (branch.account_id.as_str(), branch.group_id.as_str());
        named.entry(group).or_default().extend(branch.joined_item.as_deref());
    }
    let mut found = Vec::new();
    let items = evidence.rows.notifications.iter();
    let mut items_of: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for item in items.filter(|row| row.kind == "branch_result") {
        let group = (item.account_id.as_str(), item.of.as_deref().unwrap_or_default());
        items_of.entry(group).or_default().insert(&item.id);
    }
    for (group, named) in &named {
        let there = items_of.remove(group).unwrap_or_default();
        if there != *named {
            let what = "each item with results is the one that its branches name";
            found.push(broken(
                what,
                format!("call {} of {}: {there:?}, named {named:?}", group.1, group.0),
            ));
        }
        let joins = |branch: &&BranchRow| {
            (branch.account_id.as_str(), branch.group_id.as_str()) == *group && branch.join_mode == "all"
        };
        if named.len() > 1 && evidence.rows.branches.iter().any(|branch| joins(&branch)) {
            let what = "branches that join bring one item";
            found.push(broken(what, format!("call {} of {}: {named:?}", group.1, group.0)));
        }
    }
    for ((account, group), items) in items_of {
        let what = "an item with results has its branches";
        found.push(broken(what, format!("call {group} of {account}: {items:?}")));
    }
    found
}

/// When the system is idle.
pub(super) fn all_are_folded(evidence: &Evidence<'_>) -> Vec<Violation> {
    let branches = &evidence.rows.branches;
    let mut found: Vec<Violation> = branches
        .iter()
        .filter(|branch| branch.is_live())
        .map(|branch| broken("no branch lives for ever", of(branch)))
        .collect();
    for branch in branches.iter().filter(|branch| branch.joined_item.is_none()) {
        // Those that join are told of when the last of them has ended.
        let waits_for = branches.iter().filter(|other| {
            let is_of_group = (&other.account_id, &other.group_id) == (&branch.account_id, &branch.group_id);
            is_of_group && (branch.join_mode == "all" || other.id == branch.id)
        });
        let last = waits_for.map(|other| other.ended_at).max().flatten();
        let parent = evidence
            .sessions
            .get(&(branch.account_id.as_str(), branch.parent_session_id.as_str()));
        let was_there = parent.is_some_and(|parent| {
            parent
                .closed_at
                .is_none_or(|closed_at| last.is_some_and(|last| closed_at > last))
        });
        if !branch.is_live() && was_there {
            found.push(broken("a parent that is there is told of its branch", of(branch)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            evidence::{NotificationRow, SessionRow},
            fabricated::{Story, at},
        },
        *,
    };

    /// Two branches that join have ended, and their parent has its item.
    fn story() -> Story {
        let mut story = Story::delivered();
        for n in ["2", "3"] {
            let parent = story.rows.sessions[0].clone();
            story.rows.sessions.push(SessionRow {
                id: format!("session-{n}"),
                kind: "branch".to_owned(),
                key: format!("branch:b-{n}:agent:01800000-0000-7000-8000-000000000001:acme:v1"),
                closed_at: Some(at(9)),
                close_reason: Some("folded".to_owned()),
                ..parent
            });
            story.rows.branches.push(BranchRow {
                account_id: "acme".to_owned(),
                id: format!("b-{n}"),
                group_id: "g-1".to_owned(),
                session_id: format!("session-{n}"),
                parent_session_id: "session-1".to_owned(),
                join_mode: "all".to_owned(),
                state: "finished".to_owned(),
                joined_item: Some("join:g-1".to_owned()),
                ended_at: Some(at(9)),
            });
        }
        let item = story.rows.notifications[0].clone();
        story.rows.notifications.push(NotificationRow {
            id: "join:g-1".to_owned(),
            kind: "branch_result".to_owned(),
            of: Some("g-1".to_owned()),
            ..item
        });
        story
    }

    const ALL: [super::super::Check; 3] = [live_below_open_generations, told_once, all_are_folded];

    #[test]
    fn branches_that_have_folded_are_fine() {
        for story in [Story::delivered(), story()] {
            for check in ALL {
                assert_eq!(story.judge(check), []);
            }
        }
        // The parent ended with them, or before: nobody was there.
        let mut story = story();
        story.rows.notifications.pop();
        for branch in &mut story.rows.branches {
            branch.joined_item = None;
        }
        assert!(story.finds(all_are_folded, "branch b-2"));
        story.rows.sessions[0].closed_at = Some(at(9));
        assert_eq!(story.judge(all_are_folded), []);
    }

    #[test]
    fn a_branch_below_a_closed_generation_is_found() {
        let mut story = story();
        let live = |story: &mut Story| {
            (story.rows.branches[0].state, story.rows.branches[0].ended_at) = ("live".to_owned(), None);
            (story.rows.sessions[1].closed_at, story.rows.sessions[1].close_reason) = (None, None);
        };
        live(&mut story);
        assert_eq!(story.judge(live_below_open_generations), []);
        assert!(story.finds(all_are_folded, "branch b-2"));
        story.rows.sessions[0].closed_at = Some(at(9));
        assert!(story.finds(live_below_open_generations, "branch b-2"));
        let mut story = self::story();
        story.rows.sessions[2].close_reason = Some("cancelled".to_owned());
        assert!(story.finds(live_below_open_generations, "branch b-3"));
    }

    #[test]
    fn results_that_come_twice_or_from_nobody_are_found() {
        let mut story = story();
        let mut again = story.rows.notifications[1].clone();
        again.id = "n-9".to_owned();
        story.rows.notifications.push(again);
        assert!(story.finds(told_once, "n-9"));
        story.rows.branches[1].joined_item = Some("n-9".to_owned());
        assert!(story.finds(told_once, "call g-1"), "two items of branches that join");
        for branch in &mut story.rows.branches {
            branch.join_mode = "each".to_owned();
        }
        assert_eq!(story.judge(told_once), []);
        story.rows.branches.clear();
        assert!(story.finds(told_once, "call g-1"));
    }
}
