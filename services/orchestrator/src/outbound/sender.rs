//! Sends what is due. A row is leased, then sent without a transaction, then ended: a sender that dies in between leaves a lease that expires,
//! and the e-mail may come twice.
//!
//! Accounts take turns, a few places each, so that one with very much, or with recipients whose server hangs, keeps no other waiting.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use domain::{DeliveryState, error_chain};
use runtime::sweep::{Parts, Sweep, Ticks};
use storage::{Role, StorageError, directory::OutboundRound};
use time::OffsetDateTime;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    compose::{Composed, compose},
    schedule::{Next, is_spent, next},
    smtp::{Failure, Mailer},
    store::{self, Attempt, Claimed, Ended, accounts_of},
};
use crate::{app::App, settings::OutboundSettings};

/// Due rows, and accounts, read in one query.
const DUE_MAX: i32 = 1_000;
/// Digests that are joined for an account at one look.
const DIGESTS_MAX: usize = 20;
/// How many times an attempt's longest time a lease lasts: the lease outlives the attempt and what is written about it.
const LEASE_TIMES: f64 = 4.0;

/// Sends until the process stops; ends when the attempts in progress have.
pub async fn run(app: App, mailer: Mailer, limits: OutboundSettings, stop: CancellationToken) {
    // Dropping the check loses nothing: it sends nothing.
    tokio::select! {
        checked = mailer.check() => if let Err(failure) = checked {
            tracing::warn!(%failure, "the mail server of email.smtp_url is not usable now; e-mail waits (docs/runbooks/mail-bounces.md)");
        },
        () = stop.cancelled() => return,
    }
    let sweep = Sweep::new(Role::Orchestrator.service(), "outbound");
    let mut ticks = Ticks::every(limits.sweep_ms.duration(), stop);
    let mut sender = Sender::new(app, mailer, limits);
    loop {
        // Dropping either branch loses nothing: a tick comes again, and the set keeps what has ended.
        tokio::select! {
            is_running = ticks.next() => if !is_running { break },
            () = sender.one_ended(), if sender.is_awaited() => {}
        }
        sweep.once(sender.look()).await;
    }
    sender.drain().await;
}

/// Deliveries in progress in this process.
pub struct Sender {
    app: App,
    mailer: Mailer,
    limits: OutboundSettings,
    round: OutboundRound,
    underway: JoinSet<()>,
    owners: HashMap<Id, String>,
    /// The account that was served last: the next look begins after it.
    last: String,
    /// More was due at the last look than places were free.
    is_more: bool,
}

impl Sender {
    pub fn new(app: App, mailer: Mailer, limits: OutboundSettings) -> Sender {
        Sender {
            app,
            mailer,
            limits,
            round: OutboundRound::default(),
            underway: JoinSet::new(),
            owners: HashMap::new(),
            last: String::new(),
            is_more: false,
        }
    }

    /// Whether a place that becomes free is needed before the next tick.
    fn is_awaited(&self) -> bool {
        self.is_more && !self.underway.is_empty()
    }

    async fn one_ended(&mut self) {
        if let Some(ended) = self.underway.join_next_with_id().await {
            self.note(ended);
        }
        while let Some(ended) = self.underway.try_join_next_with_id() {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => {
                tracing::error!(
                    error = error_chain(error),
                    "the sending of a delivery broke off; its lease expires"
                );
                error.id()
            }
        };
        self.owners.remove(&id);
    }

    /// Waits for the attempts in progress, each of which has a limit.
    pub async fn drain(&mut self) {
        while !self.underway.is_empty() {
            self.one_ended().await;
        }
    }

    /// Begins to send what is due and has a place; gives how many. An account that fails does not stop the others.
    pub async fn look(&mut self) -> Result<u64, StorageError> {
        while let Some(ended) = self.underway.try_join_next_with_id() {
            self.note(ended);
        }
        let mut parts = Parts::default();
        let due = self.round.look(&self.app.database, DUE_MAX).await?;
        let (before, after): (Vec<String>, Vec<String>) = due.into_iter().partition(|owner| *owner <= self.last);
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for owner in self.owners.values() {
            *taken.entry(owner.clone()).or_default() += 1;
        }
        self.is_more = false;
        for owner in after.into_iter().chain(before) {
            let free = self.limits.in_flight_max.usize().saturating_sub(self.underway.len());
            let of_owner = self.limits.in_flight_destination_max.usize();
            let own = of_owner.saturating_sub(taken.get(&owner).copied().unwrap_or_default());
            let places = free.min(own);
            if free == 0 {
                self.is_more = true;
                break;
            }
            if places == 0 {
                self.is_more = true;
                continue;
            }
            let claimed = self.claim(&owner, places).await;
            let begun = claimed.as_ref().map_or(0, Vec::len);
            self.is_more |= begun == places;
            for one in claimed.as_ref().map_or(&[][..], Vec::as_slice) {
                let sending = deliver(self.app.clone(), self.mailer.clone(), owner.clone(), one.clone());
                let id = self.underway.spawn(sending).id();
                self.owners.insert(id, owner.clone());
            }
            parts.note(&owner, claimed.map(|_| begun as u64));
            self.last = owner;
        }
        parts.end()
    }

