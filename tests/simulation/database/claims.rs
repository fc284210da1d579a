//! Delivery's claims: a batch of woken sessions, from their locks to turns that may be sent. One transaction under the sessions'
//! locks, and so one step.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc};

use contracts::{
    TraceContext,
    outgoing::Origin,
    tool::ToolRequested,
    tools::{self, OfferContext},
};
use delivery::{
    context::{
        plan::{BranchFacts, PlanFacts, plan},
        rotate::{Facts, rotation},
    },
    providers::ToolDefinition,
    queue::run::{Candidate, Run, RunLimits, run},
    store::{
        SessionName,
        claim::{Asked, OpenTurn, ToolResult},
        context::QueuedItem,
        journal::{Call, Journal},
        runs::{Behind, Injectable},
    },
    turn::{
        claim::{Admitted, Beginning, Prompt, admitted, begin, carry_on, tool_requested},
        inject::{self, join},
        resume::Due,
        work::Work,
    },
};
use domain::{
    AccountId, Actor, ActorKind, AgentSlug, BranchContext, ContextPolicy, Generation, ImpossibleStep,
    InstructionLayout, ModelKinds, NotificationId, NotificationState, QueueMode, Reachable, SessionEvent, SessionId,
    SessionKind, SessionPhase, TaskId, TaskStatus, TurnId, TurnRef, TurnState, UserId, context::Told, progress::Streak,
};
use prompt::{Extract, Injected, InputFacts, Manifest, MarkSecret, Past, Profile, TaskFacts};
use storage::{
    Setting,
    session::{
        items_join::Notes,
        sessions_lock::{LockedSession, SessionFacts},
        sessions_park::Park,
        turns_begin::NewTurn,
    },
};
use uuid::Uuid;

use super::{
    CallRow, Database, Millis, NotificationRow, SessionRow, TurnRow,
    branches::DEPTH_MAX,
    moment,
    outbox::Message,
    replays::replay_plan,
    succession::{Succeeded, Succession},
};
use crate::simulation::{bugs::Bug, settings::Settings};

/// As in `claim.rs`, and shorter.
const UNDECIDED_LOOK_MS: Millis = 10_000;
/// Error of the wrong clock ([`Bug::LeaseByLocalClock`]).
const AHEAD: Millis = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) work: Vec<Work>,
    pub(crate) left: Vec<SessionName>,
    pub(crate) outbox: Vec<Uuid>,
    /// Sessions whose lease was taken, including new turns.
    pub(crate) started: Vec<(SessionName, TurnId, Vec<NotificationId>)>,
    pub(crate) resumed: Vec<(SessionName, TurnId)>,
    /// Sessions that a gate keeps.
    pub(crate) parked: Vec<Park>,
    /// Generations that ended.
    pub(crate) succeeded: Vec<Succeeded>,
}

