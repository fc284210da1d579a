//! Claims sessions: one transaction for a batch of woken sessions, from their locks to turns that may be sent.
//!
//! Reads under lock, applies [`admit`] to each session, then writes: leases and new turns, leases of resumed turns, or
//! requests of the next tool calls. The result is [`Work`]; the other sessions of the batch are released.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use contracts::{Root, outgoing::Origin};
use domain::{AccountId, ImpossibleStep, SessionEvent, SessionPhase, StopKind, StopThen, hold::Held};
use prompt::Past;
use runtime::Shutdown;
use storage::{
    Accounts, Database, Setting, StorageError, Tx,
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    begin::offered_still,
    messages::origin,
    resume::Due,
    starter::{Starter, possible},
    work::Work,
};
pub use super::{
    begin::{Beginning, Prompt, ProviderFacts, begin, carry_on},
    messages::tool_requested,
};
use crate::{
    SOURCE,
    queue::{Admission, TurnFacts, admit},
    store::{
        SessionName, TurnName,
        claim::{OpenTurn, leases_check, turns_load},
        holds::Holds,
        journal::noted,
    },
};
use storage::session::{
    sessions_lock::{LockedSession, SESSIONS_LOCK_FREE, sessions_lock, sessions_there},
    sessions_park::Park,
    turn_stop::{StopRequest, turn_stop},
    turns_resume::{Resumed, turns_resume, turns_wait},
};

/// How often a call is requested again that somebody is asked about. The answer makes the session due earlier (`call_awaits`).
const UNDECIDED_LOOK_MS: i64 = 300_000;

