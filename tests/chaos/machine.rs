//! Measures how much CPU and disk a campaign gets, to tell a stuck system from a slow machine. A fixed piece of work (CPU and disk)
//! is repeated, and its time is compared with the shortest one seen. A slow machine excuses unfinished work only, never wrong
//! results.

use std::{
    fmt::{self, Display},
    fs::{self, File},
    hint::black_box,
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

/// Pause between two pieces.
const EVERY: Duration = Duration::from_millis(250);
/// Steps of one piece: some milliseconds of CPU, longer than a scheduler's time slice.
const STEPS: u64 = 400_000;
const BLOCK: [u8; 4_096] = [7; 4_096];
/// Below this share of the machine's best, services miss deadlines that they otherwise keep, leases first. A campaign itself leaves
/// more than twice this.
const ENOUGH_PERCENT: u32 = 20;

/// Measures until it is dropped.
pub(crate) struct Machine {
    pieces: Arc<Mutex<Vec<Piece>>>,
    over: Arc<AtomicBool>,
    file: PathBuf,
}

/// The share that a campaign got, in percent of the best.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct Given {
    at_work_percent: u32,
    at_rest_percent: u32,
}

#[derive(Clone, Copy)]
struct Piece {
    /// Its scheduled start.
    due: Instant,
    /// Time from then to its end.
    took: Duration,
}

impl Machine {
    pub(crate) fn watch(directory: &Path) -> anyhow::Result<Machine> {
        let file = directory.join("machine.block");
        let block = File::create(&file).with_context(|| format!("could not make {}", file.display()))?;
        let (pieces, over) = (Arc::<Mutex<Vec<Piece>>>::default(), Arc::<AtomicBool>::default());
        let (written, ended) = (Arc::clone(&pieces), Arc::clone(&over));
        // A thread and no task: a busy runtime must not count as a busy machine.
        thread::Builder::new()
            .name("machine".to_owned())
            .spawn(move || work(block, &written, &ended))
            .context("could not start a thread")?;
        Ok(Machine { pieces, over, file })
    }

    /// The share since a time, in percent of the best: the median, so that a short stall has no effect.
    pub(crate) fn percent_since(&self, moment: Instant) -> u32 {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        percent(&pieces, moment)
    }

    pub(crate) fn is_starved_since(&self, moment: Instant) -> bool {
        self.percent_since(moment) < ENOUGH_PERCENT
    }
}

impl Given {
    pub(crate) fn new(at_work_percent: u32, at_rest_percent: u32) -> Given {
        Given {
            at_work_percent,
            at_rest_percent,
        }
    }

    /// Whether the machine was too slow to become idle.
    pub(crate) fn is_too_little(self) -> bool {
        self.at_rest_percent < ENOUGH_PERCENT
    }
}

impl Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at_work, at_rest) = (self.at_work_percent, self.at_rest_percent);
        write!(
            f,
            "the machine gave {at_work} % of its best under faults, and {at_rest} % after them"
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Left behind where it cannot be removed: the directory is kept or goes as a whole.
        let _ = fs::remove_file(&self.file);
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own")]
fn work(mut block: File, pieces: &Mutex<Vec<Piece>>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let due = Instant::now() + EVERY;
        thread::sleep(EVERY);
        // A failing disk is one of the faults; the CPU's part suffices then.
        let _ = piece(&mut block);
        let done = Piece {
            due,
            took: due.elapsed(),
        };
        pieces.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }
}

fn piece(block: &mut File) -> io::Result<()> {
    black_box((0..STEPS).fold(0_u64, |sum, step| black_box(sum.rotate_left(5) ^ step)));
    block.rewind()?;
    block.write_all(&BLOCK)?;
    block.sync_data()
}

/// 100 % without measurements.
fn percent(pieces: &[Piece], moment: Instant) -> u32 {
    let best = pieces.iter().map(|piece| piece.took).min().unwrap_or_default();
    let mut since: Vec<Duration> = pieces
        .iter()
        .filter(|piece| piece.due >= moment)
        .map(|piece| piece.took)
        .collect();
    since.sort_unstable();
    match since.get(since.len() / 2) {
        Some(median) => u32::try_from(best.as_micros() * 100 / median.as_micros().max(1)).unwrap_or(100),
        None => 100,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(begun: Instant, took_ms: impl IntoIterator<Item = u64>) -> Vec<Piece> {
        let due = (0..).map(|nth| begun + EVERY * nth);
        let took = took_ms.into_iter().map(Duration::from_millis);
        due.zip(took).map(|(due, took)| Piece { due, took }).collect()
    }

    #[test]
    fn what_takes_longer_got_less() {
        let begun = Instant::now();
        let seen = pieces(begun, [5, 6, 5, 5, 50, 60, 50]);
        assert_eq!(percent(&seen, begun), 83);
        assert_eq!(percent(&seen, begun + EVERY * 4), 10);
    }

    #[test]
    fn one_halt_is_no_starvation() {
        let begun = Instant::now();
        assert_eq!(percent(&pieces(begun, [5, 5, 900, 5]), begun), 100);
    }

    #[test]
    fn who_has_seen_nothing_accuses_nobody() {
        assert_eq!(percent(&[], Instant::now()), 100);
    }
}
