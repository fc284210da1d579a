//! The lifetime of a process: workers that are spawned by name, told to stop, and waited for.
//!
//! A *worker* is a spawned future. A worker that ends with an error, panics, or ends before it was told to stop is
//! logged and stops the process, because a process without one of its workers looks alive and does nothing.
//!
//! Stopping has two stages. First the services' workers finish their current work. Then the supporting workers end: the
//! outbox relay, which publishes the last commits, and the replica, under whose id leases are held.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::AbortHandle,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use crate::crash::Crash;

/// How long the second stage may take: one renewal, one batch of messages.
const SUPPORT_GRACE: Duration = Duration::from_secs(2);

/// Spawns workers, tells them to stop, waits for them. Cheap to clone; all clones are the same process.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    services: Stage,
    support: Stage,
    /// Why the process stops, if no signal asked for it.
    failure: Mutex<Option<String>>,
    crash: Crash,
}

#[derive(Debug, Default)]
struct Stage {
    token: CancellationToken,
    tracker: TaskTracker,
    running: Arc<Mutex<Workers>>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Workers {
    by_id: BTreeMap<u64, Worker>,
    /// No worker starts any more: a worker spawned during an abort would outlive it.
    cut_off: bool,
}

#[derive(Debug)]
struct Worker {
    name: &'static str,
    abort: AbortHandle,
}

/// The result of a worker: `()`, or a result whose error says why the worker failed.
pub trait WorkerEnd {
    fn into_result(self) -> anyhow::Result<()>;
}

impl WorkerEnd for () {
    fn into_result(self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl<E: Into<anyhow::Error>> WorkerEnd for Result<(), E> {
    fn into_result(self) -> anyhow::Result<()> {
        self.map_err(Into::into)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    UntilStopped,
    /// May end successfully at any time.
    UntilDone,
}

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// Spawns a worker that runs until the process stops: a consumer, a sweep, a server.
    pub fn spawn(&self, name: &'static str, worker: impl Future<Output: WorkerEnd> + Send + 'static) {
        self.start(&self.inner.services, name, Lifetime::UntilStopped, worker);
    }

    /// Spawns a worker that ends when its work is done: one turn, one start-up step.
    pub fn spawn_once(&self, name: &'static str, worker: impl Future<Output: WorkerEnd> + Send + 'static) {
        self.start(&self.inner.services, name, Lifetime::UntilDone, worker);
    }

    /// Spawns a worker that the others rely on until they have ended. It listens to [`Shutdown::support_token`].
    pub fn spawn_support(&self, name: &'static str, worker: impl Future<Output: WorkerEnd> + Send + 'static) {
        self.start(&self.inner.support, name, Lifetime::UntilStopped, worker);
    }

    fn start(
        &self,
        stage: &Stage,
        name: &'static str,
        lasts: Lifetime,
        worker: impl Future<Output: WorkerEnd> + Send + 'static,
    ) {
        let id = stage.next.fetch_add(1, Ordering::Relaxed);
        let (shutdown, token, running) = (self.clone(), stage.token.clone(), Arc::clone(&stage.running));
        let task = async move {
            // State that a worker shares is guarded by the database, or ends with the process.
            let end = AssertUnwindSafe(worker).catch_unwind().await;
            running.lock().by_id.remove(&id);
            let problem = match end.map(WorkerEnd::into_result) {
                Ok(Ok(())) if lasts == Lifetime::UntilDone || token.is_cancelled() => return,
                Ok(Ok(())) => "ended before it was told to stop".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                // The panic hook has logged the message and the place.
                Err(_) => "panicked".to_owned(),
            };
            error!(worker = name, problem, "worker {name} failed: {problem}");
            shutdown.fail(format!("worker {name} failed: {problem}"));
        };
        // Held over the spawn, so that a worker that ends at once removes the entry that is inserted here.
        let mut workers = stage.running.lock();
        if workers.cut_off {
            return;
        }
        let abort = stage.tracker.spawn(task).abort_handle();
        workers.by_id.insert(id, Worker { name, abort });
    }

    /// Completes when the services' workers must stop. Every loop has a branch for it that works while the broker is
    /// down.
    pub async fn cancelled(&self) {
        self.inner.services.token.cancelled().await;
    }

    pub fn is_stopping(&self) -> bool {
        self.inner.services.token.is_cancelled()
    }

    /// The stop token of the services' workers. Derive others from it with `child_token`.
    pub fn token(&self) -> CancellationToken {
        self.inner.services.token.clone()
    }

    /// The stop token of supporting workers, cancelled once the services' workers have ended.
    pub fn support_token(&self) -> CancellationToken {
        self.inner.support.token.clone()
    }

    /// Tells the services' workers to stop, without waiting.
    pub fn begin_stop(&self) {
        self.inner.services.token.cancel();
    }

    /// Stops because of a failure; the first one is kept.
    pub fn fail(&self, reason: String) {
        self.inner.failure.lock().get_or_insert(reason);
        self.begin_stop();
    }

    /// Why the process stopped without a signal.
    pub fn failure(&self) -> Option<String> {
        self.inner.failure.lock().clone()
    }

    /// Stops everything in order and waits, for the services' workers at most `grace`. Returns the names of the workers
    /// that were aborted. Their work is taken over as after a crash.
    pub async fn stop(&self, grace: Duration) -> Vec<&'static str> {
        let mut cut_off = self.inner.services.stop(grace).await;
        cut_off.extend(self.inner.support.stop(SUPPORT_GRACE).await);
        if !cut_off.is_empty() {
            warn!(workers = ?cut_off, "workers did not end in time; aborted them");
        }
        cut_off
    }

    /// Aborts all workers where they are, as a crash would. For tests, and for a second signal.
    pub fn abort(&self) {
        let stages = [&self.inner.services, &self.inner.support];
        // All are aborted before any token is cancelled: a worker that saw the token first would stop in good order.
        for stage in stages {
            stage.abort();
        }
        for stage in stages {
            stage.token.cancel();
        }
    }

    /// A place between two durable steps (see [`crate::crash`]). When a test has armed it, the process behaves as if
    /// killed here: all its workers are aborted, and the caller takes no further step. Does nothing in a release build.
    pub async fn crash_point(&self, point: &'static str) {
        if !cfg!(debug_assertions) {
            return;
        }
        crate::crash::obey_file(point);
        if self.inner.crash.is_due(point) {
            info!(point, "crash point reached; aborting all workers");
            // Set first: a caller that sees its connection break must be able to tell why.
            self.inner.crash.over.cancel();
            self.abort();
            std::future::pending::<()>().await;
        }
    }

    /// Arms a point: its `nth` hit from now on, counted from 1, ends the process. Only one is armed at a time.
    pub fn crash_at(&self, point: &'static str, nth: usize) {
        self.inner.crash.arm(point, nth);
    }

    /// Completes when the armed point was reached.
    pub async fn crashed(&self) {
        self.inner.crash.over.cancelled().await;
    }
}

impl Stage {
    async fn stop(&self, grace: Duration) -> Vec<&'static str> {
        self.token.cancel();
        self.tracker.close();
        if timeout(grace, self.tracker.wait()).await.is_ok() {
            return Vec::new();
        }
        let cut_off = self.abort();
        // An aborted task ends at its next await. A task without one must not block the stop.
        let _ = timeout(Duration::from_secs(1), self.tracker.wait()).await;
        cut_off
    }

