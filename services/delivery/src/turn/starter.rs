//! Starts turns within the caller's transaction: a claim, or the record of the session's last turn. Reads the next items,
//! keeps the limits of accounts and providers, builds the prompts, writes the turns.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use contracts::{
    event::{Event, SessionGated},
    tools::OfferContext,
};
use domain::{
    AccountId, ContextMode, Gate, ImpossibleStep, MessageId, Reachable, RecoveryCause, RecoveryState, SessionEvent,
    SessionKind, StopKind, TaskId, TurnId, breaker::Admits, context::Told, hold::Held, progress::Wake,
    tool_policy::ToolPolicy,
};
use runtime::settings::Models;
use storage::{
    Setting, StorageError, Tx,
    breaker::breaker_ref,
    outbox::Owned,
    recovery::{Stuck, recovery_note},
    session::{
        items_alike::{Joining, items_alike},
        sessions_lock::LockedSession,
        sessions_park::{Park, sessions_park},
        turns_begin::{KeptTexts, NewTurn, turns_begin},
    },
    tool_policy::Policies,
};
use time::OffsetDateTime;
use uuid::Uuid;

use prompt::{Manifest, MarkSecret, OverviewEntry, Past, Stopped, Subagent};

use super::{
    begin::{
        Beginning, ProviderFacts, begin, has_persona, hidden, offered_as, offered_but, prompt_of, turn_span, unseen,
    },
    branching::{PastAsked, told_before},
    identities::identities_give,
    personas::Personas,
    profiles::Profiles,
    replaying,
    work::Work,
};
use crate::{
    breaker::{Breakers, Pass, standing},
    context::{
        extract::{self, Newest},
        past::{self, has_past, holds_past, is_fork},
        plan::{Plan, PlanFacts, goes_on, plan},
    },
    metrics,
    providers::{Driver, Slot},
    queue::run::{Candidate, Run, RunLimits, run},
    settings::DeliverySettings,
    store::{
        SessionName,
        branches::BranchStart,
        claim::{OpenTurn, in_flight_lock},
        context::{QueuedItem, overview_load, queue_next},
        holds::Holds,
        plans::{AwaitedPlan, plans_awaited},
        replays::ReplayStart,
        runs::{Behind, StoppedTurn, persons_wait, queue_behind, stopped_load},
    },
};

/// When to look again whether a provider is in the settings.
pub(super) const CONFIG_LOOK_MS: i64 = 60_000;

/// The dependencies of starting.
#[derive(Clone)]
pub struct Starter {
    pub config: Arc<DeliverySettings>,
    pub drivers: Arc<HashMap<String, Arc<Driver>>>,
    pub breakers: Arc<Breakers>,
    pub profiles: Arc<Profiles>,
    pub personas: Arc<Personas>,
    pub kept: Arc<KeptTexts>,
    pub marks: MarkSecret,
    /// Branches may have branches down to this depth.
    pub branch_depth_max: i32,
    /// Which kinds decide what is offered.
    pub models: Arc<Models>,
}

/// The turns that a transaction starts.
#[derive(Default)]
pub struct Starting {
    pub work: Vec<Work>,
    /// Sessions whose provider has no free slot, with its name. Nothing was written for them.
    pub without_slot: Vec<(SessionName, String)>,
    /// Sessions that a gate keeps from starting.
    pub parked: Vec<Park>,
    /// What listeners are told of gates.
    pub told: Vec<GateTold>,
    /// What listeners are told of breakers, recoveries and generations that have ended.
    pub events: Vec<Owned>,
    /// The rows of `work`.
    turns: Vec<NewTurn>,
}

/// A new turn's plan, with what its thread is told.
struct Planned {
    plan: Plan,
    told: (Told, Vec<MessageId>),
    branch: Option<BranchStart>,
    replay: Option<ReplayStart>,
}

/// A session was parked behind a gate that is announced, or starts after one.
#[derive(Debug)]
pub struct GateTold {
    account: AccountId,
    task: Option<TaskId>,
    gated: SessionGated,
    parked: bool,
    turn_count: i64,
}