impl Database {
    /// `SESSIONS_LOCK` and, for a claim, `REPLICAS_ALIVE`.
    pub(crate) fn session(&self, name: &SessionName, claimer: Option<Uuid>, bug: Option<Bug>) -> Option<LockedSession> {
        let row = self.sessions.get(name)?;
        let dead = |owner: Uuid| match bug {
            Some(Bug::LeaseByLocalClock) => self.replicas.get(&owner).is_none_or(|until| *until < self.now + AHEAD),
            Some(Bug::OwnLeaseForgotten) => !self.is_alive(owner),
            _ => claimer == Some(owner) || !self.is_alive(owner),
        };
        Some(LockedSession {
            tool_policies: 1,
            persona: None,
            owner: row.conversation.person().cloned(),
            kind: row.replay.map_or(row.conversation.kind(), |_| SessionKind::Replay),
            branch: row.conversation.branch().filter(|_| row.replay.is_none()),
            replay: row.replay,
            parent: row.parent,
            account: name.0.clone(),
            id: name.1,
            key: row.key.clone(),
            agent_id: Some(row.conversation.agent),
            generation: Generation(row.generation),
            fence: row.fence,
            active_turn: row.active_turn,
            turn_count: row.turn_count,
            interrupted: row.interrupted,
            close_reason: row.closed.map(|(_, reason)| reason.to_string()),
            lease_owner: row.lease_owner,
            stop_kind: row.stop.as_ref().map(|stop| stop.kind),
            stop_by: row.stop.as_ref().map(|stop| stop.by.clone()),
            stop_at: row.stop.as_ref().map(|stop| moment(stop.at)),
            stop_then: row.stop.as_ref().map(|stop| stop.then),
            reset: row.reset.clone(),
            stopped_turn: row.stopped_turn,
            gate: row.gate,
            gate_ref: None,
            queue_tail: row.queue_tail,
            queue_edits: row.queue_edits,
            streak: Streak::default(),
            opened_at: moment(row.opened_at),
            continues: row.continues,
            thread: row.thread.clone(),
            facts: SessionFacts {
                phase: row.phase,
                closed: row.closed.is_some() && bug != Some(Bug::ClosedAdmitted),
                queued: row.queued,
                due: row.wake_at.is_some_and(|at| at <= self.now)
                    || (bug == Some(Bug::GateUnread) && row.gate.is_some()),
                asked: row.asked,
                stopping: row.is_stopping(bug),
                lease_dead: row.lease_owner.is_some_and(dead),
            },
            turns_in_flight_max: None,
        })
    }

    /// `TURNS_LOAD` and `RESULTS_LOAD`.
    fn turn(&self, session: &LockedSession) -> Option<OpenTurn> {
        let id = session.active_turn?;
        let row = self.turns.get(&(session.account.clone(), id))?;
        let results = self
            .calls
            .iter()
            .filter(|((account, _), call)| {
                *account == session.account && call.turn == Some(id) && call.ordinal > 0 && call.state.is_over()
            })
            .map(|(_, call)| ToolResult {
                ends_with: None,
                ordinal: call.ordinal,
                result: call.result.clone(),
            })
            .collect();
        let of_turn = || {
            let calls = self.calls.iter();
            calls.filter_map(|((account, _), call)| {
                (*account == session.account && call.turn == Some(id)).then_some(call)
            })
        };
        let is_waiting = |call| {
            let call = self.calls.get(&(session.account.clone(), call));
            call.is_some_and(|call| !call.state.is_over())
        };
        let last = row.journal.last().map_or(&[][..], |round| &round.calls);
        let in_last = |call: &&CallRow| last.iter().any(|asked| asked.ordinal == call.ordinal);
        let asked = Asked {
            open_ms: of_turn()
                .find(|call| !call.state.is_over())
                .map(|call| call.open_ms(self.now)),
            sum_ms: of_turn().filter(in_last).map(|call| call.open_ms(self.now)).sum(),
            is_undecided: self
                .questions
                .values()
                .any(|question| question.turn == id && question.state.is_open() && is_waiting(question.call)),
        };
        let first = (session.account.clone(), row.notifications[0].clone());
        let attempts = self.notifications.get(&first).map_or(0, |row| row.attempts);
        Some(OpenTurn {
            account: session.account.clone(),
            id,
            session_id: row.session,
            task: row.task.clone(),
            agent_id: row.agent,
            agent_name: String::new(),
            number: row.number,
            state: row.state,
            provider: row.provider.clone(),
            instructions: String::new(),
            profile_version: String::new(),
            input: String::new(),
            inline: false,
            context: Some(row.context.clone()),
            manifest: None,
            about_message: None,
            is_coordinator: false,
            journal: row.journal.clone(),
            tools: Some(row.tools.clone()),
            attempt: row.attempt,
            failures: row.failures,
            hops: row.hops,
            traceparent: None,
            tracestate: None,
            sent_at: Some(moment(row.sent_at)),
            lost_at: row.lost_at.map(moment),
            notification_ids: row.notifications.iter().map(ToString::to_string).collect(),
            attempts,
            overdue_ms: row
                .waiting_since
                .map_or(-1, |since| self.now - since - row.tools_wait_ms),
            holds: 0,
            tool_policies: 1,
            breaker: self.breaker_of(&row.provider),
            failed_epoch: row.failed_epoch,
            wake_key: None,
            notes: row.notes.clone(),
            injectable: i64::from(
                self.queue(&session.account, row.session)
                    .iter()
                    .any(|(_, _, item)| item.mode == QueueMode::Inject),
            ),
            results,
            asked,
        })
    }

