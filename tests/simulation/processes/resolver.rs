//! The resolver: reads its leased partitions batch by batch, from their offsets.

use std::collections::BTreeMap;

use contracts::Root;
use domain::Conversation;
use domain::SessionId;
use resolver::{
    intake::{facts::BatchFacts, received::Received},
    partitions::reading::start,
    store::partitions::{Lease, PartitionOffset},
};

use super::Act;
use crate::simulation::{
    bugs::Bug,
    database::{
        Millis,
        intake::{LIMITS, Written},
        moment,
        outbox::Message,
    },
    world::{Fate, World},
};

const BATCH_MAX: usize = 4;

/// A partition of a process.
#[derive(Debug)]
pub(crate) struct Reading {
    lease: Lease,
    stage: Stage,
    /// It ends after its current batch.
    stopping: bool,
}

#[derive(Debug)]
enum Stage {
    Closed,
    Open(At),
    Begun(At, Batch),
    Looked(At, Batch, BatchFacts),
    Seen(At, Batch, BatchFacts, BTreeMap<Conversation, SessionId>),
    Waking(At, Vec<Message>),
}

/// A sequence in a stream.
#[derive(Clone, Copy, Debug)]
struct At {
    created: Millis,
    sequence: u64,
    /// The numbering: a store that lost its tail assigns sequences again. Its readers lose their connection.
    numbering: u64,
}

#[derive(Debug)]
struct Batch {
    received: Vec<Received>,
    to: PartitionOffset,
}

impl Reading {
    pub(crate) fn partition(&self) -> u16 {
        self.lease.partition
    }

    fn has_batch(&self) -> bool {
        match &self.stage {
            Stage::Closed | Stage::Open(_) => false,
            Stage::Begun(..) | Stage::Looked(..) | Stage::Seen(..) | Stage::Waking(..) => true,
        }
    }
}

/// The state of a reader after a step.
enum Next {
    Stage(Stage),
    Ended,
}

impl World {
    pub(super) fn resolver_acts(&self, p: usize, acts: &mut Vec<Act>) {
        let process = &self.processes[p];
        let alive = process.is_alive(self.database.now);
        let free = (0..self.database.partitions.len()).any(|n| self.database.partition_is_free(n));
        if alive && (free || self.unread(p).is_some()) && process.cut_off_until <= self.database.now {
            acts.push(Act::ClaimPartition);
        }
        for (n, reading) in process.readings.iter().enumerate() {
            let may = match &reading.stage {
                Stage::Closed => self.broker_is_up(),
                Stage::Open(at) => {
                    self.broker_is_up()
                        && (at.numbering != self.broker.numbering
                            || self
                                .broker
                                .has_unread(usize::from(reading.lease.partition), at.sequence))
                }
                Stage::Begun(..) | Stage::Looked(..) | Stage::Seen(..) | Stage::Waking(..) => true,
            };
            if may {
                acts.push(Act::Read(n));
            }
        }
        if !self.calm && self.settings.replicas > 1 && process.readings.len() > 1 {
            acts.push(Act::GiveUpPartition);
        }
    }

    /// Owned partitions without a reader, as `census.mine` shows them: the answer to a claim or a release was lost.
    fn unread(&self, p: usize) -> Option<Lease> {
        let process = &self.processes[p];
        let owner = process.incarnation?.id;
        let reads = |n: usize| {
            process
                .readings
                .iter()
                .any(|reading| usize::from(reading.partition()) == n)
        };
        let (partition, row) =
            (self.database.partitions.iter().enumerate()).find(|(n, row)| row.owner == Some(owner) && !reads(*n))?;
        Some(Lease {
            partition: u16::try_from(partition).expect("partitions are few"),
            owner,
            fence: row.fence,
        })
    }

    pub(super) fn claim_partition(&mut self, p: usize) {
        let fate = self.fate(p);
        let Some(incarnation) = self.processes[p].incarnation.filter(|_| fate != Fate::Failed) else {
            return;
        };
        let lease = match self.unread(p) {
            Some(lease) => Some(lease),
            None => self.database.partition_claim(incarnation.id),
        };
        let Some(lease) = lease.filter(|_| fate == Fate::Committed) else {
            return;
        };
        self.note("partition claimed", [p as u64, u64::from(lease.partition)], || {
            format!("process {p}: {lease:?}")
        });
        self.processes[p].readings.push(Reading {
            lease,
            stage: Stage::Closed,
            stopping: false,
        });
    }

    /// `RELEASE`. If it fails, the next census finds the partition.
    pub(super) fn give_up_partition(&mut self, p: usize) {
        let Some(n) = self.processes[p]
            .readings
            .iter()
            .position(|reading| !reading.has_batch())
        else {
            return;
        };
        let lease = self.processes[p].readings.remove(n).lease;
        if self.fate(p) != Fate::Failed && self.database.place_is_ours(&lease) {
            self.database.partitions[usize::from(lease.partition)].owner = None;
        }
    }

    /// The current batch is written or turns out to be stale; no new batch begins.
    pub(super) fn stop_readings(&mut self, p: usize) {
        for reading in &mut self.processes[p].readings {
            reading.stopping = true;
        }
        self.processes[p].readings.retain(Reading::has_batch);
    }

