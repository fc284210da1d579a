//! The name under which this process holds leases: a row in Postgres that is renewed twice a second by the database's
//! clock. Whoever holds a lease in the name of a row whose time is over holds nothing.
//!
//! The holder must know of it no later than the others. So the time is counted here from *before* a renewal was sent,
//! by the monotonic clock, and ends a little earlier than in the database: `lost` is cancelled while nobody can have
//! taken anything over yet. After that the process enters under a new id; leases of the old one are never its own
//! again, and work that was held in its name must stop.
//!
//! Two things this cannot see. A machine that sleeps stops its monotonic clock: the next renewal finds out. And work
//! between two looks at the clock may act too late: the fence that every write carries is what makes that harmless.
//!
//! A renewal also shows when the first of the others would be over. So whoever looks after what a dead process held does
//! not have to find out by chance: [`Peers`] says so in the moment in which it may be taken over.
//!
//! Who holds nothing that reaches beyond the database may be replaced even sooner ([`EndsWith::Connection`]).
//!
//! Renewals use connections of their own: in the shared pool they would queue behind the load that the leases are for,
//! and a busy process would lose them all.

use domain::error_chain;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::{KeyValue, global, metrics::Counter};
use storage::{
    Database, StorageError,
    replica::{Presence, replica_end, replica_register, replica_renew},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::{Shutdown, settings::ReplicaSettings};

/// Connections for renewals: one that hangs must not keep the next try from being made on another.
pub(crate) const CONNECTIONS: u32 = 2;
/// Part of the lease that one try to renew it may take, so that it outlives several.
const TRY_PARTS: u32 = 3;
/// After the moment in which the time of another would be over.
const OTHERS_MARGIN: Duration = Duration::from_millis(5);
/// Part of the lease by which it ends earlier here than in the database.
const MARGIN_PARTS: u32 = 8;
/// How long ending the row may take when the process stops. After a failure the leases run out by themselves.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// What the holds of a process end with, besides an orderly stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndsWith {
    /// Its time. A connection that is cut is not a process that has ended: it may go on with what it holds.
    Lease,
    /// Its time, or the end of one connection to the database, which shows within milliseconds. For whoever can do nothing
    /// without the database that its fence would not stop.
    Connection,
}

/// One life of the process under one id, from its registration to its loss.
#[derive(Clone, Debug)]
pub struct Incarnation {
    pub id: Uuid,
    /// Cancelled when leases in the name of `id` may become another's: what was begun under them must stop.
    pub lost: CancellationToken,
    clock: Arc<Clock>,
}

impl Incarnation {
    /// Whether leases in this name hold at this instant. Asks the clock itself: after a pause of the process it knows
    /// before `lost` has been cancelled. To be asked right before an effect outside of the database.
    pub fn is_alive(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < self.clock.end()
    }
}

/// When the lease ends, readable at any time.
#[derive(Debug)]
struct Clock {
    begun: Instant,
    end_after_ms: AtomicU64,
}

impl Clock {
    fn end(&self) -> Instant {
        self.begun + Duration::from_millis(self.end_after_ms.load(Ordering::Acquire))
    }

    fn set(&self, end: Instant) {
        let after = end.saturating_duration_since(self.begun).as_millis();
        self.end_after_ms
            .store(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Release);
    }
}

/// The handle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Replica {
    current: watch::Receiver<Option<Incarnation>>,
    others_ended: watch::Receiver<u64>,
}

/// The other replicas of the service.
#[derive(Clone, Debug)]
pub struct Peers(watch::Receiver<u64>);

impl Peers {
    /// Waits until the time of one of them is over and what it held is free; may say so twice. Those that end while the
    /// database does not answer are not told of: a look from time to time is needed all the same. Loses nothing when
    /// dropped.
    pub async fn one_ended(&mut self) {
        if self.0.changed().await.is_err() {
            // The keeper has ended with the process.
            pending::<()>().await;
        }
    }
}

impl Replica {
    /// Enters the process and keeps it entered until the supporting workers stop. `database` is for this alone.
    pub async fn start(
        database: Database,
        ends_with: EndsWith,
        settings: &ReplicaSettings,
        shutdown: &Shutdown,
    ) -> Result<Replica, StorageError> {
        let lost = global::meter("signalbox.replica")
            .u64_counter("signalbox.replica.lost")
            .with_description("Times that this process has lost its leases to the clock")
            .build();
        let keeper = Keeper {
            lost,
            database,
            ends_with,
            lease: settings.lease_ms.duration(),
            renew: settings.renew_ms.duration(),
            stop: shutdown.support_token(),
        };
        let first = keeper.register().await?;
        let (tx, current) = watch::channel(Some(first.incarnation.clone()));
        let (told, others_ended) = watch::channel(0);
        shutdown.spawn_support("replica", keeper.run(first, tx, told));
        Ok(Replica { current, others_ended })
    }

    pub fn others(&self) -> Peers {
        Peers(self.others_ended.clone())
    }

    /// The present incarnation; none between a loss and the next registration, when no lease may be taken.
    pub fn current(&self) -> Option<Incarnation> {
        self.current.borrow().clone().filter(Incarnation::is_alive)
    }

    /// Waits until there is an incarnation. Only ends without one when the process stops.
    pub async fn alive(&self) -> Option<Incarnation> {
        let mut current = self.current.clone();
        let alive = |incarnation: &Option<Incarnation>| incarnation.as_ref().is_some_and(Incarnation::is_alive);
        let found = current.wait_for(alive).await.ok()?;
        found.clone()
    }
}

