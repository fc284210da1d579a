//! A call in the tool-gateway's transaction, from its checks to its record, and a call that somebody was asked about. One step, since the transaction locks the session, so
//! no other closes or claims it, and since two records of one call meet at their key.

use contracts::{Headers, TraceContext, header, notification::NotificationMessage, tool::ToolRequested, tools};
use domain::{
    AccountId, Actor, ActorKind, AgentId, CallId, Generation, ModelKinds, NotificationId, PolicyScope, PolicyVerdict,
    QuestionKind, QuestionState, Reachable, SessionId, TaskId, TaskStatus, TimerKind, ToolCallState, ToolPolicyId,
    TurnId, Verdict, tool_policy::ToolPolicy,
};
use tool_gateway::decisions::{
    CallBranch, CallFacts, CallRequest, CallTurn, Capability, Claims, Consequence, Origin, Presented, RecordedCall,
    Refusal, ToolAnswer, asked,
};
use uuid::Uuid;

use super::{
    CallRow, Database, Millis,
    branches::{BranchesEnded, DEPTH_MAX},
    intake::OwnItem,
    moment,
    outbox::{Message, Published, Service},
    questions::QuestionRow,
    timers::TimerRow,
};
use crate::simulation::bugs::Bug;

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Executed {
    Over {
        state: ToolCallState,
        outbox: Vec<Uuid>,
        /// The tool ran in this transaction.
        effect: Option<Box<Effect>>,
    },
    OutOfTurn,
    /// Somebody is asked about it: it is on record, and has not run.
    Asked,
    /// A dead letter: no row of such a call or session exists.
    Unowned,
}

impl Executed {
    /// Nothing was done.
    fn was_over(state: ToolCallState) -> Executed {
        Executed::Over {
            state,
            outbox: Vec::new(),
            effect: None,
        }
    }
}

/// What the checks say of a call.
struct Admission {
    admitted: Result<(), Refusal>,
    waits: bool,
    asks: bool,
}

/// As `LAPSE` of `execute/asking.rs`, and shorter.
const LAPSE: Millis = 20_000;

/// The effect of a tool, for the witness.
#[derive(Debug)]
pub(crate) struct Effect {
    /// Its record's id.
    pub(crate) call: (AccountId, Uuid),
    /// A policy asks about calls of the tool.
    pub(crate) needs_approval: bool,
    pub(crate) turn: TurnId,
    pub(crate) ordinal: i32,
    /// Its session was closed before it began.
    pub(crate) in_closed_session: bool,
    /// Its turn was over before it began.
    pub(crate) in_ended_turn: bool,
    /// Its turn had requested it, with these arguments.
    pub(crate) was_asked_for: bool,
    /// Earlier unfinished calls of the same answer.
    pub(crate) overtook: Vec<i32>,
    pub(crate) closed: Vec<SessionId>,
    pub(crate) cancelled: Vec<NotificationId>,
    /// Turns that were asked to stop.
    pub(crate) cut: Vec<TurnId>,
    /// The notification that it caused.
    pub(crate) asked: Option<(AccountId, NotificationId)>,
    /// What branches are asked that it made.
    pub(crate) items: Vec<OwnItem>,
    pub(crate) ended: BranchesEnded,
    /// The task that it moved.
    pub(crate) moved: Option<TaskId>,
    /// Items of mail that the agent was shown.
    pub(crate) pulled: Vec<NotificationId>,
}

impl Database {
    /// For a planted bug: the transaction lost the record of a call, and kept its effect.
    pub(crate) fn forget_call(&mut self, request: &ToolRequested) {
        self.calls.remove(&(request.account.clone(), request.tool_call_id()));
    }

