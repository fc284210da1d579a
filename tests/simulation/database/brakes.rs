//! Brakes and gates: requests to stop turns, parked sessions, and what arrivals do to both. Each is a part of a transaction
//! that holds the sessions' locks.

use contracts::session::SessionStopRequested;
use delivery::store::SessionName;
use domain::{Gate, Generation, NotificationState, SessionEvent, StopKind, StopThen, TurnId};
use storage::session::{arrivals::Arrived, sessions_park::Park, turn_stop::StopRequest};
use uuid::Uuid;

use super::{Database, StopRow, claims::possible};
use crate::simulation::bugs::Bug;

/// What a person's request to stop did.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// The turn that is to end, by what the person asked.
    pub(crate) expected: Option<TurnId>,
    pub(crate) stops: Vec<SessionStopRequested>,
}

impl Database {
    /// `TURN_STOP`.
    pub(crate) fn turn_stop(&mut self, asked: &[StopRequest<'_>], bug: Option<Bug>) -> Vec<SessionStopRequested> {
        let mut stops: Vec<SessionStopRequested> = Vec::new();
        for asked in asked {
            let now = self.now;
            let Some(row) = self.sessions.get(&asked.session) else {
                continue;
            };
            let Some(active) = row.active_turn else { continue };
            let is_named = asked.turn.is_none_or(|turn| turn == active) || bug == Some(Bug::StopHitsSuccessor);
            let task = self.turns[&(asked.session.0.clone(), active)]
                .task
                .as_ref()
                .map(|task| task.key());
            let of_task = matches!(asked.kind, StopKind::Steered | StopKind::Cancelled);
            let is_of_task = !of_task || task == asked.task.map(|task| task.key());
            if !is_named || !is_of_task {
                continue;
            }
            let row = self.sessions.get_mut(&asked.session).expect("locked");
            row.on(SessionEvent::StopAsked, bug);
            row.stop = Some(StopRow {
                turn: Some(active),
                kind: asked.kind,
                by: asked.by.to_owned(),
                at: now,
                then: asked.then,
            });
            if matches!(row.phase, domain::SessionPhase::Waiting | domain::SessionPhase::Backoff) {
                row.wake_at = Some(now);
            }
            let requested = SessionStopRequested {
                account: asked.session.0.clone(),
                task: asked.task.cloned(),
                session_id: asked.session.1,
                session_key: row.key.clone(),
                generation: Generation(row.generation),
                turn_id: active,
                kind: asked.kind,
            };
            // One row of several requests of a session is written, and one message of it is sent.
            if !stops.iter().any(|stop| stop.session_id == requested.session_id) {
                stops.push(requested);
            }
            self.version += 1;
        }
        stops
    }

    /// `arrivals_apply`. Gives the messages, and the sessions whose gates were opened.
    pub(super) fn arrivals_apply(
        &mut self,
        arrived: &[Arrived<'_>],
        bug: Option<Bug>,
    ) -> (Vec<SessionStopRequested>, Vec<SessionName>) {
        let name = |item: &Arrived<'_>| (item.conversation.account.clone(), item.session.id);
        let asked: Vec<StopRequest<'_>> = arrived
            .iter()
            .filter(|item| item.stops())
            .map(|item| StopRequest {
                session: name(item),
                turn: item.session.active_turn,
                kind: StopKind::Steered,
                by: &item.sender.name,
                then: StopThen::Continue,
                task: item.task,
            })
            .collect();
        let mut released: Vec<SessionName> = arrived.iter().filter(|item| item.opens()).map(name).collect();
        released.sort_unstable();
        released.dedup();
        self.sessions_unpark(&released, bug);
        let mut first: Vec<SessionName> = arrived.iter().filter(|item| item.goes_first()).map(name).collect();
        first.dedup();
        for name in &first {
            self.sessions_look(name);
        }
        let stops = self.turn_stop(&asked, bug);
        for item in arrived.iter().filter(|item| item.keeps_open()) {
            self.stop_continues(&name(item));
        }
        if bug == Some(Bug::SteerDropsQueue) {
            self.drop_queues(&stops);
        }
        (stops, released)
    }

    /// For a planted bug: what waits when a steer arrives is cancelled.
    fn drop_queues(&mut self, stops: &[SessionStopRequested]) {
        for stop in stops {
            let waiting = self.notifications.iter_mut().filter(|((account, _), row)| {
                *account == stop.account
                    && row.state == NotificationState::Queued
                    && row.mode != domain::QueueMode::Steer
                    && row.place.is_some_and(|(session, _)| session == stop.session_id)
            });
            let mut dropped = 0;
            for (_, row) in waiting {
                row.state = NotificationState::Cancelled;
                row.reason = Some("task closed".to_owned());
                dropped += 1;
            }
            let session = self
                .sessions
                .get_mut(&(stop.account.clone(), stop.session_id))
                .expect("locked");
            session.queued -= dropped;
        }
    }

    /// `SESSIONS_PARK`.
    pub(super) fn sessions_park(&mut self, park: &Park) {
        let now = self.now;
        let row = self.sessions.get_mut(&park.session).expect("locked");
        row.phase = park.phase;
        row.lease_owner = None;
        (row.gate, row.gate_ref) = (Some(park.gate), park.gate_ref);
        row.wake_at = park.wake_ms.map(|ms| now + ms);
    }

    /// `SESSIONS_UNPARK`.
    pub(super) fn sessions_unpark(&mut self, names: &[SessionName], bug: Option<Bug>) {
        let now = self.now;
        for name in names {
            let row = self.sessions.get_mut(name).expect("locked");
            if row.gate.is_some() && row.active_turn.is_none() {
                row.on(SessionEvent::Unparked, bug);
                row.gate = None;
                row.wake_at = Some(now);
            }
        }
    }

    /// `SESSIONS_LOOK`.
    pub(super) fn sessions_look(&mut self, name: &SessionName) {
        let now = self.now;
        let row = self.sessions.get_mut(name).expect("locked");
        if row.gate.is_some_and(|gate| gate != Gate::Stopped) && row.active_turn.is_none() {
            row.wake_at = Some(now);
        }
    }

    /// `POST …/stop`: `SESSIONS_LOCK`, `turn_to_stop`, `TURN_STOP`.
    pub(crate) fn person_stops(
        &mut self,
        session: &SessionName,
        named: Option<TurnId>,
        (by, then): (&str, StopThen),
        bug: Option<Bug>,
    ) -> Stopped {
        let active = self.sessions.get(session).and_then(|row| row.active_turn);
        let expected = active.filter(|active| named.is_none_or(|named| named == *active));
        let turn = expected.or(active.filter(|_| bug == Some(Bug::StopHitsSuccessor)));
        let request = turn.map(|turn| StopRequest {
            session: session.clone(),
            turn: Some(turn),
            kind: StopKind::Stopped,
            by,
            then,
            task: None,
        });
        let stops = self.turn_stop(request.as_slice(), bug);
        Stopped { expected, stops }
    }

    /// `STOPS_CONTINUE`.
    pub(super) fn stop_continues(&mut self, session: &SessionName) {
        let stop = self.sessions.get_mut(session).and_then(|row| row.stop.as_mut());
        if let Some(stop) = stop.filter(|stop| stop.turn.is_some()) {
            stop.then = StopThen::Continue;
        }
    }

    /// `POST …/resume`: `SESSIONS_LOCK`, `STOPS_CONTINUE`, `SESSIONS_UNPARK`. `true`: delivery is woken.
    pub(crate) fn person_resumes(&mut self, session: &SessionName, bug: Option<Bug>) -> bool {
        if self.sessions.get(session).is_some_and(|row| row.will_hold()) {
            self.stop_continues(session);
        }
        let parked = self
            .sessions
            .get(session)
            .is_some_and(|row| row.gate == Some(Gate::Stopped) && row.closed.is_none());
        if parked {
            self.sessions_unpark(std::slice::from_ref(session), bug);
            self.version += 1;
        }
        parked
    }

    /// `STOPS_FIND`: the turn that is to end, and its session's fence.
    pub(crate) fn stop_found(&self, name: &SessionName) -> Option<(TurnId, domain::Fence)> {
        let row = self.sessions.get(name)?;
        let asked = row.stop.as_ref()?.turn?;
        (row.active_turn == Some(asked)).then_some((asked, row.fence))
    }

    /// `session_stopping`.
    pub(crate) fn stopping(&self, replica: Uuid) -> Vec<SessionName> {
        self.sessions
            .iter()
            .filter(|(name, row)| row.lease_owner == Some(replica) && self.stop_found(name).is_some())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Sessions that a stop keeps from starting what waits.
    pub(crate) fn parked(&self) -> Vec<SessionName> {
        self.sessions
            .iter()
            .filter(|(_, row)| row.gate == Some(Gate::Stopped) && row.closed.is_none())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Sessions with a turn in progress.
    pub(crate) fn busy(&self) -> Vec<SessionName> {
        self.sessions
            .iter()
            .filter(|(_, row)| row.active_turn.is_some())
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub(crate) fn turns_of(&self, session: &SessionName) -> Vec<TurnId> {
        let of_session = self
            .turns
            .iter()
            .filter(|((account, _), turn)| *account == session.0 && turn.session == session.1);
        of_session.map(|((_, id), _)| *id).collect()
    }

    /// A park of a session whose run may still grow; none where the state does not allow it.
    pub(super) fn park_for_collect(
        session: &storage::session::sessions_lock::LockedSession,
        ms: i64,
        bug: Option<Bug>,
    ) -> Option<Park> {
        let state = possible(session.facts.state().on(SessionEvent::Parked), bug)?;
        Some(Park {
            session: session.name(),
            phase: state.phase,
            gate: Gate::Collect,
            gate_ref: None,
            wake_ms: Some(ms),
        })
    }
}
