//! Fails notifications that have waited too long, with a dead letter each, which can be redriven. It goes round over the sessions
//! with a queue, a page a look, and judges a session under its lock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use contracts::{
    Outgoing, Root,
    event::{Event, NotificationEnded, SessionGated},
    outgoing::Origin,
};
use domain::{AccountId, AgentId, Gate, RecoveryCause, RecoveryState, SessionId, TaskId};
use runtime::{
    Outbox,
    sweep::{Parts, Sweep, Ticks},
};
use storage::{
    Accounts, Database, Setting, StorageError, Tx,
    dead_letter::{Given, dead_letter_insert},
    directory::OverdueRound,
    outbox::{Owned, outbox_insert},
    recovery::{Stuck, recovery_note},
    session::{
        items_expire::{ExpiredItem, items_expire},
        replay_begin::replays_end,
        sessions_lock::{LockedSession, SESSIONS_LOCK_FREE, sessions_lock},
        sessions_park::sessions_look,
    },
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{SOURCE, settings::DeliverySettings, store::refused::notifications_load};

/// Sessions of a look: a million are gone round in three hours.
const SESSIONS_READ_MAX: i32 = 100;
/// Items of a session in one transaction: their dead letters hold their bodies.
const ITEMS_MAX: i64 = 50;
/// The reason of the dead letter.
const EXPIRED: &str = "expired";

/// What the sweep needs.
pub struct Overdue {
    pub database: Database,
    pub root: Root,
    pub outbox: Outbox,
    pub config: Arc<DeliverySettings>,
}

impl Overdue {
    pub async fn run(self, stop: CancellationToken) {
        let sweep = Sweep::new(self.database.role().service(), "overdue_notifications");
        let mut ticks = Ticks::every(self.config.sweep_interval_ms.duration(), stop.clone());
        let mut round = OverdueRound::default();
        while ticks.next().await {
            sweep.once(self.once(&mut round, &stop)).await;
        }
    }

    async fn once(&self, round: &mut OverdueRound, stop: &CancellationToken) -> Result<u64, StorageError> {
        let age = self.config.queue_age_ms_max.duration();
        let found = round.look(&self.database, age, SESSIONS_READ_MAX).await?;
        let mut parts = Parts::default();
        for (account, session) in found {
            while !stop.is_cancelled() {
                let failed = self.expire(&account, session, age).await;
                let is_whole = failed.as_ref().is_ok_and(|failed| *failed >= ITEMS_MAX.unsigned_abs());
                parts.note(&account, failed);
                if !is_whole {
                    break;
                }
            }
        }
        parts.end()
    }

    /// One transaction of a session. A session that another transaction has locked is found in the next round.
    async fn expire(&self, account: &AccountId, session: SessionId, age: Duration) -> Result<u64, StorageError> {
        let tx = self.database.begin(&Accounts::one(account)).await?;
        let written = async {
            let (failed, messages) = self.expired(&tx, account, session, age).await?;
            Ok((failed, outbox_insert(&tx, messages).await?))
        };
        let written = written.await;
        let (failed, rows) = tx.commit_or_rollback(written).await?;
        self.outbox.publish_soon(rows);
        Ok(failed)
    }

    async fn expired(
        &self,
        tx: &Tx,
        account: &AccountId,
        session: SessionId,
        age: Duration,
    ) -> Result<(u64, Vec<Owned>), StorageError> {
        let locked = sessions_lock(tx, SESSIONS_LOCK_FREE, &[(account.clone(), session)]).await?;
        let Some(session) = locked.into_iter().next() else {
            return Ok((0, Vec::new()));
        };
        if session.branch.is_some() {
            // Its own deadline ends a branch, with its items, and tells its parent.
            return Ok((0, Vec::new()));
        }
        let expired = items_expire(tx, &session, age, ITEMS_MAX).await?;
        let now = OffsetDateTime::now_utc();
        if session.replay.is_some() && !expired.items.is_empty() {
            // Nobody redrives a replay, and no task waits for one: it has failed, and is asked for again.
            let ended = replays_end(tx, account, vec![session.id], &self.setting(now)).await?;
            return Ok((expired.items.len() as u64, ended));
        }
        let mut messages = Vec::new();
        let ids: Vec<String> = expired.items.iter().map(|item| item.id.to_string()).collect();
        let letters = notifications_load(tx, &self.root, account, &ids).await?;
        for item in &expired.items {
            let letter = letters.iter().find(|letter| letter.id() == item.id.as_str());
            let letter = letter.ok_or_else(|| StorageError::unreadable("read expired items", "one is gone"))?;
            messages.extend(self.buried(tx, (account, &session), item, letter, now).await?);
            tracing::info!(
                %account, session_id = %session.id, notification_id = %item.id, reason = item.reason, "notification expired"
            );
        }
        messages.extend(self.noted(tx, account, &expired.items, now).await?);
        let gate = session.gate.filter(|gate| expired.is_empty && gate.is_announced());
        messages.extend(gate.map(|gate| self.released((account, &session), gate, &expired.items, now)));
        if !expired.items.is_empty() && !expired.is_empty {
            // Another item is first now, which the gate may not keep.
            sessions_look(tx, &[session.name()]).await?;
        }
        Ok((expired.items.len() as u64, messages))
    }

    /// The dead letter of an expired item, and its event.
    async fn buried(
        &self,
        tx: &Tx,
        (account, session): (&AccountId, &LockedSession),
        item: &ExpiredItem,
        letter: &Outgoing,
        now: OffsetDateTime,
    ) -> Result<[Owned; 2], StorageError> {
        let setting = self.setting(now);
        let given = Given {
            account: Some(account),
            task: item.task.as_ref(),
            subject: &letter.subject,
            headers: &letter.headers,
            payload: &letter.payload,
            reason: EXPIRED,
            detail: &item.reason,
            attempts: 0,
            // It may be redriven, and expire again.
            origin: Origin {
                cause: Some(format!("{}:{}", session.id, now.unix_timestamp_nanos())),
                ..Origin::default()
            },
            at: now,
        };
        let (letter, message) = dead_letter_insert(tx, &self.root, &given).await?;
        let failed = NotificationEnded {
            id: Some(item.id.clone()),
            agent: item.agent_id.map(|agent| agent.to_string()),
            reason: EXPIRED.to_owned(),
            detail: item.reason.clone(),
            dead_letter_id: Some(letter),
        };
        let event = Event::NotificationFailed(failed);
        let event = setting.event(account, item.task.as_ref(), &letter.to_string(), event);
        Ok([message, event])
    }

    /// A person has to see to the tasks of expired items.
    async fn noted(
        &self,
        tx: &Tx,
        account: &AccountId,
        items: &[ExpiredItem],
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let mut of: BTreeMap<(&TaskId, Option<AgentId>), Vec<String>> = BTreeMap::new();
        for item in items {
            if let Some(task) = &item.task {
                of.entry((task, item.agent_id)).or_default().push(item.id.to_string());
            }
        }
        let mut messages = Vec::new();
        for ((task, agent), items) in of {
            let stuck = Stuck {
                account,
                task,
                agent,
                cause: RecoveryCause::Expired,
                detail: RecoveryCause::Expired.told(),
                since: now,
                items: &items,
            };
            let (_, told) = recovery_note(tx, &stuck, RecoveryState::Person, &self.setting(now)).await?;
            messages.extend(told);
        }
        Ok(messages)
    }

    /// Nothing waits behind the gate any more.
    fn released(
        &self,
        (account, session): (&AccountId, &LockedSession),
        gate: Gate,
        items: &[ExpiredItem],
        now: OffsetDateTime,
    ) -> Owned {
        let released = SessionGated {
            session_id: session.id,
            session_key: session.key.clone(),
            generation: session.generation,
            agent_id: session.agent_id,
            gate,
            queued: 0,
        };
        let task = items.first().and_then(|item| item.task.as_ref());
        let id = format!("{}:expired:{}", session.id, now.unix_timestamp_nanos());
        let event = Event::SessionReleased(released);
        self.setting(now).event(account, task, &id, event)
    }

    fn setting(&self, now: OffsetDateTime) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: SOURCE,
            origin: Origin::default(),
            now,
        }
    }
}
