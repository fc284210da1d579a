//! I28: a generation ends with the turn that its reset waits for, or by a rule after a turn; its queue goes to the next one, which
//! knows what it is to know, and nothing of it is lost.

use std::collections::BTreeMap;

use domain::{
    AccountId, CloseReason, Gate, HoldScope, NotificationId, NotificationState, ResetInFlight, ResetQueue,
    ResetRequest, SESSION_RESET, StopKind, TurnId, TurnState,
};

use super::Witness;
use crate::simulation::database::{
    Database, TurnRow, moment,
    succession::{Succeeded, Succession},
};

#[derive(Debug, Default)]
pub(super) struct Resets {
    /// By the turn that is to end first; of several requests, the last.
    asked: BTreeMap<TurnId, ResetRequest>,
}

impl Witness {
    pub(crate) fn reset_asked(&mut self, turn: TurnId, request: ResetRequest) {
        self.resets.asked.insert(turn, request);
    }

    /// A generation was closed, and the next one opened.
    pub(crate) fn succeeded(&mut self, database: &Database, succeeded: &Succeeded) {
        let account = &succeeded.old.0;
        let old = &database.sessions[&succeeded.old];
        let next = &database.sessions[&(account.clone(), succeeded.next)];
        let id = succeeded.old.1;
        let mut is_wrong = |what: &str| {
            self.breaks("I28", || {
                format!("session {id} ended by {:?}: {what}", succeeded.succession)
            });
        };
        if old.active_turn.is_some() {
            is_wrong("its turn was in progress");
        }
        if old.thread.at.is_some() || next.thread.at.is_some() {
            is_wrong("a thread of its provider is kept");
        }
        if next.interrupted != old.interrupted {
            is_wrong("the next agent is told otherwise of an interruption");
        }
        let created = |id: &NotificationId| moment(database.notifications[&(account.clone(), id.clone())].created_at);
        match &succeeded.succession {
            Succession::Rotated(_) => {
                if old.turn_count == 0 || !succeeded.cancelled.is_empty() {
                    is_wrong("before its first turn, or with items that are cancelled");
                }
                if (next.continues, next.stopped_turn) != (Some(id), old.stopped_turn) {
                    is_wrong("the next generation does not know what it knew");
                }
            }
            Succession::Reset {
                request,
                put_back,
                gate,
            } => {
                let mut cancelled = succeeded.cancelled.iter();
                if cancelled.any(|id| request.queue == ResetQueue::Keep || created(id) > request.at.0) {
                    is_wrong("an item is cancelled that was to be kept, or came later");
                }
                let told = old.stopped_turn.filter(|_| !put_back.is_empty());
                if (next.continues, next.stopped_turn) != (None, told) {
                    is_wrong("the next generation knows of it");
                }
                if *gate == Some(Gate::Stopped) {
                    self.brakes.hold(succeeded.next);
                }
            }
        }
        for (owner, hold) in self.control.holds_mut() {
            if *owner == *account && hold.scope_kind == HoldScope::Session && hold.scope_id == id.to_string() {
                hold.scope_id = succeeded.next.to_string();
            }
        }
    }

    /// A turn has ended. `kind`: the last request to stop it.
    pub(super) fn reset_ended(
        &mut self,
        database: &Database,
        account: &AccountId,
        (id, row): (TurnId, &TurnRow),
        kind: Option<StopKind>,
    ) {
        let Some(request) = self.resets.asked.remove(&id) else {
            return;
        };
        let session = &database.sessions[&(account.clone(), row.session)];
        let Some((_, reason)) = session.closed else {
            self.breaks("I28", || {
                format!(
                    "turn {id} has ended, and with it session {} was to be reset",
                    row.session
                )
            });
            return;
        };
        if reason != CloseReason::Reset || row.state != TurnState::Aborted || kind != Some(StopKind::Reset) {
            return;
        }
        let next = session.generation + 1;
        for item in &row.notifications {
            let item_row = &database.notifications[&(account.clone(), item.clone())];
            let place = item_row
                .place
                .and_then(|(of, _)| database.sessions.get(&(account.clone(), of)));
            let waits_next =
                item_row.state == NotificationState::Queued && place.is_some_and(|of| of.generation == next);
            let is_cancelled =
                item_row.state == NotificationState::Cancelled && item_row.reason.as_deref() == Some(SESSION_RESET);
            // It went with a call that had no answer, and waits as others do.
            let was_injected = row
                .notes
                .of_round(row.journal.rounds.len())
                .any(|note| note.notification_ids.contains(&item.to_string()));
            let is_right = match request.in_flight {
                ResetInFlight::Requeue => waits_next,
                ResetInFlight::Cancel => is_cancelled || (was_injected && waits_next),
            };
            if !is_right {
                let (state, reason) = (item_row.state, &item_row.reason);
                self.breaks("I28", || {
                    format!("item {item} of turn {id} is {state}, {reason:?} after {request:?}")
                });
            }
        }
    }
}
