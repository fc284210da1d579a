//! One message of every kind and with every word that it may contain, always the same: these are recorded.

use contracts::{
    Headers, Outgoing, Root, Timestamp, TraceContext,
    dead::DeadLetter,
    event::{
        AccountChanged, AgentChanged, AgentRemoved, ArtifactCreated, ArtifactRemoved, BranchEnded, BranchSpawned,
        Change, Event, EventMessage, HoldChanged, IdentityChanged, KeyChanged, MemberChanged, MemoryChanged,
        MessageDied, MessagePosted, NotificationEnded, PersonaChanged, ProviderChanged, ProviderSessionMismatched,
        ProviderThread, QuestionChanged, QueueChanged, RecoveryChanged, ReplyTo, SessionEnded, SessionGated,
        SessionLeaseReleased, SessionOpened, SessionReset, TaskChanged, TaskContextWritten, TaskCreated, TaskPart,
        TaskRecovery, TaskStatusChanged, TaskUnblocked, TimerChanged, ToolPolicyChanged, TurnFinished, TurnReplayed,
        TurnStarted,
    },
    live::LiveText,
    message::{Addressed, Message},
    notification::NotificationMessage,
    outgoing::Origin,
    session::{SessionClosed, SessionResolved, SessionStopRequested},
    tool::{ToolApproved, ToolFinished, ToolRequested},
};
use domain::{
    AccountId, Actor, ActorKind, AgentId, ArtifactId, ArtifactSource, BranchContext, BranchId, BranchState,
    BreakerState, CallId, CloseReason, Fence, Gate, Generation, HoldId, HoldRunning, HoldScope, KeyId, MemoryId,
    MessageId, NotificationId, PersonaId, PolicyScope, PolicyVerdict, QuestionId, QuestionKind, QueueMode, QueueOp,
    RecoveryCause, RecoveryId, RecoveryState, ReplayId, SessionId, SessionKind, StopKind, TaskId, TaskStatus, TimerId,
    TimerKind, TimerState, ToolCallState, ToolPolicyId, TurnId, TurnState, UserId, Verdict,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

const SESSION_KEY: &str = "task:t-1:agent:00000000-0000-0000-0000-000000000001:acme:v2";

fn account() -> AccountId {
    AccountId::parse("acme").unwrap()
}

fn task() -> TaskId {
    TaskId::parse("T-1").unwrap()
}

fn agent() -> AgentId {
    AgentId(Uuid::from_u128(1))
}

fn session() -> SessionId {
    SessionId(Uuid::from_u128(2))
}

fn turn() -> TurnId {
    TurnId(Uuid::from_u128(3))
}

fn generation() -> Generation {
    Generation::FIRST.next()
}

fn notifications() -> Vec<NotificationId> {
    vec![
        NotificationId::parse("ci-1").unwrap(),
        NotificationId::parse("ci-2").unwrap(),
    ]
}

fn at() -> Timestamp {
    Timestamp::from(OffsetDateTime::from_unix_timestamp(1_763_640_000).unwrap())
}

fn actor(kind: ActorKind) -> Actor {
    Actor {
        kind,
        id: "someone".to_owned(),
        name: "Someone".to_owned(),
        via: None,
    }
}

/// What was understood of a payload, as JSON.
type Reader = fn(&Headers, &str, &[u8]) -> Result<Value, String>;

/// A name, the message, and how its consumers read it.
pub(crate) type Sample = (String, Outgoing, Reader);

fn read_plain<M: Serialize + DeserializeOwned>(_: &Headers, _: &str, payload: &[u8]) -> Result<Value, String> {
    let message: M = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(message).unwrap())
}

fn read_addressed<M: Addressed>(_: &Headers, subject: &str, payload: &[u8]) -> Result<Value, String> {
    let message: M =
        contracts::addressed::read(&Root::default(), subject, payload).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(message).unwrap())
}

