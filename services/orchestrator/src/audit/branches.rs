//! Rules for branches: what a branch shows is what its parent knew when it was made, as the row of the branch has it; and the subagents
//! that a prompt names are branches of its session.

use domain::{BranchId, ContextMode};
use prompt::{Subagent, at_work, manifest::Part};
use time::Duration;

use super::{
    judge::{Case, Ruling, foreign, gone, proven, unknown_source, whole},
    store::{Branch, branch_named},
    verdict::{
        Doubt::{Retention, Unread},
        Fault::{ForeignThread, HashMismatch, SourceMissing},
        Judged,
        Verdict::{Unproven, Violation},
    },
};
use crate::turns::store::{PastSource, SpawningTurn};

/// The least time that the sessions of ended branches are kept, and their rows with them.
const KEPT: Duration = Duration::DAY;

impl<'a> Case<'a> {
    /// The branch whose turn it is, or whose turn is replayed.
    pub(super) fn branch(&self) -> Option<&'a Branch> {
        self.sources.branches.get(&self.turn.branch_id?)
    }

    /// The base that the turn says. None: it says none, and has none.
    pub(super) fn base(&self) -> Option<Judged> {
        let context = self.turn.context.as_ref()?;
        let said = context.base_sha256.as_deref()?;
        let name = self.turn.branch_id.map(|id| format!("branch/{id}"));
        let ruling = match (&name, self.branch()) {
            (None, _) => (
                Violation(ForeignThread),
                "it has a base, and its session is of no branch".to_owned(),
            ),
            (Some(name), None) => gone(self.turn, name),
            (Some(_), Some(branch)) if branch.base.sha256 != said => (
                Violation(HashMismatch),
                "the base of its branch has another hash".to_owned(),
            ),
            (Some(_), Some(branch)) => {
                // A replay of a turn that went on is no fork of its parent's thread.
                let forks = context.asked == ContextMode::Fork && context.used == ContextMode::Fork;
                match forks && context.from != branch.base.thread {
                    true => (
                        Violation(ForeignThread),
                        "it goes on from another response than its parent's thread was at".to_owned(),
                    ),
                    false => proven(),
                }
            }
        };
        Some(Judged {
            source: name.unwrap_or_default(),
            ..whole("base", 0, ruling)
        })
    }

    /// Whether a turn of another session is in the base: the spawning turn, or one that its session had before, or the generation that this
    /// was rotated from.
    pub(super) fn of_base(&self, past: &PastSource, of: &str) -> Result<(), Ruling> {
        let Some(branch) = self.branch() else {
            return Err(match self.turn.branch_id {
                Some(id) => gone(self.turn, &format!("branch {id}")),
                None => (Violation(ForeignThread), format!("{of} is of session {}", past.session)),
            });
        };
        let number = self.sources.numbers.get(&past.turn.id.uuid());
        let is_before = past.session == branch.parent.uuid() && number.is_some_and(|n| *n <= branch.base.number);
        let is_continued = self.turn.parent_continues_id == Some(past.session);
        let is_read = self.spawning().is_some_and(|spawning| spawning.is_whole);
        match (is_before || is_continued, is_read) {
            (false, _) => Err((
                Violation(ForeignThread),
                format!("{of} is not in the base of its branch"),
            )),
            (true, false) => Err((
                Unproven(Unread),
                "what the spawning turn had said is too long to be read with the others".to_owned(),
            )),
            (true, true) => Ok(()),
        }
    }

    /// The turn that made its branch.
    pub(super) fn spawning(&self) -> Option<&'a SpawningTurn> {
        self.sources.spawning.get(&self.turn.branch_id?)
    }

    /// A subagent at work: a branch of a turn of this session, about its task.
    pub(super) fn subagent(&self, part: &Part, text: &str) -> Ruling {
        let of = part.source.to_string();
        let Some(id) = branch_named(&of) else {
            return unknown_source();
        };
        let Some(branch) = self.sources.branches.get(&id) else {
            return match self.turn.read_at - self.turn.home_started_at > KEPT {
                true => (Unproven(Retention), format!("{of} was removed with its session")),
                false => (Violation(SourceMissing), format!("{of} is not there")),
            };
        };
        if branch.parent != self.turn.home_id {
            return (
                Violation(ForeignThread),
                format!("{of} is of session {}", branch.parent),
            );
        }
        if let Some(ruling) = foreign(self.turn, branch.task.as_ref(), &of) {
            return ruling;
        }
        let subagent = Subagent {
            id: BranchId(id),
            label: branch.label.clone(),
            agent: branch.agent.clone().unwrap_or_default(),
        };
        self.rendered(at_work(&subagent).as_str() == text, &of)
    }
}
