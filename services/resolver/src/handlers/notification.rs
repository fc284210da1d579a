//! Notifications: each accepted notification is queued in the one session that it belongs to; each other one is refused
//! with a reason.
//!
//! Consumes `{root}.notification.{account}.{task}`, a batch of one partition, in stream order.
//! Decides the recipients and their sessions (`intake`).
//! Writes notifications, sessions, unknown tasks, dead letters and the partition's offset in one transaction. Returns
//! receipts, which delete the messages' outbox rows.
//! Publishes `session.resolved` for every session that may start with what it received, and `session.stop_requested` for
//! every turn that a steer ends; events and dead letters go through the outbox.

use std::{collections::HashSet, sync::Arc, time::Duration};

use contracts::{
    Outgoing, Root, Timestamp,
    event::{Event, NotificationEnded, SessionOpened},
    notification::{Refusal, RefusalReason},
    session::SessionStopRequested,
};
use domain::{AccountId, Actor, NotificationId, QueueLimits, TASK_CLOSED, TaskStatus};
use runtime::Shutdown;
use storage::{
    Accounts, Database, Setting, StorageError, Tx,
    lifecycle::{NewTask, tasks_create},
    outbox::{
        OutboxRow, Owned, outbox_insert,
        unread::{Receipt, outbox_receive},
    },
    session::{
        arrivals::{Arrived, arrivals_apply},
        items_append::{items_append, items_requeue},
        items_refuse::refused_replace,
    },
};
use time::OffsetDateTime;

use crate::{
    SOURCE,
    intake::{
        batch::{Decided, Queued, Work, account_of, conversations, decide_all, queue, refuse_unplaced},
        decide::{AcceptedTask, Refused},
        facts::{BatchFacts, Questions},
        received::Received,
        refusals::{refusal_rows, refusals_write},
        resolve::Finding,
        routes::{Address, Route, Routed, Routes, learned},
        sessions::{missing_open, sessions_find},
    },
    store::{
        facts::facts_find,
        partitions::{Lease, PartitionOffset, batch_enter, place_move},
    },
};

