//! I21 and I22: a question and a timer end once, with one item or none, in the transaction that ends them, and neither outlives
//! its session or its task. Counts the items by what they say of themselves, and not by the rows of questions and timers.

use std::collections::BTreeMap;

use domain::{
    AccountId, CloseReason, Conversation, QuestionKind, QuestionState, SessionId, TaskId, TimerKind, TimerState,
};
use storage::lifecycle::close_reason;
use uuid::Uuid;

use super::Witness;
use crate::simulation::database::{Database, intake::OwnItem};

#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Questions and timers.
    seen: BTreeMap<(AccountId, Uuid), Seen>,
    /// Since when a task has ended.
    ended: BTreeMap<(AccountId, TaskId), u64>,
}

/// As it was last seen.
#[derive(Clone, Debug)]
struct Seen {
    since: u64,
    state: &'static str,
    items: usize,
}

/// The items about a question or a timer, by the conversations that they are in.
type Items<'a> = BTreeMap<(&'a AccountId, Uuid), Vec<Option<&'a Conversation>>>;

/// A question or a timer.
struct Looked<'a> {
    promise: &'static str,
    key: (&'a AccountId, Uuid),
    state: &'static str,
    waits: bool,
    /// How many items a new state brings.
    brings: usize,
    conversation: &'a Conversation,
    session: SessionId,
    task: Option<&'a TaskId>,
}

impl Witness {
    /// Items of Signalbox's own have entered.
    pub(crate) fn own_items(&mut self, database: &Database, items: &[OwnItem]) {
        for item in items {
            let name = (item.account.clone(), item.id.clone());
            self.arrived(database, name, item.session, item.number);
        }
    }

    pub(super) fn look_at_asked(&mut self, database: &Database) {
        for (name, task) in &database.tasks {
            match close_reason(task.status) {
                Some(_) => {
                    self.asked.ended.entry(name.clone()).or_insert(database.version);
                }
                None => {
                    self.asked.ended.remove(name);
                }
            }
        }
        if database.questions.is_empty() && database.timers.is_empty() {
            return;
        }
        let mut items: Items<'_> = BTreeMap::new();
        for ((account, _), row) in &database.notifications {
            if let Some(source) = row.source {
                let session = row
                    .place
                    .map(|(session, _)| &database.sessions[&(account.clone(), session)]);
                let conversation = session.map(|session| &session.conversation);
                items.entry((account, source)).or_default().push(conversation);
            }
        }
        for ((account, id), row) in &database.questions {
            let is_open = database.active(&row.conversation).is_some();
            // Whoever withdraws a question of an open session is not its asker here.
            let brings = match (row.kind, row.state) {
                (QuestionKind::Question, QuestionState::Answered | QuestionState::Lapsed) => 1,
                (QuestionKind::Question, QuestionState::Withdrawn) => usize::from(is_open),
                _ => 0,
            };
            self.look_at_one(
                database,
                &items,
                &Looked {
                    promise: "I21",
                    key: (account, id.uuid()),
                    state: row.state.as_str(),
                    waits: row.state == QuestionState::Open,
                    brings,
                    conversation: &row.conversation,
                    session: row.session,
                    task: row.task.as_ref(),
                },
            );
        }
        for ((account, id), row) in &database.timers {
            let fires = row.kind == TimerKind::CheckLater && row.state == TimerState::Fired;
            self.look_at_one(
                database,
                &items,
                &Looked {
                    promise: "I22",
                    key: (account, id.uuid()),
                    state: row.state.as_str(),
                    waits: row.state == TimerState::Waiting,
                    brings: usize::from(fires),
                    conversation: &row.conversation,
                    session: row.session,
                    task: row.task.as_ref(),
                },
            );
            if row.state == TimerState::Fired && row.due_at > database.now {
                self.breaks("I22", || format!("timer {id} fired before it was due"));
            }
        }
    }

    fn look_at_one(&mut self, database: &Database, items: &Items<'_>, looked: &Looked<'_>) {
        let (account, id) = looked.key;
        let found = items.get(&looked.key).map(Vec::as_slice).unwrap_or_default();
        let seen = self.asked.seen.entry((account.clone(), id)).or_insert(Seen {
            since: database.version,
            state: looked.state,
            items: 0,
        });
        let before = seen.clone();
        let brings = if seen.state == looked.state {
            seen.items
        } else {
            looked.brings
        };
        (seen.state, seen.items) = (looked.state, found.len());
        let since = seen.since;
        let mut breaks = |how: String| self.breaks(looked.promise, || format!("{id} is {}: {how}", looked.state));
        if !before.waits() && before.state != looked.state {
            breaks(format!("it was {} before", before.state));
        }
        if found.len() != brings || found.iter().flatten().any(|of| *of != looked.conversation) {
            breaks(format!(
                "it was to have {brings} items in its conversation, and has {found:?}"
            ));
        }
        if !looked.waits {
            return;
        }
        let closed = database.sessions[&(account.clone(), looked.session)].closed;
        // The work goes on in the next generation, and so does what it has asked.
        if closed.is_some_and(|(_, reason)| !matches!(reason, CloseReason::Reset | CloseReason::Rotated)) {
            breaks(format!("its session {} is closed", looked.session));
        }
        let ended = looked
            .task
            .and_then(|task| self.asked.ended.get(&(account.clone(), task.clone())));
        if ended.is_some_and(|ended| *ended > since) {
            self.breaks(looked.promise, || {
                format!("{id} is {}, and its task has ended", looked.state)
            });
        }
    }
}

impl Seen {
    fn waits(&self) -> bool {
        [QuestionState::Open.as_str(), TimerState::Waiting.as_str()].contains(&self.state)
    }
}