impl GateTold {
    fn of(session: &LockedSession, item: &QueuedItem, gate: Gate, parked: bool) -> GateTold {
        let gated = SessionGated {
            session_id: session.id,
            session_key: session.key.clone(),
            generation: session.generation,
            agent_id: session.agent_id,
            gate,
            queued: session.facts.queued.unsigned_abs(),
        };
        GateTold {
            account: session.account.clone(),
            task: item.facts.task.as_ref().map(|task| task.id.clone()),
            gated,
            parked,
            turn_count: session.turn_count,
        }
    }

    /// Of the gate that kept the session.
    fn released(session: &LockedSession, item: &QueuedItem) -> Option<GateTold> {
        let gate = session.gate.filter(|gate| gate.is_announced())?;
        Some(GateTold::of(session, item, gate, false))
    }

    /// The event. The time makes its id unique: a session may be parked again before its next turn.
    pub fn message(self, setting: &Setting<'_>) -> Owned {
        let id = format!(
            "{}:{}:{}",
            self.gated.session_id,
            self.turn_count,
            setting.now.unix_timestamp_nanos()
        );
        let event = match self.parked {
            true => Event::SessionParked(self.gated),
            false => Event::SessionReleased(self.gated),
        };
        setting.event(&self.account, self.task.as_ref(), &id, event)
    }
}

/// Types of notifications that ask their agent. Whether it is asked is read from rows when it answers.
const ASKING_KINDS: [&str; 3] = ["question", "review", "recovery"];

impl Starter {
    /// Starts a turn in each of these sessions, which the caller has locked and admitted. Only one with a queued item
    /// starts: a wrong counter must not hold a lease without work. Nothing is written for the others.
    /// `holds`: those that the transaction has read already.
    pub async fn start(
        &self,
        tx: &Tx,
        sessions: Vec<LockedSession>,
        replica: Uuid,
        holds: &mut Holds,
    ) -> Result<Starting, StorageError> {
        let mut starting = Starting::default();
        let sessions = self.reset(tx, sessions, &mut starting).await?;
        let places: Vec<(&LockedSession, i64)> = sessions.iter().map(|session| (session, i64::MIN)).collect();
        let items = self.queue_next(tx, &places).await?;
        let mut items: HashMap<SessionName, QueuedItem> = items
            .into_iter()
            .map(|item| ((item.account.clone(), item.session_id), item))
            .collect();
        let mut start: Vec<(LockedSession, QueuedItem)> = sessions
            .into_iter()
            .filter_map(|session| items.remove(&session.name()).map(|item| (session, item)))
            .collect();
        let replays = self.replays(tx, &mut start, &mut starting).await?;
        holds
            .read(tx, start.iter().map(|(session, item)| (&session.account, item.holds)))
            .await?;
        let start = self.not_held(start, holds, &mut starting);
        let start = self.approved(tx, start, holds, &mut starting).await?;
        let start = self.progressing(tx, start, &mut starting).await?;
        let start = self.with_provider(start, &mut starting);
        let start = self.runs(tx, start, &mut starting).await?;
        let start = within_limits(tx, start).await?;

        // Before any write: a turn that has begun is about to be sent.
        let mut ready = Vec::with_capacity(start.len());
        for (session, item) in start {
            match self.drivers.get(&item.provider).and_then(|driver| driver.slot()) {
                Some(slot) => ready.push((session, item, slot)),
                None => starting.without_slot.push((session.name(), item.provider)),
            }
        }
        let mut policies = Policies::default();
        policies
            .read(
                tx,
                ready
                    .iter()
                    .map(|(session, item, _)| (&session.account, item.tool_policies)),
            )
            .await?;
        let named = ready.iter_mut().map(|(session, item, _)| (&*session, item));
        self.personas.give(tx, named).await?;
        // Before a rotation or a probe is written for a turn that does not begin.
        ready.retain(|(session, item, _)| possible(has_persona(session, item), session, None).is_some());
        let named = ready.iter_mut().map(|(session, item, _)| (&*session, item));
        identities_give(tx, named).await?;
        let ready = self.rotate(tx, ready, &policies, &mut starting).await?;
        let (mut start, passes) = self.admitted(tx, ready, &mut starting).await?;
        let branches = self.branches(tx, &mut start, &replays).await?;
        let planned = self.complete(tx, &mut start, branches, replays).await?;
        let mut pasts = self.pasts_of_new(tx, &start, &planned).await?;
        for (((session, mut item), planned), (turn_id, pass, slot)) in start.into_iter().zip(planned).zip(passes) {
            let released = GateTold::released(&session, &item);
            let (past, subagents) = pasts.remove(&session.name()).unwrap_or_default();
            item.facts.subagents = subagents;
            let begun = self.begin(
                &session,
                item,
                (turn_id, pass),
                (planned, past),
                policies.of(&session.account),
            );
            let Some((turn, mut work)) = possible(begun, &session, None) else {
                continue;
            };
            work.slot = Some(Arc::new(slot));
            starting.told.extend(released);
            starting.turns.push(turn);
            starting.work.push(work);
        }
        turns_begin(tx, &starting.turns, replica, &self.kept).await?;
        sessions_park(tx, &starting.parked).await?;
        Ok(starting)
    }

