//! Writes over several owners: a task is moved, an agent is removed, and their sessions close. One step each: the closer locks its
//! task or agent and all of the sessions.

use std::collections::BTreeSet;

use contracts::session::{SessionClosed, SessionResolved};
use domain::{
    AccountId, Actor, AgentId, BranchEvent, BranchId, CloseReason, Gate, Generation, NotificationId, NotificationState,
    Owner, SessionEvent, SessionId, SessionPhase, StopKind, StopThen, TASK_CLOSED, TaskId, TaskStatus, TurnId,
    TurnState, UserId, context::Rotated,
};
use storage::{
    lifecycle::close_reason,
    question::{self, Ending},
    session::{
        Closing, Waiting,
        branch_end::branches_below,
        judge,
        sessions_close::{AGENT_REMOVED, MEMBER_REMOVED},
        turn_stop::StopRequest,
    },
};

use super::{Database, StopRow, branches::BranchesEnded, moment, outbox::Message};
use crate::simulation::bugs::Bug;

/// Nobody reads it: the reason of what is cancelled names the task.
pub(crate) const CANCELLED_BY: &str = "Eve";

/// The sessions and items to close.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    Task(&'a TaskId),
    Agent(AgentId),
    /// A person's orchestrator.
    User(&'a UserId),
}

/// Steers stand so far before other items of their number.
const STEERS_BEFORE: i64 = 1 << 40;

/// What the next generation takes over, besides items and the note of an interruption (`sessions_close.rs`).
#[derive(Clone, Default, Debug)]
pub(crate) struct Carried {
    pub(crate) rotated: Option<Rotated>,
    pub(crate) stopped: bool,
    pub(crate) gate: Option<Gate>,
}

/// The closed sessions and items, for the witness.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) cancelled: Vec<NotificationId>,
    /// Turns that were asked to stop.
    pub(crate) cut: Vec<TurnId>,
    pub(crate) branches: BranchesEnded,
    pub(crate) messages: Vec<Message>,
}

impl Database {
    /// `TASKS_LOCK`, `BLOCKERS_OPEN`, [`Self::status_write`], `TURN_START`, [`Self::close`], `QUESTIONS_END_OF_TASK` and `CLEAR_OF_TASK`.
    /// `None`: no such task, or it waits for others.
    pub(crate) fn task_status_set(
        &mut self,
        account: &AccountId,
        task: &TaskId,
        to: TaskStatus,
        turn: Option<TurnId>,
        bug: Option<Bug>,
    ) -> Option<Closed> {
        let from = self.tasks.get(&(account.clone(), task.key()))?.status;
        let is_kept = from != to && !to.is_free_of_blockers() && self.waits(account, task);
        if is_kept && bug != Some(Bug::BlockerUnread) {
            return None;
        }
        let by = self.mover(account, turn);
        let mut messages = self.status_write((account, task), to, by, bug);
        self.version += 1;
        let Some(reason) = close_reason(to) else {
            return Some(Closed {
                messages,
                ..Closed::default()
            });
        };
        let closing = match to {
            TaskStatus::Done => {
                let started = turn
                    .and_then(|turn| self.turns.get(&(account.clone(), turn)))
                    .map(|turn| turn.started_at);
                Closing::TaskDone {
                    since: moment(started.unwrap_or(self.now)),
                }
            }
            _ => Closing::Ended,
        };
        let mut closed = self.close(account, Scope::Task(task), reason, closing, bug);
        closed.messages.append(&mut messages);
        let ending = Ending::Cancelled { reason: TASK_CLOSED };
        if bug != Some(Bug::QuestionsOutliveTask) {
            let asked = question::Scope::Task(task);
            closed.messages.extend(self.questions_end_of(account, asked, &ending));
        }
        if bug != Some(Bug::TimersOutliveTask) {
            self.timers_clear(account, |timer| timer.task.as_ref() == Some(&task.key()));
        }
        if to == TaskStatus::Cancelled {
            self.cut(account, task, turn, &mut closed, bug);
        }
        Some(closed)
    }

