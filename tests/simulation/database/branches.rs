//! Branches, as `storage::session::branch_spawn` makes them, and `branch_end` ends and folds them. Each is a part of a transaction that
//! holds the sessions of the branches and of their parents.

use std::collections::BTreeMap;

use delivery::{
    store::SessionName,
    turn::{recorder::Decided, settle::Settled},
};
use domain::{
    AccountId, AgentId, BRANCH_ENDED, BranchEvent, BranchId, BranchState, Conversation, Generation, JoinMode,
    NotificationId, NotificationState, SessionId, SessionPhase, StopKind, StopThen, TaskId, TimerKind, TimerState,
    TurnId,
    branch::{REQUEST, RESULT},
};
use storage::{
    lifecycle::close_reason,
    session::{
        branch_end::{LiveBranch, branches_below},
        turn_stop::StopRequest,
    },
};
use tool_gateway::decisions::{CallFacts, CallRequest, ToolAnswer};
use uuid::Uuid;

use super::{
    Database, Millis,
    calls::Done,
    intake::{LIMITS, OwnItem},
    outbox::Message,
    questions::own_message,
    timers::TimerRow,
};
use crate::simulation::bugs::Bug;

/// As `branch_depth_max`.
pub(crate) const DEPTH_MAX: i32 = 2;
/// As `branches_live_session_max`.
const LIVE_MAX: usize = 4;
/// Who ends the turns of ended branches. Nobody reads it: their error has no name.
pub(crate) const ENDED_BY: &str = "Signalbox";

#[derive(Clone, Debug)]
pub(crate) struct BranchRow {
    pub(crate) group: Uuid,
    /// Its key.
    pub(crate) task: TaskId,
    pub(crate) parent: SessionId,
    pub(crate) session: SessionId,
    pub(crate) agent: AgentId,
    pub(crate) depth: i32,
    pub(crate) join: JoinMode,
    /// Of the turn that made it.
    hops: u16,
    pub(crate) state: BranchState,
    joined: Option<NotificationId>,
}

/// What the end of branches did, for the witness.
#[derive(Debug, Default)]
pub(crate) struct BranchesEnded {
    pub(crate) account: Option<AccountId>,
    pub(crate) branches: Vec<(BranchId, BranchState)>,
    /// Turns that were asked to stop.
    pub(crate) cut: Vec<TurnId>,
    pub(crate) items: Vec<OwnItem>,
    pub(crate) messages: Vec<Message>,
}

impl Database {
    /// `BRANCHES_LIVE`.
    pub(super) fn branches_live(&self, account: &AccountId) -> Vec<LiveBranch> {
        let live = self
            .branches
            .iter()
            .filter(|((owner, _), row)| owner == account && row.state.is_live());
        live.map(|((_, id), row)| LiveBranch {
            id: *id,
            session_id: row.session,
            parent_session_id: row.parent,
            task_id: row.task.clone(),
            agent_id: row.agent,
            group_id: row.group,
        })
        .collect()
    }

    pub(super) fn has_branches(&self, (account, session): &SessionName) -> bool {
        let live = self.branches_live(account);
        live.iter().any(|branch| branch.parent_session_id == *session)
    }

    /// Of a session, if it is a branch's.
    pub(super) fn branch_of(&self, account: &AccountId, conversation: &Conversation) -> Option<&BranchRow> {
        self.branches.get(&(account.clone(), conversation.branch()?))
    }

