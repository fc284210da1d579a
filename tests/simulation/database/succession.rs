//! Generations that end while their work goes on: a reset, which a person asks for, and a rotation, by rule. Each is a part of a
//! transaction that holds the session's lock.

use contracts::session::SessionStopRequested;
use delivery::{store::SessionName, turn::change::Reset};
use domain::{
    AccountId, BranchEvent, BranchId, CloseReason, Gate, HoldScope, NotificationId, NotificationState, ResetInFlight,
    ResetQueue, ResetRequest, SESSION_RESET, SessionId, StopKind, StopThen, TurnId, context::Rotated,
};
use storage::session::{sessions_lock::LockedSession, turn_stop::StopRequest};

use super::{Database, SessionRow, branches::BranchesEnded, lifecycle::Carried, moment, outbox::Message};
use crate::simulation::bugs::Bug;

/// As `session_succeed.rs`.
#[derive(Clone, Debug)]
pub(crate) enum Succession {
    Rotated(Rotated),
    Reset {
        request: ResetRequest,
        put_back: Vec<String>,
        gate: Option<Gate>,
    },
}

impl Succession {
    /// Of a session without a turn in progress, whose reset has waited for the end of one.
    pub(super) fn by_reset(session: &LockedSession) -> Option<Succession> {
        let request = session.reset.clone()?;
        Some(Succession::Reset {
            request,
            put_back: Vec::new(),
            gate: None,
        })
    }

    /// Of a session whose turn has just ended.
    pub(super) fn by_record(reset: &Reset) -> Succession {
        Succession::Reset {
            request: reset.request.clone(),
            put_back: reset.put_back.clone(),
            gate: reset.gate,
        }
    }
}

/// A generation that ended, and the next one, for the witness.
#[derive(Debug)]
pub(crate) struct Succeeded {
    pub(crate) old: SessionName,
    pub(crate) next: SessionId,
    pub(crate) succession: Succession,
    pub(crate) moved: Vec<NotificationId>,
    pub(crate) cancelled: Vec<NotificationId>,
    pub(crate) branches: BranchesEnded,
    pub(crate) messages: Vec<Message>,
}

/// What a person's reset did.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time, in the simulation only")]
pub(crate) enum Asked {
    /// The generation is closed.
    Refused,
    Done(Succeeded),
    Stopping(TurnId, Vec<SessionStopRequested>),
}

impl Database {
    /// `session_succeed`: `CLOSE`, `LOCK_ITEMS`, `UNCOUNT`, `CANCEL`, `OPEN_NEXT`, `MOVE` and `SESSION_SCOPES`.
    pub(super) fn succeed(
        &mut self,
        name: &SessionName,
        succession: &Succession,
        bug: Option<Bug>,
    ) -> Option<Succeeded> {
        let (now, (account, old)) = (self.now, name);
        if self.sessions[name].closed.is_some() {
            return None;
        }
        let mut branches = match succession {
            Succession::Rotated(_) => BranchesEnded::default(),
            Succession::Reset { .. } => self.branches_reset(name, bug),
        };
        let row = self.sessions.get_mut(name).expect("locked");
        let reason = match succession {
            Succession::Rotated(_) => CloseReason::Rotated,
            Succession::Reset { .. } => CloseReason::Reset,
        };
        row.close(now, reason, bug);
        let queue = self.queue(account, *old);
        let queue: Vec<NotificationId> = queue.into_iter().map(|(_, id, _)| id.clone()).collect();
        let (moved, cancelled): (Vec<_>, Vec<_>) = queue
            .into_iter()
            .partition(|id| self.moves(account, id, succession, bug));
        for id in &cancelled {
            let item = self
                .notifications
                .get_mut(&(account.clone(), id.clone()))
                .expect("locked");
            item.state = NotificationState::Cancelled;
            item.reason = Some(SESSION_RESET.to_owned());
        }
        let mut messages = std::mem::take(&mut branches.messages);
        messages.push(self.closed_message(account, *old, reason));
        let carried = match succession {
            Succession::Rotated(rotated) => Carried {
                rotated: Some(rotated.clone()),
                stopped: true,
                gate: None,
            },
            Succession::Reset { put_back, gate, .. } => Carried {
                rotated: None,
                stopped: !put_back.is_empty(),
                gate: *gate,
            },
        };
        let left = bug == Some(Bug::RotatedLeavesQueue) && reason == CloseReason::Rotated;
        let moved = if left { Vec::new() } else { moved };
        if !left {
            self.sessions.get_mut(name).expect("locked").queued = 0;
        }
        let (next, wake) = self.open_next(account, *old, &moved, &carried);
        messages.extend(wake.filter(|_| !moved.is_empty() && carried.gate.is_none()));
        for ((owner, _), hold) in &mut self.holds {
            if owner == account && hold.scope_kind == HoldScope::Session && hold.scope_id == old.to_string() {
                hold.scope_id = next.to_string();
            }
        }
        self.version += 1;
        Some(Succeeded {
            old: name.clone(),
            next,
            succession: succession.clone(),
            moved,
            cancelled,
            branches,
            messages,
        })
    }

