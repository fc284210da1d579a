//! Turns of branches: what they start from, and the pasts of assembled prompts, a branch's base included.

use std::collections::HashMap;

use domain::{AccountId, BranchId, MessageId, TaskId, context::Told};
use prompt::THREAD_COUNTED_MAX;
use storage::{StorageError, Tx, session::sessions_lock::LockedSession};

use super::starter::Starter;
use crate::{
    context::{extract, past::BaseTurns, plan::BranchFacts},
    store::{
        SessionName,
        branches::{BranchStart, branches_load},
        context::QueuedItem,
        past::{Loaded, PastName, PastOf, pasts_load},
        replays::ReplayStart,
    },
};

/// A turn whose past is asked for.
pub(super) struct PastAsked<'a> {
    pub session: &'a LockedSession,
    pub task: Option<&'a TaskId>,
    /// The turn's number.
    pub before: i64,
    pub branch: Option<&'a BranchStart>,
    /// Of the base it lacks the spawning turn only.
    pub is_fork: bool,
    /// What the turn runs again: the past is that of the source turn.
    pub replay: Option<&'a ReplayStart>,
}

impl BranchStart {
    pub(super) fn facts(&self, is_first: bool) -> BranchFacts<'_> {
        BranchFacts {
            context: self.context,
            is_first,
            provider: self.base.told.provider.as_deref(),
            at: self.base.thread.as_deref(),
            base_sha256: &self.base.sha256,
        }
    }

    /// The past of its parent before the spawning turn.
    fn before(&self, session: &LockedSession) -> PastOf {
        PastOf {
            session: (session.account.clone(), self.parent_session_id),
            continues: self.continues_id,
            task: Some(self.task_id.clone()),
            before: self.base.number,
        }
    }
}

impl Starter {
    /// Whether a turn may have branches of its own.
    pub(super) fn may_branch(&self, branch: Option<&BranchStart>) -> bool {
        branch.map_or(0, |branch| branch.depth) < self.branch_depth_max
    }

    /// The branches of these sessions, and of those of the replays' source turns. Without one there is no statement.
    pub(super) async fn branches_of(
        &self,
        tx: &Tx,
        sessions: impl Iterator<Item = &LockedSession>,
        replays: &HashMap<SessionName, ReplayStart>,
    ) -> Result<HashMap<SessionName, BranchStart>, StorageError> {
        let of: Vec<(AccountId, BranchId)> = sessions
            .filter_map(|session| {
                let replay = replays.get(&session.name());
                let branch = session.branch.or_else(|| replay?.branch_id)?;
                Some((session.account.clone(), branch))
            })
            .collect();
        let messages_max = self.config.thread_messages_max.get().into();
        branches_load(tx, &of, messages_max, THREAD_COUNTED_MAX + 1).await
    }

    /// The same of sessions that start a turn, whose items show the task as their branches' parents knew it.
    pub(super) async fn branches(
        &self,
        tx: &Tx,
        start: &mut [(LockedSession, QueuedItem)],
        replays: &HashMap<SessionName, ReplayStart>,
    ) -> Result<HashMap<SessionName, BranchStart>, StorageError> {
        let sessions = start.iter().map(|(session, _)| session);
        let mut branches = self.branches_of(tx, sessions, replays).await?;
        for (session, item) in start {
            let Some(branch) = branches.get_mut(&session.name()) else {
                continue;
            };
            if let Some(task) = &mut item.facts.task {
                task.title.clone_from(&branch.base.title);
                task.description.clone_from(&branch.base.description);
                task.status = branch.base.status;
            }
            item.thread = branch.thread.take();
            item.thread_total = branch.thread_total;
        }
        Ok(branches)
    }

    /// The pasts of these turns, each with what a branch's parent knew. One statement for all but forks.
    pub(super) async fn pasts(
        &self,
        tx: &Tx,
        asked: &[PastAsked<'_>],
    ) -> Result<HashMap<SessionName, (Loaded, BaseTurns)>, StorageError> {
        let own = |one: &PastAsked<'_>| match one.replay {
            Some(replay) => replay.past(),
            None => PastOf {
                session: one.session.name(),
                continues: one.session.continues,
                task: one.task.cloned(),
                before: one.before,
            },
        };
        // Several branches of a call have the same base.
        let mut of: HashMap<PastName, PastOf> = HashMap::new();
        for one in asked.iter().filter(|one| !one.is_fork) {
            let before = one.branch.map(|branch| branch.before(one.session));
            of.extend(before.into_iter().chain([own(one)]).map(|past| (past.name(), past)));
        }
        let of: Vec<PastOf> = of.into_values().collect();
        let loaded = pasts_load(tx, &of, self.config.context_entries_max.get().into()).await?;
        let found = |past: &PastOf| loaded.get(&past.name()).cloned().unwrap_or_default();
        let pasts = asked.iter().map(|one| {
            if one.is_fork {
                let base = one.branch.map_or_else(BaseTurns::default, BaseTurns::of_fork);
                return (one.session.name(), (Loaded::default(), base));
            }
            let base = one.branch.map_or_else(BaseTurns::default, |branch| {
                BaseTurns::of(branch, &found(&branch.before(one.session)))
            });
            (one.session.name(), (found(&own(one)), base))
        });
        Ok(pasts.collect())
    }
}

/// What the thread of a fork's parent had been told at the response from which the fork goes on: before the turn that made it. When
/// that was is not known.
pub(super) fn told_before(branch: &BranchStart) -> Told {
    let mut told = Told {
        at: None,
        ..branch.base.told.clone()
    };
    if let Some(manifest) = branch.spawned_with() {
        let shown: Vec<MessageId> = manifest.messages().map(MessageId).collect();
        told.ids.retain(|id| !shown.contains(id));
        told.forget(&extract::texts(&manifest, Some(&branch.task_id)));
    }
    told
}
