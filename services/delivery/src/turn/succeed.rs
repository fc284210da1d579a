//! Ends generations where a new turn would start: by the rules of rotation, and at a reset whose turn has ended without it. The
//! session's turn is not started: its queue is in the next generation, which is woken.

use std::{collections::HashMap, sync::Arc};

use prompt::Manifest;
use storage::{
    StorageError, Tx,
    session::{
        branch_end::has_branches,
        session_succeed::{Succession, session_succeed},
        sessions_lock::LockedSession,
    },
    tool_policy::Policies,
};
use time::OffsetDateTime;

use super::{
    begin::{hidden, profile_of, unseen},
    starter::{Starter, Starting},
};
use crate::{
    context::rotate::{Facts, rotation},
    providers::Slot,
    store::{
        SessionName,
        context::{QueuedItem, profiles_last},
    },
};

impl Starter {
    /// Carries out resets of sessions without a turn in progress: a version of Signalbox that knows no resets has ended it. Gives
    /// the other sessions.
    pub(super) async fn reset(
        &self,
        tx: &Tx,
        sessions: Vec<LockedSession>,
        starting: &mut Starting,
    ) -> Result<Vec<LockedSession>, StorageError> {
        let (asked, others): (Vec<_>, Vec<_>) = sessions.into_iter().partition(|session| session.reset.is_some());
        for session in asked {
            let Some(request) = &session.reset else { continue };
            let reset = Succession::Reset {
                request,
                put_back: &[],
                gate: None,
            };
            self.succeed(tx, &session, reset, starting).await?;
        }
        Ok(others)
    }

    /// Rotates the sessions for which a rule holds; gives the others. Without such a session there is no statement, and one where the
    /// rules ask for the instructions.
    pub(super) async fn rotate(
        &self,
        tx: &Tx,
        ready: Vec<(LockedSession, QueuedItem, Slot)>,
        policies: &Policies,
        starting: &mut Starting,
    ) -> Result<Vec<(LockedSession, QueuedItem, Slot)>, StorageError> {
        let asks = |(session, item, _): &&(LockedSession, QueuedItem, Slot)| {
            item.rotation.profile_changed && session.turn_count > 0 && session.branch.is_none()
        };
        let asked: Vec<(&LockedSession, &QueuedItem)> = ready
            .iter()
            .filter(asks)
            .map(|(session, item, _)| (session, item))
            .collect();
        let last = profiles_last(tx, &asked).await?;
        let now = OffsetDateTime::now_utc();
        let mut kept = Vec::with_capacity(ready.len());
        for (session, item, slot) in ready {
            let facts = Facts::of(&session, self.has_changed(&session, &item, policies, &last));
            match rotation(&facts, &item.rotation, now) {
                None => kept.push((session, item, slot)),
                // Its branches work for this generation.
                Some(_) if has_branches(tx, &session.name()).await? => kept.push((session, item, slot)),
                Some(rotated) => {
                    self.succeed(tx, &session, Succession::Rotated(&rotated), starting)
                        .await?;
                }
            }
        }
        Ok(kept)
    }

    /// Whether the instructions of a turn on the item differ from those of the last one.
    fn has_changed(
        &self,
        session: &LockedSession,
        item: &QueuedItem,
        policies: &Policies,
        last: &HashMap<SessionName, String>,
    ) -> bool {
        let Some(last) = last.get(&session.name()) else {
            return false;
        };
        let driver = self.drivers.get(&item.provider).map(Arc::as_ref);
        let hidden = hidden(session, item, policies.of(&session.account));
        let unseen = unseen(self.offer(session, item, None), &hidden);
        let is_last = |under_review| {
            let (shown, mut manifest) = ((None, under_review), Manifest::new(item.layout));
            *last == profile_of((session, item), shown, driver, &self.profiles, &unseen, &mut manifest).hash
        };
        // A persona's file for reviews comes and goes with the task's status.
        let comes_and_goes = item.persona.as_ref().is_some_and(|persona| persona.has_review());
        !(is_last(false) || comes_and_goes && is_last(true))
    }

    async fn succeed(
        &self,
        tx: &Tx,
        session: &LockedSession,
        succession: Succession<'_>,
        starting: &mut Starting,
    ) -> Result<(), StorageError> {
        let succeeded = session_succeed(tx, &session.name(), succession, &self.breakers.setting()).await?;
        tracing::info!(
            session_id = %session.id, account = %session.account, generation = session.generation.0,
            next_session_id = %succeeded.next, moved = succeeded.moved, cancelled = succeeded.cancelled,
            reason = %succession.reason(), "closed a generation and opened the next one"
        );
        starting.events.extend(succeeded.messages);
        Ok(())
    }
}
