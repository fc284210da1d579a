//! The id under which this process holds leases: a row in Postgres that is renewed twice a second by the database's
//! clock. Leases in the name of an expired row are void.
//!
//! The holder must notice the expiry no later than the other replicas. So the time is counted here from *before* a
//! renewal was sent, by the monotonic clock, and ends a little earlier than in the database: `lost` is cancelled before
//! another replica can take over a lease. The process then registers under a new id. It never holds the leases of the
//! old id again, and work under them must stop.
//!
//! This misses two cases. A sleeping machine stops its monotonic clock: the next renewal detects the loss. And work
//! between two checks of the clock may act too late: the fence that every write carries makes that harmless.
//!
//! A renewal also returns when the next of the other replicas expires. [`Peers`] reports it at that moment, so that the
//! leases of a dead process are taken over immediately.
//!
//! A process whose leases guard nothing outside of the database may be replaced even sooner ([`EndsWith::Connection`]).
//!
//! Renewals use connections of their own. In the shared pool they would queue behind the work that the leases are for,
//! and a busy process would lose all its leases.

use domain::error_chain;
use std::{future::pending, time::Duration};

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

/// Connections for renewals: one that hangs must not delay the next attempt.
pub(crate) const CONNECTIONS: u32 = 2;
/// The fraction of the lease that one renewal may take, so that a lease outlives several failed renewals.
const TRY_PARTS: u32 = 3;
/// The delay after the expiry of another replica.
const PEERS_MARGIN: Duration = Duration::from_millis(5);
/// The fraction of the lease by which it ends earlier here than in the database.
const MARGIN_PARTS: u32 = 8;
/// How long ending the row may take when the process stops. If it fails, the leases expire.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// What ends the leases of a process, besides an orderly stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndsWith {
    /// The expiry of the lease. A broken connection does not mean that the process has ended: it may continue its work.
    Lease,
    /// The expiry of the lease, or the end of one connection to the database, which is detected within milliseconds.
    /// For a process whose every effect is a database write guarded by the fence.
    Connection,
}

/// One registration of the process under one id, until its loss.
#[derive(Clone, Debug)]
pub struct Incarnation {
    pub id: Uuid,
    /// Cancelled when another replica may take over the leases of `id`: work under them must stop.
    pub lost: CancellationToken,
    /// When the lease ends.
    end: watch::Receiver<Instant>,
}