    async fn claim(&self, owner: &str, places: usize) -> Result<Vec<Claimed>, StorageError> {
        let lease_s = self.limits.timeout_ms.duration().as_secs_f64() * LEASE_TIMES;
        let most = i64::try_from(places).unwrap_or(i64::MAX);
        let tx = self.app.database.begin(&accounts_of(owner)).await?;
        let claimed = async {
            for _ in 0..DIGESTS_MAX {
                if store::digest_join(&tx, owner).await? == 0 {
                    break;
                }
            }
            store::claim(&tx, owner, (lease_s, most)).await
        };
        let claimed = claimed.await;
        tx.commit_or_rollback(claimed).await
    }
}

/// One attempt. What cannot be written is logged: the lease expires, and the delivery is sent again.
async fn deliver(app: App, mailer: Mailer, owner: String, claimed: Claimed) {
    let (account, delivery) = (&owner, claimed.id);
    if is_spent(claimed.attempts) {
        let reason = "its senders ended before they said how the attempt ended";
        let ended = Ended {
            state: DeliveryState::Dead,
            reason: Some(reason),
            again_s: 0.0,
            brought: &[],
        };
        return write(&app, &owner, &claimed, (ended, None)).await;
    }
    let (letter, brought) = match compose(&app, &owner, &claimed).await {
        Ok(Composed::Letter { letter, brought }) => (letter, brought),
        Ok(Composed::Nothing(why)) => {
            let ended = Ended {
                state: DeliveryState::Superseded,
                reason: Some(why),
                again_s: 0.0,
                brought: &[],
            };
            return write(&app, &owner, &claimed, (ended, None)).await;
        }
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(%account, delivery_id = %delivery, error, "could not compose an e-mail; will retry");
            return;
        }
    };
    let (at, began) = (OffsetDateTime::now_utc(), Instant::now());
    let failure = mailer.send(&letter).await.err();
    let attempt = Attempt {
        at,
        ms: i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
        failure,
    };
    let reason = failure.map(|failure| failure.to_string());
    let (state, again) = after(claimed.attempts, failure);
    let ended = Ended {
        state,
        reason: reason.as_deref(),
        again_s: again.as_secs_f64(),
        brought: &brought,
    };
    write(&app, &owner, &claimed, (ended, Some(attempt))).await;
}

fn after(attempts: i32, failure: Option<Failure>) -> (DeliveryState, Duration) {
    match failure.map(|failure| next(attempts, failure.class, random())) {
        None => (DeliveryState::Sent, Duration::ZERO),
        Some(Next::Again(pause)) => (DeliveryState::Waiting, pause),
        Some(Next::Dead) => (DeliveryState::Dead, Duration::ZERO),
    }
}

/// From 0 to 1. Without randomness, pauses are not spread.
fn random() -> f64 {
    let mut byte = [128];
    let _ = getrandom::fill(&mut byte);
    f64::from(byte[0]) / 255.0
}

async fn write(app: &App, owner: &str, claimed: &Claimed, (ended, attempt): (Ended<'_>, Option<Attempt>)) {
    let written = async {
        let tx = app.database.begin(&accounts_of(owner)).await?;
        let written = store::end(&tx, owner, claimed, (&ended, attempt)).await;
        tx.commit_or_rollback(written).await
    };
    let (account, delivery, attempts) = (owner, claimed.id, claimed.attempts);
    match written.await {
        Ok(true) => {
            app.meters.delivered("email", ended.state);
            match (ended.state, ended.reason) {
                (DeliveryState::Dead, reason) => {
                    tracing::warn!(account, delivery_id = %delivery, attempts, reason, "an e-mail was not delivered; its mail is in the inbox");
                }
                (DeliveryState::Waiting, reason) => {
                    tracing::info!(account, delivery_id = %delivery, attempts, reason, "an e-mail was not delivered; will retry");
                }
                (state, _) => tracing::debug!(account, delivery_id = %delivery, attempts, %state, "ended a delivery"),
            }
        }
        Ok(false) => {
            tracing::info!(account, delivery_id = %delivery, attempts, "the lease of a delivery expired; it may come twice");
        }
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(account, delivery_id = %delivery, attempts, error, "could not write the end of a delivery; it may come twice");
        }
    }
}