    /// The locks, `FACTS`, the tool, `CALLS_INSERT` and the outbox. `deliveries` of the request do not count.
    pub(crate) fn execute(&mut self, request: &ToolRequested, deliveries: u32, bug: Option<Bug>) -> Executed {
        let asked = asked(request, TraceContext::default());
        if let Some(row) = self.calls.get(&(asked.account.clone(), asked.id))
            && bug != Some(Bug::CallRunAgain)
        {
            let is_same = (&row.name, &row.arguments) == (&asked.name, &asked.arguments);
            return match row.state.is_over() {
                true => Executed::was_over(row.state),
                false if is_same => self.decided(&asked.account, asked.id, bug).1,
                false => Executed::Unowned,
            };
        }
        let Some(mut facts) = self.call_facts(&asked, request.turn_id) else {
            return Executed::Unowned;
        };
        if bug == Some(Bug::ClosedCallAllowed) {
            facts.is_closed = false;
        }
        if let Some(turn) = &mut facts.turn
            && bug == Some(Bug::ForgedCallAllowed)
        {
            turn.call = Some(recorded(&asked));
        }
        let Admission { admitted, waits, asks } = self.admit(&asked, &facts);
        if let Err(refusal) = &admitted
            && refusal.consequence() == Consequence::Buried
        {
            return Executed::Unowned;
        }
        let gives_up = bug == Some(Bug::OrderGivenUp) && deliveries > 8;
        if waits && !gives_up {
            return Executed::OutOfTurn;
        }
        let effect = self.effect(&asked, request.turn_id);
        let outcome = match admitted {
            Ok(()) if asks && self.may_open(&asked.account, asked.session) => {
                let row = self.question(&asked, &facts, QuestionKind::Tool);
                self.question_open(&asked.account, row, Some(self.now + LAPSE));
                self.call_write(&asked, request.turn_id, ToolCallState::Requested, String::new());
                return Executed::Asked;
            }
            Ok(()) if asks => Err(ToolAnswer::failed("too_many_questions", "", "")),
            Ok(()) => self.run(&asked, &facts, bug),
            Err(refusal) => Err(refusal.told()),
        };
        self.over(&asked, outcome, effect)
    }

    /// `execute/asking.rs`: runs or refuses a call that somebody was asked about, as its record and its question say. Gives the call
    /// of the record.
    pub(crate) fn decided(
        &mut self,
        account: &AccountId,
        id: Uuid,
        bug: Option<Bug>,
    ) -> (Option<CallRequest>, Executed) {
        let Some(row) = self.calls.get(&(account.clone(), id)).cloned() else {
            return (None, Executed::Unowned);
        };
        let turn = row.turn.expect("a call here is of a turn");
        let mut claims = Claims {
            turn,
            task: None,
            session_key: String::new(),
            generation: row.generation,
            fence: row.fence,
            agent: self.sessions[&(account.clone(), row.session)].conversation.agent,
        };
        let mut asked = CallRequest {
            account: account.clone(),
            session: row.session,
            id,
            call_id: row.call_id.clone(),
            ordinal: row.ordinal,
            name: row.name.clone(),
            arguments: row.arguments.clone(),
            origin: Origin::Turn(claims.clone()),
            trace: TraceContext::default(),
        };
        let facts = self.call_facts(&asked, turn).expect("its session is there");
        claims.session_key.clone_from(&facts.session_key);
        claims.task = facts.task().cloned();
        asked.origin = Origin::Turn(claims);
        if row.state.is_over() && bug != Some(Bug::ApprovedTwice) {
            return (Some(asked), Executed::was_over(row.state));
        }
        let is_asked = |question: &&QuestionRow| match bug {
            Some(Bug::ApprovalForOthers) => question.turn == turn && question.kind == QuestionKind::Tool,
            _ => question.call == id,
        };
        let question = self.questions.values().find(is_asked);
        let (is_open, is_approved) = question.map_or((false, false), |question| {
            let is_open = question.state.is_open();
            let any = bug == Some(Bug::VerdictUnread) && !is_open;
            (is_open, any || question.verdict == Some(Verdict::Approved))
        });
        let admitted = self.admit(&asked, &facts).admitted;
        // It was the turn's call when it was recorded.
        let admitted = admitted.map_err(|refusal| match refusal.consequence() {
            Consequence::Late | Consequence::Answered => refusal,
            Consequence::Buried => Refusal::Superseded,
        });
        let late = |refusal: &Refusal| refusal.consequence() == Consequence::Late;
        let is_late = admitted.as_ref().is_err_and(late);
        if is_open && !is_late {
            return (Some(asked), Executed::Asked);
        }
        let effect = self.effect(&asked, turn);
        let outcome = match admitted {
            Err(refusal) if is_late || is_approved => Err(refusal.told()),
            Ok(()) if is_approved => self.run(&asked, &facts, bug),
            Ok(()) | Err(_) => Err(ToolAnswer::failed("denied", "", "")),
        };
        let executed = self.over(&asked, outcome, effect);
        (Some(asked), executed)
    }