    /// The first gate: sessions that a hold covers are to be parked.
    fn not_held(
        &self,
        start: Vec<(LockedSession, QueuedItem)>,
        holds: &Holds,
        starting: &mut Starting,
    ) -> Vec<(LockedSession, QueuedItem)> {
        let look_ms = self.config.hold_look_ms.i64();
        let mut free = Vec::with_capacity(start.len());
        for (session, item) in start {
            let held = Held {
                session: session.id,
                agent: session.agent_id,
                task: item.facts.task.as_ref().map(|task| &task.id),
            };
            let Some(kept) = holds.keeping(&session.account, held) else {
                free.push((session, item));
                continue;
            };
            let wake_ms = kept.left_ms.map_or(look_ms, |left| left.clamp(1, look_ms));
            let hold = Some(kept.hold.id.into());
            starting.park(&session, &item, (Gate::Pause, hold), Some(wake_ms));
        }
        free
    }

    async fn queue_next(&self, tx: &Tx, places: &[(&LockedSession, i64)]) -> Result<Vec<QueuedItem>, StorageError> {
        let messages_max = self.config.thread_messages_max.get().into();
        // What a thread was told counts while the next turn can go on in it.
        let told = |session: &LockedSession| {
            let told = &session.thread.told;
            let provider = self.provider(told.provider.as_deref()?);
            goes_on(&session.thread, provider.keeps, provider.found_by).then(|| told.clone())
        };
        queue_next(tx, places, messages_max, self.breakers.keys_json(), told).await
    }

    /// The gate of plans: while the plan of its task awaits approval, an item starts only if it is an answer or from a person; the
    /// first item that may start is next. Sessions without one are to be parked.
    async fn approved(
        &self,
        tx: &Tx,
        start: Vec<(LockedSession, QueuedItem)>,
        holds: &Holds,
        starting: &mut Starting,
    ) -> Result<Vec<(LockedSession, QueuedItem)>, StorageError> {
        // A replay has no effect that a plan is asked for.
        let heads: Vec<(SessionName, TaskId)> = start
            .iter()
            .filter(|(session, _)| session.replay.is_none())
            .filter_map(|(_, item)| Some((item.name(), item.awaits_approval()?.clone())))
            .collect();
        if heads.is_empty() {
            return Ok(start);
        }
        let mut awaited: HashMap<SessionName, AwaitedPlan> = plans_awaited(tx, &heads)
            .await?
            .into_iter()
            .map(|plan| (plan.name(), plan))
            .collect();
        let places: Vec<(&LockedSession, i64)> = start
            .iter()
            .filter_map(|(session, _)| Some((session, awaited.get(&session.name())?.position?)))
            .collect();
        let mut others: HashMap<SessionName, QueuedItem> = self
            .queue_next(tx, &places)
            .await?
            .into_iter()
            .map(|item| (item.name(), item))
            .collect();
        let (mut free, mut passed) = (Vec::with_capacity(start.len()), Vec::new());
        for (session, item) in start {
            let Some(plan) = awaited.remove(&session.name()) else {
                free.push((session, item));
                continue;
            };
            if let Some(other) = others.remove(&session.name()) {
                passed.push((session, other));
                continue;
            }
            let gate = (Gate::Approval, Some(plan.plan.into()));
            starting.park(&session, &item, gate, Some(self.config.hold_look_ms.i64()));
        }
        // A hold may cover the task of the item that is next instead.
        free.extend(self.not_held(passed, holds, starting));
        Ok(free)
    }

