//! People who edit what waits, who pause and go on, and who replay turns. Each has looked at the rows before, so what is
//! asked may no longer fit.

use delivery::store::SessionName;
use domain::{
    AccountId, BranchId, HoldId, HoldRunning, HoldScope, NotificationId, QueueOp, ReplaySpec, ResetInFlight,
    ResetQueue, ResetRequest, StopKind, StopThen, TurnId, hold::Hold,
};
use storage::session::sessions_lock::queue_revision;

use super::{Deed, STOPPED_BY, person};
use crate::simulation::{
    database::{
        edits::Edit,
        holds::scope_id,
        moment,
        outbox::{Message, Service},
        succession::{Asked, IN_FLIGHT, QUEUES},
    },
    settings::GATEWAY_ONLY,
    world::{Fate, World},
};

impl World {
    /// Somebody looks at a queue, and wants it otherwise.
    pub(crate) fn plan_edit(&mut self) {
        let sessions: Vec<SessionName> = self
            .database
            .sessions
            .iter()
            .filter(|(_, row)| row.queued > 0)
            .map(|(name, _)| name.clone())
            .collect();
        if sessions.is_empty() {
            return;
        }
        let session = self.random.pick(&sessions).clone();
        let row = &self.database.sessions[&session];
        let queue_revision = queue_revision(row.queue_tail, row.turn_count, row.queue_edits);
        let seen = self.database.places(&session);
        let mut order: Vec<NotificationId> = seen.iter().map(|item| item.id.clone()).collect();
        let item = self.random.pick(&order).clone();
        let item_revision = self.database.notifications[&(session.0.clone(), item.clone())].revision;
        let op = *self.random.pick(&[
            QueueOp::Withdraw,
            QueueOp::Withdraw,
            QueueOp::Promote,
            QueueOp::Order,
            QueueOp::Replace,
        ]);
        for n in (1..order.len()).rev() {
            order.swap(n, self.random.below(n + 1));
        }
        let is_of_queue = op == QueueOp::Order;
        let edit = Edit {
            session,
            op,
            item: (!is_of_queue).then_some(item),
            order,
            seen,
            queue_revision,
            item_revision: self.random.chance(700).then_some(item_revision),
            by_admin: self.random.chance(700),
        };
        self.deeds.insert(0, Deed::Edit(Box::new(edit)));
    }

