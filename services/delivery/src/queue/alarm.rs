//! Wakes sessions at their time: those whose run of `collect` items is due before the next sweep. A convenience: the sweep
//! finds every due session.

use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, time::DelayQueue};

use super::signal::{Signal, tell};
use crate::store::SessionName;

/// Sessions that wait for their time; the sweep finds the others.
const WAITING_MAX: usize = 100_000;

/// A session and the time until it is due.
pub type Alarm = (SessionName, Duration);

/// Runs until `stop`.
pub async fn alarms(mut set: mpsc::Receiver<Alarm>, signals: mpsc::Sender<Signal>, stop: CancellationToken) {
    let mut waiting = DelayQueue::new();
    loop {
        tokio::select! {
            // Neither loses anything when it is dropped.
            Some((name, after)) = set.recv() => {
                if waiting.len() < WAITING_MAX {
                    waiting.insert(name, after);
                }
            }
            Some(due) = waiting.next() => tell(&signals, Signal::Wake(vec![due.into_inner()])).await,
            () = stop.cancelled() => return,
        }
    }
}