    /// A whole claim.
    pub(crate) fn claim(
        &mut self,
        names: &[SessionName],
        replica: Uuid,
        settings: &Settings,
        bug: Option<Bug>,
    ) -> Claimed {
        let mut names: Vec<&SessionName> = names.iter().collect();
        names.sort_unstable();
        let sessions: Vec<LockedSession> = names
            .iter()
            .filter_map(|name| self.session(name, Some(replica), bug))
            .collect();
        let turns: Vec<OpenTurn> = sessions.iter().filter_map(|session| self.turn(session)).collect();
        let Admitted { start, resume, ask } = admitted(sessions, turns);
        let mut claimed = Claimed::default();
        let mut taken: HashMap<SessionName, ()> = HashMap::new();
        for session in start {
            if self.start(&session, replica, settings, bug, &mut claimed) == Start::Begun {
                taken.insert(session.name(), ());
            }
        }
        for (session, mut turn) in resume {
            let name = session.name();
            let Some(pass) = self.pass_or_defer(&session, &turn, settings, bug) else {
                continue;
            };
            taken.insert(name.clone(), ());
            // As `stop_held`: what waits to be injected waits on, under any hold.
            if self.kept(&session, turn.task.as_ref(), bug).is_some() {
                turn.injectable = 0;
            }
            if inject::takes(&session, &turn) {
                self.inject(&session, &mut turn, settings, bug);
            }
            let provider = settings.provider(&turn.provider);
            let resumed = carry_on(&session, turn, provider, Arc::default(), None);
            let Some(mut work) = possible(resumed, bug) else {
                continue;
            };
            self.lease_take(&name, replica, work.phase);
            work.pass = pass;
            self.turn_resume(&name, work.turn.id, work.state);
            claimed.resumed.push((name, work.turn.id));
            if bug == Some(Bug::StartedNotRepeated) || session.replay.is_some() {
                work.heard.hear();
            }
            if bug == Some(Bug::LostSentBlindly) && work.due == Due::LookUp {
                work.due = Due::Send;
            }
            claimed.work.push(work);
        }
        for park in &claimed.parked {
            self.sessions_park(park);
        }
        let mut messages = Vec::new();
        for (session, turn) in ask {
            // Agents here have no models, and so no external calls.
            let Some(call) = turn.due().first().copied() else {
                continue;
            };
            let awaited = session.facts.state().on(SessionEvent::AwaitedLonger);
            if possible(awaited, bug).is_none() {
                continue;
            }
            let wait_ms = match turn.asked.is_undecided {
                true => UNDECIDED_LOOK_MS,
                false => settings.delivery.tools_again_ms.i64(),
            };
            self.turns_wait(&session.name(), call.ordinal, wait_ms);
            messages.push(self.request(session.turn(turn.id, turn.task.clone()), turn.agent_id, call));
        }
        messages.extend(
            claimed
                .succeeded
                .iter()
                .flat_map(|succeeded| succeeded.messages.clone()),
        );
        claimed.outbox = self.outbox_insert(super::outbox::Service::Delivery, messages);
        claimed.left = names
            .into_iter()
            .filter(|name| !taken.contains_key(*name))
            .cloned()
            .collect();
        self.version += 1;
        claimed
    }

