//! CPU time and memory of processes, from `/proc`. The CPU time of an ended process counts with the parent that waited for it, as
//! with a Postgres server and its backends.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::Context;

/// The kernel's unit of CPU time, whatever its timer frequency.
const TICKS_A_SECOND: u64 = 100;
/// The parent of kernel threads.
const KERNEL: u32 = 2;

/// CPU time of every process, at one moment.
pub(crate) struct Snapshot {
    processes: BTreeMap<u32, Process>,
}

struct Process {
    parent: u32,
    own_ticks: u64,
    ended_ticks: u64,
}

impl Snapshot {
    pub(crate) fn take() -> anyhow::Result<Snapshot> {
        let entries = fs::read_dir("/proc").context("could not list the processes")?;
        let processes = entries.flatten().filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A process that ended meanwhile has no file.
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parsed(&stat)?))
        });
        Ok(Snapshot {
            processes: processes.collect(),
        })
    }

    /// CPU time of these processes and their descendants.
    pub(crate) fn cpu(&self, parents: &[u32]) -> Duration {
        let ticks = self.processes.iter().map(|(pid, process)| {
            if parents.contains(pid) {
                // Including ended children.
                process.own_ticks + process.ended_ticks
            } else if parents.contains(&process.parent) {
                process.own_ticks
            } else {
                0
            }
        });
        Duration::from_millis(ticks.sum::<u64>() * 1_000 / TICKS_A_SECOND)
    }

    /// CPU time since then of all other processes, without the kernel's threads. A process that started and ended meanwhile is
    /// counted when its parent collects it, with all of its time.
    pub(crate) fn cpu_of_others(&self, before: &Snapshot, ours: &[u32]) -> Duration {
        let ticks = self.processes.iter().filter(|(pid, _)| !self.descends(**pid, ours));
        let ticks = ticks.map(|(pid, process)| {
            let before = before
                .processes
                .get(pid)
                .filter(|before| before.parent == process.parent);
            process
                .own_ticks
                .saturating_sub(before.map_or(0, |before| before.own_ticks))
        });
        Duration::from_millis(ticks.sum::<u64>() * 1_000 / TICKS_A_SECOND)
    }

    fn descends(&self, mut pid: u32, parents: &[u32]) -> bool {
        while !parents.contains(&pid) && pid != KERNEL {
            match self.processes.get(&pid) {
                Some(process) if process.parent != 0 => pid = process.parent,
                _ => return false,
            }
        }
        true
    }
}

/// Parses `/proc/{pid}/stat` after the process name in brackets.
fn parsed(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        parent: u32::try_from(number(1)?).ok()?,
        own_ticks: number(11)? + number(12)?,
        ended_ticks: number(13)? + number(14)?,
    })
}

/// Resident memory of a process now, and its maximum.
pub(crate) fn memory_mib(pid: u32) -> Option<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    };
    Some((of("VmRSS:")? / 1024.0, of("VmHWM:")? / 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read() {
        let stat = "42 (a (strange) name) S 7 42 42 0 -1 4194560 100 200 0 0 11 13 17 19 20 0 8 0 1 2 3";
        let process = parsed(stat).unwrap();
        assert_eq!((process.parent, process.own_ticks, process.ended_ticks), (7, 24, 36));
    }

    #[test]
    fn this_process_uses_memory_and_is_its_own_descendant() {
        let (now, most) = memory_mib(std::process::id()).unwrap();
        assert!(most >= now && now > 0.1);
        let snapshot = Snapshot::take().unwrap();
        assert!(snapshot.descends(std::process::id(), &[std::process::id()]));
        assert!(!snapshot.descends(1, &[std::process::id()]));
    }

    #[test]
    fn what_others_used_leaves_us_and_ours_out() {
        let at = |ticks| Snapshot {
            processes: [
                (1, 0, 5),
                (2, 0, 5),
                (3, 2, ticks),
                (10, 1, ticks),
                (11, 10, ticks),
                (12, 1, ticks),
            ]
            .into_iter()
            .map(|(pid, parent, own_ticks)| {
                let process = Process {
                    parent,
                    own_ticks,
                    ended_ticks: 0,
                };
                (pid, process)
            })
            .collect(),
        };
        assert_eq!(at(107).cpu_of_others(&at(7), &[10]), Duration::from_secs(1));
        assert_eq!(at(107).cpu(&[10]), Duration::from_millis(2_140));
    }
}