fn read_notification(headers: &Headers, subject: &str, payload: &[u8]) -> Result<Value, String> {
    let root = Root::default();
    root.read_notification(subject).map_err(|error| error.to_string())?;
    let taken = contracts::notification::read(headers, payload).map_err(|error| error.refusal.detail)?;
    taken.id.ok_or("a notification without its id")?;
    read_plain::<NotificationMessage>(headers, subject, payload)
}

fn sample<M: Message + DeserializeOwned>(
    name: String,
    subject: String,
    id: &str,
    task: Option<&TaskId>,
    payload: &M,
) -> Sample {
    let message = Outgoing::new(subject, id, SOURCE, (Some(&account()), task), &origin(), at(), payload);
    (name, message, read_plain::<M>)
}

fn addressed<M: Addressed>(name: String, id: &str, message: &M) -> Sample {
    let outgoing = Outgoing::of(&Root::default(), id, SOURCE, &origin(), at(), message);
    (name, outgoing, read_addressed::<M>)
}

const SOURCE: &str = "/signalbox/recorded";

fn origin() -> Origin {
    Origin {
        cause: Some("ci-1".to_owned()),
        hops: 2,
        trace: TraceContext {
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            tracestate: Some("vendor=1".to_owned()),
        },
    }
}

fn event(task: Option<TaskId>, detail: &str, event: Event) -> Sample {
    let message = EventMessage {
        account: Some(account()),
        task,
        at: at(),
        event,
    };
    let name = format!("event {} {detail}", message.event.kind());
    addressed(name, "event-1", &message)
}

fn event_of_all(event: Event) -> Sample {
    let message = EventMessage {
        account: None,
        task: None,
        at: at(),
        event,
    };
    let name = format!("event {} of no account", message.event.kind());
    addressed(name, "event-1", &message)
}

/// In a fixed order, each with a name of its own.
pub(crate) fn all() -> Vec<Sample> {
    let mut all = vec![resolved(Some(task()), "of a task"), resolved(None, "of no task")];
    all.extend(CloseReason::ALL.iter().map(|&reason| closed(reason)));
    all.extend(StopKind::ALL.iter().map(|&kind| stop_requested(kind)));
    all.push(requested());
    all.push(approved());
    all.extend(ToolCallState::ALL.iter().map(|&state| finished(state)));
    all.push(notification("with its body alone", bare()));
    all.extend(
        QueueMode::ALL
            .iter()
            .map(|&mode| notification(mode.as_str(), full(mode))),
    );
    all.push(notification("on behalf of a person", on_behalf()));
    all.extend([dead(Some(account())), dead(None), live()]);
    all.extend(events());
    all
}

fn resolved(task: Option<TaskId>, detail: &str) -> Sample {
    let message = SessionResolved {
        account: account(),
        agent_id: task.is_some().then(agent),
        task,
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        position: 41,
    };
    addressed(format!("session.resolved {detail}"), &message.message_id(), &message)
}

fn closed(reason: CloseReason) -> Sample {
    let message = SessionClosed {
        account: account(),
        task: Some(task()),
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        agent_id: Some(agent()),
        reason,
    };
    addressed(format!("session.closed {reason}"), &message.message_id(), &message)
}

fn thread() -> ProviderThread {
    ProviderThread {
        turn_id: turn(),
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        fence: Fence(7),
        agent_id: agent(),
        provider: "default".to_owned(),
        thread: 2,
        detail: "HTTP 400 previous_response_not_found".to_owned(),
    }
}

fn stop_requested(kind: StopKind) -> Sample {
    let message = SessionStopRequested {
        account: account(),
        task: Some(task()),
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        turn_id: turn(),
        kind,
    };
    addressed(
        format!("session.stop_requested {kind}"),
        &message.message_id(),
        &message,
    )
}

fn requested() -> Sample {
    let message = ToolRequested {
        account: account(),
        task: Some(task()),
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        fence: Fence(7),
        turn_id: turn(),
        agent_id: agent(),
        call_id: CallId("call_1".to_owned()),
        ordinal: 1,
        name: "task_history".to_owned(),
        arguments: r#"{"limit":5}"#.to_owned(),
    };
    addressed("tool.requested".to_owned(), &message.message_id(), &message)
}