    /// The tool has run, or did not: the record and the outbox.
    fn over(&mut self, asked: &CallRequest, outcome: Result<Done, ToolAnswer>, effect: Effect) -> Executed {
        let (state, result, done) = match outcome {
            Ok(done) => (ToolCallState::Finished, "ok".to_owned(), Some(done)),
            Err(told) => (told.state, told.code.to_owned(), None),
        };
        self.call_write(asked, effect.turn, state, result);
        let Some(done) = done else {
            return Executed::was_over(state);
        };
        Executed::Over {
            state,
            outbox: self.outbox_insert(Service::ToolGateway, done.messages),
            effect: Some(Box::new(Effect {
                closed: done.closed,
                cancelled: done.cancelled,
                cut: done.cut,
                asked: done.asked,
                items: done.items,
                ended: done.ended,
                moved: done.moved,
                pulled: done.pulled,
                ..effect
            })),
        }
    }

    /// `CALLS_INSERT` and `CALL_END`.
    fn call_write(&mut self, asked: &CallRequest, turn: TurnId, state: ToolCallState, result: String) {
        let Origin::Turn(claims) = &asked.origin else {
            unreachable!("a call here is of a turn");
        };
        let key = (asked.account.clone(), asked.id);
        let started_at = self.calls.get(&key).map_or(self.now, |row| row.started_at);
        let row = CallRow {
            session: asked.session,
            turn: Some(turn),
            ordinal: asked.ordinal,
            call_id: asked.call_id.clone(),
            name: asked.name.clone(),
            arguments: asked.arguments.clone(),
            generation: claims.generation,
            fence: claims.fence,
            state,
            result,
            started_at,
            finished_at: state.is_over().then_some(self.now),
        };
        self.calls.insert(key, row);
        self.version += 1;
    }

    /// A call that is about to run, as the witness sees it.
    fn effect(&self, asked: &CallRequest, turn: TurnId) -> Effect {
        let row = self.turns.get(&(asked.account.clone(), turn));
        Effect {
            call: (asked.account.clone(), asked.id),
            turn,
            ordinal: asked.ordinal,
            in_closed_session: self.sessions[&(asked.account.clone(), asked.session)].closed.is_some(),
            in_ended_turn: row.is_some_and(|turn| turn.state.is_over()),
            was_asked_for: row.is_some() && self.was_asked_for(asked, turn),
            needs_approval: self.accounts[&asked.account].asks == Some(asked.name.as_str()),
            overtook: self.earlier(asked, turn),
            closed: Vec::new(),
            cancelled: Vec::new(),
            cut: Vec::new(),
            asked: None,
            items: Vec::new(),
            ended: BranchesEnded::default(),
            moved: None,
            pulled: Vec::new(),
        }
    }

    /// Calls of the turn's last answer that were requested, come earlier and have no record.
    fn earlier(&self, asked: &CallRequest, turn: TurnId) -> Vec<i32> {
        let is_over = |ordinal: i32| {
            let mut calls = self.calls.iter();
            calls.any(|((account, _), call)| {
                *account == asked.account && call.turn == Some(turn) && call.ordinal == ordinal && call.state.is_over()
            })
        };
        let round = self
            .turns
            .get(&(asked.account.clone(), turn))
            .and_then(|turn| turn.journal.last());
        let calls = round.iter().flat_map(|round| &round.calls);
        calls
            .filter(|call| call.answered.is_none() && call.ordinal < asked.ordinal && !is_over(call.ordinal))
            .map(|call| call.ordinal)
            .collect()
    }