    /// Sessions that went round without progress are to be parked, but for one in which an item from a person waits: the queue goes
    /// on as far as that item. A person has to see to the task.
    async fn progressing(
        &self,
        tx: &Tx,
        start: Vec<(LockedSession, QueuedItem)>,
        starting: &mut Starting,
    ) -> Result<Vec<(LockedSession, QueuedItem)>, StorageError> {
        let (limits, now) = (self.config.progress_limits(), OffsetDateTime::now_utc());
        let (round, mut free): (Vec<_>, Vec<_>) = start.into_iter().partition(|(session, item)| {
            let wake = Wake::new(&item.facts.kind, &item.facts.sender);
            session.streak.keeps(&wake, now, &limits)
        });
        let names: Vec<SessionName> = round.iter().map(|(session, _)| session.name()).collect();
        let awaited = persons_wait(tx, &names).await?;
        for (session, item) in round {
            if awaited.contains(&session.name()) {
                free.push((session, item));
                continue;
            }
            let parked_by = match session.gate {
                Some(Gate::NoProgress) => session.gate_ref,
                _ => self.no_progress_note(tx, &session, &item, &mut starting.events).await?,
            };
            starting.park(&session, &item, (Gate::NoProgress, parked_by), None);
        }
        Ok(free)
    }

    /// Gives the recovery that opens the gate once the task's facts have changed.
    async fn no_progress_note(
        &self,
        tx: &Tx,
        session: &LockedSession,
        item: &QueuedItem,
        events: &mut Vec<Owned>,
    ) -> Result<Option<Uuid>, StorageError> {
        let Some(task) = &item.facts.task else {
            return Ok(None);
        };
        let setting = self.breakers.setting();
        let stuck = Stuck {
            account: &session.account,
            task: &task.id,
            agent: session.agent_id,
            cause: RecoveryCause::NoProgress,
            detail: &format!("{} turns changed nothing", session.streak.turns),
            since: session.streak.since.unwrap_or(setting.now),
            items: &[],
        };
        let (noted, messages) = recovery_note(tx, &stuck, RecoveryState::Person, &setting).await?;
        events.extend(messages);
        Ok(noted.map(|row| row.id.uuid()))
    }

    /// Sessions whose provider is not in the settings, or whose breaker may not be tried, are to be parked.
    fn with_provider(
        &self,
        mut start: Vec<(LockedSession, QueuedItem)>,
        starting: &mut Starting,
    ) -> Vec<(LockedSession, QueuedItem)> {
        start.retain(|(session, item)| {
            if self.breakers.key(&item.provider).is_none() {
                if session.gate != Some(Gate::Config) {
                    tracing::warn!(
                        session_id = %session.id, account = %session.account, provider = item.provider,
                        "parked session: its agent's provider is not in the settings"
                    );
                }
                starting.park(session, item, (Gate::Config, None), Some(CONFIG_LOOK_MS));
                return false;
            }
            match standing(item.breaker).admits(None) {
                Admits::Call | Admits::Probe => true,
                Admits::Wait(look) => {
                    self.park_behind(session, item, look, starting);
                    false
                }
            }
        });
        start
    }

    fn park_behind(&self, session: &LockedSession, item: &QueuedItem, look: Duration, starting: &mut Starting) {
        let gate_ref = self.breakers.key(&item.provider).map(breaker_ref);
        starting.park(session, item, (Gate::Provider, gate_ref), Some(millis(look)));
    }

