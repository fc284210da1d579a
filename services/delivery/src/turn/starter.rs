//! Starts turns within the caller's transaction: a claim, or the record of the session's last turn. Reads the next items,
//! keeps the limits of accounts and providers, builds the prompts, writes the turns.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

use contracts::{
    event::{Event, SessionGated},
    tools::OfferContext,
};
use domain::{AccountId, Gate, ImpossibleStep, SessionEvent, StopKind, TaskId, TurnId, hold::Held};
use storage::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        sessions_lock::LockedSession,
        sessions_park::{Park, sessions_park},
        turns_begin::{KeptTexts, NewTurn, turns_begin},
    },
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    begin::{Beginning, begin, offered, prompt, turn_span},
    work::Work,
};
use crate::{
    metrics,
    prompt::{MarkSecret, OverviewEntry, Profiles, Stopped, ThreadExtract},
    providers::{Driver, Effects, Slot},
    queue::run::{Candidate, Run, RunLimits, run},
    settings::DeliverySettings,
    store::{
        SessionName,
        claim::in_flight_lock,
        context::{QueuedItem, overview_load, queue_next},
        holds::Holds,
        plans::{AwaitedPlan, plans_awaited},
        runs::{Behind, StoppedTurn, queue_behind, stopped_load},
        threads::Threads,
    },
};

/// The dependencies of starting.
#[derive(Clone)]
pub struct Starter {
    pub config: Arc<DeliverySettings>,
    pub drivers: Arc<HashMap<String, Arc<Driver>>>,
    pub profiles: Arc<Profiles>,
    pub kept: Arc<KeptTexts>,
    pub threads: Arc<Threads>,
    pub marks: MarkSecret,
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
    pub told: Vec<Told>,
    /// The rows of `work`.
    turns: Vec<NewTurn>,
    /// The threads in the prompts of `work`. They may have messages that the transaction has written.
    threads: Vec<(SessionName, ThreadExtract)>,
}

/// A session was parked behind a gate that is announced, or starts after one.
#[derive(Debug)]
pub struct Told {
    account: AccountId,
    task: Option<TaskId>,
    gated: SessionGated,
    parked: bool,
    turn_count: i64,
}

impl Told {
    fn of(session: &LockedSession, item: &QueuedItem, gate: Gate, parked: bool) -> Told {
        let gated = SessionGated {
            session_id: session.id,
            session_key: session.key.clone(),
            generation: session.generation,
            agent_id: session.agent_id,
            gate,
            queued: session.facts.queued.unsigned_abs(),
        };
        Told {
            account: session.account.clone(),
            task: item.facts.task.as_ref().map(|task| task.id.clone()),
            gated,
            parked,
            turn_count: session.turn_count,
        }
    }

    /// Of the gate that kept the session.
    fn released(session: &LockedSession, item: &QueuedItem) -> Option<Told> {
        let gate = session.gate.filter(|gate| gate.is_announced())?;
        Some(Told::of(session, item, gate, false))
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
const ASKING_KINDS: [&str; 2] = ["question", "review"];

/// All slots of a provider are taken.
pub(super) struct NoSlot;

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
        let places: Vec<(SessionName, i64)> = sessions.iter().map(|session| (session.name(), i64::MIN)).collect();
        let items = queue_next(tx, &places, &self.threads, self.messages_max()).await?;
        let mut items: HashMap<SessionName, QueuedItem> = items
            .into_iter()
            .map(|item| ((item.account.clone(), item.session_id), item))
            .collect();
        let start: Vec<(LockedSession, QueuedItem)> = sessions
            .into_iter()
            .filter_map(|session| items.remove(&session.name()).map(|item| (session, item)))
            .collect();
        let mut starting = Starting::default();
        holds
            .read(tx, start.iter().map(|(session, item)| (&session.account, item.holds)))
            .await?;
        let start = self.not_held(start, holds, &mut starting);
        let start = self.approved(tx, start, holds, &mut starting).await?;
        let start = self.runs(tx, start, &mut starting).await?;
        let start = within_limits(tx, start).await?;

        // Before any write: a turn that has begun is about to be sent.
        let (mut start, slots): (Vec<(LockedSession, QueuedItem)>, Vec<Option<Slot>>) = start
            .into_iter()
            .filter_map(|(session, item)| match self.slot(&item.provider) {
                Ok(slot) => Some(((session, item), slot)),
                Err(NoSlot) => {
                    starting.without_slot.push((session.name(), item.provider));
                    None
                }
            })
            .unzip();
        self.complete(tx, &mut start).await?;
        for ((session, item), slot) in start.into_iter().zip(slots) {
            let thread = ThreadExtract::clone(&item.facts.thread);
            let released = Told::released(&session, &item);
            let begun = self.begin(&session, item);
            let Some((turn, mut work)) = possible(begun, &session, None) else {
                continue;
            };
            work.slot = slot.map(Arc::new);
            starting.told.extend(released);
            starting.turns.push(turn);
            starting.threads.push((session.name(), thread));
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
            let Some(park) = park(&session, Gate::Pause, Some(kept.hold.id.into()), wake_ms) else {
                continue;
            };
            starting.parked.push(park);
            if session.gate != Some(Gate::Pause) {
                starting.told.push(Told::of(&session, &item, Gate::Pause, true));
            }
        }
        free
    }

