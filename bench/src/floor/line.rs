//! The floor's dispatch queue: one call at a time for each session, in order, up to a limit over all sessions. A session's next
//! call begins when its previous outcome is recorded.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio_postgres::Client;

use super::{BATCH_MAX, Job, record};
use crate::{client::Caller, print};

pub(super) struct Provider {
    pub(super) caller: Caller,
    pub(super) url: hyper::Uri,
}

impl Provider {
    async fn post(&self, request: &serde_json::Value) -> anyhow::Result<Bytes> {
        self.caller
            .post(self.url.clone(), request.to_string().into_bytes())
            .await
    }
}

pub(super) struct Line {
    /// A session has an entry while one of its notifications is in progress; its other notifications wait there.
    waiting: Mutex<HashMap<i64, VecDeque<Job>>>,
    provider: Provider,
    slots: Semaphore,
    outcomes: mpsc::Sender<Job>,
}

/// Processes jobs, and reports to `done` how long each took, in microseconds.
pub(super) fn start(
    provider: Provider,
    in_flight: usize,
    database: Client,
    done: mpsc::Sender<u64>,
) -> mpsc::Sender<Vec<Job>> {
    let (outcomes, to_record) = mpsc::channel(4 * BATCH_MAX);
    let line = Arc::new(Line {
        waiting: Mutex::default(),
        provider,
        slots: Semaphore::new(in_flight),
        outcomes,
    });
    tokio::spawn(record::run(Arc::clone(&line), database, to_record, done));
    let (sender, mut batches) = mpsc::channel::<Vec<Job>>(4);
    tokio::spawn(async move {
        while let Some(batch) = batches.recv().await {
            for job in batch {
                line.submit(job);
            }
        }
    });
    sender
}

impl Line {
    fn submit(self: &Arc<Line>, job: Job) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = waiting.get_mut(&job.session) {
            queue.push_back(job);
        } else {
            waiting.insert(job.session, VecDeque::new());
            drop(waiting);
            self.run(job);
        }
    }

    /// The outcome is recorded: starts the next job of its session.
    pub(super) fn release(self: &Arc<Line>, session: i64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.get_mut(&session).and_then(VecDeque::pop_front) {
            Some(job) => {
                drop(waiting);
                self.run(job);
            }
            None => {
                waiting.remove(&session);
            }
        }
    }

    fn run(self: &Arc<Line>, mut job: Job) {
        let line = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(slot) = line.slots.acquire().await else { return };
            let request = json!({"model": "bench", "user": job.session, "input": job.payload});
            match line.provider.post(&request).await {
                Ok(reply) => job.reply = String::from_utf8_lossy(&reply).into_owned(),
                // The benchmark's provider always answers; a run with a failed call is discarded.
                Err(error) => print::say(&format!("the floor's call failed: {error:#}")),
            }
            drop(slot);
            // The recorder has ended: the process ends.
            let _ = line.outcomes.send(job).await;
        });
    }
}