    /// `tools/subagent_spawn.rs`: how many, how their results come back, the time they have, and the agent.
    pub(super) fn run_subagent_spawn(
        &mut self,
        asked: &CallRequest,
        facts: &CallFacts,
        bug: Option<Bug>,
    ) -> Result<Done, ToolAnswer> {
        let failed = |code| Err(ToolAnswer::failed(code, "", ""));
        let (account, parent) = (&asked.account, asked.session);
        let Some(task) = facts.task().map(TaskId::key) else {
            return failed("no_task");
        };
        let mut words = asked.arguments.split(' ');
        let mut word = || words.next().expect("agents here say all");
        let (count, join, lasts, agent): (usize, _, Millis, _) = (
            word().parse().expect("a number"),
            JoinMode::parse(word()).expect("a join"),
            word().parse().expect("a time"),
            AgentId::parse(word()).expect("an agent"),
        );
        let row = self.agents.get(&(account.clone(), agent));
        if row.is_none_or(|row| row.removed) {
            return failed("unknown_agent");
        }
        let depth = facts.branch.as_ref().map_or(0, |branch| branch.depth);
        if depth >= DEPTH_MAX {
            return failed("branch_depth");
        }
        let row = self.tasks.get(&(account.clone(), task.clone()));
        if row.is_none_or(|row| close_reason(row.status).is_some()) {
            return failed("task_ended");
        }
        let live = self.branches_live(account);
        if live.iter().filter(|one| one.parent_session_id == parent).count() + count > LIVE_MAX {
            return failed("too_many_branches");
        }
        let hops = facts.hops();
        if hops.saturating_add(1) > LIMITS.hops_max {
            return failed("hop_limit");
        }
        let mut done = Done::default();
        for _ in 0..count {
            let (id, session) = (BranchId(self.fresh_id()), SessionId(self.fresh_id()));
            let row = BranchRow {
                group: asked.id,
                task: task.clone(),
                parent,
                session,
                agent,
                depth: depth + 1,
                join,
                hops,
                state: BranchState::Live,
                joined: None,
            };
            self.branches.insert((account.clone(), id), row);
            let conversation = Conversation::of_branch(account, id, agent);
            self.session_open(conversation.clone(), session, Generation::FIRST, 0);
            self.sessions
                .get_mut(&(account.clone(), session))
                .expect("opened")
                .parent = Some(parent);
            let message = own_message(REQUEST, [("reopen", false.into())]);
            let item = self.item_enter(&conversation, Some(&task), message, hops.saturating_add(1), bug);
            let mut item = item.expect("its session is open");
            done.messages.append(&mut item.messages);
            done.items.push(item);
        }
        if bug != Some(Bug::SpawnForgetsDeadline) {
            let of = self.question(asked, facts, domain::QuestionKind::Question);
            let timer = TimerRow::new(TimerKind::BranchDeadline, asked.id.to_string(), self.now + lasts, &of);
            self.timer_set(account, timer);
        }
        Ok(done)
    }

    /// `tools/subagent_cancel.rs`: the first of the session's live branches.
    pub(super) fn run_subagent_cancel(&mut self, asked: &CallRequest, bug: Option<Bug>) -> Result<Done, ToolAnswer> {
        let live = self.branches_live(&asked.account);
        let own = live.iter().find(|branch| branch.parent_session_id == asked.session);
        let Some(branch) = own else {
            return Err(ToolAnswer::failed("not_found", "", ""));
        };
        let mut ended = self.branch_end(&asked.account, &[(branch.id, BranchEvent::Cancelled)], (&[], true), bug);
        Ok(Done {
            messages: std::mem::take(&mut ended.messages),
            ended,
            ..Done::default()
        })
    }

    /// `POST …/branches/{branch}/cancel`.
    pub(crate) fn person_ends(&mut self, account: &AccountId, branch: BranchId, bug: Option<Bug>) -> BranchesEnded {
        self.branch_end(account, &[(branch, BranchEvent::Cancelled)], (&[], true), bug)
    }

    /// Of a due timer.
    pub(super) fn group_expires(&mut self, account: &AccountId, group: &str, bug: Option<Bug>) -> BranchesEnded {
        let live = self.branches_live(account);
        let of_group = live.iter().filter(|branch| branch.group_id.to_string() == group);
        let ends: Vec<(BranchId, BranchEvent)> = of_group
            .map(|branch| (branch.id, BranchEvent::DeadlinePassed))
            .collect();
        self.branch_end(account, &ends, (&[], true), bug)
    }