    pub(super) fn read(&mut self, p: usize, n: usize) {
        let reading = self.processes[p].readings.remove(n);
        let Reading { lease, stage, stopping } = reading;
        let next = match stage {
            Stage::Closed => self.open(p, &lease),
            Stage::Open(at) if at.numbering != self.broker.numbering => Next::Stage(Stage::Closed),
            Stage::Open(at) => self.take_messages(&lease, at),
            Stage::Begun(at, batch) => self.look_up(p, &lease, at, batch),
            Stage::Looked(at, batch, facts) => {
                let seen = self.database.active_seen(&batch.received, &facts);
                Next::Stage(Stage::Seen(at, batch, facts, seen))
            }
            Stage::Seen(at, batch, facts, seen) => self.write_batch(p, &lease, at, batch, facts, &seen),
            Stage::Waking(at, wakes) => {
                for wake in wakes {
                    self.publish(wake);
                }
                Next::Stage(Stage::Open(at))
            }
        };
        if let Next::Stage(stage) = next {
            let reading = Reading { lease, stage, stopping };
            if !stopping || reading.has_batch() {
                self.processes[p].readings.push(reading);
            }
        }
    }

    /// From the offset, if it exists in this stream.
    fn open(&mut self, p: usize, lease: &Lease) -> Next {
        if self.fate(p) != Fate::Committed {
            return Next::Stage(Stage::Closed);
        }
        let Some(place) = self.database.place_find(lease) else {
            return Next::Ended;
        };
        let created = self.broker.created;
        let mut from = start(&place, moment(created));
        if !self.broker.holds(&from) {
            from = messaging::StreamOffset::default();
        }
        let at = At {
            created,
            sequence: from.sequence,
            numbering: self.broker.numbering,
        };
        self.note("reading", [u64::from(lease.partition), from.sequence], || {
            format!("{lease:?} behind {}", from.sequence)
        });
        Next::Stage(Stage::Open(at))
    }

    fn take_messages(&mut self, lease: &Lease, at: At) -> Next {
        let max = 1 + self.random.below(BATCH_MAX);
        let batch = self.broker.read(usize::from(lease.partition), at.sequence, max);
        let created = moment(at.created);
        let received: Vec<Received> = batch
            .into_iter()
            // Other tests check senders; every publisher here is trusted.
            .map(|incoming| Received::read(&Root::default(), created, incoming, true))
            .collect();
        let Some(last) = received.last() else {
            return Next::Stage(Stage::Open(at));
        };
        let to = PartitionOffset {
            sequence: last.sequence,
            published: Some(last.published),
            stream_created: Some(created),
        };
        let at = At {
            sequence: last.sequence,
            ..at
        };
        Next::Stage(Stage::Begun(at, Batch { received, to }))
    }

    /// The transaction begins and locks its partition.
    fn look_up(&mut self, p: usize, lease: &Lease, at: At, batch: Batch) -> Next {
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return Next::Stage(Stage::Begun(at, batch));
        }
        if !self.database.place_is_ours(lease) {
            self.counts.stale += 1;
            return Next::Ended;
        }
        if let Some(routed) = self.processes[p].routes.of(&batch.received, &LIMITS) {
            let written = self
                .database
                .batch_enter(lease, &batch.to, &batch.received, &routed, self.bug);
            if let Some(written) = written {
                self.counts.routed += 1;
                return self.written(p, lease, at, batch, written, fate);
            }
            self.processes[p].routes.forget(&batch.received);
        }
        if self.bug == Some(Bug::PlaceBeforeBatch) {
            self.database.place_write(lease, &batch.to);
        }
        self.database.partitions[usize::from(lease.partition)].locked = true;
        let facts = self.database.facts(&batch.received);
        // Mostly no other step happens in between, and the snapshots are one.
        if self.random.chance(600) {
            let seen = self.database.active_seen(&batch.received, &facts);
            return self.write_batch(p, lease, at, batch, facts, &seen);
        }
        Next::Stage(Stage::Looked(at, batch, facts))
    }

    fn write_batch(
        &mut self,
        p: usize,
        lease: &Lease,
        at: At,
        batch: Batch,
        facts: BatchFacts,
        seen: &BTreeMap<Conversation, SessionId>,
    ) -> Next {
        self.database.partitions[usize::from(lease.partition)].locked = false;
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return Next::Stage(Stage::Begun(at, batch));
        }
        let written = self
            .database
            .batch_write(lease, &batch.to, &batch.received, facts, seen, self.bug);
        self.written(p, lease, at, batch, written, fate)
    }

    fn written(&mut self, p: usize, lease: &Lease, at: At, batch: Batch, written: Written, fate: Fate) -> Next {
        let ids = batch
            .received
            .iter()
            .map(|received| received.id.as_str())
            .collect::<Vec<_>>()
            .join(" ");
        match written {
            Written::Stale => {
                self.counts.stale += 1;
                self.note("batch stale", [p as u64, 0], || format!("{lease:?}: {ids}"));
                Next::Ended
            }
            Written::Raced => {
                self.counts.raced += 1;
                self.note("batch raced", [p as u64, 0], || format!("{lease:?}: {ids}"));
                Next::Stage(Stage::Begun(at, batch))
            }
            Written::Committed {
                wakes,
                queued,
                learned,
                opened,
            } => {
                self.counts.opened += opened as u64;
                self.note(
                    "batch written",
                    [batch.received.len() as u64, queued.len() as u64],
                    || format!("process {p}, {lease:?}: {ids}; queued {queued:?}; {fate:?}"),
                );
                for received in &batch.received {
                    let Some(account) = &received.account else { continue };
                    let own: Vec<_> = queued
                        .iter()
                        .filter(|(id, sequence, ..)| {
                            *sequence == received.sequence && id.as_str().starts_with(received.id.as_str())
                        })
                        .cloned()
                        .collect();
                    self.witness
                        .entered(&self.database, account, (lease.partition, at.numbering), &own);
                }
                match fate {
                    Fate::Committed => {
                        self.processes[p].routes.learn(learned);
                        Next::Stage(Stage::Waking(at, wakes))
                    }
                    // It will find only known notifications.
                    Fate::Unanswered | Fate::Failed => Next::Stage(Stage::Begun(at, batch)),
                }
            }
        }
    }
}
