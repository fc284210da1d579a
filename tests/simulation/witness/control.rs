//! I20 and I24 for what people do to queues: nothing starts behind a pause, and an edit moves, withdraws and changes what waits, and
//! nothing else. Keeps the pauses and the places of items apart from the columns.

use std::collections::BTreeSet;

use domain::{AccountId, HoldId, HoldScope, NotificationId, NotificationState, QueueMode, QueueOp, hold::Hold};

use super::Witness;
use crate::simulation::database::{Database, NotificationRow, edits::Edit, millis};

#[derive(Debug, Default)]
pub(super) struct Control {
    holds: Vec<(AccountId, Hold)>,
    withdrawn: BTreeSet<(AccountId, NotificationId)>,
}

impl Control {
    pub(super) fn holds_mut(&mut self) -> impl Iterator<Item = &mut (AccountId, Hold)> {
        self.holds.iter_mut()
    }
}

impl Witness {
    pub(crate) fn paused(&mut self, account: &AccountId, hold: Hold) {
        self.released(hold.id);
        self.control.holds.push((account.clone(), hold));
    }

    pub(crate) fn released(&mut self, id: HoldId) {
        self.control.holds.retain(|(_, hold)| hold.id != id);
    }

    /// A turn begins with this item, in a session of this agent.
    pub(super) fn starts(&mut self, database: &Database, name: &(AccountId, NotificationId), row: &NotificationRow) {
        let Some((session, _)) = row.place else { return };
        let is = |id: Option<String>, hold: &Hold| id.is_some_and(|id| id == hold.scope_id);
        let covering = self.control.holds.iter().find(|(account, hold)| {
            let covers = match hold.scope_kind {
                HoldScope::Account => true,
                HoldScope::Task => is(row.task.as_ref().map(|task| task.key().to_string()), hold),
                HoldScope::Agent => is(row.agent.map(|agent| agent.to_string()), hold),
                HoldScope::Session => is(Some(session.to_string()), hold),
            };
            *account == name.0 && covers && hold.until.is_none_or(|until| millis(until) > database.now)
        });
        if let Some((_, hold)) = covering.cloned() {
            let id = &name.1;
            self.breaks("I20", || format!("{id} started in session {session} behind {hold:?}"));
        }
    }

    pub(super) fn is_withdrawn(&self, name: &(AccountId, NotificationId)) -> bool {
        self.control.withdrawn.contains(name)
    }

    /// It no longer waits, since somebody wants so.
    pub(super) fn withdraws(&mut self, name: (AccountId, NotificationId)) {
        let state = self.notifications.get(&name).copied();
        if state != Some(NotificationState::Queued) {
            self.breaks("I24", || format!("{} was withdrawn, and was {state:?}", name.1));
        }
        self.control.withdrawn.insert(name);
    }

    /// An edit was accepted.
    pub(crate) fn edited(&mut self, database: &Database, edit: &Edit) {
        let (account, session) = &edit.session;
        if let Some(id) = edit.item.as_ref().filter(|_| edit.op == QueueOp::Withdraw) {
            self.withdraws((account.clone(), id.clone()));
        }
        if !matches!(edit.op, QueueOp::Promote | QueueOp::Order) {
            return;
        }
        if edit.op == QueueOp::Promote {
            self.resumed(database, &edit.session);
        }
        self.started.retain(|(of, _), _| of != session);
        let mut queue: Vec<(i64, (AccountId, NotificationId), QueueMode)> = Vec::new();
        for ((owner, id), row) in &database.notifications {
            let waits = row.state == NotificationState::Queued && row.place.is_some_and(|(of, _)| of == *session);
            if waits && owner == account {
                let name = (owner.clone(), id.clone());
                queue.push((self.order(name.clone(), row), name, row.mode));
            }
        }
        queue.sort_unstable();
        let places: Vec<i64> = queue.iter().map(|(place, _, _)| *place).collect();
        // The item goes behind the steers that are first.
        let rank = |(n, (_, (_, id), mode)): (usize, &(i64, (AccountId, NotificationId), QueueMode))| match &edit.item {
            Some(item) if item == id => (1, n),
            Some(item) => {
                let ahead = queue[..=n]
                    .iter()
                    .all(|(_, (_, id), mode)| *mode == QueueMode::Steer && id != item);
                (if ahead && *mode == QueueMode::Steer { 0 } else { 2 }, n)
            }
            None => (0, edit.order.iter().position(|one| one == id).unwrap_or(usize::MAX)),
        };
        let mut wanted: Vec<((usize, usize), (AccountId, NotificationId))> = queue
            .iter()
            .enumerate()
            .map(|one| (rank(one), one.1.1.clone()))
            .collect();
        wanted.sort_unstable();
        for ((_, name), place) in wanted.into_iter().zip(places) {
            let stands = database.notifications[&name].place;
            if stands != Some((*session, place)) {
                self.breaks("I24", || {
                    format!("{} was to stand at {place}, and stands at {stands:?}", name.1)
                });
            }
            self.moved(name, place);
        }
    }
}
