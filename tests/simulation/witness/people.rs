//! I37: a piece of mail is shown to one turn at most, has one outcome, that of its item, and settles; what nobody took goes back once. I38:
//! tasks wait for each other in no ring, none is moved into work while it waits, the end of the last blocker frees in its transaction, and
//! each agent is told once; an agent moves its own task, an orchestrator those of its board, which is told of their ends.

use std::collections::{BTreeMap, BTreeSet};

use domain::{
    AccountId, MailId, MailWhy, NotificationId, NotificationState, ReceiptState, TaskId, TaskStatus, TurnId, TurnState,
};

use super::Witness;
use crate::simulation::database::{
    Database,
    board::UNBLOCKED,
    calls::Effect,
    mail::{MailRow, item_of},
};

#[derive(Debug, Default)]
pub(super) struct People {
    /// The outcome of mail, and whether it is settled.
    mail: BTreeMap<(AccountId, MailId), (Option<ReceiptState>, bool)>,
    /// Items of mail that an agent took, with its turn.
    pulled: BTreeSet<((AccountId, NotificationId), TurnId)>,
    tasks: BTreeMap<(AccountId, TaskId), Seen>,
    /// How often a task was freed.
    freed: BTreeMap<(AccountId, TaskId), usize>,
    /// Tasks that their orchestrator has moved in this transaction.
    by_itself: BTreeSet<(AccountId, TaskId)>,
}

/// A task, as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    status: TaskStatus,
    waits: bool,
    /// How often its orchestrator was told of it.
    told: usize,
}

impl Witness {
    /// A person was told that mail was accepted.
    pub(crate) fn mail_accepted(&mut self, database: &Database, (account, id): (&AccountId, MailId)) {
        if !database.mail.contains_key(&(account.clone(), id)) {
            self.breaks("I37", || format!("mail {id} was accepted and is nowhere"));
        }
    }

    /// A person read mail that waited for a session.
    pub(crate) fn mail_read(&mut self, account: &AccountId, items: &[NotificationId]) {
        for id in items {
            self.withdraws((account.clone(), id.clone()));
        }
    }

    /// A tool call has run.
    pub(crate) fn acted_for_people(&mut self, database: &Database, effect: &Effect) {
        let account = &effect.call.0;
        let session = (account.clone(), database.calls[&effect.call].session);
        for item in &effect.pulled {
            let name = (account.clone(), item.clone());
            self.people.pulled.insert((name, effect.turn));
        }
        let Some(task) = &effect.moved else { return };
        let name = (account.clone(), task.clone());
        let is_own = match database.owner_of(&session) {
            Some(owner) => {
                self.people.by_itself.insert(name.clone());
                database.tasks[&name].board == Some(owner)
            }
            None => {
                let own = &database.turns[&(account.clone(), effect.turn)].task;
                own.as_ref().map(TaskId::key).as_ref() == Some(task)
            }
        };
        if !is_own {
            let turn = effect.turn;
            self.breaks("I38", || format!("turn {turn} moved task {task}, which is not its own"));
        }
    }

    pub(super) fn look_at_mail(&mut self, database: &Database) {
        for (name, row) in &database.mail {
            let now = (row.outcome, row.settled);
            let before = self.people.mail.insert(name.clone(), now);
            if before == Some(now) {
                continue;
            }
            // What has bounced may be sent again.
            if let Some((Some(outcome), settled)) = before
                && row.outcome != Some(outcome)
                && (settled || outcome != ReceiptState::Bounced)
            {
                self.breaks("I37", || {
                    format!("mail {} was {outcome} and is {:?}", name.1, row.outcome)
                });
            }
        }
    }

    /// The turns that have finished with a piece of mail.
    fn shown(&self, database: &Database, (account, id): (&AccountId, MailId)) -> Vec<TurnId> {
        let name = (account.clone(), item_of(id));
        let turns = database.turns.iter().filter(|((owner, turn), row)| {
            let is_shown = row.notifications.contains(&name.1) || self.people.pulled.contains(&(name.clone(), *turn));
            owner == account && row.state == TurnState::Finished && is_shown
        });
        turns.map(|((_, turn), _)| *turn).collect()
    }

