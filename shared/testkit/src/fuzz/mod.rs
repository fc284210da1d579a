//! A seeded fuzzer that runs inside a test: it mutates known inputs ([`mutate`]) and passes them to a parser, whose
//! judge panics if an invariant is broken. The same seed gives the same inputs.
//!
//! It does not see the parser's branches. Instead the judge names the class of each outcome, and an input with a new
//! class, or another order of magnitude of work, is kept and mutated further. Memory and work are counted in
//! allocations of this thread, and in its CPU time: a busy machine causes no failure.
//!
//! A failing input is written to `tests/fuzz/{target}/` of its crate and tried first in every later run.
//!
//! ```text
//! SIGNALBOX_FUZZ_RUNS  how many inputs of each target
//! SIGNALBOX_FUZZ_SEED  which inputs; without it always the same
//! ```

mod mutate;
mod random;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

pub use random::Random;

const RUNS_VARIABLE: &str = "SIGNALBOX_FUZZ_RUNS";
const SEED_VARIABLE: &str = "SIGNALBOX_FUZZ_SEED";
const SEED_DEFAULT: u64 = 1;
/// The inputs of each target in `make test`. Enough to meet every class, and a second or two without optimisation.
const RUNS_DEFAULT: u64 = 3_000;
const CORPUS_INPUTS_MAX: usize = 2_048;
/// One input in so many is enlarged to [`Fuzz::flood`] bytes.
const FLOOD_EVERY: u64 = 150;
const MIB: u64 = 1024 * 1024;
/// CPU time for one input. Without optimisation a mebibyte takes a tenth of it; work that grows with the square of its
/// input takes minutes.
const CPU_TIME_MAX: Duration = Duration::from_secs(2);

/// One parser, its first inputs, and the limits for one input.
#[derive(Debug)]
pub struct Fuzz {
    target: &'static str,
    folder: PathBuf,
    corpus: Vec<Vec<u8>>,
    words: Vec<&'static str>,
    classes: Vec<&'static str>,
    /// Ordinary inputs stay below this size, so that many of them are tried.
    bytes_max: usize,
    flood_bytes: usize,
    memory_max: u64,
    work_per_byte: u64,
    cpu_time_max: Duration,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    pub inputs: u64,
    pub seed: u64,
    /// The most memory that one input used at one time.
    pub bytes_held_max: u64,
    /// The most CPU time of one input.
    pub cpu_time_max: Duration,
    pub classes: Vec<&'static str>,
}

impl Fuzz {
    /// `crate_folder` is the caller's `env!("CARGO_MANIFEST_DIR")`.
    pub fn new(target: &'static str, crate_folder: &str) -> Fuzz {
        Fuzz {
            target,
            folder: PathBuf::from(crate_folder).join("tests/fuzz").join(target),
            corpus: Vec::new(),
            words: Vec::new(),
            classes: Vec::new(),
            bytes_max: 8 * 1024,
            flood_bytes: 256 * 1024,
            memory_max: 64 * MIB,
            work_per_byte: 256,
            cpu_time_max: CPU_TIME_MAX,
        }
    }

