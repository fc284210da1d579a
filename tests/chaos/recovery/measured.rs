//! The measurements and their table.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    fs,
};

use serde::Serialize;

/// Milliseconds, by name.
#[derive(Default, Serialize)]
pub(crate) struct Measured {
    samples: BTreeMap<String, Vec<i64>>,
    notes: Vec<String>,
}

impl Measured {
    pub(crate) fn add(&mut self, name: impl Into<String>, value_ms: i64) {
        self.samples.entry(name.into()).or_default().push(value_ms);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Load of the machine, without which a figure means little.
    pub(crate) fn note_load(&mut self, when: &str) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<&str> = load.split(' ').take(3).collect();
        self.note(format!("{when}: {cores} cores, load average {}", load.join(" ")));
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<34} {:>6} {:>8} {:>8} {:>8}", "ms", "n", "p50", "p99", "max")?;
        for (name, samples) in &self.samples {
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)];
            let (p50, p99, max) = (at(50), at(99), at(100));
            writeln!(f, "{name:<34} {:>6} {p50:>8} {p99:>8} {max:>8}", sorted.len())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