    /// `QUEUE_NEXT`, `QUEUE_BEHIND` and `TURNS_BEGIN`. A session to be parked is in `claimed.parked`, one that a rule or a reset ends in
    /// `claimed.succeeded`; the caller writes both.
    pub(super) fn start(
        &mut self,
        session: &LockedSession,
        replica: Uuid,
        settings: &Settings,
        bug: Option<Bug>,
        claimed: &mut Claimed,
    ) -> Start {
        if let Some(succession) = Succession::by_reset(session) {
            claimed
                .succeeded
                .extend(self.succeed(&session.name(), &succession, bug));
            return Start::Waits;
        }
        let Some(mut item) = self.queue_next(session, settings) else {
            return Start::Nothing;
        };
        let replayed = self.replay_of(session);
        if let Some((replay, source)) = &replayed {
            item.provider = replay.spec.provider.as_ref().unwrap_or(&source.provider).clone();
            item.breaker = self.breaker_of(&item.provider);
        }
        let source = replayed.as_ref().map(|(_, source)| source);
        let task = item.facts.task.as_ref().map(|task| &task.id);
        if let Some(hold) = self.kept(session, task, bug) {
            claimed.parked.extend(self.park_for_hold(session, &hold, settings, bug));
            return Start::Waits;
        }
        match self.join_run(session, &mut item, settings, bug) {
            Run::Start { .. } => {}
            Run::Wait { ms } => {
                claimed.parked.extend(Self::park_for_collect(session, ms, bug));
                return Start::Waits;
            }
        }
        let name = session.name();
        if let Some(rotated) = rotation(&Facts::of(session, false), &item.rotation, self.now())
            && !self.has_branches(&name)
        {
            claimed
                .succeeded
                .extend(self.succeed(&name, &Succession::Rotated(rotated), bug));
            return Start::Waits;
        }
        let turn_id = TurnId(self.fresh_id());
        let pass = match self.pass((&item.provider, item.breaker), (turn_id.uuid(), true), settings, bug) {
            Ok(pass) => pass,
            Err(look) => {
                claimed.parked.extend(Self::park_for_provider(session, look, bug));
                return Start::Waits;
            }
        };
        let further = item.facts.further.iter().map(|further| further.notification.clone());
        let notifications = std::iter::once(item.facts.notification.clone())
            .chain(further)
            .collect();
        let provider = settings.provider(&item.provider);
        let branch = self.branch_of(&session.account, &self.sessions[&name].conversation);
        let by_policy = || {
            plan(&PlanFacts {
                asked: item.context_policy,
                keeps: provider.keeps,
                found_by: provider.found_by,
                provider: &item.provider,
                thread: &session.thread,
                rotated: session.thread.told.rotated.as_ref().map(|rotated| rotated.rule),
                branch: branch.map(|_| BranchFacts {
                    context: BranchContext::Snapshot,
                    is_first: session.turn_count == 0,
                    provider: None,
                    at: None,
                    base_sha256: "",
                }),
            })
        };
        let plan = source.map_or_else(by_policy, replay_plan);
        let told = Told {
            provider: Some(item.provider.clone()),
            is_later: plan.is_later,
            ..Told::default()
        };
        let beginning = Beginning {
            turn_id,
            pass,
            prompt: empty_prompt(),
            plan,
            branch_task: match source {
                Some(source) => source.task.as_ref().map(TaskId::key),
                None => branch.map(|branch| branch.task.clone()),
            },
            past: Past::default(),
            told: (told, Vec::new()),
            provider,
            tools: match source {
                Some(source) => definitions(source.tools.iter().cloned()),
                None => offered(
                    (item.facts.task.is_some(), item.mail_enabled),
                    session.kind,
                    branch.map(|branch| branch.depth),
                ),
            },
            tools_wait_ms: settings.delivery.tools_wait_ms_max.i64(),
            trace: TraceContext::default(),
        };
        if let Some((new, work)) = possible(begin(session, item, beginning), bug) {
            if session.replay.is_some() {
                work.heard.hear();
            }
            self.lease_take(&name, replica, new.phase);
            self.turn_begin(&name, &work, &new);
            claimed.started.push((name, turn_id, notifications));
            claimed.work.push(work);
        }
        Start::Begun
    }