    /// As `folding.rs`: a branch ends with a turn of it, if nothing is left to do.
    pub(super) fn fold(&mut self, decided: &Decided<'_>, bug: Option<Bug>) -> BranchesEnded {
        let session = decided.session;
        let event = match &decided.settled {
            Settled::Finished { .. } => BranchEvent::Rested,
            Settled::GaveUp { .. } => BranchEvent::GivenUp,
            Settled::Stopped { .. } => BranchEvent::Cancelled,
            _ => return BranchesEnded::default(),
        };
        let Some(branch) = session.branch.filter(|_| !session.facts.closed) else {
            return BranchesEnded::default();
        };
        let row = &self.sessions[&session.name()];
        let waits = |timer: &TimerRow| timer.state == TimerState::Waiting && timer.kind == TimerKind::CheckLater;
        let is_own = |account: &AccountId, of: SessionId| *account == session.account && of == session.id;
        let rests = row.phase == SessionPhase::Idle
            && row.queued == 0
            && !self.has_branches(&session.name())
            && !self
                .questions
                .iter()
                .any(|((account, _), row)| is_own(account, row.session) && row.state.is_open())
            && !self
                .timers
                .iter()
                .any(|((account, _), row)| is_own(account, row.session) && waits(row));
        match rests {
            true => self.branch_end(&session.account, &[(branch, event)], (&[], true), bug),
            false => BranchesEnded::default(),
        }
    }

    /// `branch_end`: `GROUPS_LOCK`, `BRANCHES_END`, `CLOSE`, `TURN_STOP`, `LOCK_TRIED`, `LOCK_ITEMS`, `CANCEL`, `CLEAR_OF_KEYS`, the items of
    /// the parents and `BRANCHES_JOIN`. `closing`: sessions that close in the same transaction; `tells`: the others are told.
    pub(super) fn branch_end(
        &mut self,
        account: &AccountId,
        asked: &[(BranchId, BranchEvent)],
        (closing, tells): (&[SessionId], bool),
        bug: Option<Bug>,
    ) -> BranchesEnded {
        let named: BTreeMap<BranchId, BranchEvent> = asked.iter().copied().collect();
        let mut live = self.branches_live(account);
        if bug == Some(Bug::FoldedTwice) {
            live.extend(self.branches_named(account, &named));
        }
        let below = branches_below(&live, &[], |branch| named.contains_key(&branch.id));
        if below.is_empty() {
            return BranchesEnded::default();
        }
        self.version += 1;
        let mut ended = BranchesEnded {
            account: Some(account.clone()),
            ..BranchesEnded::default()
        };
        for branch in &below {
            let event = named.get(&branch.id).copied().unwrap_or(BranchEvent::Cancelled);
            let row = self
                .branches
                .get_mut(&(account.clone(), branch.id))
                .expect("it was found");
            let state = BranchState::Live.on(event).expect("a live branch ends");
            row.state = state;
            ended.branches.push((branch.id, state));
            self.branch_session_end(account, branch, state, &mut ended, bug);
        }
        self.deadlines_clear(account, &below);
        let is_forgotten = |event| bug == Some(Bug::CancelForgetsJoin) && event == BranchEvent::Cancelled;
        if tells && !named.values().copied().any(is_forgotten) {
            self.results_enter(account, &below, closing, &mut ended, bug);
        }
        ended
    }

    fn branches_named(&self, account: &AccountId, named: &BTreeMap<BranchId, BranchEvent>) -> Vec<LiveBranch> {
        let over = named
            .keys()
            .filter_map(|id| Some((*id, self.branches.get(&(account.clone(), *id))?)));
        over.filter(|(_, row)| !row.state.is_live())
            .map(|(id, row)| LiveBranch {
                id,
                session_id: row.session,
                parent_session_id: row.parent,
                task_id: row.task.clone(),
                agent_id: row.agent,
                group_id: row.group,
            })
            .collect()
    }

