//! Edits of what waits in a queue, as `storage::session::queue_edit` makes them: one transaction under the session's lock. Steers
//! and injects by a click are left out: they give an item the place that its mode has, which arrivals show already.

use contracts::session::SessionResolved;
use delivery::store::SessionName;
use domain::{
    Actor, Gate, Generation, NotificationId, NotificationState, QueueOp, SessionEvent,
    queue::{Editable, Editor, Placed, ordered, permitted, promoted},
};

use super::{Database, NotificationRow, outbox::Message};
use crate::simulation::bugs::Bug;

/// What is wanted, by somebody who has looked at the queue before.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) session: SessionName,
    pub(crate) op: QueueOp,
    /// None: an order of all.
    pub(crate) item: Option<NotificationId>,
    pub(crate) order: Vec<NotificationId>,
    /// The queue of then.
    pub(crate) seen: Vec<Placed>,
    /// The revisions of then: the queue's, and the item's.
    pub(crate) queue_revision: String,
    pub(crate) item_revision: Option<i32>,
    pub(crate) by_admin: bool,
}

impl Database {
    /// `SESSIONS_LOCK`, `ITEM_LOCK`, `QUEUE_PLACES`, then `ITEMS_MOVE`, `ITEM_REWRITE` or `ITEM_WITHDRAW`, and `QUEUE_EDITED`. None:
    /// the edit is refused.
    pub(crate) fn queue_edit(&mut self, edit: &Edit, by: &Actor, bug: Option<Bug>) -> Option<Vec<Message>> {
        let editor = Editor {
            actor: by,
            is_admin: edit.by_admin,
        };
        let (name, op) = (&edit.session, edit.op);
        let locked = self.session(name, None, bug)?;
        let item = edit.item.as_ref().map(|id| (name.0.clone(), id.clone()));
        let row = match &item {
            Some(item) => Some(self.notifications.get(item)?),
            None => None,
        };
        let position = row.and_then(|row| row.place).map(|(_, position)| position);
        if let Some(row) = row {
            let author = row.sender();
            let editable = Editable {
                state: match bug {
                    Some(Bug::WithdrawStarted) => NotificationState::Queued,
                    _ => row.state,
                },
                kind: &row.kind,
                author: &author,
                revision: row.revision,
            };
            let is_here = row.place.is_some_and(|(session, _)| session == name.1);
            // A replay ends with its item.
            let is_kept = locked.replay.is_some() && op != QueueOp::Withdraw;
            if !is_here || is_kept || permitted(op, &editable, &editor, edit.item_revision).is_err() {
                return None;
            }
        }
        let is_of_queue = matches!(op, QueueOp::Promote | QueueOp::Order);
        let looks_again = bug != Some(Bug::PlacesFromLook);
        if is_of_queue && looks_again && edit.queue_revision != locked.revision() {
            return None;
        }
        let mut queue = match looks_again {
            true => self.places(name),
            false => edit.seen.clone(),
        };
        queue.retain(|item| position.is_none_or(|last| item.position <= last));
        let moves = match (op, &edit.item) {
            (QueueOp::Promote, Some(id)) => promoted(&queue, id),
            (QueueOp::Order, _) => ordered(&queue, &edit.order)?,
            _ => Vec::new(),
        };
        let withdrawn = op == QueueOp::Withdraw;
        let is_empty = withdrawn && locked.facts.queued <= 1 && locked.active_turn.is_none();
        let rests = locked.facts.state().on(SessionEvent::Emptied).ok().filter(|_| is_empty);
        let opens = locked.gate.is_some_and(|gate| gate.is_opened_by_edit(op)) && rests.is_none();
        if opens {
            self.sessions_unpark(std::slice::from_ref(name), bug);
        }
        let looks = locked.gate == Some(Gate::Pause) && rests.is_none();
        if looks {
            self.sessions_look(name);
        }
        if self.sessions[name].will_hold() && Gate::Stopped.is_opened_by_edit(op) {
            self.stop_continues(name);
        }
        for (id, position) in moves {
            let row = self.notifications.get_mut(&(name.0.clone(), id)).expect("it waits");
            row.place = Some((name.1, position));
        }
        if let Some(row) = item.and_then(|item| self.notifications.get_mut(&item)) {
            if op == QueueOp::Replace {
                row.body = "edited".to_owned();
                row.revision += 1;
            }
            if withdrawn {
                row.state = NotificationState::Cancelled;
                row.reason = Some(format!("withdrawn: by {}", by.name));
            }
        }
        let session = self.sessions.get_mut(name).expect("locked");
        session.queue_edits += 1;
        session.queued -= i32::from(withdrawn);
        if let Some(state) = rests {
            session.phase = state.phase;
            (session.wake_at, session.gate) = (None, None);
        }
        let over = (withdrawn && locked.replay.is_some()).then(|| self.replay_end(name, bug));
        self.version += 1;
        let woken = (opens || looks).then(|| self.wake_up(name));
        Some(woken.into_iter().chain(over).collect())
    }

    /// `QUEUE_PLACES`.
    pub(crate) fn places(&self, name: &SessionName) -> Vec<Placed> {
        let placed = |(position, id, row): (i64, &NotificationId, &NotificationRow)| Placed {
            id: id.clone(),
            position,
            mode: row.mode,
        };
        self.queue(&name.0, name.1).into_iter().map(placed).collect()
    }

    /// The message that wakes delivery for a session.
    pub(crate) fn wake_up(&self, name: &SessionName) -> Message {
        let row = &self.sessions[name];
        Message::SessionResolved(SessionResolved::new(
            &row.conversation,
            (name.1, Generation(row.generation)),
            row.conversation.task(),
            row.queue_tail,
        ))
    }
}
