//! The orchestrators' sweeps. Of timers: one transaction reads what is due, and fires it some steps later. Others may commit in
//! between. Of mail: it is settled under its lock, in one step.

use domain::{AccountId, ReceiptState, TimerId};

use super::Act;
use crate::simulation::{
    bugs::Bug,
    database::outbox::Service,
    world::{Fate, World},
};

/// Due timers of an account, in a transaction that has locked their firing.
pub(super) type Firing = (AccountId, Vec<TimerId>);

impl World {
    pub(super) fn orchestrator_acts(&self, p: usize, acts: &mut Vec<Act>) {
        let process = &self.processes[p];
        if process.firing.is_some() {
            acts.push(Act::FireTimers);
        } else if process.cut_off_until <= self.database.now && self.to_fire().is_some() {
            acts.push(Act::LookAtTimers);
        }
        if process.cut_off_until <= self.database.now && !self.database.mail_unsettled().is_empty() {
            acts.push(Act::SettleMail);
        }
    }

    /// `mail/sweep.rs`: two replicas that have found the same mail settle it one after the other, and the second finds it settled.
    pub(super) fn settle_mail(&mut self, p: usize) {
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return;
        }
        let found = self.database.mail_unsettled();
        let settled = self.database.mail_settle(&found);
        self.note("mail settled", [p as u64, settled.mail.len() as u64], || {
            format!("process {p}: {settled:?}; {fate:?}")
        });
        let bounced = settled
            .mail
            .iter()
            .filter(|(_, outcome)| *outcome == ReceiptState::Bounced);
        let bounced = bounced.count() as u64;
        self.counts.bounced += bounced;
        self.counts.mailed += settled.mail.len() as u64 - bounced;
        self.counts.replied += settled.answers;
        let rows = self.database.outbox_insert(Service::Orchestrator, settled.messages);
        if fate == Fate::Committed {
            self.processes[p].relay.extend(rows);
        }
    }

    /// The next account whose timers nobody else fires (`FIRES_ALONE`).
    fn to_fire(&self) -> Option<AccountId> {
        let is_free = |account: &AccountId| {
            let others = self.processes.iter().filter_map(|process| process.firing.as_ref());
            self.bug == Some(Bug::TimerFiredTwice) || others.into_iter().all(|(other, _)| other != account)
        };
        self.database.timers_overdue().into_iter().find(is_free)
    }

    pub(super) fn look_at_timers(&mut self, p: usize) {
        if self.fate(p) != Fate::Failed
            && let Some(account) = self.to_fire()
        {
            let due = self.database.timers_due(&account);
            self.processes[p].firing = Some((account, due));
        }
    }

    pub(super) fn fire_timers(&mut self, p: usize) {
        let Some((account, due)) = self.processes[p].firing.take() else {
            return;
        };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return;
        }
        let fired = self.database.timers_fire(&account, &due, self.bug);
        self.note("timers fired", [p as u64, due.len() as u64], || {
            format!("process {p}: {due:?} of {account}: {fired:?}; {fate:?}")
        });
        let Some(fired) = fired else { return };
        self.counts.fired += fired.timers as u64;
        self.witness.own_items(&self.database, &fired.items);
        for ended in &fired.ended {
            self.branches_ended(ended);
        }
        let rows = self.database.outbox_insert(Service::Orchestrator, fired.messages);
        if fate == Fate::Committed {
            self.processes[p].relay.extend(rows);
        }
    }
}