    /// Whether a rule ends the generation before its next turn.
    pub(super) fn would_rotate(&self, session: &LockedSession, settings: &Settings) -> bool {
        rotation(&Facts::of(session, false), &settings.rotation, self.now()).is_some()
            && !self.has_branches(&session.name())
    }

    /// The message for the tool-gateway, as delivery builds it.
    pub(super) fn request(&self, turn: TurnRef, agent: domain::AgentId, call: &Call) -> Message {
        let setting = Setting {
            root: &contracts::Root::default(),
            source: delivery::SOURCE,
            origin: Origin::default(),
            now: self.now(),
        };
        let (_, outgoing) = tool_requested(&setting, turn, agent, call);
        let request: ToolRequested = serde_json::from_slice(&outgoing.payload).expect("what was written is read");
        Message::ToolRequested(request)
    }

    /// Adds the further items of its run to the head of a queue (`starter.rs`).
    fn join_run(&self, session: &LockedSession, item: &mut QueuedItem, settings: &Settings, bug: Option<Bug>) -> Run {
        let head = Candidate::from(&*item);
        if !head.may_head() {
            return run(&head, &[], &limits(settings));
        }
        let mut behind = self.queue_behind(item, settings.delivery.collect_items_max.usize());
        let first = item.facts.notification.clone();
        let alike = behind
            .iter()
            .take_while(|next| self.are_alike(session, &first, &next.id));
        behind.truncate(alike.count());
        let seen = |behind: &Behind| match bug {
            Some(Bug::RunMixesAuthors) => Candidate {
                author: head.author.clone(),
                ..Candidate::from(behind)
            },
            _ => Candidate::from(behind),
        };
        let candidates: Vec<Candidate> = behind.iter().map(seen).collect();
        let next = run(&head, &candidates, &limits(settings));
        if let Run::Start { further } = next {
            item.join(behind.into_iter().take(further));
        }
        next
    }

    /// `ITEMS_ALIKE`: in a session that is a person's own, whether both items are the person's, or others', and for the same readers.
    fn are_alike(&self, session: &LockedSession, one: &NotificationId, other: &NotificationId) -> bool {
        let Some(owner) = &session.owner else { return true };
        self.kind_of(&session.account, owner, one) == self.kind_of(&session.account, owner, other)
    }

    /// Whether others wrote the item, and whether others read its answer. None: the item was removed.
    pub(crate) fn kind_of(&self, account: &AccountId, owner: &UserId, item: &NotificationId) -> Option<(bool, bool)> {
        let row = self.notifications.get(&(account.clone(), item.clone()))?;
        let sender = row.sender();
        let message: serde_json::Value = serde_json::from_slice(&row.payload).unwrap_or_default();
        let of_guest = message["metadata"]["guest_of"].is_string();
        let is_foreign = match sender.kind {
            // Nobody vouches for whom a publisher names.
            ActorKind::User => row.is_claimed || sender.id != owner.as_str(),
            ActorKind::Service => of_guest || sender.id != Actor::system().id,
            ActorKind::Agent => of_guest,
        };
        let surface = message["metadata"]["channel"]["surface"].as_str();
        Some((is_foreign, surface.is_some_and(|surface| surface != "private")))
    }