    /// `FACTS`.
    fn call_facts(&self, asked: &CallRequest, turn: TurnId) -> Option<CallFacts> {
        let row = self.sessions.get(&(asked.account.clone(), asked.session))?;
        let agent = &self.agents[&(asked.account.clone(), row.conversation.agent)];
        let turn = self.turns.get(&(asked.account.clone(), turn)).map(|found| CallTurn {
            id: turn,
            session: found.session,
            state: found.state,
            first_item: found.notifications.first().map(ToString::to_string),
            fence: found.fence,
            task: found.task.clone(),
            hops: found.hops,
            tools: Some(found.tools.clone()),
            until: found.waiting_since.map(|since| {
                let of_turn = self
                    .calls
                    .values()
                    .filter(|call| call.turn == Some(turn) && call.started_at >= since);
                let asked_ms: Millis = of_turn.map(|call| call.open_ms(self.now)).sum();
                moment(since + found.tools_wait_ms + asked_ms)
            }),
            call: found
                .journal
                .last()
                .and_then(|round| {
                    round
                        .calls
                        .iter()
                        .find(|call| call.ordinal == asked.ordinal && call.answered.is_none())
                })
                .map(|call| RecordedCall {
                    call_id: CallId(call.call_id.clone()),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                }),
            earlier_tools: self
                .earlier(asked, turn)
                .iter()
                .map(|_| "task_history".to_owned())
                .collect(),
            earlier: self.earlier(asked, turn),
            over: Vec::new(),
        });
        let policy = self.accounts[&asked.account].asks.map(|tool| ToolPolicy {
            id: ToolPolicyId(Uuid::nil()),
            scope_kind: PolicyScope::Account,
            scope_id: asked.account.to_string(),
            tool: tool.to_owned(),
            visible: None,
            verdict: Some(PolicyVerdict::Ask),
            audience: None,
            schema_hash: None,
        });
        Some(CallFacts {
            needs_plan: false,
            session_key: row.key.clone(),
            session_kind: row.conversation.kind(),
            reachable: row.conversation.guest().map(|_| Reachable::Delegate),
            generation: Generation(row.generation),
            fence: row.fence,
            is_closed: row.closed.is_some(),
            close_reason: row.closed.map(|(_, reason)| reason.to_string()),
            turn_stopped: match row.stop.as_ref().and_then(|stop| stop.turn) {
                Some(asked) if row.active_turn.is_some() => row.active_turn == Some(asked),
                _ => row.stopped_turn.is_some() && row.active_turn.is_none(),
            },
            agent: row.conversation.agent,
            agent_slug: agent.slug.clone(),
            agent_name: agent.slug.clone(),
            session_task: row.conversation.task().cloned(),
            coordinator_task: None,
            coordinates: false,
            turn,
            branch: row
                .conversation
                .branch()
                .zip(self.branch_of(&asked.account, &row.conversation))
                .map(|(id, branch)| CallBranch {
                    id,
                    depth: branch.depth,
                }),
            branch_depth_max: DEPTH_MAX,
            newest_hops: None,
            now: moment(self.now),
            tool_policies: i32::from(policy.is_some()),
            policies: policy.into_iter().collect(),
            models: ModelKinds::default(),
            has_mail: self.accounts[&asked.account].mail_enabled,
        })
    }

    /// As `execute::decide`: whether the call is admitted, and whether it waits or is asked about. Agents here name no task but their
    /// own.
    fn admit(&self, asked: &CallRequest, facts: &CallFacts) -> Admission {
        let capability = Capability {
            session: asked.session,
            facts,
        };
        let tool = tools::all().iter().find(|tool| tool.name == asked.name);
        let presented = Presented {
            asked,
            tool,
            task: facts
                .task()
                .filter(|_| tool.is_some_and(|tool| tool.task_argument().is_some())),
        };
        let admitted = capability.admit(&presented);
        let waits = capability.waits_for_earlier(&presented, &admitted);
        let asks = tool.is_some_and(|tool| capability.ruled(tool).0 == PolicyVerdict::Ask);
        Admission { admitted, waits, asks }
    }

