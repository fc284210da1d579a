//! The conductor maintains the dispatch queue and never waits for I/O.

use std::{collections::HashMap, sync::Arc};

use runtime::Context;
use tokio::sync::mpsc;
use tracing::info;

use super::{
    dispatcher::DispatchQueue,
    signal::{Signal, Stay},
};
use crate::{metrics::Metrics, providers::Driver, settings::DeliverySettings, store::SessionName};

/// Ends when the process stops: another replica's sweep finds the waiting sessions.
pub async fn conduct(
    config: Arc<DeliverySettings>,
    drivers: Arc<HashMap<String, Arc<Driver>>>,
    mut signals: mpsc::Receiver<Signal>,
    batches: mpsc::Sender<Vec<SessionName>>,
    context: Context,
    metrics: Metrics,
) {
    let mut queue = DispatchQueue::new(Arc::clone(&config));
    let mut claimer_idle = true;
    let mut dropped = 0_u64;
    loop {
        tokio::select! {
            // A signal that is not received stays in the channel.
            signal = signals.recv() => match signal {
                Some(Signal::Wake(names)) => dropped += names.into_iter().map(|name| u64::from(!queue.wake(name))).sum::<u64>(),
                Some(Signal::Ending(names)) => dropped += names.into_iter().map(|name| u64::from(!queue.wake_ending(name))).sum::<u64>(),
                Some(Signal::Free(names)) => names.into_iter().for_each(|(name, more)| queue.free(name, more)),
                Some(Signal::WithoutSlot(names)) => names.into_iter().for_each(|(name, provider)| queue.set_aside(name, &provider)),
                Some(Signal::MayGoOn(stays, answer)) => {
                    let may = |stay: &Stay| queue.may_go_on(&stay.name, &stay.provider, stay.brief);
                    // The recorder that asked has ended with the process.
                    let _ = answer.send(stays.into_iter().filter(may).map(|stay| stay.name).collect());
                }
                Some(Signal::Limits(limits)) => for (account, limit) in limits {
                    queue.limit(&account, limit.and_then(|limit| usize::try_from(limit).ok()));
                },
                Some(Signal::Idle) => claimer_idle = true,
                None => return,
            },
            () = context.shutdown.cancelled() => return,
        }
        if dropped > 0 && queue.waiting() < config.waiting_sessions_max.usize() {
            info!(
                dropped,
                "dispatch queue was full; the sweep will find the dropped sessions"
            );
            dropped = 0;
        }
        if claimer_idle {
            // A slot is released before its session, so the session's signal comes after it.
            queue.call_back(|provider| drivers.get(provider).map_or(usize::MAX, |driver| driver.slots_free()));
            let batch = queue.take(config.claim_batch_max.usize());
            if !batch.is_empty() {
                claimer_idle = false;
                if batches.send(batch).await.is_err() {
                    return;
                }
            }
        }
        metrics.load(queue.in_flight(), queue.waiting() + queue.waiting_aside());
    }
}