    /// `TURN_STOP` of the turns in progress on a cancelled task, but the one that cancels it.
    fn cut(&mut self, account: &AccountId, task: &TaskId, own: Option<TurnId>, closed: &mut Closed, bug: Option<Bug>) {
        let in_progress = self
            .of_account(account)
            .filter(|(_, row)| row.conversation.branch().is_none())
            .filter_map(|((_, id), row)| Some((*id, row.active_turn?)));
        let asked: Vec<StopRequest<'_>> = in_progress
            .filter(|(_, turn)| own != Some(*turn))
            .map(|(session, turn)| StopRequest {
                session: (account.clone(), session),
                turn: Some(turn),
                kind: StopKind::Cancelled,
                by: CANCELLED_BY,
                then: StopThen::Continue,
                task: Some(task),
            })
            .collect();
        let stops = self.turn_stop(&asked, bug);
        closed.cut = stops.iter().map(|stop| stop.turn_id).collect();
        closed
            .messages
            .extend(stops.into_iter().map(Message::SessionStopRequested));
    }

    /// `AGENT_REMOVE`, [`Self::close`], `QUESTIONS_END_OF_AGENT` and `CLEAR_OF_AGENT`. `None`: no such agent, or already removed.
    pub(crate) fn agent_remove(&mut self, account: &AccountId, agent: AgentId, bug: Option<Bug>) -> Option<Closed> {
        let row = self.agents.get_mut(&(account.clone(), agent))?;
        if row.removed {
            return None;
        }
        row.removed = true;
        let mut closed = self.close(
            account,
            Scope::Agent(agent),
            CloseReason::AgentRemoved,
            Closing::Ended,
            bug,
        );
        let withdrawn = Ending::Withdrawn {
            by: &Actor::system(),
            reason: Some(AGENT_REMOVED),
            is_asker: true,
        };
        closed
            .messages
            .extend(self.questions_end_of(account, question::Scope::Agent(agent), &withdrawn));
        self.timers_clear(account, |timer| timer.conversation.agent == agent);
        Some(closed)
    }

    /// `MEMBER_REMOVE`, [`Self::close`], `QUESTIONS_END_OF_ORCHESTRATOR` and `CLEAR_OF_ORCHESTRATOR`. `None`: no such person, or already removed.
    pub(crate) fn member_remove(&mut self, account: &AccountId, user: &UserId, bug: Option<Bug>) -> Option<Closed> {
        let removed = self.members.get_mut(&(account.clone(), user.clone()))?;
        if std::mem::replace(removed, true) {
            return None;
        }
        self.version += 1;
        if bug == Some(Bug::PersonLeavesSession) {
            return Some(Closed::default());
        }
        let (reason, closing) = (CloseReason::MemberRemoved, Closing::Ended);
        let mut closed = self.close(account, Scope::User(user), reason, closing, bug);
        let owner = Owner::User(user.clone());
        let withdrawn = Ending::Withdrawn {
            by: &Actor::system(),
            reason: Some(MEMBER_REMOVED),
            is_asker: true,
        };
        let asked = question::Scope::Orchestrator(&owner);
        closed
            .messages
            .extend(self.questions_end_of(account, asked, &withdrawn));
        self.timers_clear(account, |timer| timer.conversation.orchestrator() == Some(&owner));
        Some(closed)
    }

    /// `UNCOUNT`. A mistake may have left an item in a session that was removed.
    fn uncount(&mut self, account: &AccountId, session: SessionId) {
        if let Some(row) = self.sessions.get_mut(&(account.clone(), session)) {
            row.queued -= 1;
        }
    }

    /// `LOCK_TRIED`: items of turns that wait for their next attempt, in the order of their queues.
    pub(super) fn lock_tried(&self, account: &AccountId, ids: &[SessionId]) -> Vec<(NotificationId, SessionId, i64)> {
        let mut items = Vec::new();
        for id in ids {
            let session = &self.sessions[&(account.clone(), *id)];
            let turn = session.active_turn.filter(|_| session.phase == SessionPhase::Backoff);
            let Some(turn) = turn else { continue };
            let row = &self.turns[&(account.clone(), turn)];
            if row.state != TurnState::Started {
                continue;
            }
            for id in &row.notifications {
                let item = &self.notifications[&(account.clone(), id.clone())];
                if let Some((session, position)) = item.place
                    && item.state == NotificationState::Running
                    && item.turn == Some(turn)
                {
                    items.push((id.clone(), session, position));
                }
            }
        }
        items.sort_unstable_by_key(|(_, session, position)| (*session, *position));
        items
    }

