//! Holds this replica's share of the partitions: claims free partitions, releases those above the share, and starts and
//! stops the readers.

use domain::error_chain;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use messaging::topology::PARTITIONS;
use runtime::{Context, Incarnation, Replica};
use storage::StorageError;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    reading::{End, ReaderContext, Reading},
    share::{Plan, plan},
};
use crate::store::partitions::{Lease, partition_release, partitions_census, partitions_claim};

pub struct Keeper {
    pub context: Context,
    pub replica: Replica,
    pub readers: ReaderContext,
    pub partitions_max: usize,
    pub interval: Duration,
}

/// A partition that this replica reads.
struct Held {
    lease: Lease,
    stop: CancellationToken,
    /// Resolves when the reader has ended, for any reason.
    ended: oneshot::Receiver<End>,
}

impl Keeper {
    /// Runs until the process stops, then releases the partitions.
    pub async fn run(self) {
        let stop = self.context.shutdown.token();
        // Dropping the wait loses nothing.
        while let Some(Some(incarnation)) = stop.run_until_cancelled(self.replica.alive()).await {
            self.keep(&incarnation).await;
        }
    }

    /// Holds partitions for one incarnation, until it is lost or the process stops.
    async fn keep(&self, incarnation: &Incarnation) {
        let mut held = BTreeMap::new();
        // Notified by a reader that ends.
        let ended = Arc::new(Notify::new());
        let mut others = self.replica.others();
        loop {
            held.retain(|_, one: &mut Held| one.ended.try_recv() == Err(oneshot::error::TryRecvError::Empty));
            if let Err(error) = self.rebalance(incarnation, &mut held, &ended).await {
                let error = error_chain(&error);
                warn!(error, "partition upkeep failed; will retry");
            }
            tokio::select! {
                // Each branch can be dropped: no work has started in it.
                () = tokio::time::sleep(self.interval) => {}
                () = ended.notified() => {}
                () = others.one_ended() => {}
                () = incarnation.lost.cancelled() => break,
                () = self.context.shutdown.cancelled() => break,
            }
        }
        self.give_up(held.into_values()).await;
    }

    async fn rebalance(
        &self,
        incarnation: &Incarnation,
        held: &mut BTreeMap<u16, Held>,
        ended: &Arc<Notify>,
    ) -> Result<(), StorageError> {
        let database = &self.context.database;
        let census = partitions_census(database, incarnation.id).await?;
        held.retain(|_, one| {
            let is_ours = census.mine.contains(&one.lease);
            if !is_ours {
                // The reader would notice only at its next message, which may take long to arrive.
                one.stop.cancel();
            }
            is_ours
        });
        // A lease of ours without a reader: the response to the claim was lost.
        for &lease in &census.mine {
            held.entry(lease.partition).or_insert_with(|| self.start(lease, ended));
        }
        match plan(&census, usize::from(PARTITIONS), self.partitions_max) {
            Plan::Stay => {}
            Plan::Claim(count) => {
                for lease in partitions_claim(database, incarnation.id, count).await? {
                    info!(partition = lease.partition, fence = lease.fence, "claimed partition");
                    held.insert(lease.partition, self.start(lease, ended));
                }
            }
            Plan::GiveUp(count) => {
                let last = (0..count).map_while(|_| held.pop_last());
                self.give_up(last.map(|(_, one)| one)).await;
            }
        }
        Ok(())
    }

    fn start(&self, lease: Lease, ended: &Arc<Notify>) -> Held {
        let stop = self.context.shutdown.token().child_token();
        let reading = Reading {
            context: self.readers.clone(),
            bus: self.context.bus.clone(),
            topology: self.context.topology.clone(),
            lease,
            stop: stop.clone(),
        };
        let (tx, rx) = oneshot::channel();
        let ended = Arc::clone(ended);
        self.context.shutdown.spawn_once("resolver partition", async move {
            let end = reading.run().await;
            // The send fails only when the keeper has ended.
            let _ = tx.send(end);
            ended.notify_one();
        });
        Held { lease, stop, ended: rx }
    }

    /// Stops readers. As soon as one has finished its batch, releases its lease. If that fails, the lease expires with
    /// this replica.
    async fn give_up(&self, held: impl Iterator<Item = Held>) {
        join_all(held.map(|Held { lease, stop, ended }| async move {
            stop.cancel();
            // An error means that the reader ended without a report.
            let _ = ended.await;
            match partition_release(&self.context.database, &lease).await {
                Ok(()) => info!(partition = lease.partition, "released partition"),
                Err(error) => {
                    let error = error_chain(&error);
                    warn!(partition = lease.partition, error, "could not release partition");
                }
            }
        }))
        .await;
    }
}