    /// `INJECTS_LOAD`, `ITEMS_ALIKE` and `ITEMS_JOIN`.
    fn inject(&mut self, session: &LockedSession, turn: &mut OpenTurn, settings: &Settings, bug: Option<Bug>) {
        let task = turn.task.as_ref().map(|task| task.key());
        let first = turn
            .notification_ids
            .first()
            .and_then(|id| NotificationId::parse(id).ok());
        let first = first.as_ref();
        let items: Vec<Injectable> = self
            .queue(&session.account, session.id)
            .into_iter()
            .filter(|(_, _, row)| row.mode == QueueMode::Inject && row.task.as_ref().map(|task| task.key()) == task)
            .take(settings.delivery.inject_items_max.usize())
            .filter(|(_, id, _)| first.is_none_or(|first| self.are_alike(session, first, id)))
            .map(|(_, id, row)| Injectable {
                account: session.account.clone(),
                session_id: session.id,
                item: Injected {
                    notification: id.clone(),
                    sender: row.sender(),
                    title: None,
                    body: row.body.clone(),
                },
                hops: i32::from(row.hops),
            })
            .collect();
        if items.is_empty() {
            return;
        }
        let marks = MarkSecret::new([0; 32]).marks_of_note(&session.account, turn.id, turn.notes.0.len());
        let joined = join(session, turn, &items, marks);
        for id in &joined.note.notification_ids {
            let name = (session.account.clone(), notification_id(id));
            let item = self.notifications.get_mut(&name).expect("it waits");
            item.state = NotificationState::Running;
            item.turn = Some(turn.id);
            item.reason = None;
        }
        let given = i32::try_from(joined.note.notification_ids.len()).expect("a note is short");
        self.sessions.get_mut(&session.name()).expect("locked").queued -= given;
        let row = self.turns.get_mut(&(session.account.clone(), turn.id)).expect("loaded");
        row.notifications
            .extend(joined.note.notification_ids.iter().map(|id| notification_id(id)));
        row.hops = row.hops.max(joined.hops);
        if bug != Some(Bug::NoteNotStored) {
            row.notes.0.push(joined.note);
        }
    }

