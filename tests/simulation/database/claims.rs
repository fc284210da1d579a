//! Delivery's claims: a batch of woken sessions, from their locks to turns that may be sent. One transaction under the sessions'
//! locks, and so one step.

use std::{collections::HashMap, rc::Rc, sync::Arc};

use contracts::{
    TraceContext,
    outgoing::Origin,
    tool::ToolRequested,
    tools::{self, OfferContext},
};
use delivery::{
    prompt::{InputFacts, Profile, TaskFacts, ThreadExtract},
    providers::ToolDefinition,
    store::{
        SessionName,
        claim::{OpenTurn, ToolResult},
        context::QueuedItem,
        journal::{Call, Journal},
    },
    turn::{
        claim::{Admitted, Beginning, Prompt, admitted, begin, carry_on, tool_requested},
        resume::Due,
        work::Work,
    },
};
use domain::{
    Actor, ActorKind, AgentSlug, Generation, ImpossibleStep, InstructionLayout, NotificationId, NotificationState,
    SessionEvent, SessionPhase, TaskStatus, TurnId, TurnRef, TurnState,
};
use storage::{
    Setting,
    manifest::Manifest,
    session::{
        sessions_lock::{LockedSession, SessionFacts},
        turns_begin::NewTurn,
    },
};
use uuid::Uuid;

use super::{Database, Millis, SessionRow, TurnRow, moment, outbox::Message};
use crate::simulation::{bugs::Bug, settings::Settings};

