//! Delivery's records: a batch of outcomes, under their sessions' locks and fences. One step.

use delivery::{
    store::{SessionName, journal::Round},
    turn::{
        call::Report,
        recorder::{Change, Decided, decide},
        settle::Settled,
    },
};
use domain::{
    Actor, Fence, NotificationId, NotificationState, SessionId, SessionKind, SessionPhase, TurnId, TurnState,
};
use storage::{
    question::{Ending, Scope},
    session::{
        sessions_lock::LockedSession,
        turns_record::{Changed, ItemChange},
    },
};
use uuid::Uuid;

use super::{
    Database, DeadLetter,
    branches::BranchesEnded,
    claims::{Claimed, possible},
    moment,
    outbox::{Message, Service},
    succession::{Succeeded, Succession},
};
use crate::simulation::{bugs::Bug, settings::Settings};

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// As the service tells its dispatch queue.
    pub(crate) free: Vec<((domain::AccountId, SessionId), bool)>,
    pub(crate) outbox: Vec<Uuid>,
    pub(crate) written: Vec<Outcome>,
    /// The next turns of sessions that went on.
    pub(crate) begun: Claimed,
    /// Generations that ended with their turns.
    pub(crate) succeeded: Vec<Succeeded>,
    /// Branches that ended with their turns.
    pub(crate) ended: Vec<BranchesEnded>,
    pub(crate) stale: u64,
    /// Calls that the record of another turn answered.
    pub(crate) replay_calls: usize,
}

/// The effect of one record on its turn.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) account: domain::AccountId,
    pub(crate) session: SessionId,
    pub(crate) turn: TurnId,
    pub(crate) fence: Fence,
    /// The session's state at the write.
    pub(crate) session_fence: Fence,
    pub(crate) state: TurnState,
    /// It ended on request.
    pub(crate) stopped: bool,
    /// What waits is parked behind it.
    pub(crate) parked: bool,
}

impl Database {
    /// `SESSIONS_LOCK`, the fences, `TURNS_RECORD`, dead letters, the next turns and the outbox. `going_on`: sessions
    /// that may start their next turns, and the replica that holds their leases.
    pub(crate) fn record(
        &mut self,
        reports: &[Report],
        going_on: (&[SessionName], Uuid),
        settings: &Settings,
        bug: Option<Bug>,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let mut messages = Vec::new();
        for report in reports {
            let name = report.work.name();
            let session = self
                .session(&name, None, bug)
                .filter(|session| session.fence == report.work.turn.fence || bug == Some(Bug::FenceUnchecked));
            let Some(session) = session else {
                recorded.stale += 1;
                recorded.free.push((name, true));
                continue;
            };
            if session.facts.phase != SessionPhase::Running && bug != Some(Bug::FenceUnchecked) {
                recorded.free.push((name, true));
                continue;
            }
            let breaker = self.said(report.said(), settings);
            let decision = decide(report, &session, breaker, moment(self.now), &settings.delivery);
            let Some(mut decided) = possible(decision, bug) else {
                recorded.free.push((name, false));
                continue;
            };
            if bug != Some(Bug::ReplayPassesOn) {
                recorded.replay_calls += Self::replay_answer(&mut decided);
            }
            if !self.turn_change(&decided.change, bug) {
                recorded.free.push((name, true));
                continue;
            }
            recorded.written.push(Outcome {
                account: session.account.clone(),
                session: session.id,
                turn: report.work.turn.id,
                fence: report.work.turn.fence,
                session_fence: session.fence,
                state: decided.change.turn.state,
                stopped: matches!(decided.settled, Settled::Stopped { .. }),
                parked: decided.change.session.gate.is_some(),
            });
            self.session_change(&session, &decided.change, bug);
            self.items_change(&decided.change);
            if decided.change.turn.over && report.work.may_ask {
                let withdrawn = Ending::Withdrawn {
                    by: &Actor::system(),
                    reason: Some("the turn has ended"),
                    is_asker: true,
                };
                let of_turn = Scope::Turn(session.id, report.work.turn.id);
                messages.extend(self.questions_end_of(&session.account, of_turn, &withdrawn));
            }
            if let Some(reset) =
                decided.change.reset.as_ref().filter(|_| {
                    bug != Some(Bug::ResetForgotten) || !matches!(decided.settled, Settled::Finished { .. })
                })
            {
                let succeeded = self.succeed(&name, &Succession::by_record(reset), bug);
                messages.extend(succeeded.iter().flat_map(|succeeded| succeeded.messages.clone()));
                recorded.succeeded.extend(succeeded);
            }
            let mut ended = self.fold(&decided, bug);
            messages.append(&mut ended.messages);
            recorded.ended.push(ended);
            messages.extend(self.replay_over(&decided, bug));
            if !report.work.heard.is_heard() {
                messages.push(Message::started(report.work.turn.id));
            }
            messages.extend(self.messages(&decided, bug));
            let goes_on = going_on.0.contains(&name) && decided.may_go_on();
            let begun = recorded.begun.work.len();
            // A run that may still grow and a rotation are left to a claim: the real transaction begins again without going on.
            let rested = decided.rested(Changed::default());
            if goes_on && !self.would_rotate(&rested, settings) {
                self.start(&rested, going_on.1, settings, bug, &mut recorded.begun);
                recorded.begun.parked.clear();
            }
            if recorded.begun.work.len() == begun {
                recorded.free.push((name, decided.change.more));
            }
        }
        recorded.outbox = self.outbox_insert(Service::Delivery, messages);
        self.version += 1;
        recorded
    }