    /// The queued items of a session, in order.
    pub(super) fn queue<'a>(
        &'a self,
        account: &AccountId,
        session: SessionId,
    ) -> Vec<(i64, &'a NotificationId, &'a NotificationRow)> {
        let mut queue: Vec<_> = self
            .notifications
            .iter()
            .filter(|((owner, _), row)| owner == account && row.state == NotificationState::Queued)
            .filter_map(|((_, id), row)| Some((row.place?, id, row)))
            .filter(|((of, _), _, _)| *of == session)
            .map(|((_, position), id, row)| (position, id, row))
            .collect();
        queue.sort_unstable_by_key(|(position, id, _)| (*position, *id));
        queue
    }

    /// `QUEUE_BEHIND`.
    fn queue_behind(&self, head: &QueuedItem, items_max: usize) -> Vec<Behind> {
        self.queue(&head.account, head.session_id)
            .into_iter()
            .filter(|(position, _, _)| *position > head.position)
            .take(items_max)
            .map(|(_, id, row)| Behind {
                account: head.account.clone(),
                session_id: head.session_id,
                id: id.clone(),
                kind: row.kind.clone(),
                sender: row.sender(),
                task_id: row.task.as_ref().map(|task| task.key().into()),
                queue_mode: row.mode,
                joins: row.joins,
                waited_ms: self.now - row.created_at,
                debounce_ms: row.debounce_ms.clone(),
                attempts: row.attempts,
                hops: i32::from(row.hops),
                title: None,
                body_bytes: i64::try_from(row.body.len()).expect("short"),
                body: Some(row.body.clone()),
            })
            .collect()
    }

    /// `QUEUE_NEXT`.
    fn queue_next(&self, session: &LockedSession, settings: &Settings) -> Option<QueuedItem> {
        let (position, id, row) = self.queue(&session.account, session.id).into_iter().next()?;
        let agent_id = row.agent?;
        let agent = self.agents.get(&(session.account.clone(), agent_id))?;
        Some(QueuedItem {
            account: session.account.clone(),
            session_id: session.id,
            facts: InputFacts {
                answer_to: None,
                result_of: None,
                mail: None,
                notification: id.clone(),
                kind: row.kind.clone(),
                sender: row.sender(),
                title: None,
                body: row.body.clone(),
                about_message: None,
                task: row.task.as_ref().map(|id| TaskFacts {
                    id: id.clone(),
                    title: String::new(),
                    description: String::new(),
                    status: TaskStatus::Inbox,
                }),
                extract: Extract::default(),
                description: None,
                briefing: None,
                overview: None,
                further: Vec::new(),
                is_interrupted: false,
                stopped: None,
                subagents: Vec::new(),
            },
            position,
            queue_mode: row.mode,
            joins: row.joins,
            waited_ms: self.now - row.created_at,
            debounce_ms: row.debounce_ms.clone().filter(|_| row.joins),
            attempts: row.attempts,
            hops: i32::from(row.hops),
            traceparent: None,
            tracestate: None,
            agent_id,
            agent_slug: AgentSlug::parse(&agent.slug).expect("slugs of the simulation are slugs"),
            agent_name: String::new(),
            agent_role: String::new(),
            provider: agent.provider.clone(),
            layout: InstructionLayout::Layered,
            persona: None,
            identity: None,
            is_on_coordinator_task: false,
            is_coordinator: false,
            briefing: String::new(),
            holds: 0,
            breaker: self.breaker_of(&agent.provider),
            tool_policies: 1,
            context_policy: ContextPolicy::Continue,
            rotation: settings.rotation.clone(),
            shows_task_context: false,
            mail_enabled: self.accounts[&session.account].mail_enabled,
            task_context: None,
            thread: None,
            thread_there: Vec::new(),
            thread_total: 0,
        })
    }

    /// The lease, in `TURNS_BEGIN` and `TURNS_RESUME`.
    fn lease_take(&mut self, name: &SessionName, replica: Uuid, phase: SessionPhase) {
        let row = self.sessions.get_mut(name).expect("locked");
        row.phase = phase;
        row.lease_owner = Some(replica);
        row.fence.0 += 1;
        row.wake_at = None;
    }

    /// The rest of `TURNS_BEGIN`.
    fn turn_begin(&mut self, name: &SessionName, work: &Work, new: &NewTurn) {
        let turn = TurnRow {
            session: work.turn.session,
            task: work.turn.task.clone(),
            agent: work.agent_id,
            number: new.number,
            fence: new.turn.fence,
            state: new.state,
            notifications: new.notification_ids.iter().map(|id| notification_id(id)).collect(),
            notes: Notes::default(),
            provider: work.provider.clone(),
            journal: Journal::default(),
            tools: new.tools.clone(),
            tools_wait_ms: new.tools_wait_ms,
            attempt: 1,
            failures: 0,
            hops: work.hops,
            waiting_since: None,
            lost_at: None,
            failed_epoch: None,
            sent_at: self.now,
            started_at: self.now,
            reply: None,
            error: None,
            no_reply: false,
            late: false,
            context: new.context.clone(),
        };
        self.turns.insert((name.0.clone(), work.turn.id), turn);
        for id in &new.notification_ids {
            if let Some(item) = self.notifications.get_mut(&(name.0.clone(), notification_id(id)))
                && item.state == NotificationState::Queued
            {
                item.state = NotificationState::Running;
                item.turn = Some(work.turn.id);
                item.reason = None;
            }
        }
        let session = self.sessions.get_mut(name).expect("locked");
        session.active_turn = Some(work.turn.id);
        session.queued -= i32::try_from(new.notification_ids.len()).expect("a run is short");
        session.turn_count = new.number;
        session.interrupted = false;
        session.stopped_turn = None;
        session.gate = None;
        session.thread = new.thread.clone();
    }

    /// `TURNS_RESUME`.
    fn turn_resume(&mut self, name: &SessionName, turn: TurnId, state: TurnState) {
        let fence = self.sessions[name].fence;
        let row = self.turns.get_mut(&(name.0.clone(), turn)).expect("loaded");
        row.fence = fence;
        row.state = state;
        row.sent_at = self.now;
    }

    /// `TURNS_WAIT`.
    fn turns_wait(&mut self, name: &SessionName, asked: i32, ms: Millis) {
        let now = self.now;
        let row = self.sessions.get_mut(name).expect("locked");
        row.asked = asked;
        row.wake_at = Some(now + ms);
    }

    /// `session_neglected`.
    pub(crate) fn neglected(&self) -> Vec<SessionName> {
        self.sessions
            .iter()
            .filter(|(_, row)| self.is_neglected(row))
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub(crate) fn is_neglected(&self, row: &SessionRow) -> bool {
        let due = row.wake_at.is_some_and(|at| at <= self.now);
        match row.phase {
            SessionPhase::Idle => row.queued > 0 && row.closed.is_none(),
            SessionPhase::Backoff | SessionPhase::Waiting => {
                due && (row.active_turn.is_some() || (row.queued > 0 && row.closed.is_none()))
            }
            SessionPhase::Running => row.lease_owner.is_none_or(|owner| !self.is_alive(owner)),
        }
    }
}

