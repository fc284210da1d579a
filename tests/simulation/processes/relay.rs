//! The outbox relay of each process: publishes rows of its transactions, then deletes them; and sweeps rows of ended processes.

use uuid::Uuid;

use crate::simulation::{
    bugs::Bug,
    database::outbox::{Message, OutboxRow},
    world::{Fate, World},
};

const BATCH_MAX: usize = 4;

impl World {
    pub(super) fn relay(&mut self, p: usize) {
        let count = 1 + self.random.below(BATCH_MAX.min(self.processes[p].relay.len()));
        let rows: Vec<Uuid> = self.processes[p].relay.drain(..count).collect();
        self.publish_rows(p, &rows);
    }

    /// An event without a confirmed publication is left to the turn's record.
    pub(super) fn tell(&mut self, p: usize) {
        let Some((turn, heard)) = self.processes[p].told.pop_front() else {
            return;
        };
        let stored = self.publish(Message::started(turn));
        self.note("told", [p as u64, u64::from(stored)], || {
            format!("turn {turn} began: {stored}")
        });
        if stored {
            heard.hear();
        }
    }

    /// A row without a confirmed publication is left to the sweep.
    fn publish_rows(&mut self, p: usize, rows: &[Uuid]) {
        for id in rows {
            let Some(messages) = self.database.outbox.get(id).map(|row| row.messages.clone()) else {
                continue;
            };
            let mut stored = Vec::with_capacity(messages.len());
            for message in messages {
                if let Message::ToolRequested(request) = &message
                    && self.requests.len() < 32
                {
                    self.requests.push(request.clone());
                }
                let what = message.id();
                let is_stored = self.publish(message);
                self.note("relayed", [p as u64, u64::from(is_stored)], || {
                    format!("{what}: {is_stored}")
                });
                stored.push(is_stored);
            }
            let is_over = match self.bug {
                Some(Bug::RowOverAtFirst) => stored.contains(&true),
                _ => !stored.contains(&false),
            };
            if is_over {
                self.processes[p].published.push(*id);
                let highest = &mut self.processes[p].outbox_highest;
                *highest = (*highest).max(Some(*id));
            }
        }
    }

    /// Rows whose messages the broker has: deleted, or marked as stored if a reader is awaited.
    pub(super) fn settle(&mut self, p: usize) {
        let rows = std::mem::take(&mut self.processes[p].published);
        let forgetful = self.bug == Some(Bug::ReceiptBeforeRead);
        let (stored, over): (Vec<Uuid>, Vec<Uuid>) = rows
            .into_iter()
            .partition(|id| !forgetful && self.database.outbox.get(id).is_some_and(OutboxRow::is_awaited));
        // After a failure here, the sweep publishes it again.
        if self.fate(p) != Fate::Failed {
            self.database.outbox_delete(&over);
        }
        if self.fate(p) != Fate::Failed {
            self.database.outbox_stored(&stored);
        }
    }

    /// Published rows without a reader yet: asks the broker whether it still has them.
    pub(super) fn look_after_unread(&mut self, p: usize) {
        let rows = self.database.outbox_unread(self.processes[p].service);
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return;
        }
        let looked = self.database.outbox_look(&rows);
        if fate == Fate::Unanswered {
            return;
        }
        let again: Vec<Uuid> = looked
            .into_iter()
            .filter(|(id, again)| *again || !self.broker.still_has(*id))
            .map(|(id, _)| id)
            .collect();
        if !again.is_empty() {
            self.note("unread", [p as u64, again.len() as u64], || {
                format!("process {p} publishes {again:?} again")
            });
            self.publish_rows(p, &again);
        }
    }

    pub(super) fn sweep_outbox(&mut self, p: usize) {
        let process = &self.processes[p];
        let after = process.outbox_highest.filter(|_| self.bug == Some(Bug::OutboxById));
        let rows = self.database.outbox_due(process.service, after);
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return;
        }
        self.database.outbox_claim(&rows);
        if fate == Fate::Committed {
            self.publish_rows(p, &rows);
        }
    }
}
