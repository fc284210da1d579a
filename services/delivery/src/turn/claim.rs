//! Taking sessions: one transaction for a batch of woken sessions, from their locks to turns that may be sent.
//!
//! Reads under lock, asks [`admit`] for each session, then writes what follows: leases and new turns, leases of turns
//! that are carried on, or tool calls asked for again. What comes out is [`Work`]; the rest of the batch is free again.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use contracts::{
    Outgoing, Root, Timestamp, TraceContext,
    event::{Event, TurnStarted},
    outgoing::Origin,
    tool::ToolRequested,
    tools::{self, OfferContext},
};
use domain::{AccountId, CallId, Fence, InstructionLayout, NotificationId, TaskId, TurnId};
use messaging::trace;
use runtime::Shutdown;
use storage::{
    Accounts, Database, StorageError,
    lifecycle::Setting,
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;

use super::{
    journal::{Call, Journal},
    resume::{Due, call_input, due, lost_since},
    work::Work,
};
use crate::{
    SOURCE,
    config::Config,
    prompt::{InputFacts, InstructionFacts, Interruption, Manifest, Profile, ToolNames, input, instructions},
    providers::{CallInput, Driver, Effects, Thread, ToolDefinition},
    queue::{Admission, admit},
    store::{
        SessionName,
        begin::{NewTurn, turns_begin},
        claim::{
            Session, Turn, in_flight_lock, lease_take, leases_check, sessions_lock, turns_load, turns_resume,
            wait_longer,
        },
        context::{Extract, Item, overview_load, queue_next, threads_load},
    },
};

/// What claiming needs and does not change.
#[derive(Clone)]
pub struct Claimer {
    pub database: Database,
    pub root: Root,
    pub config: Arc<Config>,
    pub drivers: Arc<HashMap<String, Arc<Driver>>>,
    /// For its crash points.
    pub shutdown: Shutdown,
}

/// What came of a batch.
#[derive(Default)]
pub struct Claimed {
    pub work: Vec<Work>,
    /// Sessions that were not taken: somebody else's, or with nothing to do.
    pub left: Vec<SessionName>,
    /// Accounts' own limits, as read.
    pub limits: Vec<(AccountId, Option<i32>)>,
    /// Committed messages, for the relay.
    pub outbox: Vec<OutboxRow>,
}

impl Claimer {
    /// Claims what may be claimed of `names`, in the name of `replica`. None of them may be worked on by this replica.
    /// After an error nobody knows whether they were claimed; claiming them again finds out.
    pub async fn claim(&self, names: &[SessionName], replica: Uuid) -> Result<Claimed, StorageError> {
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
            .await?;
        let mut sessions = sessions_lock(&tx, names).await?;
        leases_check(&tx, &mut sessions, replica).await?;
        let in_progress: Vec<(AccountId, TurnId)> = sessions
            .iter()
            .filter_map(|session| Some((session.account.clone(), session.active_turn?)))
            .collect();
        let turns = turns_load(&tx, &in_progress, self.config.tools_wait_ms_max).await?;
        let Admitted { start, resume, again } = admitted(sessions, turns);
        let limits = start
            .iter()
            .map(|session| (session.account.clone(), session.turns_in_flight_max))
            .collect();

        // Only sessions with an item in their queue are taken: a counter that is off must not hold a lease for nothing.
        let items = queue_next(&tx, &start.iter().map(Session::name).collect::<Vec<_>>()).await?;
        let mut items: HashMap<SessionName, Item> = items
            .into_iter()
            .map(|item| ((item.account.clone(), item.session_id), item))
            .collect();
        let start: Vec<(Session, Item)> = start
            .into_iter()
            .filter_map(|session| items.remove(&session.name()).map(|item| (session, item)))
            .collect();
        let start = within_limits(&tx, start).await?;

        let taken: Vec<SessionName> = start
            .iter()
            .map(|(session, _)| session.name())
            .chain(resume.iter().map(|(session, _)| session.name()))
            .collect();
        lease_take(&tx, &taken, replica).await?;
        let surroundings = self.surroundings(&tx, &start).await?;
        let now = OffsetDateTime::now_utc();
        let mut new_turns = Vec::with_capacity(start.len());
        let mut work = Vec::with_capacity(taken.len());
        let mut messages: Vec<Owned> = Vec::new();
        for (session, item) in start {
            let (new_turn, begun) = self.begin(&session, item, &surroundings);
            messages.push(turn_started(&self.root, &begun, now));
            new_turns.push(new_turn);
            work.push(begun);
        }
        turns_begin(&tx, &new_turns).await?;
        turns_resume(
            &tx,
            &resume
                .iter()
                .map(|(session, turn)| (session.name(), turn.id))
                .collect::<Vec<_>>(),
        )
        .await?;
        work.extend(resume.into_iter().map(|(session, turn)| self.resumed(&session, turn)));

        wait_longer(
            &tx,
            &again.iter().map(|(session, _)| session.name()).collect::<Vec<_>>(),
            self.config.tools_again_ms,
        )
        .await?;
        for (session, turn) in &again {
            let origin = origin(turn.id, turn.hops, turn.trace());
            messages.extend(turn.missing().map(|call| {
                tool_requested(
                    &self.root,
                    session,
                    turn.id,
                    turn.task.as_ref(),
                    turn.agent_id,
                    call,
                    &origin,
                    now,
                )
            }));
        }
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("delivery.claim_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("delivery.claim_committed").await;

        let taken: HashSet<SessionName> = taken.into_iter().collect();
        let left = names.iter().filter(|name| !taken.contains(name)).cloned().collect();
        Ok(Claimed {
            work,
            left,
            limits,
            outbox,
        })
    }

    async fn surroundings(&self, tx: &storage::Tx, start: &[(Session, Item)]) -> Result<Surroundings, StorageError> {
        let tasks = start
            .iter()
            .filter_map(|(session, item)| Some((session.account.clone(), item.task.as_ref()?.id.key())))
            .collect();
        let threads = threads_load(tx, &tasks, self.config.thread_messages_max).await?;
        let coordinators: HashSet<&AccountId> = start
            .iter()
            .filter(|(_, item)| item.is_coordinator)
            .map(|(session, _)| &session.account)
            .collect();
        let mut overviews = HashMap::new();
        for account in coordinators {
            overviews.insert(
                account.clone(),
                overview_load(tx, account, self.config.overview_tasks_max).await?,
            );
        }
        Ok(Surroundings { threads, overviews })
    }

    /// A new turn: its prompt, its row, its work.
    fn begin(&self, session: &Session, item: Item, surroundings: &Surroundings) -> (NewTurn, Work) {
        let driver = self.drivers.get(&item.provider);
        let turn_id = TurnId(Uuid::now_v7());
        let beginning = Beginning {
            turn_id,
            prompt: prompt(session, &item, surroundings, driver.map(Arc::as_ref)),
            effects: driver.map_or(Effects::GatewayOnly, |driver| driver.effects()),
            tools: offered(OfferContext {
                has_task: item.task.is_some(),
                is_coordinator: item.is_coordinator,
            }),
            trace: turn_span(turn_id, session, &item),
        };
        begin(session, item, beginning)
    }

    fn resumed(&self, session: &Session, turn: Turn) -> Work {
        let driver = self.drivers.get(&turn.provider);
        let tools = offered(OfferContext {
            has_task: turn.task.is_some(),
            is_coordinator: turn.is_coordinator,
        });
        let effects = driver.map_or(Effects::GatewayOnly, |driver| driver.effects());
        let thread = driver.map_or(Thread::Durable, |driver| driver.thread());
        carry_on(session, turn, effects, thread, tools)
    }
}

/// What a new turn is given besides its session and its item.
#[derive(Debug)]
pub struct Beginning {
    pub turn_id: TurnId,
    pub prompt: Prompt,
    pub effects: Effects,
    pub tools: Vec<ToolDefinition>,
    pub trace: TraceContext,
}

/// The row and the work of a new turn. Pure.
pub fn begin(session: &Session, item: Item, beginning: Beginning) -> (NewTurn, Work) {
    let Beginning {
        turn_id,
        prompt,
        effects,
        tools,
        trace,
    } = beginning;
    let task = item.task.as_ref().map(|task| task.id.clone());
    let hops = item.hops;
    let new_turn = NewTurn {
        account_id: session.account.clone(),
        id: turn_id,
        session_id: session.id.uuid(),
        task_id: task.as_ref().map(|task| task.key().into()),
        agent_id: item.agent_id.uuid(),
        generation: session.generation.0,
        number: session.turn_count + 1,
        fence: session.fence.0 + 1,
        notification_id: item.notification.to_string(),
        provider: item.provider.clone(),
        profile_version: prompt.profile.version.to_owned(),
        profile_hash: prompt.profile.hash.clone(),
        instructions: prompt.profile.text.clone(),
        input: prompt.input.clone(),
        manifest: serde_json::to_value(&prompt.manifest).expect("a manifest is texts and numbers"),
        cause: item.notification.to_string(),
        hops,
        traceparent: trace.traceparent.clone(),
        tracestate: trace.tracestate.clone(),
    };
    let work = Work {
        account: session.account.clone(),
        session_id: session.id,
        session_key: session.key.clone(),
        generation: session.generation,
        fence: Fence(session.fence.0 + 1),
        first: session.turn_count == 0,
        turn_id,
        number: session.turn_count + 1,
        agent_id: item.agent_id,
        task,
        provider: item.provider,
        effects,
        profile_version: prompt.profile.version.to_owned(),
        due: Due::Send,
        instructions: (item.layout == InstructionLayout::Layered).then_some(prompt.profile.text),
        input: CallInput::Message(prompt.input),
        tools,
        journal: Journal::default(),
        attempt: 1,
        failures: 0,
        attempts: item.attempts,
        notification_ids: vec![item.notification.into()],
        hops,
        trace,
        lost_at: None,
    };
    (new_turn, work)
}

/// A turn in progress, as any replica finds it. Pure.
pub fn carry_on(session: &Session, turn: Turn, effects: Effects, thread: Thread, tools: Vec<ToolDefinition>) -> Work {
    let trace = turn.trace();
    let due = due(turn.state, session.facts.closed, effects);
    Work {
        account: session.account.clone(),
        session_id: session.id,
        session_key: session.key.clone(),
        generation: session.generation,
        fence: Fence(session.fence.0 + 1),
        first: turn.number == 1,
        turn_id: turn.id,
        number: turn.number,
        agent_id: turn.agent_id,
        effects,
        due,
        instructions: (!turn.inline).then_some(turn.instructions),
        input: call_input(&turn.input, &turn.journal, &turn.results, thread),
        tools,
        task: turn.task,
        provider: turn.provider,
        profile_version: turn.profile_version,
        journal: turn.journal,
        attempt: turn.attempt,
        failures: turn.failures,
        attempts: turn.attempts,
        notification_ids: turn.notification_ids,
        hops: turn.hops,
        trace,
        lost_at: lost_since(due, turn.lost_at, turn.sent_at),
    }
}

/// What is to be done with the sessions of a batch; the rest of them is left alone.
#[derive(Debug, Default)]
pub struct Admitted {
    pub start: Vec<Session>,
    pub resume: Vec<(Session, Turn)>,
    pub again: Vec<(Session, Turn)>,
}

/// Asks [`admit`] for each of them, with its turn in progress. Pure.
pub fn admitted(sessions: Vec<Session>, turns: Vec<Turn>) -> Admitted {
    let mut turns: HashMap<TurnId, Turn> = turns.into_iter().map(|turn| (turn.id, turn)).collect();
    let mut admitted = Admitted::default();
    for session in sessions {
        let turn = session.active_turn.and_then(|id| turns.remove(&id));
        match (admit(session.facts, turn.as_ref().map(Turn::facts)), turn) {
            (Admission::Start, _) => admitted.start.push(session),
            (Admission::Resume, Some(turn)) => admitted.resume.push((session, turn)),
            (Admission::AskAgain, Some(turn)) => admitted.again.push((session, turn)),
            (Admission::Leave | Admission::Resume | Admission::AskAgain, _) => {}
        }
    }
    admitted
}

/// Those that their accounts' own limits leave room for; the sweep brings the others back. Turns that are carried on are
/// not held up: what they began should end.
async fn within_limits(
    tx: &storage::Tx,
    mut start: Vec<(Session, Item)>,
) -> Result<Vec<(Session, Item)>, StorageError> {
    let limited: BTreeSet<AccountId> = start
        .iter()
        .filter(|(session, _)| session.turns_in_flight_max.is_some())
        .map(|(session, _)| session.account.clone())
        .collect();
    if limited.is_empty() {
        return Ok(start);
    }
    let mut in_flight = in_flight_lock(tx, &limited).await?;
    start.retain(|(session, _)| {
        let Some(limit) = session.turns_in_flight_max else {
            return true;
        };
        let turns = in_flight.entry(session.account.clone()).or_default();
        let fits = *turns < i64::from(limit);
        *turns += i64::from(fits);
        fits
    });
    Ok(start)
}

struct Surroundings {
    /// By account and task, as compared.
    threads: HashMap<(AccountId, TaskId), Extract>,
    overviews: HashMap<AccountId, Vec<crate::prompt::OverviewEntry>>,
}

#[derive(Clone, Debug)]
pub struct Prompt {
    pub profile: Profile,
    pub input: String,
    pub manifest: Manifest,
}

fn prompt(session: &Session, item: &Item, surroundings: &Surroundings, driver: Option<&Driver>) -> Prompt {
    let mut manifest = Manifest::new(item.layout);
    let names = tool_names(driver);
    let profile = instructions(
        &InstructionFacts {
            account: &session.account,
            agent_slug: &item.agent_slug,
            agent_name: &item.agent_name,
            agent_role: &item.agent_role,
            has_task: item.task.is_some(),
            is_coordinator: item.is_coordinator,
            tools: &names,
        },
        &mut manifest,
    );
    let extract = item
        .task
        .as_ref()
        .and_then(|task| surroundings.threads.get(&(session.account.clone(), task.id.key())))
        .cloned()
        .unwrap_or_default();
    let overview = item.is_coordinator.then(|| {
        (
            item.briefing.clone(),
            surroundings
                .overviews
                .get(&session.account)
                .cloned()
                .unwrap_or_default(),
        )
    });
    let facts = InputFacts {
        notification: item.notification.clone(),
        kind: item.kind.clone(),
        sender: item.sender.clone(),
        title: item.title.clone(),
        body: item.body.clone(),
        about_message: item.about_message,
        task: item.task.clone(),
        thread: extract.messages,
        thread_total: extract.total,
        overview,
        interruption: session.interrupted.then_some(Interruption),
    };
    let text = input(&facts, &mut manifest);
    let input = match item.layout {
        InstructionLayout::Layered => text,
        InstructionLayout::Inline => format!("{}\n{text}", profile.text),
    };
    Prompt {
        profile,
        input,
        manifest,
    }
}

fn tool_names(driver: Option<&Driver>) -> ToolNames {
    let on_wire =
        |name: &str| driver.map_or_else(|| name.to_owned(), |driver| driver.tool_name_on_wire(name).into_owned());
    ToolNames {
        task_history: on_wire("task_history"),
        task_status: on_wire("task_status"),
        task_message: on_wire("task_message"),
        response_request: on_wire("response_request"),
        no_reply: on_wire("no_reply"),
    }
}

fn offered(context: OfferContext) -> Vec<ToolDefinition> {
    tools::offered(context)
        .into_iter()
        .map(|tool| ToolDefinition {
            name: tool.name.to_owned(),
            description: tool.description.to_owned(),
            parameters: tool.parameters,
        })
        .collect()
}

impl Turn {
    /// Calls that were passed on and have no result yet.
    pub fn missing(&self) -> impl Iterator<Item = &Call> {
        self.journal
            .calls()
            .filter(|call| call.answered.is_none() && !self.results.iter().any(|result| result.ordinal == call.ordinal))
    }

    fn trace(&self) -> TraceContext {
        TraceContext {
            traceparent: self.traceparent.clone(),
            tracestate: self.tracestate.clone(),
        }
    }
}

/// The span of a new turn, a child of its notification's. It ends here: a turn outlives processes, and what it causes
/// refers to it by the stored context.
fn turn_span(turn: TurnId, session: &Session, item: &Item) -> TraceContext {
    let span = tracing::info_span!(
        "turn", turn_id = %turn, account = %session.account, session_id = %session.id, session_key = %session.key,
        generation = session.generation.0, notification = %item.notification,
    );
    let parent = TraceContext {
        traceparent: item.traceparent.clone(),
        tracestate: item.tracestate.clone(),
    };
    if parent.traceparent.is_some() {
        // Refused only by a span that was entered already.
        let _ = span.set_parent(trace::context_of(&parent));
    }
    span.in_scope(|| trace::current_or(&parent))
}

fn origin(turn: TurnId, hops: i32, trace: TraceContext) -> Origin {
    Origin {
        cause: Some(turn.to_string()),
        hops: u16::try_from(hops).unwrap_or(u16::MAX),
        trace,
    }
}

fn turn_started(root: &Root, work: &Work, now: OffsetDateTime) -> Owned {
    let started = TurnStarted {
        turn_id: work.turn_id,
        session_id: work.session_id,
        session_key: work.session_key.clone(),
        generation: work.generation,
        fence: work.fence,
        number: work.number,
        agent_id: work.agent_id,
        notifications: work
            .notification_ids
            .iter()
            .filter_map(|id| NotificationId::parse(id).ok())
            .collect(),
        profile_version: work.profile_version.clone(),
    };
    let mut origin = work.origin();
    origin.cause = work.notification_ids.first().cloned();
    let setting = Setting {
        root,
        source: SOURCE,
        origin,
        now,
    };
    setting.event(
        &work.account,
        work.task.as_ref(),
        &work.turn_id.to_string(),
        Event::TurnStarted(started),
    )
}

/// A tool call for the tool-gateway. The same call gives the same message, whoever sends it and however often.
#[expect(
    clippy::too_many_arguments,
    reason = "every one is a field of the message, and both callers have them apart"
)]
pub fn tool_requested(
    root: &Root,
    session: &Session,
    turn: TurnId,
    task: Option<&TaskId>,
    agent: domain::AgentId,
    call: &Call,
    origin: &Origin,
    now: OffsetDateTime,
) -> Owned {
    let message = ToolRequested {
        account: session.account.clone(),
        task: task.cloned(),
        session_id: session.id,
        session_key: session.key.clone(),
        generation: session.generation,
        fence: session.fence,
        turn_id: turn,
        agent_id: agent,
        call_id: CallId(call.call_id.clone()),
        ordinal: call.ordinal,
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    };
    let subject = root.tool_requested(&session.account, task);
    let outgoing = Outgoing::new(
        subject,
        &message.message_id(),
        SOURCE,
        (&session.account, task),
        origin,
        Timestamp::from(now),
        &message,
    );
    (Some(session.account.clone()), outgoing)
}