/// What a start did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    Begun,
    /// A gate keeps it.
    Waits,
    Nothing,
}

pub(super) fn notification_id(id: &str) -> NotificationId {
    NotificationId::parse(id).expect("ids of rows are ids")
}

/// The limits of a run, as `starter.rs` reads them.
fn limits(settings: &Settings) -> RunLimits {
    let config = &settings.delivery;
    RunLimits {
        debounce_ms: config.collect_debounce_ms.i64(),
        wait_ms_max: config.collect_wait_ms_max.i64(),
        items_max: config.collect_items_max.usize(),
        bytes_max: i64::try_from(config.collect_bytes_max.get()).expect("few bytes"),
    }
}

/// No step is impossible, unless a bug is planted: then the service leaves the session unchanged.
pub(super) fn possible<T>(step: Result<T, ImpossibleStep>, bug: Option<Bug>) -> Option<T> {
    match step {
        Ok(value) => Some(value),
        Err(_) if bug.is_some() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Tool names only: their texts have no effect here. `depth`: of the branch, if it is one.
fn offered((has_task, has_mail): (bool, bool), kind: SessionKind, depth: Option<i32>) -> Arc<[ToolDefinition]> {
    let context = OfferContext {
        has_task,
        is_coordinator: false,
        is_asked: false,
        is_orchestrator: matches!(kind, SessionKind::Orchestrator | SessionKind::Guest),
        is_account: false,
        guest: (kind == SessionKind::Guest).then_some(Reachable::Delegate),
        has_mail,
        is_branch: depth.is_some(),
        may_branch: has_task && depth.unwrap_or_default() < DEPTH_MAX,
        models: ModelKinds::default(),
    };
    // Definitions hold schemas and are created once.
    thread_local! {
        static OFFERS: RefCell<HashMap<OfferContext, Arc<[ToolDefinition]>>> = RefCell::default();
    }
    let offer = || definitions(tools::offered(context).into_iter().map(|tool| tool.name.to_owned()));
    OFFERS.with_borrow_mut(|offers| Arc::clone(offers.entry(context).or_insert_with(offer)))
}

fn definitions(names: impl Iterator<Item = String>) -> Arc<[ToolDefinition]> {
    let tools = names.map(|name| ToolDefinition {
        name,
        description: String::new(),
        parameters: serde_json::value::RawValue::NULL.to_owned(),
    });
    tools.collect()
}

/// The prompt has no effect here.
fn empty_prompt() -> Prompt {
    thread_local! {
        static PROMPT: Rc<Prompt> = Rc::new(Prompt {
            profile: Profile { version: "1".to_owned(), hash: String::new(), text: "".into() },
            input: String::new(),
            manifest: Manifest::new(InstructionLayout::Layered),
        });
    }
    PROMPT.with(|prompt| Prompt::clone(prompt))
}