    /// Draws the ids of the turns, and takes the probes of breakers that may be tried: one turn has it, the others are to be
    /// parked. Last of all, so that the turn that has it begins.
    async fn admitted(
        &self,
        tx: &Tx,
        ready: Vec<(LockedSession, QueuedItem, Slot)>,
        starting: &mut Starting,
    ) -> Result<(Vec<(LockedSession, QueuedItem)>, Vec<(TurnId, Pass, Slot)>), StorageError> {
        let ids: Vec<TurnId> = ready.iter().map(|_| TurnId(Uuid::now_v7())).collect();
        let asks = |item: &QueuedItem| standing(item.breaker).admits(None) == Admits::Probe;
        let asked = ready.iter().zip(&ids).filter(|((_, item, _), _)| asks(item));
        let asked: Vec<(&str, TurnId)> = asked.map(|((_, item, _), turn)| (&*item.provider, *turn)).collect();
        let mut taken = self.breakers.probe(tx, &asked, &mut starting.events).await?.into_iter();
        let (mut start, mut passes) = (Vec::with_capacity(ready.len()), Vec::with_capacity(ready.len()));
        for ((session, item, slot), turn) in ready.into_iter().zip(ids) {
            let pass = match asks(&item) {
                true => taken.next().expect("an answer for each that asked"),
                false => Ok(Pass::closed(item.breaker)),
            };
            match pass {
                Ok(pass) => {
                    start.push((session, item));
                    passes.push((turn, pass, slot));
                }
                Err(look) => self.park_behind(&session, &item, look, starting),
            }
        }
        Ok((start, passes))
    }

    /// Adds the further items of runs to their heads; sessions whose run may still grow are to be parked.
    async fn runs(
        &self,
        tx: &Tx,
        start: Vec<(LockedSession, QueuedItem)>,
        starting: &mut Starting,
    ) -> Result<Vec<(LockedSession, QueuedItem)>, StorageError> {
        let limits = RunLimits {
            debounce_ms: self.config.collect_debounce_ms.i64(),
            wait_ms_max: self.config.collect_wait_ms_max.i64(),
            items_max: self.config.collect_items_max.usize(),
            bytes_max: i64::try_from(self.config.collect_bytes_max.get()).unwrap_or(i64::MAX),
        };
        let heads: Vec<(SessionName, i64, i64)> = start
            .iter()
            .map(|(_, item)| (item, Candidate::from(item)))
            .filter(|(_, head)| head.may_head())
            .map(|(item, head)| (item.name(), item.position, head.bytes))
            .collect();
        if heads.is_empty() {
            return Ok(start);
        }
        let mut behind: HashMap<SessionName, Vec<Behind>> = HashMap::new();
        for item in queue_behind(tx, &heads, limits.bytes_max, self.config.collect_items_max.get().into()).await? {
            behind.entry(item.name()).or_default().push(item);
        }
        unlike_leave(tx, &start, &mut behind).await?;
        let mut now = Vec::with_capacity(start.len());
        for (session, mut item) in start {
            let following = behind.remove(&session.name()).unwrap_or_default();
            let candidates: Vec<Candidate> = following.iter().map(Candidate::from).collect();
            match run(&Candidate::from(&item), &candidates, &limits) {
                Run::Start { further } => {
                    item.join(following.into_iter().take(further));
                    now.push((session, item));
                }
                Run::Wait { ms } => {
                    starting.parked.extend(park(&session, Gate::Collect, None, Some(ms)));
                    starting.told.extend(GateTold::released(&session, &item));
                }
            }
        }
        Ok(now)
    }

    /// To be called when the transaction has committed. Caches what is true from now on, and returns the work.
    pub fn committed(&self, starting: Starting) -> Vec<Work> {
        self.kept.add(&starting.turns);
        starting.work
    }

    /// To be called when the transaction has failed.
    pub fn failed(&self) {
        self.kept.forget();
    }

