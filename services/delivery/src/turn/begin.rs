//! Turns a claimed session into work: a new turn with its prompt and its row, or the turn in progress. Pure, but for
//! the span of a new turn.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use contracts::{
    TraceContext,
    tools::{self, OfferContext},
};
use domain::{
    Conversation, ConversationOf, ImpossibleStep, InstructionLayout, MessageId, ModelKinds, SessionKey, SessionOf,
    TaskId, TaskStatus, TurnId, TurnState, TurnStep,
    context::Told,
    progress::Wake,
    replay::replay_item,
    tool_policy::{ToolPolicy, ToolUse, visible},
};
use messaging::trace;
use serde_json::value::to_raw_value;
use tokio_util::sync::CancellationToken;

use prompt::{
    InstructionFacts, KnownContext, Manifest, Marks, Past, Profile, ToolNames, input, manifest::Offer,
    tells_of_interruption,
};

use super::{
    messages::begun_at,
    profiles::Profiles,
    resume::{Contents, Due, call_input, due, lost_since},
    started::Heard,
    work::{Work, WorkThread},
};
use crate::{
    breaker::Pass,
    context::{
        extract, past,
        plan::{Plan, thread_name},
    },
    providers::{Continuation, Driver, Effects, Thread, ToolDefinition},
    store::{branches::BranchStart, claim::OpenTurn, context::QueuedItem, journal::Journal},
};
use storage::session::{
    items_join::Notes,
    sessions_lock::{LockedSession, SessionThread},
    turns_begin::NewTurn,
};

/// The inputs of a new turn besides its session and its item.
#[derive(Debug)]
pub struct Beginning {
    pub turn_id: TurnId,
    pub pass: Pass,
    pub prompt: Prompt,
    pub plan: Plan,
    /// The key of the task of its session's branch or replay.
    pub branch_task: Option<TaskId>,
    /// Earlier turns, where the prompt is assembled.
    pub past: Past,
    /// What the thread has been told after this turn, but for messages, and these.
    pub told: (Told, Vec<MessageId>),
    pub provider: ProviderFacts,
    pub tools: Arc<[ToolDefinition]>,
    /// How long the turn waits for its tool calls.
    pub tools_wait_ms: i64,
    pub trace: TraceContext,
}

/// What of a turn's provider decides how its calls are made.
#[derive(Clone, Copy, Debug)]
pub struct ProviderFacts {
    pub effects: Effects,
    pub keeps: Thread,
    pub found_by: Continuation,
}

impl ProviderFacts {
    /// Without a driver no call is made.
    pub fn of(driver: Option<&Driver>) -> ProviderFacts {
        ProviderFacts {
            effects: driver.map_or(Effects::GatewayOnly, |driver| driver.effects),
            keeps: driver.map_or(Thread::Durable, |driver| driver.thread),
            found_by: driver.map_or(Continuation::Key, |driver| driver.continuation),
        }
    }
}

/// Whether the session is the one of the item's agent and task, or of its agent; or of a branch of the agent on the task, of an
/// orchestrator, or of the item's replay. Several services may write items: none brings a task into the provider's conversation of
/// another.
fn is_of(session: &LockedSession, item: &QueuedItem, branch_task: Option<&TaskId>) -> bool {
    let task = item.facts.task.as_ref().map(|task| task.id.key());
    let is_branch_task = branch_task == task.as_ref();
    if let Some(replay) = session.replay {
        let key = SessionKey {
            of: SessionOf::Replay(replay),
            account: session.account.clone(),
            generation: session.generation,
        };
        return is_branch_task && key.to_string() == session.key && item.facts.notification == replay_item(replay);
    }
    let Some(conversation) = Conversation::of_session(&session.key, item.agent_id) else {
        return false;
    };
    let is_its_own = conversation.account == session.account
        && conversation.kind() == session.kind
        && conversation.key(session.generation).to_string() == session.key;
    is_its_own
        && match &conversation.of {
            ConversationOf::Task(own) => task.as_ref() == Some(own),
            ConversationOf::Agent => true,
            ConversationOf::Branch(branch) => {
                session.branch == Some(*branch) && branch_task.is_some() && is_branch_task
            }
            ConversationOf::Orchestrator(_) | ConversationOf::Guest { .. } => task.is_none(),
        }
}