fn approved() -> Sample {
    let message = ToolApproved {
        account: account(),
        task: Some(task()),
        session_id: session(),
        call: Uuid::from_u128(5),
    };
    addressed("tool.approved".to_owned(), &message.message_id(), &message)
}

fn finished(state: ToolCallState) -> Sample {
    let message = ToolFinished {
        account: account(),
        task: Some(task()),
        session_id: session(),
        generation: generation(),
        fence: Fence(7),
        turn_id: turn(),
        call_id: CallId("call_1".to_owned()),
        ordinal: 1,
        name: "task_history".to_owned(),
        state,
        // Absent because it is too long for a message.
        result: (state == ToolCallState::Finished).then(|| r#"{"messages":[]}"#.to_owned()),
    };
    addressed(format!("tool.finished {state}"), &message.message_id(), &message)
}

fn bare() -> NotificationMessage {
    NotificationMessage {
        id: None,
        kind: None,
        agent: None,
        agents: Vec::new(),
        session: None,
        title: None,
        body: "Tests fail".to_owned(),
        message_id: None,
        sender: None,
        queue_mode: None,
        metadata: serde_json::Map::new(),
    }
}

fn full(mode: QueueMode) -> NotificationMessage {
    let metadata = json!({"reopen": true, "run": 7});
    NotificationMessage {
        id: Some(NotificationId::parse("ci-1").unwrap()),
        kind: Some("ci".to_owned()),
        agent: Some("coder".to_owned()),
        agents: Vec::new(),
        session: None,
        title: Some("CI".to_owned()),
        body: "Tests fail".to_owned(),
        message_id: Some(MessageId(Uuid::from_u128(5))),
        sender: Some(actor(ActorKind::Service)),
        queue_mode: Some(mode),
        metadata: metadata.as_object().unwrap().clone(),
    }
}

fn on_behalf() -> NotificationMessage {
    NotificationMessage {
        sender: Some(Actor {
            via: Some("Chat".to_owned()),
            ..actor(ActorKind::User)
        }),
        ..bare()
    }
}

fn notification(detail: &str, message: NotificationMessage) -> Sample {
    let subject = Root::default().subject::<NotificationMessage>(&account(), Some(&task()));
    let name = format!("notification {detail}");
    let (name, outgoing, _) = sample(name, subject, "ci-1", Some(&task()), &message);
    (name, outgoing, read_notification)
}

fn dead(account: Option<AccountId>) -> Sample {
    let subject = Root::default().dead(account.as_ref(), account.is_some().then(task).as_ref());
    let name = if account.is_some() {
        "dead of an account"
    } else {
        "dead of none"
    };
    let letter = DeadLetter {
        id: Uuid::from_u128(4),
        account,
        subject: "signalbox.notification.acme.T-1".to_owned(),
        reason: "malformed".to_owned(),
        detail: "The payload is no JSON.".to_owned(),
        payload: "{".to_owned(),
        attempts: 1,
        created_at: at(),
    };
    sample(name.to_owned(), subject, "dead-1", None, &letter)
}

fn live() -> Sample {
    let text = LiveText {
        session_id: session(),
        generation: generation(),
        fence: Fence(7),
        turn_id: turn(),
        attempt: 1,
        sequence: 0,
        text: "Hel".to_owned(),
    };
    let subject = Root::default().subject::<LiveText>(&account(), Some(&task()));
    sample("live".to_owned(), subject, &text.message_id(), Some(&task()), &text)
}

fn ended(reason: &str) -> NotificationEnded {
    NotificationEnded {
        id: Some(NotificationId::parse("ci-1").unwrap()),
        agent: Some("coder".to_owned()),
        reason: reason.to_owned(),
        detail: "There is no such agent.".to_owned(),
        dead_letter_id: Some(Uuid::from_u128(4)),
    }
}

fn turn_finished(state: TurnState) -> TurnFinished {
    let is_good = state == TurnState::Finished;
    TurnFinished {
        turn_id: turn(),
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        fence: Fence(7),
        number: 5,
        agent_id: agent(),
        notifications: notifications(),
        state,
        reply: is_good.then(|| "Done".to_owned()),
        reply_cut: false,
        no_reply: false,
        reply_to: if is_good { ReplyTo::Parent } else { ReplyTo::Thread },
        late: !is_good,
        attempts: 2,
        error: (!is_good).then(|| "the provider refused".to_owned()),
    }
}

/// Questions, timers, recovery, tool policies and providers.
fn control() -> Vec<Sample> {
    let changed = |kind: QuestionKind| QuestionChanged {
        question_id: QuestionId(Uuid::from_u128(9)),
        kind,
        agent_id: Some(agent()),
        session_id: Some(session()),
        turn_id: Some(turn()),
        title: "Which database?".to_owned(),
        audience: vec!["role:member".to_owned()],
        verdict: None,
        by: None,
        reason: None,
        lapse_at: Some(at()),
    };
    let mut all = Vec::new();
    for &kind in QuestionKind::ALL {
        let reason = Some("not needed any more".to_owned());
        let ended = QuestionChanged {
            by: Some(actor(ActorKind::User)),
            ..changed(kind)
        };
        let answered = QuestionChanged {
            verdict: (kind != QuestionKind::Question).then_some(Verdict::Approved),
            ..ended.clone()
        };
        let withdrawn = QuestionChanged { reason, ..ended };
        all.extend([
            event(Some(task()), kind.as_str(), Event::QuestionOpened(changed(kind))),
            event(Some(task()), kind.as_str(), Event::QuestionAnswered(answered)),
            event(Some(task()), kind.as_str(), Event::QuestionWithdrawn(withdrawn)),
            event(Some(task()), kind.as_str(), Event::QuestionLapsed(changed(kind))),
            event(Some(task()), kind.as_str(), Event::QuestionCancelled(changed(kind))),
        ]);
    }
    for &context in BranchContext::ALL {
        let spawned = BranchSpawned {
            branch_id: BranchId(Uuid::from_u128(12)),
            group_id: Uuid::from_u128(13),
            agent_id: agent(),
            label: (context == BranchContext::Fork).then(|| "the tests".to_owned()),
            context,
            depth: 1,
            session_id: SessionId(Uuid::from_u128(14)),
            parent_session_id: session(),
            parent_turn_id: turn(),
            base_sha256: "0".repeat(64),
            deadline_at: at(),
        };
        all.push(event(Some(task()), context.as_str(), Event::BranchSpawned(spawned)));
    }
    for &state in BranchState::ALL.iter().filter(|state| !state.is_live()) {
        let is_good = state == BranchState::Finished;
        let ended = BranchEnded {
            branch_id: BranchId(Uuid::from_u128(12)),
            group_id: Uuid::from_u128(13),
            agent_id: agent(),
            label: is_good.then(|| "the tests".to_owned()),
            state,
            detail: (!is_good).then(|| "by Ann: not needed".to_owned()),
            session_id: SessionId(Uuid::from_u128(14)),
            parent_session_id: session(),
            joined_item: is_good.then(|| notifications().remove(0)),
        };
        all.push(event(Some(task()), state.as_str(), Event::BranchEnded(ended)));
    }
    for &state in TurnState::ALL.iter().filter(|state| state.is_over()) {
        let is_good = state == TurnState::Finished;
        let replayed = TurnReplayed {
            replay_id: ReplayId(Uuid::from_u128(15)),
            source_turn_id: TurnId(Uuid::from_u128(16)),
            turn_id: turn(),
            session_id: session(),
            session_key: format!("replay:{}:acme:v1", Uuid::from_u128(15)),
            generation: Generation(1),
            fence: Fence(2),
            agent_id: agent(),
            state,
            error: (!is_good).then(|| "timeout: no answer".to_owned()),
        };
        all.push(event(Some(task()), state.as_str(), Event::TurnReplayed(replayed)));
    }
    for &kind in TimerKind::ALL {
        for &state in TimerState::ALL {
            let changed = TimerChanged {
                timer_id: TimerId(Uuid::from_u128(10)),
                kind,
                state,
                agent_id: Some(agent()),
                session_id: Some(session()),
                due_at: at(),
                reason: (state == TimerState::Cleared).then(|| "task closed".to_owned()),
            };
            all.push(event(
                Some(task()),
                &format!("{kind} {state}"),
                Event::TimerChanged(changed),
            ));
        }
    }
    for &cause in RecoveryCause::ALL {
        let recovery = TaskRecovery {
            recovery_id: RecoveryId(Uuid::from_u128(11)),
            agent_id: Some(agent()),
            cause,
            since: at(),
            detail: "nothing moves it on".to_owned(),
        };
        all.push(event(
            Some(task()),
            cause.as_str(),
            Event::TaskStalled(recovery.clone()),
        ));
        all.push(event(Some(task()), cause.as_str(), Event::TaskNeedsPerson(recovery)));
        for &state in RecoveryState::ALL {
            let changed = RecoveryChanged {
                recovery_id: RecoveryId(Uuid::from_u128(11)),
                agent_id: Some(agent()),
                cause,
                state,
                attempts: 1,
                reason: (state == RecoveryState::Closed).then(|| "superseded".to_owned()),
            };
            all.push(event(
                Some(task()),
                &format!("{cause} {state}"),
                Event::RecoveryChanged(changed),
            ));
        }
    }
    for &scope in PolicyScope::ALL {
        for &verdict in PolicyVerdict::ALL {
            let changed = ToolPolicyChanged {
                policy_id: ToolPolicyId(Uuid::from_u128(12)),
                scope,
                scope_id: "proj-7".to_owned(),
                tool: "task_*".to_owned(),
                visible: Some(true),
                verdict: Some(verdict),
                revision: 2,
                removed: verdict == PolicyVerdict::Allow,
                by: actor(ActorKind::User),
            };
            all.push(event(
                None,
                &format!("{scope} {verdict}"),
                Event::ToolPolicyChanged(changed),
            ));
        }
    }
    for change in Change::ALL {
        let by = || actor(ActorKind::User);
        for changed in [
            Event::AgentChanged(AgentChanged {
                agent_id: agent(),
                slug: "coder".to_owned(),
                change,
                by: by(),
            }),
            Event::AccountChanged(AccountChanged { change, by: by() }),
            Event::KeyChanged(KeyChanged {
                key_id: KeyId::parse("0011223344556677").unwrap(),
                user_id: (change != Change::Changed).then(|| UserId::parse("ann").unwrap()),
                change,
                by: by(),
            }),
            Event::PersonaChanged(PersonaChanged {
                persona_id: PersonaId(Uuid::from_u128(15)),
                change,
                by: by(),
            }),
            Event::MemberChanged(MemberChanged {
                user_id: UserId::parse("ann").unwrap(),
                change,
                by: by(),
            }),
            Event::IdentityChanged(IdentityChanged {
                user_id: (change != Change::Removed).then(|| UserId::parse("ann").unwrap()),
                change,
                by: by(),
            }),
            Event::MemoryChanged(MemoryChanged {
                user_id: (change != Change::Removed).then(|| UserId::parse("ann").unwrap()),
                memory_id: MemoryId(Uuid::from_u128(16)),
                change,
            }),
        ] {
            all.push(event(None, &format!("{change:?}").to_lowercase(), changed));
        }
    }
    for &source in ArtifactSource::ALL {
        let created = ArtifactCreated {
            artifact_id: ArtifactId(Uuid::from_u128(13)),
            name: "plan.pdf".to_owned(),
            media_type: "application/pdf".to_owned(),
            bytes: 15_000_000,
            source,
            by: actor(ActorKind::Agent),
        };
        all.push(event(Some(task()), source.as_str(), Event::ArtifactCreated(created)));
    }
    let removed = ArtifactRemoved {
        artifact_id: ArtifactId(Uuid::from_u128(13)),
        name: "plan.pdf".to_owned(),
        by: actor(ActorKind::User),
    };
    all.push(event(Some(task()), "artifact", Event::ArtifactRemoved(removed)));
    for what in [
        TaskPart::Stages,
        TaskPart::Stage,
        TaskPart::PlanGate,
        TaskPart::Handover,
        TaskPart::BlockedOn,
        TaskPart::Dependencies,
        TaskPart::Parent,
        TaskPart::Worker,
    ] {
        let changed = TaskChanged {
            what,
            by: actor(ActorKind::User),
            detail: "in a few words".to_owned(),
        };
        all.push(event(Some(task()), &format!("{what:?}"), Event::TaskChanged(changed)));
    }
    for blocker in [Some(task()), None] {
        let name = if blocker.is_some() { "done" } else { "taken away" };
        let unblocked = TaskUnblocked {
            by: actor(ActorKind::Agent),
            blocker,
        };
        all.push(event(Some(task()), name, Event::TaskUnblocked(unblocked)));
    }
    let written = TaskContextWritten {
        version: 3,
        characters: 10_000,
        cut_characters: 1,
        by: actor(ActorKind::Agent),
        turn_id: Some(turn()),
    };
    all.push(event(Some(task()), "", Event::TaskContextWritten(written)));
    let provider = |state| ProviderChanged {
        key: "claude".to_owned(),
        state,
        class: (state != BreakerState::Closed).then(|| "quota".to_owned()),
        until: (state != BreakerState::Closed).then(at),
    };
    all.extend([
        event_of_all(Event::ProviderOpened(provider(BreakerState::Open))),
        event_of_all(Event::ProviderProbing(provider(BreakerState::Probing))),
        event_of_all(Event::ProviderClosed(provider(BreakerState::Closed))),
    ]);
    all
}

fn events() -> Vec<Sample> {
    let of_task = |detail: &str, what: Event| event(Some(task()), detail, what);
    let mut all: Vec<Sample> = TaskStatus::ALL
        .iter()
        .map(|&to| {
            let (from, by) = (TaskStatus::ALL[0], actor(ActorKind::Agent));
            of_task(
                to.as_str(),
                Event::TaskStatusChanged(TaskStatusChanged { from, to, by }),
            )
        })
        .collect();
    all.extend(ActorKind::ALL.iter().map(|&kind| {
        let posted = MessagePosted {
            message_id: MessageId(Uuid::from_u128(5)),
            author: actor(kind),
            turn_id: (kind == ActorKind::Agent).then(turn),
        };
        of_task(kind.as_str(), Event::MessagePosted(posted))
    }));
    all.extend(SessionKind::ALL.iter().map(|&kind| {
        let opened = SessionOpened {
            session_id: session(),
            session_key: SESSION_KEY.to_owned(),
            kind,
            generation: generation(),
            agent_id: Some(agent()),
        };
        of_task(kind.as_str(), Event::SessionOpened(opened))
    }));
    all.extend(CloseReason::ALL.iter().map(|&reason| {
        let closed = SessionEnded {
            session_id: session(),
            session_key: SESSION_KEY.to_owned(),
            generation: generation(),
            agent_id: None,
            reason,
            detail: (reason == CloseReason::Rotated).then(|| "tokens_max: 7 tokens used, the limit is 5".to_owned()),
            provider_thread: (reason == CloseReason::Rotated).then(|| "resp_1".to_owned()),
        };
        of_task(reason.as_str(), Event::SessionEnded(closed))
    }));
    for &gate in Gate::ALL {
        let gated = SessionGated {
            session_id: session(),
            session_key: SESSION_KEY.to_owned(),
            generation: generation(),
            agent_id: Some(agent()),
            gate,
            queued: 3,
        };
        all.push(of_task(gate.as_str(), Event::SessionParked(gated.clone())));
        all.push(of_task(gate.as_str(), Event::SessionReleased(gated)));
    }
    all.extend(HoldScope::ALL.iter().map(|&scope| {
        let changed = HoldChanged {
            hold_id: HoldId(Uuid::from_u128(8)),
            scope,
            scope_id: "proj-7".to_owned(),
            running: if scope == HoldScope::Task {
                HoldRunning::Stop
            } else {
                HoldRunning::Finish
            },
            until: (scope == HoldScope::Account).then(at),
            by: actor(ActorKind::User),
            released: scope == HoldScope::Agent,
            released_by: (scope == HoldScope::Agent).then(|| "Ann".to_owned()),
        };
        event(None, scope.as_str(), Event::HoldChanged(changed))
    }));
    all.extend(control());
    all.extend(QueueOp::ALL.iter().map(|&op| {
        let changed = QueueChanged {
            session_id: session(),
            session_key: SESSION_KEY.to_owned(),
            generation: generation(),
            agent_id: Some(agent()),
            op,
            item: notifications().pop().filter(|_| op != QueueOp::Order),
            revision: "7.2.1".to_owned(),
            by: Actor::publisher(),
        };
        of_task(op.as_str(), Event::QueueChanged(changed))
    }));
    let released = SessionLeaseReleased {
        session_id: session(),
        session_key: SESSION_KEY.to_owned(),
        generation: generation(),
        agent_id: Some(agent()),
        turn_id: Some(turn()),
        holder: Some(Uuid::from_u128(7)),
        fence: Fence(3),
        by: Actor::publisher(),
    };
    all.push(of_task("", Event::SessionLeaseReleased(released)));
    all.extend(
        TurnState::ALL
            .iter()
            .map(|&state| of_task(state.as_str(), Event::TurnFinished(turn_finished(state)))),
    );
    all.extend([
        of_task(
            "",
            Event::TaskCreated(TaskCreated {
                title: "Mend the build".to_owned(),
                status: TaskStatus::ALL[0],
                by: actor(ActorKind::User),
            }),
        ),
        of_task("", Event::NotificationRefused(ended("unknown_agent"))),
        of_task("", Event::NotificationCancelled(ended("session_closed"))),
        of_task("", Event::NotificationFailed(ended("turn_failed"))),
        of_task(
            "",
            Event::TurnStarted(TurnStarted {
                turn_id: turn(),
                session_id: session(),
                session_key: SESSION_KEY.to_owned(),
                generation: generation(),
                fence: Fence(7),
                number: 5,
                agent_id: agent(),
                notifications: notifications(),
                profile_version: "task-agent/3".to_owned(),
            }),
        ),
        event(
            None,
            "",
            Event::AgentRemoved(AgentRemoved {
                agent_id: agent(),
                slug: "coder".to_owned(),
            }),
        ),
        of_task(
            "",
            Event::ProviderSessionMismatched(ProviderSessionMismatched {
                turn_id: turn(),
                session_id: session(),
                session_key: SESSION_KEY.to_owned(),
                generation: generation(),
                fence: Fence(7),
                detail: "the gateway ran another session".to_owned(),
            }),
        ),
        of_task("", Event::ProviderThreadLost(thread())),
        of_task("", Event::ProviderThreadUnconfirmed(thread())),
        of_task(
            "",
            Event::SessionReset(SessionReset {
                session_id: session(),
                session_key: SESSION_KEY.to_owned(),
                generation: generation(),
                agent_id: Some(agent()),
                next_session_id: SessionId(Uuid::from_u128(9)),
                by: actor(ActorKind::User),
                reason: "It went astray.".to_owned(),
            }),
        ),
        of_task(
            "",
            Event::MessageDied(MessageDied {
                dead_letter_id: Uuid::from_u128(4),
                subject: "signalbox.tool.requested.acme.T-1".to_owned(),
                reason: "malformed".to_owned(),
                detail: "The payload is no JSON.".to_owned(),
            }),
        ),
    ]);
    all
}