/// The dependencies of claiming.
#[derive(Clone)]
pub struct Claimer {
    pub database: Database,
    pub root: Root,
    pub starter: Starter,
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
    /// Sessions that were parked behind a gate.
    pub parked: Vec<Park>,
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
            self.starter.failed();
        }
        claimed
    }

    async fn claim_all(&self, names: &[SessionName], replica: Uuid) -> Result<Claimed, StorageError> {
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)).with_operator())
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
        let tools_wait_ms_max = self.starter.config.tools_wait_ms_max.i64();
        let turns = turns_load(&tx, &in_progress, tools_wait_ms_max, self.starter.breakers.keys_json()).await?;
        let Admitted { start, mut resume, ask } = admitted(sessions, turns);
        let limits = start
            .iter()
            .map(|session| (session.account.clone(), session.turns_in_flight_max))
            .collect();

        let mut holds = Holds::default();
        stop_held(&tx, &mut resume, &mut holds).await?;
        let mut starting = self.starter.start(&tx, start, replica, &mut holds).await?;
        let mut without_slot = std::mem::take(&mut starting.without_slot);
        let parked = std::mem::take(&mut starting.parked);
        let mut taken_over = 0;
        let mut replays = self.starter.replays_of_open(&tx, &mut resume).await?;
        let mut passes = self.starter.defer(&tx, &mut resume, &mut starting).await?;
        if self.starter.inject(&tx, &mut resume).await? > 0 {
            self.shutdown.crash_point("delivery.note_written").await;
        }
        let mut pasts = self.starter.pasts_of_open(&tx, &resume, &replays).await?;
        let mut resumed = Vec::with_capacity(resume.len());
        for (session, turn) in resume {
            let turn_id = turn.id;
            let past = pasts.remove(&session.name());
            let Some(mut work) = possible(self.resumed(&session, turn, past), &session, Some(turn_id)) else {
                continue;
            };
            work.pass = passes.remove(&work.turn_name()).unwrap_or(work.pass);
            if session.replay.is_some() {
                work = work.replaying(replays.remove(&session.name()));
            }
            if matches!(work.due, Due::Send | Due::LookUp) {
                let Some(slot) = self
                    .starter
                    .drivers
                    .get(&work.provider)
                    .and_then(|driver| driver.slot())
                else {
                    without_slot.push((work.name(), work.provider));
                    continue;
                };
                work.slot = Some(Arc::new(slot));
            }
            taken_over += usize::from(session.facts.phase == SessionPhase::Running);
            resumed.push(work);
        }
        let carried_on: Vec<Resumed> = resumed.iter().map(Work::resumed).collect();
        turns_resume(&tx, &carried_on, replica).await?;

        let now = OffsetDateTime::now_utc();
        let mut asked: Vec<(SessionName, i32)> = Vec::with_capacity(ask.len());
        let mut undecided: Vec<(SessionName, i32)> = Vec::new();
        let mut messages: Vec<Owned> = Vec::with_capacity(ask.len());
        for (session, turn) in &ask {
            let due = turn.due();
            let Some(place) = noted(&due) else { continue };
            let awaited = session.facts.state().on(SessionEvent::AwaitedLonger);
            if possible(awaited, session, Some(turn.id)).is_none() {
                continue;
            }
            match turn.asked.is_undecided {
                true => undecided.push((session.name(), place)),
                false => asked.push((session.name(), place)),
            }
            let setting = Setting {
                root: &self.root,
                source: SOURCE,
                origin: origin(turn.id, turn.hops, turn.trace()),
                now,
            };
            let asking = || session.turn(turn.id, turn.task.clone());
            messages.extend(
                due.into_iter()
                    .map(|call| tool_requested(&setting, asking(), turn.agent_id, call)),
            );
        }
        turns_wait(&tx, &asked, self.starter.config.tools_again_ms.i64()).await?;
        turns_wait(&tx, &undecided, UNDECIDED_LOOK_MS).await?;
        let setting = Setting {
            root: &self.root,
            source: SOURCE,
            origin: Origin::default(),
            now,
        };
        let told = std::mem::take(&mut starting.told);
        messages.extend(told.into_iter().map(|told| told.message(&setting)));
        messages.append(&mut starting.events);
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("delivery.claim_written").await;
        tx.commit().await?;
        let mut work = self.starter.committed(starting);
        self.shutdown.crash_point("delivery.claim_committed").await;

        work.extend(resumed);
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
            parked,
            limits,
            outbox,
            taken_over,
        })
    }

    fn resumed(&self, session: &LockedSession, turn: OpenTurn, past: Option<Past>) -> Result<Work, ImpossibleStep> {
        let driver = self.starter.drivers.get(&turn.provider);
        let tools = offered_still(&turn);
        carry_on(session, turn, ProviderFacts::of(driver.map(Arc::as_ref)), tools, past)
    }
}

/// Turns that are to be carried on under a hold that ends turns are ended instead: it may have been made while they were
/// claimed before. A turn that somebody else has asked to stop ends as they said. What waits to be injected waits on, under any
/// hold.
async fn stop_held(tx: &Tx, resume: &mut [(LockedSession, OpenTurn)], holds: &mut Holds) -> Result<(), StorageError> {
    holds
        .read(tx, resume.iter().map(|(session, turn)| (&session.account, turn.holds)))
        .await?;
    let mut asked: Vec<StopRequest<'_>> = Vec::new();
    for (session, turn) in resume.iter_mut() {
        let held = Held {
            session: session.id,
            agent: session.agent_id,
            task: turn.task.as_ref(),
        };
        if holds.keeping(&session.account, held).is_some() {
            turn.injectable = 0;
        }
        let hold = holds.stopping(&session.account, held);
        let Some(hold) = hold.filter(|_| !session.facts.stopping) else {
            continue;
        };
        session.facts.stopping = true;
        asked.push(StopRequest {
            session: session.name(),
            turn: Some(turn.id),
            kind: StopKind::Paused,
            by: &hold.hold.by_name,
            then: StopThen::Continue,
            task: None,
        });
    }
    // This claim carries the requests out: nobody else needs a hint.
    turn_stop(tx, &asked).await.map(|_| ())
}

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