    /// Independent of the decision: whether an answer of the turn requested it.
    fn was_asked_for(&self, asked: &CallRequest, turn: TurnId) -> bool {
        let turn = &self.turns[&(asked.account.clone(), turn)];
        turn.journal.calls().any(|call| {
            (call.ordinal, call.call_id.as_str()) == (asked.ordinal, asked.call_id.0.as_str())
                && (call.name.as_str(), call.arguments.as_str()) == (asked.name.as_str(), asked.arguments.as_str())
        })
    }

    /// The tool.
    fn run(&mut self, asked: &CallRequest, facts: &CallFacts, bug: Option<Bug>) -> Result<Done, ToolAnswer> {
        match asked.name.as_str() {
            "task_status" => self.run_task_status(asked, facts, bug),
            "response_request" => self.run_response_request(asked, facts),
            "ask_question" => self.run_ask_question(asked, facts),
            "check_later" => self.run_check_later(asked, facts),
            "subagent_spawn" => self.run_subagent_spawn(asked, facts, bug),
            "subagent_cancel" => self.run_subagent_cancel(asked, bug),
            "send_message" => self.run_send_message(asked, facts),
            "check_messages" => Ok(self.run_check_messages(asked, facts, bug)),
            "create_session" => self.run_create_session(asked, facts),
            "update_task" => self.run_update_task(asked, facts, bug),
            _ => Ok(Done::default()),
        }
    }

    /// A question in the name of the call's turn.
    pub(super) fn question(&self, asked: &CallRequest, facts: &CallFacts, kind: QuestionKind) -> QuestionRow {
        let session = &self.sessions[&(asked.account.clone(), asked.session)];
        QuestionRow {
            kind,
            state: QuestionState::Open,
            conversation: session.conversation.clone(),
            task: facts.task().map(TaskId::key),
            session: asked.session,
            turn: facts.turn.as_ref().expect("the call is of a turn").id,
            call: asked.id,
            verdict: None,
        }
    }

    /// `tools/ask_question.rs`: the argument is the time until it lapses, if it does.
    fn run_ask_question(&mut self, asked: &CallRequest, facts: &CallFacts) -> Result<Done, ToolAnswer> {
        let row = self.question(asked, facts, QuestionKind::Question);
        if !self.may_ask(&asked.account, asked.session, row.turn) {
            return Err(ToolAnswer::failed("may_not_ask", "", ""));
        }
        let lapse_at = asked.arguments.parse::<Millis>().ok().map(|ms| self.now + ms);
        self.question_open(&asked.account, row, lapse_at);
        Ok(Done::default())
    }

    /// `tools/check_later.rs`: the argument is the time.
    fn run_check_later(&mut self, asked: &CallRequest, facts: &CallFacts) -> Result<Done, ToolAnswer> {
        let of = self.question(asked, facts, QuestionKind::Question);
        let Some(chain) = self.later(&asked.account, asked.session, of.turn) else {
            return Err(ToolAnswer::failed("too_many_timers", "", ""));
        };
        let due_at = self.now + asked.arguments.parse::<Millis>().expect("agents here give a time");
        let timer = TimerRow {
            chain,
            hops: facts.hops(),
            ..TimerRow::new(TimerKind::CheckLater, asked.id.to_string(), due_at, &of)
        };
        self.timer_set(&asked.account, timer);
        Ok(Done::default())
    }

    /// `tools/task_status.rs`.
    fn run_task_status(
        &mut self,
        asked: &CallRequest,
        facts: &CallFacts,
        bug: Option<Bug>,
    ) -> Result<Done, ToolAnswer> {
        let to = TaskStatus::parse(&asked.arguments).unwrap_or(TaskStatus::InProgress);
        let task = facts.task().cloned().expect("offered with a task only");
        self.task_moved(asked, facts, (&task, to), bug)
    }