/// Without the files of its persona a turn would lack a SAFETY.md.
pub fn has_persona(session: &LockedSession, item: &QueuedItem) -> Result<(), ImpossibleStep> {
    match session.persona.is_some() && item.persona.is_none() {
        true => Err(ImpossibleStep {
            noun: "session",
            state: "with a persona whose files are not there, or cannot be read",
            step: "begin",
        }),
        false => Ok(()),
    }
}

/// The row and the work of a new turn. Pure.
pub fn begin(
    session: &LockedSession,
    item: QueuedItem,
    beginning: Beginning,
) -> Result<(NewTurn, Work), ImpossibleStep> {
    if !is_of(session, &item, beginning.branch_task.as_ref()) {
        return Err(ImpossibleStep {
            noun: "notification",
            state: "queued in a session of another task or agent",
            step: "begin",
        });
    }
    let phase = session.facts.claimed()?.phase;
    let state = TurnState::Started.after(TurnStep::Send)?;
    let (mut prompt, tools, trace) = (beginning.prompt, beginning.tools, beginning.trace);
    let (plan, provider, (told, shown)) = (beginning.plan, beginning.provider, beginning.told);
    past::enter(&beginning.past, &plan.context, &mut prompt.manifest);
    prompt.manifest.tools = Some(Offer::of(tools.iter().map(|tool| tool.name.as_str())));
    let rotated = told.rotated.as_ref().filter(|_| session.turn_count == 0);
    let rotated_because = rotated.map(|rotated| rotated.because.clone());
    let used_at = (!plan.is_new).then_some(session.thread.told.at).flatten();
    let thread = match plan.is_new {
        true => SessionThread {
            number: plan.context.thread,
            live: false,
            at: None,
            told,
            ..session.thread.clone()
        },
        false => SessionThread {
            told,
            ..session.thread.clone()
        },
    };
    let items = past::items(beginning.past);
    let (journal, notes) = (Journal::default(), Notes::default());
    let (call, after) = call_input(&Contents {
        head: (item.layout == InstructionLayout::Inline).then_some(&*prompt.profile.text),
        past: &items,
        input: &prompt.input,
        context: Some(&plan.context),
        journal: &journal,
        results: &[],
        notes: &notes,
        found_by: provider.found_by,
    });
    let turn = session.turn_claimed(beginning.turn_id, item.facts.task.map(|task| task.id));
    let hops = item.hops;
    let wake = Wake::new(&item.facts.kind, &item.facts.sender);
    let further = item.facts.further.iter().map(|further| &further.notification);
    let notification_ids: Vec<String> = std::iter::once(&item.facts.notification)
        .chain(further)
        .map(ToString::to_string)
        .collect();
    let new_turn = NewTurn {
        turn: turn.clone(),
        agent_id: item.agent_id,
        owner: session.owner.clone(),
        number: session.turn_count + 1,
        notification_ids: notification_ids.clone(),
        provider: item.provider.clone(),
        profile_version: prompt.profile.version.clone(),
        profile_hash: prompt.profile.hash.clone(),
        instructions: Arc::clone(&prompt.profile.text),
        input: prompt.input,
        layout: prompt.manifest.layout,
        manifest: prompt.manifest.packed(),
        tools: tools.iter().map(|tool| tool.name.clone()).collect(),
        tools_wait_ms: beginning.tools_wait_ms,
        hops,
        wake: wake.clone(),
        streak: session.streak.clone(),
        context: plan.context.clone(),
        rotated_because,
        thread,
        traceparent: trace.traceparent.clone(),
        tracestate: trace.tracestate.clone(),
        phase,
        state,
    };
    let thread = WorkThread {
        name: thread_name(&turn.key, plan.context.thread, provider.keeps, provider.found_by),
        context: Some(plan.context),
        after,
        keeps: provider.keeps,
        found_by: provider.found_by,
        shown,
        texts: extract::texts(&prompt.manifest, turn.task.as_ref()),
        used_at,
        manifest: Vec::new(),
    };
    let work = Work {
        turn,
        phase,
        state,
        number: session.turn_count + 1,
        agent_id: item.agent_id,
        replay: None,
        parent: session.parent,
        may_ask: item.tool_policies > 0,
        ended_with: None,
        agent_name: item.agent_name,
        provider: item.provider,
        pass: beginning.pass,
        failed_epoch: None,
        slot: None,
        effects: provider.effects,
        profile_version: prompt.profile.version,
        due: Due::Send,
        instructions: (item.layout == InstructionLayout::Layered).then_some(prompt.profile.text),
        input: call,
        thread,
        tools,
        journal,
        attempt: 1,
        failures: 0,
        attempts: item.attempts,
        wake: Some(wake),
        notification_ids,
        injected: Vec::new(),
        hops,
        trace,
        lost_at: None,
        heard: Heard::default(),
        told_interrupted: session.interrupted,
        told_of: session.stopped_turn,
        stop: CancellationToken::new(),
        placed_at: begun_at(beginning.turn_id),
    };
    Ok((new_turn, work))
}