    /// Inputs that the parser accepts, or nearly.
    pub fn seeds(mut self, seeds: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Fuzz {
        self.corpus.extend(seeds.into_iter().map(|seed| seed.as_ref().to_vec()));
        self
    }

    /// Words with a meaning to the parser.
    pub fn words(mut self, words: &[&'static str]) -> Fuzz {
        self.words.extend(words);
        self
    }

    /// Classes that a run must meet: a run that only met refusals has tested no further code.
    pub fn must_meet(mut self, classes: &[&'static str]) -> Fuzz {
        self.classes.extend(classes);
        self
    }

    /// The size to which some inputs are enlarged.
    pub fn flood(mut self, bytes: usize) -> Fuzz {
        self.flood_bytes = bytes;
        self
    }

    /// The most memory that one input may use at one time.
    pub fn memory_max(mut self, bytes: u64) -> Fuzz {
        self.memory_max = bytes;
        self
    }

    /// Allocated bytes per byte of input: work that grows faster than its input fails.
    pub fn work_per_byte(mut self, bytes: u64) -> Fuzz {
        self.work_per_byte = bytes;
        self
    }

    /// The most CPU time of one input.
    pub fn cpu_time_max(mut self, time: Duration) -> Fuzz {
        self.cpu_time_max = time;
        self
    }

    /// Tries the configured number of inputs.
    ///
    /// # Panics
    /// Panics with the judge, if an input exceeds a limit, or if a required class was not met.
    pub fn run(mut self, judge: impl Fn(&[u8]) -> &'static str) -> Report {
        let runs = variable(RUNS_VARIABLE).unwrap_or(RUNS_DEFAULT);
        let seed = variable(SEED_VARIABLE).unwrap_or(SEED_DEFAULT);
        let mut random = Random::new(seed);
        let begun = Instant::now();
        let mut met = Met::default();
        let mut inputs = 0;
        for input in self.kept().into_iter().chain(std::mem::take(&mut self.corpus)) {
            self.attempt(&input, &judge, seed, &mut met);
            inputs += 1;
            self.corpus.push(input);
        }
        let words: Vec<&str> = self.words.clone();
        while inputs < runs {
            let mut input = mutate::mutated(&self.corpus, &words, self.bytes_max, &mut random);
            if inputs % FLOOD_EVERY == FLOOD_EVERY - 1 {
                mutate::flood(&mut input, self.flood_bytes, &mut random);
            }
            let is_new = self.attempt(&input, &judge, seed, &mut met);
            inputs += 1;
            if is_new && input.len() <= self.bytes_max {
                if self.corpus.len() < CORPUS_INPUTS_MAX {
                    self.corpus.push(input);
                } else {
                    let at = random.below(self.corpus.len());
                    self.corpus[at] = input;
                }
            }
        }
        self.report(inputs, seed, begun.elapsed(), met)
    }

    /// Passes one input to the judge; true if its outcome is of a new kind.
    fn attempt(&self, input: &[u8], judge: &impl Fn(&[u8]) -> &'static str, seed: u64, met: &mut Met) -> bool {
        let mut outcome = Ok("");
        let begun = cpu_time();
        let cost = allocation_counter::measure(|| outcome = catch_unwind(AssertUnwindSafe(|| judge(input))));
        let took = cpu_time().saturating_sub(begun);
        let class = match outcome {
            Ok(class) => class,
            Err(panic) => {
                let file = self.keep(input);
                complain(&format!("{}: seed {seed}: an input fails: {file}", self.target));
                resume_unwind(panic);
            }
        };
        met.bytes_held_max = met.bytes_held_max.max(cost.bytes_max);
        met.cpu_time_max = met.cpu_time_max.max(took);
        let work_max = MIB + self.work_per_byte * input.len() as u64;
        if cost.bytes_max > self.memory_max || cost.bytes_total > work_max || took > self.cpu_time_max {
            let file = self.keep(input);
            panic!(
                "{}: seed {seed}: an input of {} bytes held {} bytes (at most {}), allocated {} (at most {work_max}) and took \
                 {took:?} of the processor (at most {:?}): {file}",
                self.target,
                input.len(),
                cost.bytes_max,
                self.memory_max,
                cost.bytes_total,
                self.cpu_time_max,
            );
        }
        if met.classes.insert(class) {
            return true;
        }
        met.kinds.insert((class, cost.count_total.checked_ilog2()))
    }

    fn report(&self, inputs: u64, seed: u64, took: Duration, met: Met) -> Report {
        let mut classes: Vec<&'static str> = met.classes.into_iter().collect();
        classes.sort_unstable();
        let rate = inputs as f64 / took.as_secs_f64().max(0.001);
        complain(&format!(
            "fuzz {}: {inputs} inputs, {rate:.0} a second, {} KiB held and {} ms taken at most, {} kept, seed {seed}; met {}",
            self.target,
            met.bytes_held_max / 1024,
            met.cpu_time_max.as_millis(),
            self.corpus.len(),
            classes.join(", "),
        ));
        for class in &self.classes {
            assert!(classes.contains(class), "{}: no input was {class}", self.target);
        }
        Report {
            inputs,
            seed,
            bytes_held_max: met.bytes_held_max,
            cpu_time_max: met.cpu_time_max,
            classes,
        }
    }

    /// Inputs that failed in earlier runs.
    fn kept(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        files.sort();
        files
            .iter()
            .map(|file| std::fs::read(file).expect("a kept input can be read"))
            .collect()
    }

    fn keep(&self, input: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let file = self.folder.join(format!("{:016x}", hasher.finish()));
        match std::fs::create_dir_all(&self.folder).and_then(|()| std::fs::write(&file, input)) {
            Ok(()) => file.display().to_string(),
            Err(error) => format!("it could not be kept: {error}"),
        }
    }
}

#[derive(Default)]
struct Met {
    classes: HashSet<&'static str>,
    kinds: HashSet<(&'static str, Option<u32>)>,
    bytes_held_max: u64,
    cpu_time_max: Duration,
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(used.tv_sec).expect("a thread has used no less than nothing"),
        u32::try_from(used.tv_nsec).expect("less than a second"),
    )
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a whole number")))
}

#[expect(
    clippy::print_stderr,
    reason = "for the developer; the harness prints it on request, or on failure"
)]
fn complain(line: &str) {
    eprintln!("{line}");
}