    /// `CLOSE`, `LOCK_TRIED`, `LOCK_ITEMS`, `UNCOUNT`, `CANCEL`, then `OPEN_NEXT` and `MOVE` for items that carry over.
    fn close(
        &mut self,
        account: &AccountId,
        scope: Scope<'_>,
        reason: CloseReason,
        closing: Closing,
        bug: Option<Bug>,
    ) -> Closed {
        let now = self.now;
        let ids: Vec<SessionId> = self
            .of_account(account)
            .filter(|(_, row)| {
                row.closed.is_none()
                    && (row.conversation.branch().is_none() || row.replay.is_some())
                    && match scope {
                        Scope::Task(task) => row.conversation.task() == Some(&task.key()),
                        Scope::Agent(agent) => row.conversation.agent == agent,
                        Scope::User(user) => {
                            [row.conversation.person(), row.conversation.guest()].contains(&Some(user))
                        }
                    }
            })
            .map(|((_, id), _)| *id)
            .collect();
        let branches = self.branches_close(account, scope, &ids, bug);
        for id in &ids {
            let row = self.sessions.get_mut(&(account.clone(), *id)).expect("locked");
            row.close(now, reason, bug);
        }
        let mut items: Vec<(NotificationId, SessionId, i64)> = self
            .notifications
            .iter()
            .filter(|((owner, _), row)| owner == account && row.state == NotificationState::Queued)
            .filter_map(|((_, id), row)| row.place.map(|(session, position)| (id, row, session, position)))
            .filter(|(_, row, session, _)| {
                let of_task = matches!(scope, Scope::Task(task) if row.task.as_ref() == Some(&task.key()));
                let row = self.sessions.get(&(account.clone(), *session));
                let is_replay = row.is_some_and(|row| row.replay.is_some()) && bug != Some(Bug::TaskEndsReplay);
                ids.contains(session) || (of_task && !is_replay)
            })
            .map(|(id, _, session, position)| (id.clone(), session, position))
            .collect();
        items.sort_unstable_by_key(|(_, session, position)| (*session, *position));
        let counted: BTreeSet<NotificationId> = items.iter().map(|(id, _, _)| id.clone()).collect();
        let tried = self.lock_tried(account, &ids);
        let tried_in: BTreeSet<SessionId> = tried.iter().map(|(_, session, _)| *session).collect();
        let judged = judge(
            closing,
            tried.into_iter().chain(items).collect::<Vec<_>>(),
            |(_, session, _)| ids.contains(session),
            |(id, _, _)| {
                let row = &self.notifications[&(account.clone(), id.clone())];
                Waiting {
                    from_person: row.is_from_person(),
                    accepted_at: moment(row.created_at),
                    reopens: row.reopens,
                }
            },
        );
        for (id, session, _) in &judged.cancelled {
            let row = self
                .notifications
                .get_mut(&(account.clone(), id.clone()))
                .expect("locked");
            row.state = NotificationState::Cancelled;
            row.reason = Some(cancel_reason(scope).to_owned());
            if bug != Some(Bug::CancelledCounted) && counted.contains(id) {
                self.uncount(account, *session);
            }
        }
        if bug != Some(Bug::CarriedForgotten) {
            for (_, session, _) in judged.moving.iter().filter(|(id, _, _)| counted.contains(id)) {
                self.uncount(account, *session);
            }
        }
        let mut closed = Closed {
            cancelled: judged.cancelled.iter().map(|(id, _, _)| id.clone()).collect(),
            branches,
            ..Closed::default()
        };
        closed.messages.append(&mut closed.branches.messages);
        for id in &ids {
            closed.messages.push(self.closed_message(account, *id, reason));
        }
        for id in &ids {
            let moved: Vec<NotificationId> = judged
                .moving
                .iter()
                .filter(|(_, session, _)| session == id)
                .map(|(item, _, _)| item.clone())
                .collect();
            let row = self.sessions.get_mut(&(account.clone(), *id)).expect("locked");
            row.interrupted |= row.stopped_turn.is_some() || tried_in.contains(id);
            if !moved.is_empty() && bug != Some(Bug::CarriedForgotten) {
                closed
                    .messages
                    .extend(self.open_next(account, *id, &moved, &Carried::default()).1);
            }
        }
        closed.sessions = ids;
        self.version += 1;
        closed
    }