    fn branches_reset(&mut self, (account, session): &SessionName, bug: Option<Bug>) -> BranchesEnded {
        let live = self.branches_live(account);
        let own = live.iter().filter(|branch| branch.parent_session_id == *session);
        let ends: Vec<(BranchId, BranchEvent)> = own.map(|branch| (branch.id, BranchEvent::Cancelled)).collect();
        self.branch_end(account, &ends, (&[*session], false), bug)
    }

    fn moves(&self, account: &AccountId, id: &NotificationId, succession: &Succession, bug: Option<Bug>) -> bool {
        let item = &self.notifications[&(account.clone(), id.clone())];
        match succession {
            Succession::Rotated(_) => true,
            Succession::Reset { request, put_back, .. } => match request.queue {
                ResetQueue::Keep => true,
                ResetQueue::Cancel => {
                    let is_later = moment(item.created_at) > request.at.0 && bug != Some(Bug::ResetCancelsLater);
                    is_later || put_back.contains(&id.to_string())
                }
            },
        }
    }

    /// `POST …/reset`: `SESSIONS_LOCK`, then `session_reset`. Not of a branch.
    pub(crate) fn person_resets(&mut self, session: &SessionName, request: ResetRequest, bug: Option<Bug>) -> Asked {
        let resets = |row: &&SessionRow| row.closed.is_none() && row.conversation.branch().is_none();
        let Some(row) = self.sessions.get(session).filter(resets) else {
            return Asked::Refused;
        };
        let Some(turn) = row.active_turn else {
            let reset = Succession::Reset {
                request,
                put_back: Vec::new(),
                gate: None,
            };
            return self.succeed(session, &reset, bug).map_or(Asked::Refused, Asked::Done);
        };
        let stop = StopRequest {
            session: session.clone(),
            turn: Some(turn),
            kind: StopKind::Reset,
            by: &request.by.name,
            then: StopThen::Continue,
            task: None,
        };
        let stops = self.turn_stop(&[stop], bug);
        self.sessions.get_mut(session).expect("locked").reset = Some(request);
        self.version += 1;
        Asked::Stopping(turn, stops)
    }

    /// The open sessions, for somebody who looks for one to reset.
    pub(crate) fn open_sessions(&self) -> Vec<SessionName> {
        let open = self.sessions.iter().filter(|(_, row)| row.closed.is_none());
        open.map(|(name, _)| name.clone()).collect()
    }
}

/// Choices of a person.
pub(crate) const QUEUES: &[ResetQueue] = ResetQueue::ALL;
pub(crate) const IN_FLIGHT: &[ResetInFlight] = ResetInFlight::ALL;