    /// Turns and replies in `TURNS_RECORD`. `false`: not in flight under this fence.
    fn turn_change(&mut self, change: &Change, bug: Option<Bug>) -> bool {
        let now = self.now;
        let turn = &change.turn;
        let called = |name: &str| {
            self.calls.iter().any(|((account, _), call)| {
                *account == turn.account_id
                    && call.turn == Some(turn.id)
                    && call.name == name
                    && call.state == domain::ToolCallState::Finished
            })
        };
        let no_reply = turn.state == TurnState::Finished && called("no_reply");
        let Some(row) = self.turns.get_mut(&(turn.account_id.clone(), turn.id)) else {
            return false;
        };
        let ours = row.fence == turn.fence || bug == Some(Bug::FenceUnchecked);
        if !ours || !turn.sources.contains(&row.state) {
            return false;
        }
        row.state = turn.state;
        row.attempt = turn.attempt;
        row.failures = turn.failures;
        if let Some(round) = &turn.round {
            let round: Round = serde_json::from_value(round.clone()).expect("what was written is read");
            row.journal.rounds.push(round);
        }
        row.waiting_since = turn.waits.then_some(now);
        row.failed_epoch = turn.failed_epoch;
        row.lost_at = turn.lost.then(|| row.lost_at.unwrap_or(now));
        row.reply = turn.reply.clone().or(row.reply.take());
        row.error.clone_from(&turn.error);
        row.no_reply = no_reply;
        row.late = turn.late;
        if let Some(context) = &turn.context {
            row.context.clone_from(context);
        }
        if let Some(message) = turn.posted_as
            && !no_reply
            && row.task.is_some()
        {
            self.messages
                .entry((turn.account_id.clone(), message))
                .or_insert(turn.id);
        }
        true
    }

    /// Sessions in `TURNS_RECORD`.
    fn session_change(&mut self, session: &LockedSession, change: &Change, bug: Option<Bug>) {
        let (now, turn) = (self.now, change.turn.id);
        let row = self.sessions.get_mut(&session.name()).expect("locked");
        let change = &change.session;
        row.phase = change.phase;
        row.lease_owner = None;
        row.active_turn = row.active_turn.filter(|_| change.keeps_turn);
        row.wake_at = change.wake_ms.map(|ms| now + ms);
        row.asked = change.asked.unwrap_or(row.asked);
        row.queued += change.queued;
        row.interrupted |= change.interrupted;
        if let Some(stop) = &mut row.stop
            && bug != Some(Bug::StopKept)
        {
            stop.turn = stop.turn.filter(|_| change.keeps_turn);
        }
        let told = change
            .stopped
            .filter(|told| bug != Some(Bug::StopToldOnce) || *told == turn);
        row.stopped_turn = told.or(row.stopped_turn);
        row.gate = change.gate;
        row.thread = change.thread.clone();
    }

