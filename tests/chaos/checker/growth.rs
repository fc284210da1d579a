//! I16: no resource grows without bound. When the system is idle, each process has the memory and files that it had before, plus a
//! tolerance; no dropped request leaves a transaction open.

use std::collections::BTreeMap;

use super::{Violation, evidence::Evidence};
use crate::records::Sample;

/// Tolerance for pooled connections and the allocator.
const FILES_MORE: usize = 64;
const MEMORY_MORE_KIB: usize = 256 * 1024;
/// Maximum at any time.
const MEMORY_MAX_KIB: usize = 1024 * 1024;

fn grown(found: String) -> Violation {
    Violation {
        invariant: "I16",
        expected: "a process holds no more at rest than before",
        found,
    }
}

pub(super) fn back_to_the_beginning(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut of_process: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in &evidence.records.samples {
        of_process.entry(&sample.process).or_default().push(sample);
    }
    let mut found = Vec::new();
    for (process, samples) in of_process {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            continue;
        };
        if last.files > first.files + FILES_MORE {
            found.push(grown(format!(
                "{process} has {} files open, and had {}",
                last.files, first.files
            )));
        }
        if last.memory_kib > first.memory_kib + MEMORY_MORE_KIB {
            found.push(grown(format!(
                "{process} holds {} KiB, and held {}",
                last.memory_kib, first.memory_kib
            )));
        }
        let peak = samples.iter().map(|sample| sample.memory_kib).max().unwrap_or_default();
        if peak > MEMORY_MAX_KIB {
            found.push(grown(format!("{process} held {peak} KiB")));
        }
    }
    found
}

/// A dropped request may leave a connection in a transaction, and writes of its next borrower would be rolled back.
pub(super) fn no_open_transactions(evidence: &Evidence<'_>) -> Vec<Violation> {
    let open = evidence.rows.open_transactions.iter();
    open.map(|connection| Violation {
        invariant: "I16",
        expected: "no connection is left inside a transaction",
        found: connection.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::fabricated::{Story, at},
        *,
    };

    fn sampled(files: [usize; 3], memory_kib: [usize; 3]) -> Story {
        let mut story = Story::delivered();
        story.records.samples = (0..3)
            .map(|nth| Sample {
                at: at(i64::try_from(nth).unwrap()),
                process: "delivery-0".to_owned(),
                memory_kib: memory_kib[nth],
                files: files[nth],
            })
            .collect();
        story
    }

    #[test]
    fn what_goes_up_must_come_down() {
        let busy = sampled([20, 400, 30], [40_000, 400_000, 90_000]);
        assert_eq!(busy.judge(back_to_the_beginning), []);
        let leaking = sampled([20, 40, 100], [40_000, 90_000, 400_000]);
        assert!(leaking.finds(back_to_the_beginning, "100 files open"));
        assert!(leaking.finds(back_to_the_beginning, "400000 KiB, and held 40000"));
        assert!(sampled([1; 3], [1, 2_000_000, 1]).finds(back_to_the_beginning, "held 2000000"));
    }

    #[test]
    fn an_open_transaction_is_found() {
        let mut story = Story::delivered();
        assert_eq!(story.judge(no_open_transactions), []);
        story
            .rows
            .open_transactions
            .push("signalbox-delivery since noon".to_owned());
        assert!(story.finds(no_open_transactions, "since noon"));
    }
}
