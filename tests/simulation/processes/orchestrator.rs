//! The orchestrator's consumer: posts the reply of an ended turn into its thread. `deeds.rs` has the API requests of people.

use domain::{AccountId, TurnId, TurnState};
use storage::lifecycle::reply_message_id;
use uuid::Uuid;

use crate::simulation::{
    broker::Queued,
    database::{Database, outbox::Message},
    world::{Fate, World},
};

/// As `replies_retry_ms`.
const RETRY: i64 = 500;

/// A `turn.finished` event in progress.
#[derive(Debug)]
pub(crate) struct Posting {
    token: u64,
    account: AccountId,
    turn: TurnId,
    receipt: Option<Uuid>,
    posted: bool,
}

impl World {
    pub(super) fn posting_begins(&mut self, p: usize, queued: Queued) {
        let Message::TurnFinished(account, turn, receipt) = queued.message else {
            unreachable!("the orchestrator reads news of turns");
        };
        self.processes[p].postings.push(Posting {
            token: queued.token,
            account,
            turn,
            receipt,
            posted: false,
        });
    }

    pub(super) fn post(&mut self, p: usize, n: usize) {
        let posting = self.processes[p].postings.remove(n);
        if posting.posted {
            self.acknowledge(posting.token);
            return;
        }
        let fate = self.fate(p);
        if fate != Fate::Failed {
            self.database.reply_post(&posting.account, posting.turn);
            self.database.outbox_receive(posting.receipt);
            self.database.version += 1;
        }
        if fate == Fate::Committed {
            self.processes[p].postings.push(Posting {
                posted: true,
                ..posting
            });
        } else {
            self.postpone(posting.token, RETRY);
        }
    }
}

impl Database {
    /// What `turn_finished.rs` posts, by `REPLIES_INSERT … on conflict do nothing`.
    fn reply_post(&mut self, account: &AccountId, turn: TurnId) {
        let Some(row) = self.turns.get(&(account.clone(), turn)) else {
            return;
        };
        let counts = row.state == TurnState::Finished && !row.late && !row.no_reply && row.task.is_some();
        if counts && row.reply.as_ref().is_some_and(|reply| !reply.is_empty()) {
            self.messages
                .entry((account.clone(), reply_message_id(turn)))
                .or_insert(turn);
        }
    }
}