/// Work for a turn in progress. Pure.
pub fn carry_on(
    session: &LockedSession,
    turn: OpenTurn,
    provider: ProviderFacts,
    tools: Arc<[ToolDefinition]>,
    earlier: Option<Past>,
) -> Result<Work, ImpossibleStep> {
    let effects = provider.effects;
    let phase = session.facts.claimed()?.phase;
    let trace = turn.trace();
    let due = due(
        turn.state,
        turn.ended_with().is_some(),
        session.facts.closed,
        session.facts.stopping,
        effects,
    );
    let state = match due {
        Due::End => turn.state,
        Due::Send | Due::LookUp | Due::Abort => turn.state.after(TurnStep::Send)?,
    };
    let stop = CancellationToken::new();
    if session.facts.stopping {
        stop.cancel();
    }
    let with_call = turn.notes.of_round(turn.journal.rounds.len());
    let injected = with_call.flat_map(|note| note.notification_ids.clone()).collect();
    let ended_with = turn.ended_with().map(str::to_owned);
    let wake = turn.wake_key.as_ref().and_then(|key| key.parse().ok());
    let mut manifest = turn.manifest.as_deref().and_then(Manifest::unpacked);
    let shown = shown(&turn, manifest.as_ref());
    let rewritten = rewritten(earlier.as_ref(), &turn, &mut manifest);
    let items = earlier.map_or_else(Vec::new, past::items);
    // The input of an older version has them in front.
    let is_headed = turn.inline && turn.context.is_some();
    let (input, after) = call_input(&Contents {
        head: is_headed.then_some(turn.instructions.as_str()),
        past: &items,
        input: &turn.input,
        context: turn.context.as_ref(),
        journal: &turn.journal,
        results: &turn.results,
        notes: &turn.notes,
        found_by: provider.found_by,
    });
    let number = turn.context.as_ref().map_or(1, |context| context.thread);
    let thread = WorkThread {
        name: thread_name(&session.key, number, provider.keeps, provider.found_by),
        context: turn.context,
        after,
        keeps: provider.keeps,
        found_by: provider.found_by,
        shown,
        texts: manifest.map_or_else(Vec::new, |manifest| extract::texts(&manifest, turn.task.as_ref())),
        used_at: None,
        manifest: rewritten,
    };
    // Only a record writes any of these, and the first record has said it.
    let is_recorded = turn.journal.last().is_some() || turn.attempt > 1 || turn.failures > 0 || turn.lost_at.is_some();
    Ok(Work {
        heard: Heard::new(is_recorded),
        phase,
        state,
        number: turn.number,
        agent_id: turn.agent_id,
        replay: None,
        parent: session.parent,
        may_ask: turn.tool_policies > 0 || turn.asked.open_ms.is_some(),
        ended_with,
        agent_name: turn.agent_name,
        pass: Pass::closed(turn.breaker),
        failed_epoch: turn.failed_epoch,
        slot: None,
        effects,
        due,
        instructions: (!turn.inline).then(|| turn.instructions.into()),
        input,
        thread,
        tools,
        turn: session.turn_claimed(turn.id, turn.task),
        provider: turn.provider,
        profile_version: turn.profile_version,
        journal: turn.journal,
        attempt: turn.attempt,
        failures: turn.failures,
        attempts: turn.attempts,
        wake,
        injected,
        notification_ids: turn.notification_ids,
        hops: turn.hops,
        trace,
        lost_at: lost_since(due, turn.lost_at, turn.sent_at),
        told_interrupted: tells_of_interruption(&turn.input),
        told_of: None,
        stop,
        placed_at: begun_at(turn.id),
    })
}

/// The messages that a turn in progress shows, newest first, and the one that it is about.
fn shown(turn: &OpenTurn, manifest: Option<&Manifest>) -> Vec<MessageId> {
    let ids = manifest.into_iter().flat_map(Manifest::messages);
    let mut ids: Vec<MessageId> = ids.map(MessageId).collect();
    ids.reverse();
    ids.extend(turn.about_message);
    ids
}

