//! Says from memory that turns have begun. No row keeps `turn.started`: whoever records an outcome of the turn says it
//! with that outcome if the broker has not acknowledged it by then, under the same id.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use contracts::{Outgoing, Root};
use messaging::Bus;
use runtime::Context;
use tokio::sync::mpsc;

use super::{messages::turn_started, work::Work};

/// Events that wait for the broker. Further ones are left to the records.
const WAITING_MAX: usize = 4_096;
const BATCH_MAX: usize = 256;

/// Whether the broker has acknowledged a turn's `turn.started`.
#[derive(Clone, Default, Debug)]
pub struct Heard(Arc<AtomicBool>);

impl Heard {
    pub(super) fn new(is_heard: bool) -> Heard {
        Heard(Arc::new(AtomicBool::new(is_heard)))
    }

    pub fn is_heard(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn hear(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub struct Started(mpsc::Sender<(Outgoing, Heard)>);

impl Started {
    /// Starts the worker that publishes the events.
    pub(crate) fn start(context: &Context) -> Started {
        let (events, waiting) = mpsc::channel(WAITING_MAX);
        let (bus, stop) = (context.bus.clone(), context.shutdown.support_token());
        context.shutdown.spawn_support("delivery started turns", async move {
            // What is left at the stop is said with the outcomes.
            let _ = stop.run_until_cancelled(publish(bus, waiting)).await;
            stop.cancelled().await;
        });
        Started(events)
    }

    /// Never waits. Nothing if it was said and heard before.
    pub(super) fn say(&self, root: &Root, work: &Work) {
        if !work.heard.is_heard() {
            let (_, event) = turn_started(root, work);
            let _ = self.0.try_send((event, work.heard.clone()));
        }
    }
}

async fn publish(bus: Bus, mut waiting: mpsc::Receiver<(Outgoing, Heard)>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (events, heard): (Vec<Outgoing>, Vec<Heard>) = batch.drain(..).unzip();
        for (heard, answer) in heard.iter().zip(bus.publish_all(&events).await) {
            if answer.is_ok() {
                heard.hear();
            }
        }
    }
}