    /// `moved` of `task_status.rs`.
    pub(super) fn task_moved(
        &mut self,
        asked: &CallRequest,
        facts: &CallFacts,
        (task, to): (&TaskId, TaskStatus),
        bug: Option<Bug>,
    ) -> Result<Done, ToolAnswer> {
        let Some(row) = self.tasks.get(&(asked.account.clone(), task.key())) else {
            return Err(Refusal::not_there(task, facts).told());
        };
        if row.status == TaskStatus::AwaitingApproval {
            return Err(Refusal::AwaitsApproval { task: task.clone() }.told());
        }
        let turn = facts.turn.as_ref().map(|turn| turn.id);
        let Some(closed) = self.task_status_set(&asked.account, task, to, turn, bug) else {
            return Err(ToolAnswer::failed("blocked_by", "", ""));
        };
        Ok(Done {
            messages: closed.messages,
            closed: closed.sessions,
            cancelled: closed.cancelled,
            cut: closed.cut,
            ended: closed.branches,
            moved: Some(task.key()),
            ..Done::default()
        })
    }

    /// `tools/response_request.rs`: the argument is the agent.
    fn run_response_request(&mut self, asked: &CallRequest, facts: &CallFacts) -> Result<Done, ToolAnswer> {
        let agent = AgentId::parse(&asked.arguments).ok();
        let there = agent.filter(|agent| {
            *agent != facts.agent
                && self
                    .agents
                    .get(&(asked.account.clone(), *agent))
                    .is_some_and(|agent| !agent.removed)
        });
        let Some(agent) = there else {
            return Err(ToolAnswer::failed("unknown_agent", "", ""));
        };
        Ok(Self::asks(asked, facts, (facts.task(), agent)))
    }

    /// A notification in the name of the call's agent.
    pub(super) fn asks(asked: &CallRequest, facts: &CallFacts, (task, agent): (Option<&TaskId>, AgentId)) -> Done {
        let id = Uuid::new_v5(&asked.id, agent.uuid().as_bytes()).to_string();
        let id = NotificationId::parse(&id).expect("a UUID is an id");
        let published = notification(
            &asked.account,
            task,
            &NotificationMessage {
                id: Some(id.clone()),
                kind: None,
                agent: Some(agent.to_string()),
                agents: Vec::new(),
                session: None,
                title: None,
                body: String::new(),
                message_id: None,
                sender: Some(Actor {
                    kind: ActorKind::Agent,
                    id: facts.agent.to_string(),
                    name: String::new(),
                    via: None,
                }),
                queue_mode: None,
                metadata: serde_json::Map::new(),
            },
            facts.hops().saturating_add(1),
        );
        Done {
            messages: vec![Message::Notification(published)],
            asked: Some((asked.account.clone(), id)),
            ..Done::default()
        }
    }
}

/// The call as its turn would have recorded it.
fn recorded(asked: &CallRequest) -> RecordedCall {
    RecordedCall {
        call_id: asked.call_id.clone(),
        name: asked.name.clone(),
        arguments: asked.arguments.clone(),
    }
}

#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) messages: Vec<Message>,
    pub(super) closed: Vec<SessionId>,
    pub(super) cancelled: Vec<NotificationId>,
    pub(super) cut: Vec<TurnId>,
    pub(super) asked: Option<(AccountId, NotificationId)>,
    /// What branches are asked.
    pub(super) items: Vec<OwnItem>,
    pub(super) ended: BranchesEnded,
    pub(super) moved: Option<TaskId>,
    pub(super) pulled: Vec<NotificationId>,
}

/// A notification on its subject.
pub(crate) fn notification(
    account: &AccountId,
    task: Option<&TaskId>,
    message: &NotificationMessage,
    hops: u16,
) -> Published {
    let mut headers = Headers::default();
    headers.set(header::HOPS, hops.to_string());
    Published {
        subject: contracts::Root::default().subject::<NotificationMessage>(account, task),
        headers,
        payload: serde_json::to_vec(message).expect("wire types have string keys").into(),
    }
}

/// Whether the tool's calls share no transaction.
pub(crate) fn runs_alone(name: &str) -> bool {
    tools::all().iter().any(|tool| tool.name == name && tool.runs_alone)
}