/// The manifest of a turn that goes on in another thread than it began in, packed. Empty: it stays as it is.
fn rewritten(past: Option<&Past>, turn: &OpenTurn, manifest: &mut Option<Manifest>) -> Vec<u8> {
    match (past, &turn.context, manifest) {
        (Some(past), Some(context), Some(manifest)) if manifest.context.as_ref() != Some(context) => {
            past::enter(past, context, manifest);
            manifest.packed()
        }
        (_, _, _) => Vec::new(),
    }
}

#[derive(Clone, Debug)]
pub struct Prompt {
    pub profile: Profile,
    pub input: String,
    pub manifest: Manifest,
}

pub(super) fn prompt_of(
    session: &LockedSession,
    (item, branch): (&QueuedItem, Option<&BranchStart>),
    driver: Option<&Driver>,
    profiles: &Profiles,
    hidden: &[&'static str],
    marks: Marks,
) -> Prompt {
    let mut manifest = Manifest::new(item.layout);
    let shown = (branch, is_under_review(item));
    let profile = profile_of((session, item), shown, driver, profiles, hidden, &mut manifest);
    let input = input(&item.facts, marks, &mut manifest);
    Prompt {
        profile,
        input,
        manifest,
    }
}

/// The instructions of a turn on the item.
pub(super) fn profile_of(
    (session, item): (&LockedSession, &QueuedItem),
    (branch, under_review): (Option<&BranchStart>, bool),
    driver: Option<&Driver>,
    profiles: &Profiles,
    hidden: &[&'static str],
    manifest: &mut Manifest,
) -> Profile {
    let names = tool_names(driver).without(hidden);
    let facts = InstructionFacts {
        account: &session.account,
        agent_slug: &item.agent_slug,
        agent_name: &item.agent_name,
        agent_role: &item.agent_role,
        has_task: item.facts.task.is_some(),
        is_coordinator: item.is_coordinator,
        is_branch: branch.is_some(),
        orchestrator: item.identity.as_ref(),
        persona: item.persona.as_deref().map(|persona| (persona, under_review)),
        task_context: known_context(item, branch),
        tools: &names,
    };
    profiles.instructions(&facts, manifest)
}

/// Whether a persona's file for reviews is among the instructions.
fn is_under_review(item: &QueuedItem) -> bool {
    let task = item.facts.task.as_ref();
    task.is_some_and(|task| task.status == TaskStatus::Review)
}

/// What was written of the task for whoever joins its work: a branch has the version that its parent knew, another turn the newest, if the
/// account wants it.
fn known_context<'a>(item: &'a QueuedItem, branch: Option<&'a BranchStart>) -> Option<KnownContext<'a>> {
    let known = match branch {
        Some(branch) => branch.task_context.as_ref(),
        None => item.task_context.as_ref(),
    };
    let (known, task) = known.zip(item.facts.task.as_ref())?;
    Some(KnownContext {
        task: &task.id,
        version: known.version,
        body: &known.body,
        size: known.size,
    })
}

/// The tools of which the agent is told nothing: those that policies hide, mail in accounts without members, and in a branch and for an
/// orchestrator those that it is not offered. An orchestrator's instructions do not change with what it is asked.
pub(super) fn unseen(context: OfferContext, hidden: &[&'static str]) -> Vec<&'static str> {
    let context = OfferContext {
        is_asked: context.is_asked || context.is_orchestrator,
        ..context
    };
    let is_told_exactly = context.is_branch || context.is_orchestrator;
    let is_kept = |tool: &&tools::ToolDefinition| {
        let is_of_members = matches!(
            tool.offered_to,
            tools::Audience::Mail | tools::Audience::Board | tools::Audience::OnBoard
        );
        (is_told_exactly || is_of_members) && !tool.is_offered(context)
    };
    let kept = tools::all().iter().filter(is_kept).map(|tool| tool.name);
    hidden.iter().copied().chain(kept).collect()
}

/// The tools that the policies hide from the agent.
pub(super) fn hidden(session: &LockedSession, item: &QueuedItem, policies: &[ToolPolicy]) -> Vec<&'static str> {
    if policies.is_empty() {
        return Vec::new();
    }
    let is_hidden = |tool: &&'static str| {
        let used = ToolUse {
            session: session.id,
            agent: item.agent_id,
            task: item.facts.task.as_ref().map(|task| &task.id),
            tool,
            schema_hash: tools::schema_hash(tool),
        };
        !visible(policies, used, true)
    };
    tools::NAMES.iter().copied().filter(is_hidden).collect()
}

/// The tools that a turn is offered, without the hidden ones.
pub(super) fn offered_but(context: OfferContext, hidden: &[&str]) -> Arc<[ToolDefinition]> {
    let offered = offered(context);
    if hidden.is_empty() {
        return offered;
    }
    let is_shown = |tool: &&ToolDefinition| !hidden.contains(&&*tool.name);
    offered.iter().filter(is_shown).cloned().collect()
}

pub(super) fn tool_names(driver: Option<&Driver>) -> ToolNames {
    ToolNames::new(|name| driver.map_or_else(|| name.to_owned(), |driver| driver.tool_name_on_wire(name).into_owned()))
}

/// The tools of a turn in progress: those offered when it began, whatever changed since.
pub(super) fn offered_still(turn: &OpenTurn) -> Arc<[ToolDefinition]> {
    let had = |tool: &str| {
        turn.tools
            .as_ref()
            .is_some_and(|names| names.iter().any(|name| name == tool))
    };
    let context = OfferContext {
        has_task: turn.task.is_some(),
        is_coordinator: turn.is_coordinator,
        is_orchestrator: false,
        is_account: false,
        guest: None,
        has_mail: had(MAILS),
        is_branch: false,
        may_branch: turn.task.is_some(),
        is_asked: had(ANSWERS),
        models: of_names(turn.tools.as_deref().unwrap_or_default()),
    };
    match &turn.tools {
        Some(names) => {
            let offered = offered(context);
            if offered.iter().map(|tool| &tool.name).eq(names) {
                return offered;
            }
            offered_as(names)
        }
        None => offered(context),
    }
}

/// The tools of these names.
pub(super) fn offered_as(names: &[String]) -> Arc<[ToolDefinition]> {
    let named = |tool: &&tools::ToolDefinition| names.iter().any(|name| name == tool.name);
    definitions(tools::all().iter().filter(named))
}

/// The kinds of models whose tools are among these.
fn of_names(names: &[String]) -> ModelKinds {
    let kind = |name: &String| match tools::offered_to(name)? {
        tools::Audience::Model(kind) => Some(kind),
        _ => None,
    };
    names.iter().filter_map(kind).collect()
}

/// The tool of turns that a question has woken.
const ANSWERS: &str = "answer_question";
/// The tool of turns in accounts with members.
const MAILS: &str = "send_message";

/// Each is built once: a list holds many schemas, and every turn shares one of these. Few of the contexts occur.
pub(super) fn offered(context: OfferContext) -> Arc<[ToolDefinition]> {
    static OFFERED: LazyLock<Mutex<HashMap<OfferContext, Arc<[ToolDefinition]>>>> = LazyLock::new(Mutex::default);
    let mut made = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
    let list = made.entry(context);
    Arc::clone(list.or_insert_with(|| definitions(tools::offered(context).into_iter())))
}

fn definitions(tools: impl Iterator<Item = &'static tools::ToolDefinition>) -> Arc<[ToolDefinition]> {
    tools
        .map(|tool| ToolDefinition {
            name: tool.name.to_owned(),
            description: tool.description.to_owned(),
            parameters: to_raw_value(&tool.parameters).expect("JSON values always serialise"),
        })
        .collect()
}

impl OpenTurn {
    pub(super) fn trace(&self) -> TraceContext {
        TraceContext {
            traceparent: self.traceparent.clone(),
            tracestate: self.tracestate.clone(),
        }
    }
}

/// The span of a new turn, a child of its notification's. It ends here: a turn outlives processes, and later spans
/// refer to it by the stored context.
pub(super) fn turn_span(turn: TurnId, session: &LockedSession, item: &QueuedItem) -> TraceContext {
    let span = tracing::info_span!(
        target: trace::TARGET,
        "turn",
        otel.name = format!("invoke_agent {}", item.agent_slug),
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.id = %item.agent_id,
        gen_ai.agent.name = %item.agent_slug,
        gen_ai.conversation.id = %session.key,
        turn_id = %turn, account = %session.account, session_id = %session.id, session_key = %session.key,
        generation = session.generation.0, notification = %item.facts.notification,
    );
    let parent = TraceContext {
        traceparent: item.traceparent.clone(),
        tracestate: item.tracestate.clone(),
    };
    if parent.traceparent.is_some() {
        trace::child_of(&span, &parent);
    }
    trace::of_span(&span, &parent)
}