    /// Plans the turns and completes the facts of their prompts: what goes along with their threads, the coordinators' overviews, and
    /// how the last turn ended if its agent could not end it.
    async fn complete(
        &self,
        tx: &Tx,
        start: &mut [(LockedSession, QueuedItem)],
        branches: HashMap<SessionName, BranchStart>,
        mut replays: HashMap<SessionName, ReplayStart>,
    ) -> Result<Vec<Planned>, StorageError> {
        let mut all = Vec::with_capacity(start.len());
        let tasks_max = self.config.overview_tasks_max.get().into();
        let stopped: Vec<(AccountId, TurnId)> = start
            .iter()
            .filter_map(|(session, _)| Some((session.account.clone(), session.stopped_turn?)))
            .collect();
        let mut stopped: HashMap<(AccountId, TurnId), StoppedTurn> = stopped_load(tx, &stopped)
            .await?
            .into_iter()
            .map(|turn| ((turn.account.clone(), turn.id), turn))
            .collect();
        let mut overviews: HashMap<AccountId, Vec<OverviewEntry>> = HashMap::new();
        for (session, item) in start {
            // A branch sees its base: neither the briefing nor other tasks.
            let of = replays
                .get(&session.name())
                .map_or_else(|| session.name(), |replay| replay.past().session);
            item.is_coordinator &= !branches.contains_key(&of);
            if let Some(replay) = replays.remove(&session.name()) {
                let branch = branches.get(&replay.past().session).cloned();
                all.push(Planned {
                    plan: replay.plan(self.provider(&item.provider)),
                    told: Default::default(),
                    branch,
                    replay: Some(replay),
                });
                continue;
            }
            let briefing = item.is_coordinator.then(|| std::mem::take(&mut item.briefing));
            let branch = branches.get(&session.name()).cloned();
            let plan = self.plan(session, item, branch.as_ref());
            let forked = branch.as_ref().filter(|_| plan.context.used == ContextMode::Fork);
            let forked = forked.map(told_before);
            let newest = Newest {
                candidates: item.thread.take().unwrap_or_default(),
                total: item.thread_total,
                there: item.thread_there.iter().copied().map(MessageId).collect(),
            };
            let told = (&plan, forked.as_ref().unwrap_or(&session.thread.told));
            let told = extract::complete(&mut item.facts, newest, briefing, told, &item.provider);
            all.push(Planned {
                plan,
                told,
                branch,
                replay: None,
            });
            item.facts.is_interrupted = session.interrupted;
            item.facts.stopped = session.stopped_turn.map(|turn| {
                let about = stopped.remove(&(session.account.clone(), turn));
                Stopped {
                    kind: session.stop_kind.unwrap_or(StopKind::Stopped),
                    by: session.stop_by.clone().unwrap_or_default(),
                    at: session.stop_at.unwrap_or(OffsetDateTime::UNIX_EPOCH),
                    about: about.map(|turn| (turn.sender, turn.about)),
                }
            });
            if item.is_coordinator {
                let tasks = match overviews.entry(session.account.clone()) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(none) => none.insert(overview_load(tx, &session.account, tasks_max).await?),
                };
                item.facts.overview = Some(tasks.clone());
            }
        }
        Ok(all)
    }

    fn plan(&self, session: &LockedSession, item: &QueuedItem, branch: Option<&BranchStart>) -> Plan {
        let provider = self.provider(&item.provider);
        plan(&PlanFacts {
            asked: item.context_policy,
            keeps: provider.keeps,
            found_by: provider.found_by,
            provider: &item.provider,
            thread: &session.thread,
            rotated: session.thread.told.rotated.as_ref().map(|rotated| rotated.rule),
            branch: branch.map(|branch| branch.facts(session.turn_count == 0)),
        })
    }

    fn provider(&self, name: &str) -> ProviderFacts {
        ProviderFacts::of(self.drivers.get(name).map(Arc::as_ref))
    }

    /// The pasts of new turns whose prompts have one, and their sessions' subagents at work. Without such a turn there is no
    /// statement.
    async fn pasts_of_new(
        &self,
        tx: &Tx,
        start: &[(LockedSession, QueuedItem)],
        planned: &[Planned],
    ) -> Result<HashMap<SessionName, (Past, Vec<Subagent>)>, StorageError> {
        let all = start.iter().zip(planned);
        let assembled = all.filter(|(_, planned)| has_past(&planned.plan.context));
        let of: Vec<PastAsked<'_>> = assembled
            .map(|((session, item), planned)| PastAsked {
                session,
                task: item.facts.task.as_ref().map(|task| &task.id),
                before: session.turn_count + 1,
                branch: planned.branch.as_ref(),
                is_fork: is_fork(&planned.plan.context),
                replay: planned.replay.as_ref(),
            })
            .collect();
        let limits = self.config.past_limits();
        let mut loaded = self.pasts(tx, &of).await?;
        let pasts = of.iter().map(|one| {
            let (loaded, base) = loaded.remove(&one.session.name()).unwrap_or_default();
            let past = match one.replay {
                // Its input was made for a thread that had the rest; that of a fork still has it.
                Some(replay) if !one.is_fork => {
                    let manifest = Manifest::unpacked(&replay.manifest);
                    past::of_open(&loaded, &base, &limits, manifest.as_ref())
                }
                Some(_) | None => past::of_new(&loaded, &base, &limits),
            };
            (one.session.name(), (past, loaded.subagents))
        });
        Ok(pasts.collect())
    }

    /// The same of turns in progress whose due call holds their past.
    pub(super) async fn pasts_of_open(
        &self,
        tx: &Tx,
        open: &[(LockedSession, OpenTurn)],
        replays: &HashMap<SessionName, ReplayStart>,
    ) -> Result<HashMap<SessionName, Past>, StorageError> {
        let holds = |turn: &OpenTurn| {
            let found_by = self.provider(&turn.provider).found_by;
            holds_past(turn.context.as_ref(), &turn.journal, found_by)
        };
        let assembled: Vec<&(LockedSession, OpenTurn)> = open.iter().filter(|(_, turn)| holds(turn)).collect();
        let branches = self
            .branches_of(tx, assembled.iter().map(|(session, _)| session), replays)
            .await?;
        let of: Vec<PastAsked<'_>> = assembled
            .iter()
            .map(|(session, turn)| {
                let replay = replays.get(&session.name());
                let of = replay.map_or_else(|| session.name(), |replay| replay.past().session);
                PastAsked {
                    session,
                    task: turn.task.as_ref(),
                    before: turn.number,
                    branch: branches.get(&of),
                    is_fork: turn.context.as_ref().is_some_and(is_fork),
                    replay,
                }
            })
            .collect();
        let mut loaded = self.pasts(tx, &of).await?;
        let limits = self.config.past_limits();
        let past = |(session, turn): &&(LockedSession, OpenTurn)| {
            let (loaded, base) = loaded.remove(&session.name()).unwrap_or_default();
            let past = match turn.context.as_ref().is_some_and(is_fork) {
                true => past::of_new(&loaded, &base, &limits),
                false => {
                    let manifest = turn.manifest.as_deref().and_then(Manifest::unpacked);
                    past::of_open(&loaded, &base, &limits, manifest.as_ref())
                }
            };
            (session.name(), past)
        };
        Ok(assembled.iter().map(past).collect())
    }

    /// What decides which tools a turn is offered on this item.
    pub(super) fn offer(
        &self,
        session: &LockedSession,
        item: &QueuedItem,
        branch: Option<&BranchStart>,
    ) -> OfferContext {
        OfferContext {
            has_task: item.facts.task.is_some(),
            is_coordinator: item.is_coordinator,
            is_orchestrator: matches!(session.kind, SessionKind::Orchestrator | SessionKind::Guest),
            is_account: session.kind == SessionKind::Orchestrator && session.owner.is_none(),
            guest: reach_of(session, item),
            has_mail: item.mail_enabled,
            is_asked: ASKING_KINDS.contains(&item.facts.kind.as_str()),
            is_branch: session.branch.is_some(),
            may_branch: item.facts.task.is_some() && self.may_branch(branch),
            models: self.models.kinds_of(&session.account),
        }
    }

    /// Builds a new turn: its prompt, its row, its work.
    fn begin(
        &self,
        session: &LockedSession,
        mut item: QueuedItem,
        (turn_id, pass): (TurnId, Pass),
        (planned, past): (Planned, Past),
        policies: &[ToolPolicy],
    ) -> Result<(NewTurn, Work), ImpossibleStep> {
        let driver = self.drivers.get(&item.provider);
        let marks = self.marks.marks(&session.account, turn_id);
        let hidden = hidden(session, &item, policies);
        let context = OfferContext {
            is_branch: session.branch.is_some()
                || planned.replay.as_ref().is_some_and(|replay| replay.branch_id.is_some()),
            ..self.offer(session, &item, planned.branch.as_ref())
        };
        let (unseen, driver) = (unseen(context, &hidden), driver.map(Arc::as_ref));
        let prompt = match &planned.replay {
            Some(replay) => replaying::prompt_of((session, &item), replay, driver, &unseen)?,
            None => prompt_of(
                session,
                (&item, planned.branch.as_ref()),
                driver,
                &self.profiles,
                &unseen,
                marks,
            ),
        };
        let replay = planned.replay;
        let branch_task = match &replay {
            Some(replay) => replay.task_id.clone(),
            None => planned.branch.map(|branch| branch.task_id),
        };
        item.layout = prompt.manifest.layout;
        let beginning = Beginning {
            turn_id,
            pass,
            prompt,
            plan: planned.plan,
            branch_task,
            past,
            told: planned.told,
            provider: self.provider(&item.provider),
            tools: match &replay {
                Some(replay) => offered_as(&replay.tools),
                None => offered_but(context, &hidden),
            },
            tools_wait_ms: self.config.tools_wait_ms_max.i64(),
            trace: turn_span(turn_id, session, &item),
        };
        let (turn, work) = begin(session, item, beginning)?;
        let work = match replay {
            Some(_) => work.replaying(replay),
            None => work,
        };
        Ok((turn, work))
    }
}