const LOCK_TIMEOUT_SHORT: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub struct NotificationHandler {
    pub database: Database,
    pub root: Root,
    pub limits: QueueLimits,
    pub routes: Arc<Routes>,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

#[derive(Debug)]
pub enum Handled {
    Committed(Committed),
    /// Another replica holds the partition. Nothing was written.
    Stale,
    /// Another transaction opened the same session or used the same id. Nothing was written. A retry of the batch reads
    /// the other transaction's rows.
    Raced,
}

/// The result of a committed batch.
#[derive(Debug, Default)]
pub struct Committed {
    /// Committed outbox rows, for the relay.
    pub outbox: Vec<OutboxRow>,
    /// Wake-ups. They are published once and not stored.
    pub wakes: Vec<Outgoing>,
    pub resolutions: Vec<SessionResolution>,
    pub refusals: Vec<RefusalReason>,
    pub duplicates: u64,
    pub requeued: u64,
}

/// How the session of a notification was found (S13).
#[derive(Clone, Debug)]
pub struct SessionResolution {
    pub account: AccountId,
    pub session_key: String,
    pub kind: domain::SessionKind,
    pub generation: domain::Generation,
    pub finding: Finding,
    pub notifications: u64,
}

impl NotificationHandler {
    /// The same handler with a short statement timeout.
    #[must_use]
    pub fn hurried(&self) -> NotificationHandler {
        NotificationHandler {
            database: self.database.hurried(),
            ..self.clone()
        }
    }

    /// The same handler for a batch that other batches wait for: it waits for a lock for a short time only.
    #[must_use]
    pub fn with_short_lock_timeout(&self) -> NotificationHandler {
        NotificationHandler {
            database: self.database.with_lock_timeout(LOCK_TIMEOUT_SHORT),
            ..self.clone()
        }
    }

    /// Processes a batch and moves the partition's offset to its end.
    pub async fn handle(
        &self,
        lease: &Lease,
        to: &PartitionOffset,
        batch: &[Received],
        now: OffsetDateTime,
    ) -> Result<Handled, StorageError> {
        if let Some(routed) = self.routes.of(batch, &self.limits) {
            let entered = self.enter(lease, to, batch, &routed, now).await;
            if let Ok(Some(committed)) = entered {
                return Ok(Handled::Committed(committed));
            }
            // After an error, too: the next try is a look-up.
            self.routes.forget(batch);
            entered?;
        }
        self.batch_write(lease, to, batch, async |tx| self.take_in(tx, batch, now).await)
            .await
    }

    /// Writes a batch by its routes. None: nothing was written, and the batch has to be looked up.
    async fn enter(
        &self,
        lease: &Lease,
        to: &PartitionOffset,
        batch: &[Received],
        routed: &Routed<'_>,
        now: OffsetDateTime,
    ) -> Result<Option<Committed>, StorageError> {
        let entering = routed.entering();
        let tx = self.database.begin(&accounts(batch)).await?;
        let Some(known) = batch_enter(&tx, lease, to, &entering, routed.most).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        let work = routed.work(&entering.sessions, &known);
        let done = Committed {
            wakes: self.wakes(&work, now),
            resolutions: work.iter().map(SessionResolution::of).collect(),
            ..Committed::default()
        };
        let written = self.commit(
            tx,
            batch,
            TakenIn {
                done,
                ..TakenIn::default()
            },
        );
        written.await.map(Some)
    }

    fn wakes(&self, work: &[Work<'_>], now: OffsetDateTime) -> Vec<Outgoing> {
        work.iter().filter_map(|work| work.wake(&self.root, now)).collect()
    }

    /// Processes the batch and rolls back: checks whether the database would accept it now.
    pub async fn rehearse(&self, batch: &[Received], now: OffsetDateTime) -> Result<(), StorageError> {
        let tx = self.database.begin(&accounts(batch)).await?;
        if let Some(taken) = self.take_in(&tx, batch, now).await? {
            outbox_insert(&tx, taken.messages).await?;
        }
        tx.rollback().await
    }

    /// Stores a dead letter for a message that the database cannot store or times out on, and moves the offset past it.
    pub async fn bury(
        &self,
        lease: &Lease,
        to: &PartitionOffset,
        received: &Received,
        now: OffsetDateTime,
    ) -> Result<Handled, StorageError> {
        let batch = std::slice::from_ref(received);
        let write = async |tx: &Tx| {
            let facts = facts(tx, batch).await?;
            let refused = Refused {
                refusal: Refusal::new(
                    RefusalReason::Unprocessable,
                    "the database rejected this notification, or timed out on it; the resolver's log has the cause",
                ),
                agent: None,
                account_exists: received.account.as_ref().is_some_and(|id| facts.account(id).is_some()),
                task: None,
                // The row may be the part that the database rejects.
                keep_row: false,
            };
            let messages = refusals_write(tx, &self.root, &[(received, refused)], now).await?;
            let done = Committed {
                refusals: vec![RefusalReason::Unprocessable],
                ..Committed::default()
            };
            Ok(Some(TakenIn {
                done,
                messages,
                ..TakenIn::default()
            }))
        };
        self.batch_write(lease, to, batch, write).await
    }

    /// Moves the offset past a message of which nothing can be stored.
    pub async fn skip(
        &self,
        lease: &Lease,
        to: &PartitionOffset,
        received: &Received,
    ) -> Result<Handled, StorageError> {
        let nothing = async |_: &Tx| Ok(Some(TakenIn::default()));
        self.batch_write(lease, to, std::slice::from_ref(received), nothing)
            .await
    }

    /// Moves the offset past the batch in the transaction that writes its result. `write` returns none: it lost a race.
    async fn batch_write(
        &self,
        lease: &Lease,
        to: &PartitionOffset,
        batch: &[Received],
        write: impl AsyncFnOnce(&Tx) -> Result<Option<TakenIn>, StorageError>,
    ) -> Result<Handled, StorageError> {
        let tx = self.database.begin(&accounts(batch)).await?;
        // First, so that a reader who was replaced does nothing at all.
        if !place_move(&tx, lease, to).await? {
            tx.rollback().await?;
            return Ok(Handled::Stale);
        }
        let Some(taken) = write(&tx).await? else {
            tx.rollback().await?;
            return Ok(Handled::Raced);
        };
        self.commit(tx, batch, taken).await.map(Handled::Committed)
    }

    async fn commit(&self, tx: Tx, batch: &[Received], taken: TakenIn) -> Result<Committed, StorageError> {
        let TakenIn {
            done,
            messages,
            learned,
        } = taken;
        let outbox = outbox_insert(&tx, messages).await?;
        outbox_receive(&tx, receipts(batch)).await?;
        self.shutdown.crash_point("resolver.batch_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("resolver.batch_committed").await;
        self.routes.learn(learned);
        Ok(Committed { outbox, ..done })
    }

    /// Writes everything but the offset and the outbox. None: lost a race.
    async fn take_in(&self, tx: &Tx, batch: &[Received], now: OffsetDateTime) -> Result<Option<TakenIn>, StorageError> {
        let mut facts = facts(tx, batch).await?;
        let mut decided = decide_all(batch, &mut facts, &self.limits);
        let found = sessions_find(tx, conversations(&decided, &facts)).await?;
        let sessions = refuse_unplaced(&mut decided, found, &facts, &self.limits);

        let mut messages = self.tasks_create(tx, &decided, now).await?;
        let mut queued = queue(&decided, &facts, &sessions);
        if !missing_open(tx, &sessions).await? || !rows_write(tx, &decided, &queued).await? {
            return Ok(None);
        }
        let stops = self.arrivals_apply(tx, &mut queued, &mut messages, now).await?;
        messages.extend(refusals_write(tx, &self.root, &decided.refused, now).await?);
        messages.extend(queued.work.iter().filter_map(|work| self.opened(work, now)));
        messages.extend(decided.closed.iter().map(|(received, task, entry)| {
            let ended = NotificationEnded {
                id: Some(entry.id.clone()),
                agent: Some(entry.agent.to_string()),
                reason: "cancelled".to_owned(),
                detail: TASK_CLOSED.to_owned(),
                dead_letter_id: None,
            };
            let event = Event::NotificationCancelled(ended);
            self.setting(received, now)
                .event(account_of(received), task.as_ref(), entry.id.as_str(), event)
        }));
        let done = Committed {
            outbox: Vec::new(),
            wakes: self.wakes(&queued.work, now).into_iter().chain(stops).collect(),
            resolutions: queued.work.iter().map(SessionResolution::of).collect(),
            refusals: decided
                .refused
                .iter()
                .map(|(_, refused)| refused.refusal.reason)
                .collect(),
            duplicates: decided.duplicates,
            requeued: queued.again.len() as u64,
        };
        let learned = learned(&decided, &queued.work, &facts);
        Ok(Some(TakenIn {
            done,
            messages,
            learned,
        }))
    }

    /// Lets steers stop turns and items open gates. Returns the hints for delivery.
    async fn arrivals_apply(
        &self,
        tx: &Tx,
        queued: &mut Queued<'_>,
        messages: &mut Vec<Owned>,
        now: OffsetDateTime,
    ) -> Result<Vec<Outgoing>, StorageError> {
        if queued.arrived.is_empty() {
            return Ok(Vec::new());
        }
        let arrived: Vec<Arrived<'_>> = queued.arrived.iter().map(|(_, arrived)| *arrived).collect();
        let effects = arrivals_apply(tx, &arrived).await?;
        let mut told = HashSet::new();
        for (received, arrived) in &queued.arrived {
            let released = arrived.released(&self.setting(received, now));
            messages.extend(released.filter(|_| told.insert(arrived.session.id)));
        }
        for work in &mut queued.work {
            let name = (work.conversation.account.clone(), work.session.id);
            work.released = effects.released.contains(&name);
        }
        let hint = |stop: &SessionStopRequested| {
            let of_session = |work: &&Work<'_>| work.session.id == stop.session_id;
            let origin = queued.work.iter().find(of_session).map(|work| work.newest.origin());
            let origin = origin.unwrap_or_default();
            Outgoing::of(
                &self.root,
                &stop.message_id(),
                SOURCE,
                &origin,
                Timestamp::from(now),
                stop,
            )
        };
        Ok(effects.stops.iter().map(hint).collect())
    }

    /// Creates each task once: after the first message, the task is a fact for the rest of the batch.
    async fn tasks_create(
        &self,
        tx: &Tx,
        decided: &Decided<'_>,
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let by = Actor::system();
        let news: Vec<(NewTask<'_>, Setting<'_>)> = decided
            .accepted
            .iter()
            .filter_map(|(received, accepted)| match &accepted.task {
                AcceptedTask::New(task) => Some((*received, task)),
                AcceptedTask::Known(_) | AcceptedTask::None => None,
            })
            .map(|(received, task)| {
                let title = received
                    .content
                    .as_ref()
                    .ok()
                    .and_then(|content| content.title.as_deref());
                let new = NewTask {
                    account: account_of(received),
                    task,
                    title: title.filter(|title| !title.is_empty()).unwrap_or(task.as_str()),
                    description: "",
                    status: TaskStatus::Inbox,
                    is_planned: false,
                    by: &by,
                };
                (new, self.setting(received, now))
            })
            .collect();
        if news.is_empty() {
            return Ok(Vec::new());
        }
        tasks_create(tx, &news).await
    }

    fn setting(&self, received: &Received, now: OffsetDateTime) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: SOURCE,
            origin: received.origin(),
            now,
        }
    }

    /// The event of a session that this batch opened.
    fn opened(&self, work: &Work<'_>, now: OffsetDateTime) -> Option<Owned> {
        match work.finding {
            Finding::Reused => None,
            Finding::Created | Finding::Reopened => {
                let opened = SessionOpened {
                    session_id: work.session.id,
                    session_key: work.key().to_string(),
                    kind: work.conversation.kind(),
                    generation: work.session.generation,
                    agent_id: Some(work.conversation.agent),
                };
                let setting = self.setting(work.newest, now);
                Some(setting.event(
                    &work.conversation.account,
                    work.task,
                    &work.session.id.to_string(),
                    Event::SessionOpened(opened),
                ))
            }
        }
    }
}

#[derive(Default)]
struct TakenIn {
    done: Committed,
    messages: Vec<Owned>,
    learned: Vec<(Address, Route)>,
}

/// Accounts of the batch. A publisher chose the names, and only their form was checked; an account that does not exist
/// has no visible rows. The operator's account is for dead letters without an account.
fn accounts(batch: &[Received]) -> Accounts {
    Accounts::many(batch.iter().filter_map(|received| received.account.as_ref())).with_operator()
}

/// Receipts for all messages: each was read, whatever was decided, so a sender that stores a message for republishing
/// can delete it.
fn receipts(batch: &[Received]) -> Vec<Receipt> {
    batch
        .iter()
        .flat_map(|received| Receipt::of(received.account.as_ref(), &received.headers))
        .collect()
}

async fn facts(tx: &Tx, batch: &[Received]) -> Result<BatchFacts, StorageError> {
    let mut facts = BatchFacts::default();
    facts_find(tx, &Questions::about(batch), &mut facts).await?;
    let parts = Questions::about_parts(batch, &facts);
    if parts != Questions::default() {
        facts_find(tx, &parts, &mut facts).await?;
    }
    Ok(facts)
}

/// `false`: another transaction stored one of the ids first.
async fn rows_write(tx: &Tx, decided: &Decided<'_>, queued: &Queued<'_>) -> Result<bool, StorageError> {
    let wholes: Vec<(AccountId, NotificationId)> = decided
        .accepted
        .iter()
        .filter_map(|(received, accepted)| Some((account_of(received).clone(), accepted.replaces.clone()?)))
        .collect();
    refused_replace(tx, &wholes).await?;
    let mut new = queued.new.clone();
    let expected = new.len() as u64;
    new.extend(refusal_rows(&decided.refused));
    new.extend(queued.closed.0.iter().cloned());
    if items_append(tx, &new).await? != expected {
        return Ok(false);
    }
    items_requeue(tx, &queued.closed.1).await?;
    Ok(items_requeue(tx, &queued.again).await? == queued.again.len() as u64)
}

impl SessionResolution {
    fn of(work: &Work<'_>) -> SessionResolution {
        SessionResolution {
            account: work.conversation.account.clone(),
            session_key: work.key().to_string(),
            kind: work.conversation.kind(),
            generation: work.session.generation,
            finding: work.finding,
            notifications: work.items,
        }
    }
}