    fn messages_max(&self) -> i64 {
        self.config.thread_messages_max.get().into()
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
        let heads: Vec<(SessionName, TaskId)> = start
            .iter()
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
        let places: Vec<(SessionName, i64)> = awaited
            .iter()
            .filter_map(|(name, plan)| Some((name.clone(), plan.position?)))
            .collect();
        let mut others: HashMap<SessionName, QueuedItem> = queue_next(tx, &places, &self.threads, self.messages_max())
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
            let look_ms = self.config.hold_look_ms.i64();
            let Some(park) = park(&session, Gate::Approval, Some(plan.plan.into()), look_ms) else {
                continue;
            };
            starting.parked.push(park);
            if session.gate != Some(Gate::Approval) {
                starting.told.push(Told::of(&session, &item, Gate::Approval, true));
            }
        }
        // A hold may cover the task of the item that is next instead.
        free.extend(self.not_held(passed, holds, starting));
        Ok(free)
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
                    starting.parked.extend(park(&session, Gate::Collect, None, ms));
                    starting.told.extend(Told::released(&session, &item));
                }
            }
        }
        Ok(now)
    }

    /// To be called when the transaction has committed. Caches what is true from now on, and returns the work.
    pub fn committed(&self, starting: Starting) -> Vec<Work> {
        self.kept.add(&starting.turns);
        self.threads.keep(starting.threads);
        starting.work
    }

    /// To be called when the transaction has failed.
    pub fn failed(&self) {
        self.kept.forget();
    }

    /// A slot of this provider. None is needed where the settings do not have the provider, since no call is made.
    pub(super) fn slot(&self, provider: &str) -> Result<Option<Slot>, NoSlot> {
        let Some(driver) = self.drivers.get(provider) else {
            return Ok(None);
        };
        driver.slot().map(Some).ok_or(NoSlot)
    }

    /// Completes the facts of the prompts: the coordinators' overviews, and how the last turn ended if its agent could not
    /// end it.
    async fn complete(&self, tx: &Tx, start: &mut [(LockedSession, QueuedItem)]) -> Result<(), StorageError> {
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
                item.facts.overview = Some((std::mem::take(&mut item.briefing), tasks.clone()));
            }
        }
        Ok(())
    }

    /// Builds a new turn: its prompt, its row, its work.
    fn begin(&self, session: &LockedSession, item: QueuedItem) -> Result<(NewTurn, Work), ImpossibleStep> {
        let driver = self.drivers.get(&item.provider);
        let turn_id = TurnId(Uuid::now_v7());
        let marks = self.marks.marks(&session.account, turn_id);
        let beginning = Beginning {
            turn_id,
            prompt: prompt(session, &item, driver.map(Arc::as_ref), &self.profiles, marks),
            effects: driver.map_or(Effects::GatewayOnly, |driver| driver.effects),
            tools: offered(OfferContext {
                has_task: item.facts.task.is_some(),
                is_coordinator: item.is_coordinator,
                is_asked: ASKING_KINDS.contains(&item.facts.kind.as_str()),
            }),
            tools_wait_ms: self.config.tools_wait_ms_max.i64(),
            trace: turn_span(turn_id, session, &item),
        };
        begin(session, item, beginning)
    }
}

fn park(session: &LockedSession, gate: Gate, gate_ref: Option<Uuid>, wake_ms: i64) -> Option<Park> {
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
