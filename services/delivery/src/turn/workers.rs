//! The workers of turns: each makes one provider call and reports its outcome.

use std::{collections::HashMap, sync::Arc};

use contracts::Outgoing;
use runtime::{Context, Incarnation, Replica};
use tokio::sync::mpsc;

use super::{
    call::{self, Confirm, Report},
    settle::CallOutcome,
    started::Started,
    stop::Calls,
    work::Work,
};
use crate::{
    metrics::Metrics,
    providers::Driver,
    queue::{
        alarm::Alarm,
        signal::{Signal, tell},
    },
    settings::DeliverySettings,
};

/// The dependencies of a turn's worker.
#[derive(Clone)]
pub struct Workers {
    pub context: Context,
    pub replica: Replica,
    pub drivers: Arc<HashMap<String, Arc<Driver>>>,
    /// Pieces of live text for pages.
    pub live: mpsc::Sender<Outgoing>,
    pub started: Started,
    pub calls: Calls,
    /// Wakes parked sessions at their time.
    pub alarms: mpsc::Sender<Alarm>,
    pub signals: mpsc::Sender<Signal>,
    pub config: Arc<DeliverySettings>,
    pub metrics: Metrics,
}

impl Workers {
    /// Says that the turns have begun, and starts a worker for each.
    pub(super) fn take(&self, works: Vec<Work>, incarnation: &Incarnation, reports: &mpsc::Sender<Report>) {
        for work in works {
            self.started.say(self.context.root(), &work);
            self.start(work, incarnation.clone(), reports.clone());
        }
    }

    /// Starts a worker for the length of one provider call.
    fn start(&self, work: Work, incarnation: Incarnation, reports: mpsc::Sender<Report>) {
        let driver = self.drivers.get(&work.provider).cloned();
        let (live, signals) = (self.live.clone(), self.signals.clone());
        let (root, name, stop) = (self.context.root().clone(), work.name(), self.context.shutdown.token());
        let drain = self.config.drain_ms.duration();
        let confirm = Confirm {
            within: self.config.stop_confirm_ms_max.duration(),
            every: self.config.look_up_delay_ms.duration(),
        };
        let registered = self.calls.register(&work);
        let shutdown = self.context.shutdown.clone();
        self.context.shutdown.spawn_once("delivery turn", async move {
            shutdown.crash_point("delivery.turn_taken").await;
            let drained = async {
                stop.cancelled().await;
                tokio::time::sleep(drain).await;
            };
            let report = tokio::select! {
                // Boxed: a call is large and there are many. Dropped only when the process stops; then the call counts
                // as lost, and the next holder of the lease follows the provider's rules.
                report = Box::pin(call::run_guarded(work, driver, &root, &live, &incarnation, confirm)) => report,
                () = drained => None,
            };
            drop(registered);
            match report {
                Some(report) => {
                    let point = match report.outcome {
                        CallOutcome::Stopped { .. } => "delivery.stop_dropped",
                        _ => "delivery.turn_answered",
                    };
                    shutdown.crash_point(point).await;
                    // The send fails only when the recorder has ended with the process.
                    let _ = reports.send(report).await;
                }
                None => tell(&signals, Signal::Free(vec![(name, false)])).await,
            }
        });
    }
}