    fn abort(&self) -> Vec<&'static str> {
        let workers = {
            let mut running = self.running.lock();
            running.cut_off = true;
            std::mem::take(&mut running.by_id)
        };
        workers.values().for_each(|worker| worker.abort.abort());
        workers.values().map(|worker| worker.name).collect()
    }
}

/// Waits for SIGINT or SIGTERM.
pub async fn wait_for_signal() -> std::io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // Both only receive notifications; dropping either loses nothing.
    let name = tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    };
    info!(signal = name, "stopping");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn stops_supporting_workers_after_the_services() {
        let shutdown = Shutdown::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (token, log) = (shutdown.support_token(), Arc::clone(&order));
        shutdown.spawn_support("relay", async move {
            token.cancelled().await;
            log.lock().push("relay");
        });
        let (token, log) = (shutdown.token(), Arc::clone(&order));
        shutdown.spawn("consumer", async move {
            token.cancelled().await;
            tokio::task::yield_now().await;
            log.lock().push("consumer");
        });
        assert!(shutdown.stop(GRACE).await.is_empty());
        assert_eq!(*order.lock(), ["consumer", "relay"]);
        assert_eq!(shutdown.failure(), None);
    }

    #[tokio::test]
    async fn a_worker_that_ends_early_stops_the_process() {
        async fn check<F: Future<Output: WorkerEnd> + Send + 'static>(worker: F, says: &str) {
            let shutdown = Shutdown::new();
            shutdown.spawn("consumer", worker);
            timeout(GRACE, shutdown.cancelled()).await.expect("the process stops");
            assert_eq!(shutdown.failure().as_deref(), Some(says));
            assert!(shutdown.stop(GRACE).await.is_empty());
        }
        check(async {}, "worker consumer failed: ended before it was told to stop").await;
        check(
            async { Err::<(), _>(anyhow::anyhow!("no broker").context("cannot read")) },
            "worker consumer failed: cannot read: no broker",
        )
        .await;
        let panics: fn() = || panic!("on purpose");
        check(async move { panics() }, "worker consumer failed: panicked").await;
    }

    #[tokio::test]
    async fn a_worker_that_is_done_is_no_failure() {
        let shutdown = Shutdown::new();
        shutdown.spawn_once("turn", async {});
        shutdown.inner.services.tracker.close();
        timeout(GRACE, shutdown.inner.services.tracker.wait())
            .await
            .expect("it ends");
        assert!(!shutdown.is_stopping());
        assert!(shutdown.inner.services.running.lock().by_id.is_empty());
    }

    #[tokio::test]
    async fn nothing_goes_on_after_a_crash_point() {
        let (shutdown, passed) = (Shutdown::new(), Arc::new(AtomicU64::new(0)));
        shutdown.crash_at("outbox.messages_published", 2);
        let (point, count) = (shutdown.clone(), Arc::clone(&passed));
        shutdown.spawn("relay", async move {
            for _ in 0..3 {
                point.crash_point("delivery.claim_written").await;
                point.crash_point("outbox.messages_published").await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let token = shutdown.support_token();
        shutdown.spawn_support("replica", async move { token.cancelled().await });
        timeout(GRACE, shutdown.crashed())
            .await
            .expect("the second hit ends it");
        assert!(shutdown.stop(GRACE).await.is_empty());
        assert_eq!(passed.load(Ordering::SeqCst), 1);
        shutdown.spawn_once("late", async {});
        assert!(shutdown.inner.services.tracker.is_empty(), "nothing starts any more");
        assert_eq!(shutdown.failure(), None);
    }

    #[tokio::test]
    async fn cuts_off_and_names_what_does_not_end() {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (shutdown, dropped) = (Shutdown::new(), Arc::new(AtomicBool::new(false)));
        let held = Dropped(Arc::clone(&dropped));
        shutdown.spawn("stubborn", async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert_eq!(shutdown.stop(Duration::from_millis(1)).await, ["stubborn"]);
        assert!(dropped.load(Ordering::SeqCst));
    }
}