/// Error of the wrong clock ([`Bug::LeaseByLocalClock`]).
const AHEAD: Millis = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) work: Vec<Work>,
    pub(crate) left: Vec<SessionName>,
    pub(crate) outbox: Vec<Uuid>,
    /// Sessions whose lease was taken, including new turns.
    pub(crate) started: Vec<(SessionName, TurnId, NotificationId)>,
    pub(crate) resumed: Vec<(SessionName, TurnId)>,
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
            facts: SessionFacts {
                phase: row.phase,
                closed: row.closed.is_some() && bug != Some(Bug::ClosedAdmitted),
                queued: row.queued,
                due: row.wake_at.is_some_and(|at| at <= self.now),
                asked: row.asked,
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
                ordinal: call.ordinal,
                result: call.result.clone(),
            })
            .collect();
        let notification = NotificationId::parse(&row.notification).expect("ids of rows are ids");
        let attempts = self
            .notifications
            .get(&(session.account.clone(), notification))
            .map_or(0, |row| row.attempts);
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
            notification_ids: vec![row.notification.clone()],
            attempts,
            awaited_too_long: row
                .waiting_since
                .is_some_and(|since| since < self.now - row.tools_wait_ms),
            results,
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
            if self.start(&session, replica, settings, bug, &mut claimed) {
                taken.insert(session.name(), ());
            }
        }
        for (session, turn) in resume {
            let name = session.name();
            taken.insert(name.clone(), ());
            let effects = settings.effects(&turn.provider);
            let resumed = carry_on(&session, turn, effects, settings.continuation, Arc::default());
            let Some(mut work) = possible(resumed, bug) else {
                continue;
            };
            self.lease_take(&name, replica, work.phase);
            self.turn_resume(&name, work.turn.id, work.state);
            claimed.resumed.push((name, work.turn.id));
            if bug == Some(Bug::StartedNotRepeated) {
                work.heard.hear();
            }
            if bug == Some(Bug::LostSentBlindly) && work.due == Due::LookUp {
                work.due = Due::Send;
            }
            claimed.work.push(work);
        }
        let mut messages = Vec::new();
        for (session, turn) in ask {
            let Some(call) = turn.next() else { continue };
            let awaited = session.facts.state().on(SessionEvent::AwaitedLonger);
            if possible(awaited, bug).is_none() {
                continue;
            }
            self.turns_wait(&session.name(), call.ordinal, settings.delivery.tools_again_ms.i64());
            messages.push(self.request(session.turn(turn.id, turn.task.clone()), turn.agent_id, call));
        }
        claimed.outbox = self.outbox_insert(super::outbox::Service::Delivery, messages);
        claimed.left = names
            .into_iter()
            .filter(|name| !taken.contains_key(*name))
            .cloned()
            .collect();
        self.version += 1;
        claimed
    }

    /// `QUEUE_NEXT` and `TURNS_BEGIN`. `false`: nothing is queued.
    pub(super) fn start(
        &mut self,
        session: &LockedSession,
        replica: Uuid,
        settings: &Settings,
        bug: Option<Bug>,
        claimed: &mut Claimed,
    ) -> bool {
        let Some(item) = self.queue_next(session) else {
            return false;
        };
        let name = session.name();
        let turn_id = TurnId(self.fresh_id());
        let notification = item.facts.notification.clone();
        let beginning = Beginning {
            turn_id,
            prompt: prompt(),
            effects: settings.effects(&item.provider),
            tools: offered(item.facts.task.is_some()),
            tools_wait_ms: settings.delivery.tools_wait_ms_max.i64(),
            trace: TraceContext::default(),
        };
        if let Some((new, work)) = possible(begin(session, item, beginning), bug) {
            self.lease_take(&name, replica, new.phase);
            self.turn_begin(&name, &work, &new);
            claimed.started.push((name, turn_id, notification));
            claimed.work.push(work);
        }
        true
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

    /// `QUEUE_NEXT`.
    fn queue_next(&self, session: &LockedSession) -> Option<QueuedItem> {
        let ((_, id), row) = self
            .notifications
            .iter()
            .filter(|((account, _), row)| {
                *account == session.account
                    && row.state == NotificationState::Queued
                    && row.place.is_some_and(|(of, _)| of == session.id)
            })
            .min_by_key(|(_, row)| row.place.map(|(_, position)| position))?;
        let agent_id = row.agent?;
        let agent = self.agents.get(&(session.account.clone(), agent_id))?;
        Some(QueuedItem {
            account: session.account.clone(),
            session_id: session.id,
            facts: InputFacts {
                notification: id.clone(),
                kind: String::new(),
                sender: Actor {
                    kind: ActorKind::Service,
                    id: String::new(),
                    name: String::new(),
                    via: None,
                },
                title: None,
                body: String::new(),
                about_message: None,
                task: row.task.as_ref().map(|id| TaskFacts {
                    id: id.clone(),
                    title: String::new(),
                    description: String::new(),
                    status: TaskStatus::Inbox,
                }),
                thread: ThreadExtract::default(),
                thread_total: 0,
                overview: None,
                is_interrupted: false,
            },
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
            is_coordinator: false,
            briefing: String::new(),
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
            notification: work.notification_ids[0].clone(),
            provider: work.provider.clone(),
            journal: Journal::default(),
            tools: new.tools.clone(),
            tools_wait_ms: new.tools_wait_ms,
            attempt: 1,
            failures: 0,
            hops: work.hops,
            waiting_since: None,
            lost_at: None,
            sent_at: self.now,
            started_at: self.now,
            reply: None,
            no_reply: false,
            late: false,
        };
        self.turns.insert((name.0.clone(), work.turn.id), turn);
        let id = NotificationId::parse(&work.notification_ids[0]).expect("ids of rows are ids");
        if let Some(item) = self.notifications.get_mut(&(name.0.clone(), id))
            && item.state == NotificationState::Queued
        {
            item.state = NotificationState::Running;
            item.turn = Some(work.turn.id);
        }
        let session = self.sessions.get_mut(name).expect("locked");
        session.active_turn = Some(work.turn.id);
        session.queued -= 1;
        session.turn_count = new.number;
        session.interrupted = false;
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

/// No step is impossible, unless a bug is planted: then the service leaves the session unchanged.
pub(super) fn possible<T>(step: Result<T, ImpossibleStep>, bug: Option<Bug>) -> Option<T> {
    match step {
        Ok(value) => Some(value),
        Err(_) if bug.is_some() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Tool names only: their texts have no effect here.
fn offered(has_task: bool) -> Arc<[ToolDefinition]> {
    fn named(has_task: bool) -> Arc<[ToolDefinition]> {
        let context = OfferContext {
            has_task,
            is_coordinator: false,
        };
        let tools = tools::offered(context).into_iter().map(|tool| ToolDefinition {
            name: tool.name.to_owned(),
            description: String::new(),
            parameters: serde_json::value::RawValue::NULL.to_owned(),
        });
        tools.collect()
    }
    // Definitions hold schemas and are created once.
    thread_local! {
        static WITH_TASK: Arc<[ToolDefinition]> = named(true);
        static TASKLESS: Arc<[ToolDefinition]> = named(false);
    }
    if has_task {
        WITH_TASK.with(Arc::clone)
    } else {
        TASKLESS.with(Arc::clone)
    }
}

/// The prompt has no effect here.
fn prompt() -> Prompt {
    thread_local! {
        static PROMPT: Rc<Prompt> = Rc::new(Prompt {
            profile: Profile { version: "1", hash: String::new(), text: "".into() },
            input: String::new(),
            manifest: Manifest::new(InstructionLayout::Layered),
        });
    }
    PROMPT.with(|prompt| Prompt::clone(prompt))
}