    /// Notifications in `TURNS_RECORD`.
    fn items_change(&mut self, change: &Change) {
        let ids = |items: &ItemChange| items.notification_ids.clone().into_iter();
        for (items, id) in change
            .items
            .iter()
            .flat_map(|items| ids(items).map(move |id| (items, id)))
        {
            let id = NotificationId::parse(&id).expect("ids of rows are ids");
            if let Some(row) = self.notifications.get_mut(&(items.account_id.clone(), id))
                && row.turn == Some(items.turn_id)
                && row.state == NotificationState::Running
            {
                row.state = items.state;
                row.reason.clone_from(&items.reason);
                row.attempts += items.attempts_more;
            }
        }
    }

    fn messages(&mut self, decided: &Decided<'_>, bug: Option<Bug>) -> Vec<Message> {
        let (work, session) = (&decided.report.work, decided.session);
        let is_replay = session.replay.is_some();
        let over = match is_replay {
            true => Message::replayed(work.turn.id),
            false => Message::finished(work.turn.id),
        };
        match &decided.settled {
            Settled::AwaitTools { round } => round
                .calls
                .iter()
                .filter(|call| call.answered.is_none())
                .take(if bug == Some(Bug::OrderGivenUp) { usize::MAX } else { 1 })
                .map(|call| self.request(session.turn(work.turn.id, work.turn.task.clone()), work.agent_id, call))
                .collect(),
            Settled::Again { .. } | Settled::FreshStart { .. } | Settled::LookAgain { .. } => Vec::new(),
            Settled::GaveUp { .. } => {
                for id in decided.change.ended().filter(|_| !is_replay) {
                    self.bury(&work.turn.account, id);
                }
                vec![over]
            }
            Settled::Finished { .. } | Settled::Interrupted { .. } | Settled::Aborted | Settled::Stopped { .. } => {
                vec![over]
            }
        }
    }

    /// The notification itself, for a redrive.
    fn bury(&mut self, account: &domain::AccountId, id: &str) {
        let id = NotificationId::parse(id).expect("ids of rows are ids");
        let Some(row) = self.notifications.get(&(account.clone(), id.clone())) else {
            return;
        };
        let (subject, payload) = (row.subject.clone(), row.payload.clone());
        let session = row
            .place
            .and_then(|(session, _)| self.sessions.get(&(account.clone(), session)));
        let own =
            session.filter(|row| matches!(row.conversation.kind(), SessionKind::Orchestrator | SessionKind::Guest));
        let (agent, own) = (row.agent.filter(|_| own.is_none()), own.map(|row| row.key.clone()));
        let letter = DeadLetter {
            id: self.fresh_id(),
            account: Some(account.clone()),
            subject,
            payload: for_one(&payload, &id, (agent, own)),
            notification: Some(id),
            redrives: 0,
        };
        self.dead_letters.push(letter);
    }
}

/// A notification as its publisher could have sent it to its one agent, or to the session of an orchestrator (`store/refused.rs`).
fn for_one(
    payload: &bytes::Bytes,
    id: &NotificationId,
    (agent, session): (Option<domain::AgentId>, Option<String>),
) -> bytes::Bytes {
    let Ok(mut message) = serde_json::from_slice::<contracts::notification::NotificationMessage>(payload) else {
        return payload.clone();
    };
    message.id = Some(id.clone());
    message.agent = agent.map(|agent| agent.to_string());
    message.agents = Vec::new();
    message.session = session;
    serde_json::to_vec(&message).expect("what was read is written").into()
}