    pub(super) fn mail_at_the_end(&mut self, database: &Database) {
        for ((account, id), row) in &database.mail {
            if row.to.conversation.is_none() {
                continue;
            }
            let shown = self.shown(database, (account, *id));
            let item = database.notifications.get(&(account.clone(), item_of(*id)));
            let state = item.map(|item| item.state);
            let agrees = match row.outcome.filter(|_| row.settled) {
                Some(ReceiptState::InTurn) => {
                    state == Some(NotificationState::Delivered)
                        && shown.len() == 1
                        && row.in_turn == shown.first().copied()
                }
                Some(ReceiptState::Read) => state == Some(NotificationState::Cancelled) && shown.is_empty(),
                Some(ReceiptState::Bounced) => {
                    use NotificationState::{Cancelled, Failed, Refused};
                    matches!(state, Some(Cancelled | Failed | Refused)) && shown.is_empty()
                }
                _ => false,
            };
            if !agrees {
                self.breaks("I37", || {
                    format!(
                        "mail {id} is {:?} in turn {:?}, its item is {state:?}, and turns {shown:?} had it",
                        row.outcome, row.in_turn
                    )
                });
            }
            self.went_back(database, (account, *id), row);
        }
    }

    fn went_back(&mut self, database: &Database, (account, id): (&AccountId, MailId), row: &MailRow) {
        let back = database.mail.iter().filter(|((owner, _), other)| {
            owner == account && other.why == MailWhy::Bounce && other.reply_to == Some(id)
        });
        let back = back.count();
        let sender = row
            .from
            .as_ref()
            .and_then(|from| database.addressee(account, None, from));
        let is_due = row.outcome == Some(ReceiptState::Bounced) && row.why != MailWhy::Bounce && sender.is_some();
        // What was sent again after it had bounced has gone back, whatever became of it.
        if back > usize::from(row.why != MailWhy::Bounce) || (is_due && back == 0) {
            self.breaks("I37", || {
                format!("mail {id} is {:?}, and went back {back} times", row.outcome)
            });
        }
    }

    pub(super) fn look_at_board(&mut self, database: &Database) {
        for (name, task) in &database.tasks {
            let mail = database.mail.iter().filter(|((account, _), mail)| {
                *account == name.0 && mail.why == MailWhy::ChildStatus && mail.context_task.as_ref() == Some(&name.1)
            });
            let now = Seen {
                status: task.status,
                waits: database.waits(&name.0, &name.1),
                told: mail.count(),
            };
            let Some(before) = self.people.tasks.insert(name.clone(), now) else {
                continue;
            };
            let is_moved = before.status != now.status;
            if is_moved && now.waits && !now.status.is_free_of_blockers() {
                self.breaks("I38", || {
                    format!("task {} was moved to {}, and waits for others", name.1, now.status)
                });
            }
            let is_freed = before.waits && !now.waits && before.status == TaskStatus::Blocked;
            match now.status {
                TaskStatus::Pending if is_freed => *self.people.freed.entry(name.clone()).or_default() += 1,
                TaskStatus::Blocked if is_freed && !database.is_held(&name.0, &name.1) => {
                    self.breaks("I38", || {
                        format!("task {} waits for nothing any more, and is blocked", name.1)
                    });
                }
                _ => {}
            }
            let has_ended = is_moved && (now.status.is_dead_end() || now.status == TaskStatus::Done);
            let is_there = task
                .board
                .as_ref()
                .and_then(|board| board.user())
                .is_none_or(|user| !database.members[&(name.0.clone(), user.clone())]);
            let is_told = now.status != TaskStatus::Archived && task.board.is_some() && is_there;
            if has_ended && is_told && !self.people.by_itself.contains(name) && now.told != before.told + 1 {
                self.breaks("I38", || {
                    format!("task {} is {}, and its board was not told once", name.1, now.status)
                });
            }
        }
        self.people.by_itself.clear();
        let edges = database.edges.iter().filter(|(_, edge)| !edge.satisfied);
        let mut edges: Vec<_> = edges
            .map(|((account, from, to), _)| ((account, from), (account, to)))
            .collect();
        // What waits for something that waits for nothing is in no ring.
        loop {
            let waiting: BTreeSet<_> = edges.iter().map(|(from, _)| *from).collect();
            let count = edges.len();
            edges.retain(|(_, to)| waiting.contains(to));
            if edges.len() == count {
                break;
            }
        }
        if !edges.is_empty() {
            self.breaks("I38", || format!("tasks wait for each other: {edges:?}"));
        }
    }

    pub(super) fn board_at_the_end(&mut self, database: &Database) {
        for ((account, id), task) in &database.tasks {
            let told = database
                .notifications
                .iter()
                .filter(|((owner, _), row)| owner == account && row.kind == UNBLOCKED && row.task.as_ref() == Some(id));
            let told = told.count();
            let freed = self
                .people
                .freed
                .get(&(account.clone(), id.clone()))
                .copied()
                .unwrap_or_default();
            if told != freed * task.assignees.len() {
                self.breaks("I38", || {
                    format!("task {id} was freed {freed} times, and {told} items tell agents of it")
                });
            }
        }
    }

    pub(crate) fn freed(&self) -> u64 {
        self.people.freed.values().map(|times| *times as u64).sum()
    }
}