    /// The branches of the scope and those of its sessions end first.
    fn branches_close(
        &mut self,
        account: &AccountId,
        scope: Scope<'_>,
        closing: &[SessionId],
        bug: Option<Bug>,
    ) -> BranchesEnded {
        if bug == Some(Bug::CloseLeavesBranches) {
            return BranchesEnded::default();
        }
        let live = self.branches_live(account);
        let below = branches_below(&live, closing, |branch| match scope {
            Scope::Task(task) => branch.task_id == task.key(),
            Scope::Agent(agent) => branch.agent_id == agent,
            Scope::User(_) => false,
        });
        let ends: Vec<(BranchId, BranchEvent)> =
            below.iter().map(|branch| (branch.id, BranchEvent::Cancelled)).collect();
        self.branch_end(account, &ends, (closing, matches!(scope, Scope::Agent(_))), bug)
    }

    pub(super) fn closed_message(&self, account: &AccountId, id: SessionId, reason: CloseReason) -> Message {
        let row = &self.sessions[&(account.clone(), id)];
        Message::SessionClosed(SessionClosed {
            account: account.clone(),
            task: row.conversation.task().cloned(),
            session_id: id,
            session_key: row.key.clone(),
            generation: Generation(row.generation),
            agent_id: Some(row.conversation.agent),
            reason,
        })
    }

    /// `OPEN_NEXT` and `MOVE`. Gives the next generation, and the wake-up for its items.
    pub(super) fn open_next(
        &mut self,
        account: &AccountId,
        closed: SessionId,
        items: &[NotificationId],
        carried: &Carried,
    ) -> (SessionId, Option<Message>) {
        let row = self.sessions.get_mut(&(account.clone(), closed)).expect("locked");
        row.on(SessionEvent::Succeeded, None);
        let (conversation, generation) = (row.conversation.clone(), Generation(row.generation).next());
        let old = row.clone();
        let id = SessionId(self.fresh_id());
        let count = i32::try_from(items.len()).expect("a queue of the simulation is short");
        self.session_open(conversation.clone(), id, generation, count);
        let next = self.sessions.get_mut(&(account.clone(), id)).expect("opened");
        next.interrupted = old.interrupted;
        next.continues = carried.rotated.as_ref().map(|_| closed);
        next.thread.told.rotated.clone_from(&carried.rotated);
        if carried.stopped {
            next.stopped_turn = old.stopped_turn;
            next.stop = old.stop.map(|stop| StopRow { turn: None, ..stop });
        }
        if carried.gate.is_some() {
            next.phase = SessionPhase::Backoff;
            next.gate = carried.gate;
        }
        for (number, item) in (1..).zip(items) {
            let row = self
                .notifications
                .get_mut(&(account.clone(), item.clone()))
                .expect("locked");
            let is_first = row.place.is_some_and(|(_, position)| position < 0);
            row.place = Some((id, if is_first { number - STEERS_BEFORE } else { number }));
            row.state = NotificationState::Queued;
            row.turn = None;
        }
        let (place, task) = ((id, generation), conversation.task());
        let wake = SessionResolved::new(&conversation, place, task, i64::from(count));
        (id, Some(Message::SessionResolved(wake)))
    }
}

fn cancel_reason(scope: Scope<'_>) -> &'static str {
    match scope {
        Scope::Task(_) => TASK_CLOSED,
        Scope::Agent(_) => AGENT_REMOVED,
        Scope::User(_) => MEMBER_REMOVED,
    }
}
