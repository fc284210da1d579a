//! Ends branches with the records of their last turns: the reply is the result, and folds into the parent's queue in the same
//! transaction. A branch rests when a turn of it has ended and nothing is left to do; else it goes on with what comes.

use std::collections::HashSet;

use domain::SessionPhase;
use storage::{
    StorageError, Tx,
    outbox::Owned,
    session::{
        branch_end::{Ending, Ends, branch_end, has_branches},
        turns_record::Changed,
    },
};
use time::OffsetDateTime;

use super::{
    recorder::{Decided, Recorder},
    settle::Settled,
};
use crate::store::{SessionName, branches::rests_load};

impl Decided<'_> {
    /// Whether a branch may have ended with this turn: its session rests.
    fn may_end_branch(&self) -> bool {
        let rest = &self.change.session;
        self.session.branch.is_some()
            && self.change.turn.over
            && !self.session.facts.closed
            && rest.phase == SessionPhase::Idle
            && !rest.goes_on
    }

    /// How its branch ends, if nothing is left to do.
    fn ending(&self, changed: Changed) -> Option<Ending<'_>> {
        match &self.settled {
            Settled::Finished { reply, .. } => {
                let says = !changed.no_reply && !reply.trim().is_empty();
                Some(Ending::Finished {
                    result: says.then_some(reply),
                })
            }
            Settled::GaveUp { error, .. } => Some(Ending::Failed { error }),
            Settled::Stopped { kind, .. } => Some(Ending::Cancelled {
                by: self.session.stop_by.as_deref().unwrap_or("Signalbox"),
                reason: Some(kind.as_str()),
            }),
            // Its session was closed: whoever closed it has ended the branch.
            Settled::Aborted => None,
            // Its items wait again, or the turn goes on.
            Settled::Interrupted { .. }
            | Settled::AwaitTools { .. }
            | Settled::Again { .. }
            | Settled::FreshStart { .. }
            | Settled::LookAgain { .. } => None,
        }
    }
}

impl Recorder {
    /// The sessions whose reset ends branches: it locks their sessions after those of the batch, and locks are taken in one order, so
    /// these are recorded alone. Without a reset there is no statement.
    pub(super) async fn end_others(
        &self,
        tx: &Tx,
        decided: &[Decided<'_>],
    ) -> Result<HashSet<SessionName>, StorageError> {
        let mut found = HashSet::new();
        for one in decided.iter().filter(|one| one.change.reset.is_some()) {
            if has_branches(tx, &one.session.name()).await? {
                found.insert(one.session.name());
            }
        }
        Ok(found)
    }

    /// Ends the branches that rest with these records. The sessions of their parents are locked, too. Without a branch there is no
    /// statement.
    pub(super) async fn fold(
        &self,
        tx: &Tx,
        decided: &[(Decided<'_>, Changed)],
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let may_end = |(one, _): &&(Decided<'_>, Changed)| one.may_end_branch();
        let candidates: Vec<&(Decided<'_>, Changed)> = decided.iter().filter(may_end).collect();
        let names: Vec<SessionName> = candidates.iter().map(|(one, _)| one.session.name()).collect();
        let rests = rests_load(tx, &names).await?;
        let mut messages = Vec::new();
        for (one, changed) in candidates {
            let rests = rests.get(&one.session.name()).is_some_and(|rest| rest.is_all_done());
            let (Some(branch), Some(ending)) = (one.session.branch, one.ending(*changed).filter(|_| rests)) else {
                continue;
            };
            let ends = Ends {
                ends: vec![(branch, ending)],
                closing: &[],
                tells: true,
            };
            let (account, setting) = (&one.session.account, one.report.work.setting(&self.root, now));
            messages.extend(branch_end(tx, account, &ends, &setting).await?.messages);
        }
        Ok(messages)
    }
}