    /// `sessions_end`.
    fn branch_session_end(
        &mut self,
        account: &AccountId,
        branch: &LiveBranch,
        state: BranchState,
        ended: &mut BranchesEnded,
        bug: Option<Bug>,
    ) {
        let (now, name) = (self.now, (account.clone(), branch.session_id));
        let row = self.sessions.get_mut(&name).expect("a branch has a session");
        if row.closed.is_some() {
            return;
        }
        let reason = state.closes().expect("it has ended");
        row.close(now, reason, bug);
        let stop = row.active_turn.map(|turn| StopRequest {
            session: name.clone(),
            turn: Some(turn),
            kind: StopKind::BranchEnded,
            by: ENDED_BY,
            then: StopThen::Continue,
            task: Some(&branch.task_id),
        });
        let tried = self.lock_tried(account, &[branch.session_id]);
        let stops = self.turn_stop(stop.as_slice(), bug);
        ended.cut.extend(stops.iter().map(|stop| stop.turn_id));
        ended
            .messages
            .push(self.closed_message(account, branch.session_id, reason));
        ended
            .messages
            .extend(stops.into_iter().map(Message::SessionStopRequested));
        let queue = self.queue(account, branch.session_id);
        let waiting: Vec<NotificationId> = queue.into_iter().map(|(_, id, _)| id.clone()).collect();
        self.sessions.get_mut(&name).expect("locked").queued -= i32::try_from(waiting.len()).expect("few");
        for id in waiting.into_iter().chain(tried.into_iter().map(|(id, ..)| id)) {
            let item = self.notifications.get_mut(&(account.clone(), id)).expect("locked");
            item.state = NotificationState::Cancelled;
            item.reason = Some(BRANCH_ENDED.to_owned());
        }
    }

    /// Of groups without live branches. The timer that ends a group is marked by its firing.
    fn deadlines_clear(&mut self, account: &AccountId, ended: &[LiveBranch]) {
        let live = self.branches_live(account);
        let over: Vec<String> = ended
            .iter()
            .filter(|branch| live.iter().all(|other| other.group_id != branch.group_id))
            .filter(|branch| self.branches[&(account.clone(), branch.id)].state != BranchState::Expired)
            .map(|branch| branch.group_id.to_string())
            .collect();
        self.timers_clear(account, |timer| {
            timer.kind == TimerKind::BranchDeadline && over.contains(&timer.key)
        });
    }

    /// The items of the parents.
    fn results_enter(
        &mut self,
        account: &AccountId,
        below: &[LiveBranch],
        closing: &[SessionId],
        ended: &mut BranchesEnded,
        bug: Option<Bug>,
    ) {
        let live = self.branches_live(account);
        let mut joined: Vec<Uuid> = Vec::new();
        for branch in below {
            let row = self.branches[&(account.clone(), branch.id)].clone();
            let is_over = live.iter().all(|other| other.group_id != branch.group_id);
            let source = match row.join {
                JoinMode::Each => branch.id.uuid(),
                JoinMode::All if is_over => branch.group_id,
                JoinMode::All => continue,
            };
            let parent = &self.sessions[&(account.clone(), row.parent)];
            let is_gone = closing.contains(&row.parent) || parent.closed.is_some();
            if is_gone || joined.contains(&source) {
                continue;
            }
            joined.push(source);
            let conversation = parent.conversation.clone();
            let metadata = [("reopen", false.into()), ("results_of", source.to_string().into())];
            let hops = row.hops.saturating_add(2);
            let item = self.item_enter(&conversation, Some(&row.task), own_message(RESULT, metadata), hops, bug);
            let Some(mut item) = item else { continue };
            ended.messages.append(&mut item.messages);
            let of_item: Vec<BranchId> = match row.join {
                JoinMode::Each => vec![branch.id],
                JoinMode::All => self.group(account, branch.group_id),
            };
            for id in of_item {
                let row = self.branches.get_mut(&(account.clone(), id)).expect("of the group");
                row.joined = Some(item.id.clone());
            }
            ended.items.push(item);
        }
    }

    fn group(&self, account: &AccountId, group: Uuid) -> Vec<BranchId> {
        let of_group = self
            .branches
            .iter()
            .filter(|((owner, _), row)| owner == account && row.group == group);
        of_group.map(|((_, id), _)| *id).collect()
    }
}