impl Incarnation {
    /// Whether leases in this name hold at this instant. Reads the clock itself: after a pause of the process it knows
    /// before `lost` has been cancelled. Call it right before an effect outside of the database.
    pub fn is_alive(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < *self.end.borrow()
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
    /// Waits until one of the other replicas has expired and its leases are free. May report one twice. Does not report
    /// replicas that end while the database is unavailable, so a periodic sweep is needed too. Cancel-safe.
    pub async fn one_ended(&mut self) {
        if self.0.changed().await.is_err() {
            // The renewal worker has ended with the process.
            pending::<()>().await;
        }
    }
}

impl Replica {
    /// Registers the process and renews it until the supporting workers stop. `database` is used for this alone.
    pub async fn start(
        database: Database,
        ends_with: EndsWith,
        settings: &ReplicaSettings,
        shutdown: &Shutdown,
    ) -> Result<Replica, StorageError> {
        let lost = global::meter("signalbox.replica")
            .u64_counter("signalbox.replica.lost")
            .with_description("Times that this process has lost its leases because they expired")
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

    /// The present incarnation. None between a loss and the next registration, when no lease may be taken.
    pub fn current(&self) -> Option<Incarnation> {
        self.current.borrow().clone().filter(Incarnation::is_alive)
    }

    /// Waits until there is an incarnation. Returns none only when the process stops.
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

/// An incarnation as its renewal worker holds it.
struct Entered {
    incarnation: Incarnation,
    end: watch::Sender<Instant>,
    /// Present if the leases end with the connection.
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
                    // Releases the leases at once. If it fails, they expire.
                    let _ = timeout(END_TIMEOUT, replica_end(&self.database, incarnation.id)).await;
                    return;
                }
                End::Lost(why) => {
                    let service = KeyValue::new("service", self.database.role().service());
                    self.lost.add(1, &[service]);
                    warn!(replica = %incarnation.id, why, "replica lost its leases");
                }
            }
            let Some(next) = self.enter_again().await else { return };
            info!(replica = %next.incarnation.id, "re-registered replica");
            entered = next;
            current.send_replace(Some(entered.incarnation.clone()));
        }
    }

    /// Renews until the process stops or the lease expires.
    async fn keep(&self, entered: &mut Entered, others_ended: &watch::Sender<u64>) -> End {
        let Entered {
            incarnation,
            end: lease_end,
            presence,
        } = entered;
        let mut renew_at = Instant::now() + self.renew;
        // When the next of the other replicas expires. A live one has been renewed by then, which the renewals in
        // between have shown.
        let mut next_expiry: Option<Instant> = None;
        let mut renewed_at = Instant::now();
        loop {
            let end = *lease_end.borrow();
            tokio::select! {
                () = self.stop.cancelled() => return End::Stopped,
                () = sleep_until(end.min(renew_at)) => {}
                () = sleep_until(next_expiry.unwrap_or(end)), if next_expiry.is_some() => {
                    others_ended.send_modify(|count| *count += 1);
                    next_expiry = None;
                    continue;
                }
            }
            let sent = Instant::now();
            renew_at = sent + self.renew;
            if sent >= end {
                return End::Lost("it was not renewed in time");
            }
            // An attempt may hang with its connection; the lease outlives several. An attempt that is dropped here may
            // still reach the database and extend a lease that we no longer rely on, which is safe.
            let renewal = replica_renew(
                &self.database,
                incarnation.id,
                millis(self.lease),
                // Reports the replicas that expired since the last renewal, however long ago that was.
                millis(sent - renewed_at + self.renew),
            );
            match timeout_at(end.min(sent + self.lease / TRY_PARTS), renewal).await {
                Ok(Ok(Some(renewed))) => {
                    lease_end.send_replace(self.end_of(sent));
                    renewed_at = sent;
                    let left = renewed
                        .others_left_ms
                        .map(|ms| Duration::from_millis(ms.unsigned_abs()));
                    next_expiry = left.map(|left| Instant::now() + left + PEERS_MARGIN);
                    if !renewed.is_present {
                        self.retake_presence(incarnation, presence).await;
                    }
                }
                Ok(Ok(None)) => return End::Lost("it had expired by the database's clock"),
                Ok(Err(error)) => {
                    let error = error_chain(&error);
                    warn!(error, "could not renew replica; will retry");
                }
                Err(_) => warn!("replica renewal timed out; will retry"),
            }
        }
    }

    /// Takes the presence lock again: the connection has ended, or the server has dropped it. If it fails, the next
    /// renewal tries again.
    async fn retake_presence(&self, incarnation: &Incarnation, presence: &mut Option<Presence>) {
        match timeout(self.lease / TRY_PARTS, Presence::show(&self.database, incarnation.id)).await {
            Ok(Ok(shown)) => *presence = Some(shown),
            Ok(Err(error)) => {
                let error = error_chain(&error);
                warn!(error, "could not take the presence lock; will retry");
            }
            Err(_) => warn!("taking the presence lock timed out; will retry"),
        }
    }

    async fn enter_again(&self) -> Option<Entered> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                // Dropped half-way, it leaves a row under which no lease is held.
                registered = timeout(self.lease, self.register()) => match registered {
                    Ok(Ok(entered)) => return Some(entered),
                    Ok(Err(error)) => {
                        let error = error_chain(&error);
                        warn!(error, "could not re-register replica; will retry");
                    }
                    Err(_) => warn!("re-registering replica timed out; will retry"),
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
        let (end, ends) = watch::channel(self.end_of(sent));
        let incarnation = Incarnation {
            id,
            lost: CancellationToken::new(),
            end: ends,
        };
        Ok(Entered {
            incarnation,
            end,
            presence,
        })
    }

    fn end_of(&self, sent: Instant) -> Instant {
        sent + self.lease - self.lease / MARGIN_PARTS
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("settings end at a day")
}
