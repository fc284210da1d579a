//! Timers, as `storage::timer` sets and clears them and `storage::lifecycle::timers_fire` fires them.

use contracts::tools::check_later::{CHAIN_MAX, TIMERS_MAX};
use domain::{
    AccountId, Conversation, NotificationId, QuestionId, SessionId, TaskId, TimerId, TimerKind, TimerState, TurnId,
};
use storage::{lifecycle::timers_fire::TIMER_ITEM, question::Ending};

use super::{
    Database, Millis,
    branches::BranchesEnded,
    intake::OwnItem,
    outbox::Message,
    questions::{QuestionRow, own_message},
};
use crate::simulation::bugs::Bug;

/// As `timers_batch_max`.
const BATCH_MAX: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct TimerRow {
    pub(crate) kind: TimerKind,
    pub(crate) key: String,
    pub(crate) due_at: Millis,
    /// Its key.
    pub(crate) task: Option<TaskId>,
    pub(crate) conversation: Conversation,
    pub(crate) session: SessionId,
    pub(crate) hops: u16,
    pub(crate) chain: i32,
    pub(crate) state: TimerState,
    pub(crate) item: Option<NotificationId>,
}

impl TimerRow {
    /// What belongs to a question, or is set by the turn that could ask it.
    pub(super) fn new(kind: TimerKind, key: String, due_at: Millis, of: &QuestionRow) -> TimerRow {
        TimerRow {
            kind,
            key,
            due_at,
            task: of.task.clone(),
            conversation: of.conversation.clone(),
            session: of.session,
            hops: 0,
            chain: 0,
            state: TimerState::Waiting,
            item: None,
        }
    }
}

/// What the firing of timers did.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    pub(crate) timers: usize,
    pub(crate) items: Vec<OwnItem>,
    pub(crate) ended: Vec<BranchesEnded>,
    pub(crate) messages: Vec<Message>,
}

impl Database {
    /// `LATER`: how many timers in a row led to the turn. None: it may set no further one.
    pub(super) fn later(&self, account: &AccountId, session: SessionId, turn: TurnId) -> Option<i32> {
        let of_account = || self.timers.iter().filter(|((owner, _), _)| owner == account);
        let waiting = of_account().filter(|(_, timer)| {
            timer.session == session && timer.kind == TimerKind::CheckLater && timer.state == TimerState::Waiting
        });
        let first = &self.turns[&(account.clone(), turn)].notifications[0];
        let led = of_account().find(|(_, timer)| timer.item.as_ref() == Some(first));
        let chain = led.map_or(0, |(_, timer)| timer.chain + 1);
        let is_full = i64::try_from(waiting.count()).expect("few") >= TIMERS_MAX;
        (!is_full && chain <= CHAIN_MAX).then_some(chain)
    }

    /// `TIMER_SET`. No key is used twice: a call runs once, and a question is opened once.
    pub(super) fn timer_set(&mut self, account: &AccountId, timer: TimerRow) {
        let id = TimerId(self.fresh_id());
        self.timers.insert((account.clone(), id), timer);
    }

    /// `CLEAR_OF_TASK`, `CLEAR_OF_AGENT` and `CLEAR_OF_KEYS`.
    pub(super) fn timers_clear(&mut self, account: &AccountId, is_of: impl Fn(&TimerRow) -> bool) {
        for ((owner, _), timer) in &mut self.timers {
            if owner == account && timer.state == TimerState::Waiting && is_of(timer) {
                timer.state = TimerState::Cleared;
            }
        }
    }

    /// Accounts with due timers.
    pub(crate) fn timers_overdue(&self) -> Vec<AccountId> {
        let due = self.timers.iter().filter(|(_, timer)| timer.is_due(self.now));
        let mut accounts: Vec<AccountId> = due.map(|((account, _), _)| account.clone()).collect();
        accounts.dedup();
        accounts
    }

    /// `TIMERS_DUE`: those that one transaction fires. The end of a question or of branches has a transaction alone.
    pub(crate) fn timers_due(&self, account: &AccountId) -> Vec<TimerId> {
        let mut due: Vec<(Millis, TimerId, TimerKind)> = self
            .timers
            .iter()
            .filter(|((owner, _), timer)| owner == account && timer.is_due(self.now))
            .map(|((_, id), timer)| (timer.due_at, *id, timer.kind))
            .collect();
        due.sort_unstable_by_key(|(due_at, id, _)| (*due_at, *id));
        due.truncate(BATCH_MAX);
        let together = due
            .iter()
            .take_while(|(_, _, kind)| *kind == TimerKind::CheckLater)
            .count();
        due.truncate(together.max(1));
        due.into_iter().map(|(_, id, _)| id).collect()
    }

    /// `timers_fire` and `TIMERS_MARK`. None: one of them was cleared meanwhile, and the transaction is rolled back.
    pub(crate) fn timers_fire(&mut self, account: &AccountId, due: &[TimerId], bug: Option<Bug>) -> Option<Fired> {
        let waits = |id: &TimerId| self.timers[&(account.clone(), *id)].state == TimerState::Waiting;
        if !due.iter().all(waits) && bug != Some(Bug::TimerFiredTwice) {
            return None;
        }
        let mut fired = Fired::default();
        for id in due {
            let timer = self.timers[&(account.clone(), *id)].clone();
            let (state, item) = match timer.kind {
                TimerKind::CheckLater => {
                    let metadata = [("reopen", false.into()), ("timer_id", id.to_string().into())];
                    let message = own_message(TIMER_ITEM, metadata);
                    let item = self.item_enter(&timer.conversation, timer.task.as_ref(), message, timer.hops, bug);
                    (TimerState::Fired, item)
                }
                TimerKind::BranchDeadline => {
                    let mut ended = self.group_expires(account, &timer.key, bug);
                    fired.messages.append(&mut ended.messages);
                    let state = match ended.branches.is_empty() {
                        true => TimerState::Cleared,
                        false => TimerState::Fired,
                    };
                    fired.ended.push(ended);
                    (state, None)
                }
                TimerKind::QuestionLapse | TimerKind::Later => {
                    let question = QuestionId::parse(&timer.key).expect("the key is a question's id");
                    match self.question_end((account, question), &Ending::Lapsed, bug) {
                        Some(ended) => {
                            fired.messages.extend(ended.messages);
                            fired.items.extend(ended.item);
                            (TimerState::Fired, None)
                        }
                        None => (TimerState::Cleared, None),
                    }
                }
            };
            let row = self.timers.get_mut(&(account.clone(), *id)).expect("it is due");
            row.state = state;
            row.item = item.as_ref().map(|item| item.id.clone());
            fired.timers += 1;
            fired.items.extend(item);
        }
        let entered = fired.items.iter_mut().flat_map(|item| item.messages.drain(..));
        fired.messages.extend(entered);
        self.version += 1;
        Some(fired)
    }

    /// When the next timer is due.
    pub(crate) fn timers_next(&self) -> Option<Millis> {
        let waiting = self.timers.values().filter(|timer| timer.state == TimerState::Waiting);
        waiting.map(|timer| timer.due_at).filter(|at| *at > self.now).min()
    }
}

impl TimerRow {
    fn is_due(&self, now: Millis) -> bool {
        self.state == TimerState::Waiting && self.due_at <= now
    }
}
