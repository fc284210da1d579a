//! I30: a branch ends once, with one outcome, and its parent is told once, if it is there; while the branch lives, so do its session,
//! its parent's generation and the timer of its time. Counts the items by what they say of themselves.

use std::collections::BTreeMap;

use domain::{AccountId, BranchId, BranchState, JoinMode, TimerKind, TimerState};
use storage::lifecycle::close_reason;
use uuid::Uuid;

use super::Witness;
use crate::simulation::database::{Database, branches::BranchRow};

#[derive(Debug, Default)]
pub(super) struct Branches {
    states: BTreeMap<(AccountId, BranchId), BranchState>,
    /// How many items of parents tell of a branch, or of a group that joins.
    told: BTreeMap<(AccountId, Uuid), usize>,
}

impl Witness {
    pub(super) fn look_at_branches(&mut self, database: &Database) {
        if database.branches.is_empty() {
            return;
        }
        let mut items: BTreeMap<(AccountId, Uuid), usize> = BTreeMap::new();
        for ((account, _), row) in &database.notifications {
            if let Some(source) = row.source {
                *items.entry((account.clone(), source)).or_default() += 1;
            }
        }
        for ((account, id), row) in &database.branches {
            let before = self.branches.states.insert((account.clone(), *id), row.state);
            let is_new = before.is_none_or(BranchState::is_live);
            if !is_new && before != Some(row.state) {
                self.breaks("I30", || format!("branch {id} was {before:?} and is {}", row.state));
            }
            match row.state.is_live() {
                true => self.lives(database, account, (*id, row)),
                false => {
                    if database.sessions[&(account.clone(), row.session)].closed.is_none() {
                        self.breaks("I30", || {
                            format!("branch {id} is {}, and its session is open", row.state)
                        });
                    }
                    if is_new {
                        self.is_told(database, account, (*id, row), &items);
                    }
                }
            }
        }
        let wrong = self.branches.told.iter().find_map(|(of, told)| {
            let found = items.get(of).copied().unwrap_or_default();
            (found != *told).then_some((of.1, *told, found))
        });
        if let Some((of, told, found)) = wrong {
            self.breaks("I30", || format!("{told} items were to tell of {of}, and {found} do"));
        }
    }

    fn lives(&mut self, database: &Database, account: &AccountId, (id, row): (BranchId, &BranchRow)) {
        let is_closed = |session| database.sessions[&(account.clone(), session)].closed.is_some();
        if is_closed(row.session) || is_closed(row.parent) {
            self.breaks("I30", || {
                format!("branch {id} lives, and its session or that of its parent is closed")
            });
        }
        let group = row.group.to_string();
        let ends = |((owner, _), timer): (&(AccountId, _), &crate::simulation::database::timers::TimerRow)| {
            owner == account
                && (timer.kind, timer.state) == (TimerKind::BranchDeadline, TimerState::Waiting)
                && timer.key == group
        };
        if !database.timers.iter().any(ends) {
            self.breaks("I30", || format!("branch {id} lives, and nothing ends it"));
        }
    }

    /// It has ended just now: its parent is told, if it is open and the task goes on.
    fn is_told(
        &mut self,
        database: &Database,
        account: &AccountId,
        (id, row): (BranchId, &BranchRow),
        items: &BTreeMap<(AccountId, Uuid), usize>,
    ) {
        let of_group = |(_, other): &(_, &BranchRow)| other.group == row.group;
        let lives = |(_, other): (_, &BranchRow)| other.state.is_live();
        let source = match row.join {
            JoinMode::Each => id.uuid(),
            JoinMode::All if database.branches.iter().filter(of_group).any(lives) => return,
            JoinMode::All => row.group,
        };
        let task = database.tasks.get(&(account.clone(), row.task.clone()));
        let goes_on = task.is_some_and(|task| close_reason(task.status).is_none());
        let is_open = database.sessions[&(account.clone(), row.parent)].closed.is_none();
        let of = (account.clone(), source);
        let found = items.get(&of).copied().unwrap_or_default();
        let told = match is_open && goes_on {
            true => 1,
            // Other parts of the transaction may have ended the parent after it was told.
            false => found.min(1),
        };
        self.branches.told.insert(of, told);
    }
}
