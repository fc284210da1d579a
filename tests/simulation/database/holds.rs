//! Holds, as `storage::hold` sets and releases them and a claim reads them. A claim is one step here, so no hold is set between its
//! look and its commit, and nothing is left for `hold_settle` to do.

use contracts::session::SessionStopRequested;
use delivery::store::SessionName;
use domain::{
    AccountId, Gate, HoldId, HoldRunning, HoldScope, SessionEvent, StopKind, StopThen, TaskId,
    hold::{Held, Hold, kept_by},
};
use storage::session::{sessions_lock::LockedSession, sessions_park::Park, turn_stop::StopRequest};

use super::{Database, claims::possible, millis, outbox::Message};
use crate::simulation::{bugs::Bug, settings::Settings};

impl Database {
    /// `HOLDS_EXPIRE`, `HOLD_SET` and, for a hold that ends turns, `TURNS_IN_SCOPE` with `TURN_STOP`. Gives its id, and the turns
    /// that are to end.
    pub(crate) fn hold_set(
        &mut self,
        account: &AccountId,
        hold: Hold,
        bug: Option<Bug>,
    ) -> (HoldId, Vec<SessionStopRequested>) {
        self.version += 1;
        let same = self.holds_active(account).into_iter().find(|other| {
            (other.scope_kind, &other.scope_id, &other.by_name) == (hold.scope_kind, &hold.scope_id, &hold.by_name)
        });
        let id = same.map_or(hold.id, |same| same.id);
        let hold = Hold { id, ..hold };
        let mut stops = Vec::new();
        if hold.running == HoldRunning::Stop {
            let in_scope: Vec<SessionName> = self
                .of_account(account)
                .filter(|(name, row)| {
                    let turn = row.active_turn.map(|turn| &self.turns[&(account.clone(), turn)]);
                    turn.is_some_and(|turn| {
                        let held = Held {
                            session: name.1,
                            agent: Some(turn.agent),
                            task: turn.task.as_ref(),
                        };
                        hold.covers(held) && !row.is_stopping(bug)
                    })
                })
                .map(|(name, _)| name.clone())
                .collect();
            let asked: Vec<StopRequest<'_>> = in_scope
                .iter()
                .map(|session| StopRequest {
                    session: session.clone(),
                    turn: self.sessions[session].active_turn,
                    kind: StopKind::Paused,
                    by: &hold.by_name,
                    then: StopThen::Continue,
                    task: None,
                })
                .collect();
            stops = self.turn_stop(&asked, bug);
        }
        self.holds.insert((account.clone(), id), hold);
        (id, stops)
    }

    /// `HOLD_RELEASE`, then `PARKED_BY` and `SESSIONS_UNPARK`. Gives the messages for delivery.
    pub(crate) fn hold_release(&mut self, account: &AccountId, id: HoldId, bug: Option<Bug>) -> Vec<Message> {
        self.holds.remove(&(account.clone(), id));
        self.version += 1;
        let kept: Vec<SessionName> = self
            .of_account(account)
            .filter(|(_, row)| row.gate == Some(Gate::Pause) && row.gate_ref == Some(id.uuid()))
            .map(|(name, _)| name.clone())
            .collect();
        self.sessions_unpark(&kept, bug);
        kept.iter().map(|name| self.wake_up(name)).collect()
    }

    /// `HOLDS_ACTIVE`.
    fn holds_active(&self, account: &AccountId) -> Vec<Hold> {
        let of_account = self.holds.iter().filter(|((owner, _), _)| owner == account);
        let active = of_account.filter(|(_, hold)| hold.until.is_none_or(|until| until > self.now()));
        active.map(|(_, hold)| hold.clone()).collect()
    }

    /// The hold that keeps a session from starting, or a turn from getting injects.
    pub(super) fn kept(&self, session: &LockedSession, task: Option<&TaskId>, bug: Option<Bug>) -> Option<Hold> {
        if self.holds.is_empty() || bug == Some(Bug::PauseUnread) {
            return None;
        }
        let held = Held {
            session: session.id,
            agent: session.agent_id,
            task,
        };
        kept_by(&self.holds_active(&session.account), held).cloned()
    }

    /// As `not_held` of `starter.rs`.
    pub(super) fn park_for_hold(
        &self,
        session: &LockedSession,
        hold: &Hold,
        settings: &Settings,
        bug: Option<Bug>,
    ) -> Option<Park> {
        let state = possible(session.facts.state().on(SessionEvent::Parked), bug)?;
        let look_ms = settings.delivery.hold_look_ms.i64();
        let left = hold.until.map(|until| millis(until) - self.now);
        Some(Park {
            session: session.name(),
            phase: state.phase,
            gate: Gate::Pause,
            gate_ref: Some(hold.id.uuid()),
            wake_ms: Some(left.map_or(look_ms, |left| left.clamp(1, look_ms))),
        })
    }
}

/// What a hold of this scope names.
pub(crate) fn scope_id(scope: HoldScope, (account, session): &SessionName, database: &Database) -> Option<String> {
    let conversation = &database.sessions[&(account.clone(), *session)].conversation;
    match scope {
        HoldScope::Account => Some(account.to_string()),
        HoldScope::Task => conversation.task().map(ToString::to_string),
        HoldScope::Agent => Some(conversation.agent.to_string()),
        HoldScope::Session => Some(session.to_string()),
    }
}