struct Keeper {
    lost: Counter<u64>,
    database: Database,
    ends_with: EndsWith,
    lease: Duration,
    renew: Duration,
    stop: CancellationToken,
}

/// An incarnation as its keeper has it.
struct Entered {
    incarnation: Incarnation,
    /// If its holds end with it.
    presence: Option<Presence>,
}

/// Why an incarnation ended.
enum End {
    Stopped,
    Lost(&'static str),
}

impl Keeper {
    async fn run(self, first: Entered, current: watch::Sender<Option<Incarnation>>, others_ended: watch::Sender<u64>) {
        let mut entered = first;
        loop {
            let end = self.keep(&mut entered, &others_ended).await;
            let incarnation = &entered.incarnation;
            incarnation.lost.cancel();
            current.send_replace(None);
            match end {
                End::Stopped => {
                    // Frees the leases at once. Failing that, they run out.
                    let _ = timeout(END_TIMEOUT, replica_end(&self.database, incarnation.id)).await;
                    return;
                }
                End::Lost(why) => {
                    let service = KeyValue::new("service", self.database.role().service());
                    self.lost.add(1, &[service]);
                    warn!(replica = %incarnation.id, why, "this process has lost its leases");
                }
            }
            let Some(next) = self.enter_again().await else { return };
            info!(replica = %next.incarnation.id, "entered under a new id");
            entered = next;
            current.send_replace(Some(entered.incarnation.clone()));
        }
    }

    /// Renews until the process stops or the time is over.
    async fn keep(&self, entered: &mut Entered, others_ended: &watch::Sender<u64>) -> End {
        let Entered { incarnation, presence } = entered;
        let mut renew_at = Instant::now() + self.renew;
        // When the time of the next of the others would be over. One that lives has been renewed by then, which the
        // renewals in between have shown.
        let mut others_end: Option<Instant> = None;
        let mut renewed_at = Instant::now();
        loop {
            let end = incarnation.clock.end();
            tokio::select! {
                () = self.stop.cancelled() => return End::Stopped,
                () = sleep_until(end.min(renew_at)) => {}
                () = sleep_until(others_end.unwrap_or(end)), if others_end.is_some() => {
                    others_ended.send_modify(|count| *count += 1);
                    others_end = None;
                    continue;
                }
            }
            let sent = Instant::now();
            renew_at = sent + self.renew;
            if sent >= end {
                return End::Lost("it could not be renewed in time");
            }
            // One try may hang with its connection; the lease outlives several. A try that is dropped here may still
            // reach the database and prolong a lease that we no longer count on, which is safe.
            let renewal = replica_renew(
                &self.database,
                incarnation.id,
                millis(self.lease),
                // Of the others that ended since the last renewal, however long ago that was.
                millis(sent - renewed_at + self.renew),
            );
            match timeout_at(end.min(sent + self.lease / TRY_PARTS), renewal).await {
                Ok(Ok(Some(renewed))) => {
                    incarnation.clock.set(self.end_of(sent));
                    renewed_at = sent;
                    let left = renewed
                        .others_left_ms
                        .map(|ms| Duration::from_millis(ms.unsigned_abs()));
                    others_end = left.map(|left| Instant::now() + left + OTHERS_MARGIN);
                    if !renewed.is_present {
                        self.show_again(incarnation, presence).await;
                    }
                }
                Ok(Ok(None)) => return End::Lost("its time was over by the database's clock"),
                Ok(Err(error)) => {
                    let error = error_chain(&error);
                    warn!(error, "replica not renewed; trying again");
                }
                Err(_) => warn!("replica not renewed in time; trying again"),
            }
        }
    }

    /// The connection has ended, or the server knows nothing of it any more. Until the next renewal, if it fails.
    async fn show_again(&self, incarnation: &Incarnation, presence: &mut Option<Presence>) {
        match timeout(self.lease / TRY_PARTS, Presence::show(&self.database, incarnation.id)).await {
            Ok(Ok(shown)) => *presence = Some(shown),
            Ok(Err(error)) => {
                let error = error_chain(&error);
                warn!(error, "cannot show others that this process is there; trying again");
            }
            Err(_) => warn!("cannot show others in time that this process is there; trying again"),
        }
    }

    async fn enter_again(&self) -> Option<Entered> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                // Dropped half-way, it leaves a row that nobody holds anything under.
                registered = timeout(self.lease, self.register()) => match registered {
                    Ok(Ok(entered)) => return Some(entered),
                    Ok(Err(error)) => {
                        let error = error_chain(&error);
                        warn!(error, "cannot enter under a new id; trying again");
                    }
                    Err(_) => warn!("cannot enter under a new id in time; trying again"),
                },
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(self.renew) => {}
            }
        }
    }

    async fn register(&self) -> Result<Entered, StorageError> {
        let id = Uuid::now_v7();
        let presence = match self.ends_with {
            EndsWith::Lease => None,
            EndsWith::Connection => Some(Presence::show(&self.database, id).await?),
        };
        let sent = Instant::now();
        replica_register(&self.database, id, millis(self.lease), presence.as_ref()).await?;
        let clock = Clock {
            begun: sent,
            end_after_ms: AtomicU64::new(0),
        };
        clock.set(self.end_of(sent));
        let incarnation = Incarnation {
            id,
            lost: CancellationToken::new(),
            clock: Arc::new(clock),
        };
        Ok(Entered { incarnation, presence })
    }

    fn end_of(&self, sent: Instant) -> Instant {
        sent + self.lease - self.lease / MARGIN_PARTS
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("settings end at a day")
}
