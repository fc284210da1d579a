//! Claims sessions: one transaction for a batch of woken sessions, from their locks to turns that may be sent.
//!
//! Reads under lock, applies [`admit`] to each session, then writes: leases and new turns, leases of resumed turns, or
//! requests of the next tool calls. The result is [`Work`]; the other sessions of the batch are released.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use contracts::{Root, tools::OfferContext};
use domain::{AccountId, ImpossibleStep, SessionEvent, SessionPhase, TurnId};
use runtime::Shutdown;
use storage::{
    Accounts, Database, Setting, StorageError,
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;
use uuid::Uuid;

pub use super::{
    begin::{Beginning, Prompt, begin, carry_on},
    messages::tool_requested,
};
use super::{
    begin::{offered, offered_still, prompt, turn_span},
    messages::origin,
    resume::Due,
    work::Work,
};
use crate::{
    SOURCE, metrics,
    prompt::{MarkSecret, OverviewEntry, Profiles},
    providers::{Continuation, Driver, Effects, Slot},
    queue::{Admission, TurnFacts, admit},
    settings::DeliverySettings,
    store::{
        SessionName, TurnName,
        claim::{OpenTurn, in_flight_lock, leases_check, turns_load},
        context::{QueuedItem, overview_load, queue_next},
        threads::Threads,
    },
};
use storage::session::{
    sessions_lock::{LockedSession, SESSIONS_LOCK_FREE, sessions_lock, sessions_there},
    turns_begin::{KeptTexts, NewTurn, turns_begin},
    turns_resume::{Resumed, turns_resume, turns_wait},
};

/// The dependencies of claiming.
#[derive(Clone)]
pub struct Claimer {
    pub database: Database,
    pub root: Root,
    pub config: Arc<DeliverySettings>,
    pub drivers: Arc<HashMap<String, Arc<Driver>>>,
    pub profiles: Arc<Profiles>,
    pub kept: Arc<KeptTexts>,
    pub threads: Arc<Threads>,
    pub marks: MarkSecret,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

/// The result of a batch.
#[derive(Default)]
pub struct Claimed {
    pub work: Vec<Work>,
    /// Sessions that were not claimed: another replica holds them, or they have no work.
    pub left: Vec<SessionName>,
    /// Those of `left` that another transaction has locked: whether they have work is unknown.
    pub locked: Vec<SessionName>,
    /// Sessions whose provider has no free slot, with its name. Nothing was written for them.
    pub without_slot: Vec<(SessionName, String)>,
    /// Accounts' own limits, as read.
    pub limits: Vec<(AccountId, Option<i32>)>,
    /// Committed messages, for the relay.
    pub outbox: Vec<OutboxRow>,
    /// Number of turns taken over from a holder whose lease had expired.
    pub taken_over: usize,
}

impl Claimer {
    /// Claims sessions of `names` for `replica`. This replica must not be working on any of them. After an error it is
    /// unknown whether they were claimed; claiming them again resolves that.
    pub async fn claim(&self, names: &[SessionName], replica: Uuid) -> Result<Claimed, StorageError> {
        let claimed = self.claim_all(names, replica).await;
        if claimed.is_err() {
            self.kept.forget();
        }
        claimed
    }

    async fn claim_all(&self, names: &[SessionName], replica: Uuid) -> Result<Claimed, StorageError> {
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
            .await?;
        let mut sessions = sessions_lock(&tx, SESSIONS_LOCK_FREE, names).await?;
        let locked = match sessions.len() < names.len() {
            true => {
                let seen: HashSet<SessionName> = sessions.iter().map(LockedSession::name).collect();
                let unseen: Vec<SessionName> = names.iter().filter(|name| !seen.contains(name)).cloned().collect();
                sessions_there(&tx, &unseen).await?
            }
            false => Vec::new(),
        };
        leases_check(&tx, &mut sessions, replica).await?;
        let in_progress: Vec<TurnName> = sessions
            .iter()
            .filter_map(|session| Some((session.account.clone(), session.active_turn?)))
            .collect();
        let turns = turns_load(&tx, &in_progress, self.config.tools_wait_ms_max.i64()).await?;
        let Admitted { start, resume, ask } = admitted(sessions, turns);
        let limits = start
            .iter()
            .map(|session| (session.account.clone(), session.turns_in_flight_max))
            .collect();

        // Only sessions with a queued item are claimed: a wrong counter must not hold a lease without work.
        let names_of_start: Vec<SessionName> = start.iter().map(LockedSession::name).collect();
        let messages_max = self.config.thread_messages_max.get().into();
        let items = queue_next(&tx, &names_of_start, &self.threads, messages_max).await?;
        let mut items: HashMap<SessionName, QueuedItem> = items
            .into_iter()
            .map(|item| ((item.account.clone(), item.session_id), item))
            .collect();
        let start: Vec<(LockedSession, QueuedItem)> = start
            .into_iter()
            .filter_map(|session| items.remove(&session.name()).map(|item| (session, item)))
            .collect();
        let start = within_limits(&tx, start).await?;

        // Before any write: a turn that has begun is about to be sent.
        let mut without_slot = Vec::new();
        let (mut start, slots): (Vec<(LockedSession, QueuedItem)>, Vec<Option<Slot>>) = start
            .into_iter()
            .filter_map(|(session, item)| match self.slot(&item.provider) {
                Ok(slot) => Some(((session, item), slot)),
                Err(NoSlot) => {
                    without_slot.push((session.name(), item.provider));
                    None
                }
            })
            .unzip();
        let mut taken_over = 0;
        let mut resumed = Vec::with_capacity(resume.len());
        for (session, turn) in resume {
            let turn_id = turn.id;
            let Some(mut work) = possible(self.resumed(&session, turn), &session, Some(turn_id)) else {
                continue;
            };
            if work.due != Due::Abort {
                let Ok(slot) = self.slot(&work.provider) else {
                    without_slot.push((work.name(), work.provider));
                    continue;
                };
                work.slot = slot.map(Arc::new);
            }
            taken_over += usize::from(session.facts.phase == SessionPhase::Running);
            resumed.push(work);
        }
        self.complete(&tx, &mut start).await?;
        let now = OffsetDateTime::now_utc();
        let mut new_turns = Vec::with_capacity(start.len());
        let mut work = Vec::with_capacity(start.len() + resumed.len());
        for ((session, item), slot) in start.into_iter().zip(slots) {
            let begun = self.begin(&session, item);
            let Some((new_turn, mut begun)) = possible(begun, &session, None) else {
                continue;
            };
            begun.slot = slot.map(Arc::new);
            new_turns.push(new_turn);
            work.push(begun);
        }
        turns_begin(&tx, &new_turns, replica, &self.kept).await?;
        let carried_on: Vec<Resumed> = resumed.iter().map(Work::resumed).collect();
        turns_resume(&tx, &carried_on, replica).await?;
        work.extend(resumed);

        let mut asked: Vec<(SessionName, i32)> = Vec::with_capacity(ask.len());
        let mut messages: Vec<Owned> = Vec::with_capacity(ask.len());
        for (session, turn) in &ask {
            let Some(call) = turn.next() else { continue };
            let awaited = session.facts.state().on(SessionEvent::AwaitedLonger);
            if possible(awaited, session, Some(turn.id)).is_none() {
                continue;
            }
            asked.push((session.name(), call.ordinal));
            let setting = Setting {
                root: &self.root,
                source: SOURCE,
                origin: origin(turn.id, turn.hops, turn.trace()),
                now,
            };
            let asking = session.turn(turn.id, turn.task.clone());
            messages.push(tool_requested(&setting, asking, turn.agent_id, call));
        }
        turns_wait(&tx, &asked, self.config.tools_again_ms.i64()).await?;
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("delivery.claim_written").await;
        tx.commit().await?;
        self.kept.add(&new_turns);
        self.shutdown.crash_point("delivery.claim_committed").await;

        let handled: HashSet<SessionName> = work
            .iter()
            .map(Work::name)
            .chain(without_slot.iter().map(|(name, _)| name.clone()))
            .collect();
        let left = names.iter().filter(|name| !handled.contains(name)).cloned().collect();
        Ok(Claimed {
            work,
            left,
            locked,
            without_slot,
            limits,
            outbox,
            taken_over,
        })
    }

    /// A slot of this provider. None is needed where the settings do not have the provider, since no call is made.
    fn slot(&self, provider: &str) -> Result<Option<Slot>, NoSlot> {
        let Some(driver) = self.drivers.get(provider) else {
            return Ok(None);
        };
        driver.slot().map(Some).ok_or(NoSlot)
    }

    /// Completes the facts of the prompts: the coordinators' overviews, and whether the last turn was interrupted.
    async fn complete(&self, tx: &storage::Tx, start: &mut [(LockedSession, QueuedItem)]) -> Result<(), StorageError> {
        let tasks_max = self.config.overview_tasks_max.get().into();
        let mut overviews: HashMap<AccountId, Vec<OverviewEntry>> = HashMap::new();
        for (session, item) in start {
            item.facts.is_interrupted = session.interrupted;
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
            }),
            tools_wait_ms: self.config.tools_wait_ms_max.i64(),
            trace: turn_span(turn_id, session, &item),
        };
        begin(session, item, beginning)
    }

    fn resumed(&self, session: &LockedSession, turn: OpenTurn) -> Result<Work, ImpossibleStep> {
        let driver = self.drivers.get(&turn.provider);
        let tools = offered_still(&turn);
        let effects = driver.map_or(Effects::GatewayOnly, |driver| driver.effects);
        let continuation = driver.map_or(Continuation::Key, |driver| driver.continuation);
        carry_on(session, turn, effects, continuation, tools)
    }
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

/// All slots of a provider are taken.
struct NoSlot;

/// The actions for the sessions of a batch; sessions without an action are left alone.
#[derive(Debug, Default)]
pub struct Admitted {
    pub start: Vec<LockedSession>,
    pub resume: Vec<(LockedSession, OpenTurn)>,
    pub ask: Vec<(LockedSession, OpenTurn)>,
}

/// Applies [`admit`] to each session, with its turn in progress. Pure.
pub fn admitted(sessions: Vec<LockedSession>, turns: Vec<OpenTurn>) -> Admitted {
    let mut turns: HashMap<TurnName, OpenTurn> = turns
        .into_iter()
        .map(|turn| ((turn.account.clone(), turn.id), turn))
        .collect();
    let mut admitted = Admitted::default();
    for session in sessions {
        let turn = session
            .active_turn
            .and_then(|id| turns.remove(&(session.account.clone(), id)));
        match (admit(session.facts, turn.as_ref().map(TurnFacts::from)), turn) {
            (Admission::Start, _) => admitted.start.push(session),
            (Admission::Resume, Some(turn)) => admitted.resume.push((session, turn)),
            (Admission::Ask, Some(turn)) => admitted.ask.push((session, turn)),
            (Admission::Leave | Admission::Resume | Admission::Ask, _) => {}
        }
    }
    admitted
}

/// Keeps the sessions that fit their accounts' own limits; the sweep finds the others later. Resumed turns are not
/// limited, so that begun turns end.
async fn within_limits(
    tx: &storage::Tx,
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