    /// `PATCH`, `DELETE …/queue/{item}`, `…/promote` and `…/order`.
    pub(super) fn edit(&mut self, edit: &Edit) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let messages = self.database.queue_edit(edit, &person(), self.bug);
        self.note("edited", [u64::from(messages.is_some()), 0], || {
            format!("{edit:?}: {}; {fate:?}", messages.is_some())
        });
        let Some(messages) = messages else {
            self.counts.refused += 1;
            return true;
        };
        self.counts.edited += 1;
        self.witness.edited(&self.database, edit);
        self.commit_rows(p, fate, messages)
    }

    /// Somebody pauses a session, its task, its agent or its account, or lets one go on.
    pub(crate) fn plan_hold(&mut self) {
        let holds: Vec<(AccountId, HoldId)> = self.database.holds.keys().cloned().collect();
        if !holds.is_empty() && self.random.chance(500) {
            let (account, hold) = self.random.pick(&holds).clone();
            self.deeds.insert(0, Deed::Release(account, hold));
            return;
        }
        let sessions: Vec<SessionName> = self.database.sessions.keys().cloned().collect();
        if sessions.is_empty() {
            return;
        }
        let session = self.random.pick(&sessions).clone();
        let scope = *self.random.pick(HoldScope::ALL);
        let Some(scope_id) = scope_id(scope, &session, &self.database) else {
            return;
        };
        let hold = Hold {
            id: HoldId(self.database.fresh_id()),
            scope_kind: scope,
            scope_id,
            running: *self.random.pick(&[HoldRunning::Finish, HoldRunning::Stop]),
            until: self.random.chance(300).then(|| moment(self.database.now + 5_000)),
            by_name: STOPPED_BY.to_owned(),
        };
        self.deeds.insert(0, Deed::Hold(session.0, Box::new(hold)));
    }

    /// `POST …/holds`. In the calm, nobody pauses any more.
    pub(super) fn hold(&mut self, account: &AccountId, hold: &Hold) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        if self.calm {
            return true;
        }
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let (id, stops) = self.database.hold_set(account, hold.clone(), self.bug);
        self.note("paused", [stops.len() as u64, 0], || {
            format!("{account}: {hold:?}: {stops:?}; {fate:?}")
        });
        self.witness.paused(account, Hold { id, ..hold.clone() });
        for stop in &stops {
            let asked = (StopKind::Paused, STOPPED_BY, StopThen::Continue);
            self.witness.stop_asked(&self.database, account, stop.turn_id, asked);
        }
        self.commit_rows(p, fate, stops.into_iter().map(Message::SessionStopRequested).collect())
    }

    /// `DELETE …/holds/{id}`. A repetition finds none.
    pub(super) fn release(&mut self, account: &AccountId, hold: HoldId) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let messages = self.database.hold_release(account, hold, self.bug);
        self.note("released", [messages.len() as u64, 0], || {
            format!("{account}: {hold}; {fate:?}")
        });
        self.witness.released(hold);
        self.commit_rows(p, fate, messages)
    }

    /// Somebody begins a session anew.
    pub(crate) fn plan_reset(&mut self) {
        let open = self.database.open_sessions();
        if open.is_empty() {
            return;
        }
        let session = self.random.pick(&open).clone();
        let queue = *self.random.pick(QUEUES);
        let in_flight = *self.random.pick(IN_FLIGHT);
        self.deeds.insert(0, Deed::Reset(session, queue, in_flight));
    }

    /// `POST …/reset`. A repetition finds the generation closed, or the same turn in progress.
    pub(super) fn reset(&mut self, session: &SessionName, queue: ResetQueue, in_flight: ResetInFlight) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let request = ResetRequest {
            reason: "astray".to_owned(),
            by: person(),
            queue,
            in_flight,
            at: self.database.now().into(),
        };
        let asked = self.database.person_resets(session, request.clone(), self.bug);
        self.note("reset", [0, 0], || {
            format!("session {}: {queue}, {in_flight}: {asked:?}; {fate:?}", session.1)
        });
        let messages = match asked {
            Asked::Refused => Vec::new(),
            Asked::Done(succeeded) => {
                self.counts.reset += 1;
                self.branches_ended(&succeeded.branches);
                self.witness.succeeded(&self.database, &succeeded);
                succeeded.messages
            }
            Asked::Stopping(turn, stops) => {
                let stop = (StopKind::Reset, request.by.name.as_str(), StopThen::Continue);
                self.witness.stop_asked(&self.database, &session.0, turn, stop);
                self.witness.reset_asked(turn, request);
                stops.into_iter().map(Message::SessionStopRequested).collect()
            }
        };
        self.commit_rows(p, fate, messages)
    }

    /// Somebody ends a branch, mostly a live one.
    pub(crate) fn plan_end_of_branch(&mut self) {
        let is_live = self.random.chance(800);
        let branches = self.database.branches.iter();
        let branches: Vec<(AccountId, BranchId)> = branches
            .filter(|(_, row)| row.state.is_live() == is_live)
            .map(|(name, _)| name.clone())
            .collect();
        if !branches.is_empty() {
            let (account, branch) = self.random.pick(&branches).clone();
            self.deeds.insert(0, Deed::EndBranch(account, branch));
        }
    }

    /// `POST …/branches/{branch}/cancel`. A repetition finds that it has ended.
    pub(super) fn end_branch(&mut self, account: &AccountId, branch: BranchId) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let mut ended = self.database.person_ends(account, branch, self.bug);
        self.note("branch cancelled", [ended.branches.len() as u64, 0], || {
            format!("branch {branch}: {:?}; {fate:?}", ended.branches)
        });
        self.branches_ended(&ended);
        let messages = std::mem::take(&mut ended.messages);
        self.commit_rows(p, fate, messages)
    }

    /// Somebody runs a turn again. One in progress, or a replay's, is refused.
    pub(crate) fn plan_replay(&mut self) {
        let turns: Vec<(AccountId, TurnId)> = self.database.turns.keys().cloned().collect();
        if turns.is_empty() {
            return;
        }
        let (account, turn) = self.random.pick(&turns).clone();
        let provider = self.random.chance(500).then(|| GATEWAY_ONLY.to_owned());
        let spec = ReplaySpec {
            provider,
            profile: None,
        };
        self.deeds.insert(0, Deed::Replay(account, turn, spec));
    }

    /// `POST …/replays`. As [`Self::stop`], a client without an answer gives up.
    pub(super) fn replay(&mut self, account: &AccountId, turn: TurnId, spec: &ReplaySpec) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let begun = self.database.replay_begin(account, turn, spec, self.bug);
        self.note("replay asked", [u64::from(begun.is_some()), 0], || {
            format!("turn {turn}, {spec:?}: {begun:?}; {fate:?}")
        });
        if let Some(item) = begun {
            self.counts.replayed += 1;
            self.witness.own_items(&self.database, std::slice::from_ref(&item));
            self.commit_rows(p, fate, item.messages);
        }
        true
    }

    /// When the faults end, so do all pauses: work is to end.
    pub(crate) fn release_all(&mut self) {
        let holds: Vec<(AccountId, HoldId)> = self.database.holds.keys().cloned().collect();
        self.deeds.splice(
            0..0,
            holds.into_iter().map(|(account, hold)| Deed::Release(account, hold)),
        );
    }

    /// The end of a transaction that sends these. `true`: it was answered.
    pub(super) fn commit_rows(&mut self, p: usize, fate: Fate, messages: Vec<Message>) -> bool {
        let rows = self.database.outbox_insert(Service::Orchestrator, messages);
        if fate == Fate::Committed {
            self.processes[p].relay.extend(rows);
        }
        fate == Fate::Committed
    }
}
