//! Crash points: named places between two durable steps, where a test can stop a service as if its process had been
//! killed there. Not a switch for production: in a release build a crash point does nothing.
//!
//! A test arms one point of one running service, waits until it is reached, starts the service again, and checks that
//! the result is the same and occurs once. The tests go through [`CRASH_POINTS`], so a point that is missing there
//! panics.
//!
//! A service in a process of its own is controlled by a file, whose path is in the variable [`CRASH_FILE`]: one line,
//! `<point> die` or `<point> freeze`. The worker that reaches the point first removes the file and obeys it.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Every crash point, by its service. Those of `outbox` are in each service.
pub const CRASH_POINTS: &[&str] = &[
    "resolver.batch_read",
    "resolver.batch_written",
    "resolver.batch_committed",
    "resolver.batch_published",
    "delivery.claim_written",
    "delivery.claim_committed",
    "delivery.turn_taken",
    "delivery.turn_answered",
    "delivery.stop_dropped",
    "delivery.note_written",
    "delivery.outcome_written",
    "delivery.outcome_committed",
    "tool_gateway.request_read",
    "tool_gateway.effect_written",
    "tool_gateway.effect_committed",
    "tool_gateway.result_published",
    "tool_gateway.call_answered",
    "orchestrator.answer_written",
    "orchestrator.timer_written",
    "orchestrator.change_written",
    "orchestrator.change_committed",
    "outbox.messages_published",
];

/// Names the file that arms a point of this process.
pub const CRASH_FILE: &str = "SIGNALBOX_CRASH_FILE";

/// Kills or stops this process here, if the file says so.
pub(crate) fn obey_file(point: &'static str) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| std::env::var_os(CRASH_FILE).map(PathBuf::from)) else {
        return;
    };
    let Ok(told) = fs::read_to_string(file) else { return };
    let Some((wanted, what)) = told.trim().split_once(' ') else {
        return;
    };
    // Two workers may arrive at once; only one of them can remove the file.
    if wanted != point || fs::remove_file(file).is_err() {
        return;
    }
    if what == "freeze" {
        // The shell's parent is this process, which has stopped before the shell ends: no code here runs on before
        // SIGCONT.
        let mut stop = Command::new("sh");
        stop.args(["-c", "kill -s STOP \"$PPID\""]).stdin(Stdio::null());
        let _ = stop.status();
    } else {
        // As SIGKILL would: no destructor, no flush, no log line.
        std::process::abort();
    }
}

/// The point that a test has armed.
#[derive(Debug, Default)]
pub(crate) struct Crash {
    armed: Mutex<Option<Armed>>,
    pub(crate) over: CancellationToken,
}

#[derive(Debug)]
struct Armed {
    point: &'static str,
    /// Hits until it fires, the firing hit included.
    left: usize,
}

impl Crash {
    pub(crate) fn arm(&self, point: &'static str, nth: usize) {
        assert!(CRASH_POINTS.contains(&point), "no crash point is called {point}");
        assert!(nth > 0, "hits are counted from 1");
        *self.armed.lock() = Some(Armed { point, left: nth });
    }

    /// Whether the process ends here. True once: afterwards no point is armed.
    pub(crate) fn is_due(&self, point: &'static str) -> bool {
        assert!(CRASH_POINTS.contains(&point), "{point} is missing in CRASH_POINTS");
        let mut armed = self.armed.lock();
        let Some(wanted) = armed.as_mut().filter(|wanted| wanted.point == point) else {
            return false;
        };
        wanted.left -= 1;
        let is_due = wanted.left == 0;
        if is_due {
            *armed = None;
        }
        is_due
    }
}