impl Starting {
    /// Parks a session behind a gate that is announced. `wake_ms`: when to look again.
    fn park(
        &mut self,
        session: &LockedSession,
        item: &QueuedItem,
        (gate, gate_ref): (Gate, Option<Uuid>),
        wake_ms: Option<i64>,
    ) {
        let Some(park) = park(session, gate, gate_ref, wake_ms) else {
            return;
        };
        self.parked.push(park);
        if session.gate != Some(gate) {
            self.told.push(GateTold::of(session, item, gate, true));
        }
    }
}

/// What a guest may ask now. None: the session is no guest's.
fn reach_of(session: &LockedSession, item: &QueuedItem) -> Option<Reachable> {
    let guest = item.identity.as_ref().and_then(|identity| identity.guest.as_ref());
    (session.kind == SessionKind::Guest).then(|| guest.map_or(Reachable::Off, |guest| guest.reachable))
}

fn park(session: &LockedSession, gate: Gate, gate_ref: Option<Uuid>, wake_ms: Option<i64>) -> Option<Park> {
    let state = possible(session.facts.state().on(SessionEvent::Parked), session, None)?;
    Some(Park {
        session: session.name(),
        phase: state.phase,
        gate,
        gate_ref,
        wake_ms,
    })
}

/// Unwraps a possible step. For an impossible step, nothing of the session is written, and the rest of the batch
/// continues.
pub(super) fn possible<T>(step: Result<T, ImpossibleStep>, session: &LockedSession, turn: Option<TurnId>) -> Option<T> {
    step.inspect_err(|error| {
        metrics::impossible_step(error);
        let (session_id, turn_id) = (session.id, turn.map(TurnId::uuid).map(tracing::field::display));
        tracing::error!(
            %session_id, account = %session.account, turn_id, %error,
            "step not written: the session's stored state does not allow it"
        );
    })
    .ok()
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// In a session that is a person's own, a run ends before the first item of another kind than its head's.
async fn unlike_leave(
    tx: &Tx,
    start: &[(LockedSession, QueuedItem)],
    behind: &mut HashMap<SessionName, Vec<Behind>>,
) -> Result<(), StorageError> {
    let own = start.iter().filter_map(|(session, item)| {
        let owner = session.owner.as_ref()?;
        Some((owner, item, behind.get(&session.name())?))
    });
    let joining: Vec<Joining<'_>> = own
        .flat_map(|(owner, item, following)| {
            following.iter().map(move |next| Joining {
                account: &item.account,
                owner,
                first: item.facts.notification.as_str(),
                id: next.id.as_str(),
            })
        })
        .collect();
    if joining.is_empty() {
        return Ok(());
    }
    let alike = items_alike(tx, &joining).await?;
    for (session, _) in start.iter().filter(|(session, _)| session.owner.is_some()) {
        if let Some(following) = behind.get_mut(&session.name()) {
            let is_alike = |next: &Behind| alike.contains(&(next.account.clone(), next.id.clone()));
            let run = following.iter().take_while(|next| is_alike(next)).count();
            following.truncate(run);
        }
    }
    Ok(())
}

/// Keeps the sessions that fit their accounts' own limits; the sweep finds the others later. Resumed turns are not
/// limited, so that begun turns end.
async fn within_limits(
    tx: &Tx,
    mut start: Vec<(LockedSession, QueuedItem)>,
) -> Result<Vec<(LockedSession, QueuedItem)>, StorageError> {
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
