//! The rows: measurements and their goals. The order decides which row is compared with which.

use std::time::Duration;

use crate::{
    figures::Figures,
    peers::Peer,
    report::{
        Goal,
        Wanted::{AtLeast, AtMost},
    },
    shown::Shown,
    subject::Subject,
    work::{Answer, Pace, People, Work},
};

/// One row: the work, the subjects, and the goals.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The goals, from the results of the rows so far.
    pub(crate) work: fn(&Shown) -> Work,
    pub(crate) subjects: &'static [Subject],
    /// Fewer repetitions for a slow row.
    pub(crate) repetitions_max: u32,
    /// Takes minutes, or serves [sizing](../../docs/performance.md); runs only if named.
    pub(crate) is_long: bool,
    pub(crate) goals: fn(&Shown) -> Vec<Goal>,
}

const ALL: &[Subject] = &[Subject::Signalbox, Subject::FloorInTwo, Subject::Floor];
const AGAINST_TWO: &[Subject] = &[Subject::Signalbox, Subject::FloorInTwo];
const AGAINST_ONE: &[Subject] = &[Subject::Signalbox, Subject::Floor];
const AGAINST_PEERS: &[Subject] = &[
    Subject::Signalbox,
    Subject::Peer(Peer::RestateRust),
    Subject::Peer(Peer::RestateFour),
    Subject::Peer(Peer::Restate),
    Subject::Peer(Peer::GraphileTuned),
    Subject::Peer(Peer::Graphile),
];
const ALONE: &[Subject] = &[Subject::Signalbox];

/// The reference of ratios.
pub(crate) const LIVE: &str = "live";
pub(crate) const BACKLOG: &str = "backlog";

const SLOW: Duration = Duration::from_millis(50);
const STEADY_RATE: u32 = 200;
const STEADY_SECONDS: u32 = 10;
/// The target duration of a run.
const SECONDS: f64 = 5.0;
const STORED_THOUSANDS: u32 = 1_000;

const ANY: Plan = Plan {
    name: "",
    about: "",
    work: w,
    subjects: ALONE,
    repetitions_max: u32::MAX,
    is_long: false,
    goals: |_| Vec::new(),
};

pub(crate) const PLANS: &[Plan] = &[
    Plan {
        name: LIVE,
        about: "W: published while it is processed, the provider answers at once",
        work: |shown| Work::new(shown.notifications),
        subjects: ALL,
        goals: |of| {
            vec![
                of.ratio("/s, of floor-2", Subject::FloorInTwo, per_s, AtLeast(0.20)),
                of.ratio("/s, of floor-2 (stretch)", Subject::FloorInTwo, per_s, AtLeast(0.28)),
                of.ratio("CPU, of floor-2", Subject::FloorInTwo, cpu, AtMost(5.5)),
                of.ratio("CPU, of floor-2 (stretch)", Subject::FloorInTwo, cpu, AtMost(4.0)),
                of.value("commits a notification", |figures| figures.commits, AtMost(0.1)),
                of.value("statements a notification", |figures| figures.statements, AtMost(0.3)),
                of.value("MiB of the largest service", Figures::memory_most_mib, AtMost(64.0)),
                of.value("ms until all four are ready", |figures| figures.ready_ms, AtMost(500.0)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "slow",
        about: "W, the provider answers after 50 ms, 1,000 in flight",
        work: |shown| Work {
            delay: SLOW,
            in_flight: 1_000,
            ..w(shown)
        },
        subjects: AGAINST_ONE,
        goals: |of| {
            let most = 1_000.0 / SLOW.as_secs_f64();
            vec![of.share("/s, of pairs / delay", most, per_s, AtLeast(0.18))]
        },
        ..ANY
    },
    Plan {
        name: "steady",
        about: "200 a second, the provider answers at once",
        work: |shown| steady(shown, STEADY_RATE),
        subjects: ALL,
        goals: |of| {
            vec![
                of.ratio("p50 ms, of floor-2", Subject::FloorInTwo, p50, AtMost(3.0)),
                of.ratio("p99 ms, of floor-2", Subject::FloorInTwo, p99, AtMost(5.0)),
                of.ratio("CPU, of floor-2", Subject::FloorInTwo, cpu, AtMost(1.8)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "steady-slow",
        about: "200 a second, the provider answers after 50 ms",
        work: |shown| Work {
            delay: SLOW,
            ..steady(shown, STEADY_RATE)
        },
        subjects: AGAINST_TWO,
        goals: |of| {
            vec![
                of.value("p50 ms over 50", |figures| p50(figures) - 50.0, AtMost(5.0)),
                of.value("p99 ms over 50", |figures| p99(figures) - 50.0, AtMost(12.0)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "at-10",
        about: "10 a second: what a small deployment needs",
        work: |shown| steady(shown, 10),
        is_long: true,
        ..ANY
    },
    Plan {
        name: "at-100",
        about: "100 a second",
        work: |shown| steady(shown, 100),
        is_long: true,
        ..ANY
    },
    Plan {
        name: "at-1000",
        about: "1,000 a second",
        work: |shown| steady(shown, 1_000),
        is_long: true,
        ..ANY
    },
    Plan {
        name: "half",
        about: "half as many a second as row live has shown, the provider answers at once",
        work: |shown| steady(shown, shown.rate(0.5, STEADY_RATE)),
        subjects: AGAINST_TWO,
        goals: |of| {
            vec![
                of.ratio("p50 ms, of floor-2", Subject::FloorInTwo, p50, AtMost(2.0)),
                of.ratio("p99 ms, of floor-2", Subject::FloorInTwo, p99, AtMost(3.0)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "one-session",
        about: "one pair: every turn waits for the one before",
        work: |shown| Work {
            notifications: shown.notifications.div_ceil(20),
            pairs: 1,
            ..w(shown)
        },
        subjects: AGAINST_ONE,
        goals: |of| {
            vec![of.ratio(
                "ms a turn, of the floor's",
                Subject::Floor,
                |figures| 1e3 / figures.per_s,
                AtMost(4.0),
            )]
        },
        ..ANY
    },
    Plan {
        name: "steer",
        about: "two replicas of each service, one session: every second notification steers; from its publication until the provider \
                sees the end of the call in progress",
        work: |shown| Work {
            notifications: 100,
            pairs: 1,
            pace: Pace::Steers,
            answer: Answer::HeldOnEven,
            replicas: 2,
            ..w(shown)
        },
        goals: |of| vec![of.value("ms at the median", p50, AtMost(250.0))],
        ..ANY
    },
    Plan {
        name: "tools",
        about: "W, with one tool call in each turn (the floor has no tools: its row live)",
        work: |shown| Work {
            answer: Answer::AfterTool,
            ..w(shown)
        },
        goals: |of| vec![of.of_live("turns/s, of the floor's row live", Subject::Floor, per_s, AtLeast(0.08))],
        ..ANY
    },
    Plan {
        name: "gateway",
        about: "W, with three tool calls in each turn, two of them of one tool and one with an effect",
        work: |shown| Work {
            answer: Answer::AfterTools,
            ..w(shown)
        },
        goals: |of| vec![of.of_live("turns/s, of the floor's row live", Subject::Floor, per_s, AtLeast(0.04))],
        ..ANY
    },
    Plan {
        name: "wide",
        about: "W, with inputs of 8 KB and replies of 4 KB",
        work: |shown| Work {
            body_bytes: 8_000,
            reply_bytes: 4_000,
            ..w(shown)
        },
        subjects: AGAINST_TWO,
        goals: |of| vec![of.ratio("/s, of floor-2", Subject::FloorInTwo, per_s, AtLeast(0.20))],
        ..ANY
    },
    Plan {
        name: "chat",
        about: "one pair, 200 turns with replies of 1 KB: the thread grows",
        work: |shown| Work {
            notifications: 200,
            pairs: 1,
            reply_bytes: 1_000,
            ..w(shown)
        },
        subjects: AGAINST_ONE,
        goals: |of| vec![of.ratio("/s, of the floor", Subject::Floor, per_s, AtLeast(0.25))],
        ..ANY
    },
    Plan {
        name: "streamed",
        about: "W, the provider streams its answer word by word",
        work: |shown| Work {
            answer: Answer::Streamed,
            ..w(shown)
        },
        subjects: AGAINST_TWO,
        goals: |of| vec![of.ratio("/s, of floor-2", Subject::FloorInTwo, per_s, AtLeast(0.5))],
        ..ANY
    },
    Plan {
        name: "pairs-10",
        about: "W over 10 pairs: ten turns at once, the floor likewise",
        work: |shown| pairs(shown, 10),
        subjects: AGAINST_ONE,
        goals: |of| vec![of.ratio("/s, of the floor", Subject::Floor, per_s, AtLeast(0.5))],
        ..ANY
    },
    Plan {
        name: "pairs-100",
        about: "W over 100 pairs",
        work: |shown| pairs(shown, 100),
        goals: as_live,
        ..ANY
    },
    Plan {
        name: "pairs-10000",
        about: "W over 10,000 pairs",
        work: |shown| pairs(shown, 10_000),
        goals: as_live,
        ..ANY
    },
    Plan {
        name: "pairs-100000",
        about: "W over 100,000 pairs: every notification opens a session",
        work: |shown| pairs(shown, 100_000),
        goals: as_live,
        ..ANY
    },
    Plan {
        name: BACKLOG,
        about: "W, half of it, all published before the services start",
        work: |shown| Work {
            notifications: shown.notifications / 2,
            pace: Pace::Backlog,
            ..w(shown)
        },
        subjects: AGAINST_ONE,
        goals: |of| vec![of.ratio("/s, of the floor", Subject::Floor, per_s, AtLeast(0.50))],
        ..ANY
    },
    Plan {
        name: "backlog-large",
        about: "25 times W, all published before the services start; for half a minute",
        work: |shown| Work {
            notifications: shown.notifications * 25,
            pace: Pace::Backlog,
            limit: Duration::from_secs(30),
            ..w(shown)
        },
        repetitions_max: 1,
        goals: |of| {
            vec![
                of.of_backlog("/s, of row backlog", per_s, AtLeast(0.67)),
                of.value("MiB of the largest service", Figures::memory_most_mib, AtMost(64.0)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "stored",
        about: "W, with 1,000,000 old notifications stored",
        work: |shown| stored(shown, STORED_THOUSANDS),
        goals: costs_as_live,
        ..ANY
    },
    Plan {
        name: "peers",
        about: "W, and peers that do it (bench/peers/README.md)",
        work: |shown| Work::new(shown.notifications),
        subjects: AGAINST_PEERS,
        is_long: true,
        goals: |of| {
            let of_restate = |what, peer| of.ratio(what, Subject::Peer(peer), per_s, AtLeast(1.5));
            vec![
                of_restate("/s, of Restate", Peer::Restate),
                of_restate("/s, of Restate with 4 partitions", Peer::RestateFour),
                of_restate("/s, of Restate with 4 partitions, in Rust", Peer::RestateRust),
            ]
        },
        ..ANY
    },
    Plan {
        name: "stored-3m",
        about: "W, with 3,000,000 old notifications stored",
        work: |shown| stored(shown, 3 * STORED_THOUSANDS),
        is_long: true,
        goals: costs_as_live,
        ..ANY
    },
    Plan {
        name: "replicas-2",
        about: "W, two of each service",
        work: |shown| Work {
            replicas: 2,
            ..w(shown)
        },
        goals: as_live,
        ..ANY
    },
    Plan {
        name: "replicas-4",
        about: "W, four of each service",
        work: |shown| Work {
            replicas: 4,
            ..w(shown)
        },
        goals: as_live,
        ..ANY
    },
    Plan {
        name: "idle",
        about: "nothing to do, for five seconds",
        work: |shown| Work {
            pace: Pace::Idle(Duration::from_secs(5)),
            ..w(shown)
        },
        goals: |of| {
            vec![
                of.value("CPU ms/s of a service", |figures| figures.cpu_ms.own / 4.0, AtMost(2.0)),
                of.value("MiB of the largest service", Figures::memory_idle_mib, AtMost(25.0)),
            ]
        },
        ..ANY
    },
    Plan {
        name: "kill",
        about: "half of what row live has shown, each service killed once and started again: a run in which anything is lost, \
                doubled or out of order fails",
        work: |shown| Work {
            kills: true,
            ..steady(shown, shown.rate(0.5, STEADY_RATE))
        },
        goals: |of| {
            vec![of.value(
                "ms until the slowest service works again",
                Figures::resumed_ms_most,
                AtMost(1_000.0),
            )]
        },
        ..ANY
    },
    Plan {
        name: "inbox",
        about: "an account of 1,000 members, one with 10,000 unread mails: the number of unread mails and the first page, each 500 times; \
                the slower of the two",
        work: |_| asks(People::Inbox, 500),
        goals: |of| vec![of.value("ms at the median", p50, AtMost(5.0))],
        ..ANY
    },
    Plan {
        name: "board",
        about: "50 moves of a task to done, each of which frees 32 others in its transaction",
        work: |_| asks(People::Board, 50),
        goals: |of| vec![of.value("ms at the median", p50, AtMost(20.0))],
        ..ANY
    },
    Plan {
        name: "memory",
        about: "an account of 1,000 members with 200 memories each: 500 searches of one of them",
        work: |_| asks(People::Memory, 500),
        goals: |of| vec![of.value("ms at the median", p50, AtMost(10.0))],
        ..ANY
    },
    Plan {
        name: "callout",
        about: "1,000 connects to NATS with keys of the API, 16 at once",
        work: |_| asks(People::Callout, 1_000),
        goals: |of| vec![of.value("connects/s", per_s, AtLeast(200.0))],
        ..ANY
    },
];

/// W, in a size that fits into the table's time.
fn w(shown: &Shown) -> Work {
    Work::new(shown.sized(SECONDS))
}

fn pairs(shown: &Shown, pairs: u32) -> Work {
    Work { pairs, ..w(shown) }
}

fn stored(shown: &Shown, thousands: u32) -> Work {
    Work {
        stored: thousands * 1_000,
        ..w(shown)
    }
}

fn steady(shown: &Shown, rate: u32) -> Work {
    Work {
        notifications: rate * STEADY_SECONDS,
        pace: Pace::Rate(rate),
        ..w(shown)
    }
}

fn asks(people: People, times: u32) -> Work {
    Work {
        pairs: 1,
        pace: Pace::Asks(people),
        ..Work::new(times)
    }
}

fn as_live(of: &Shown) -> Vec<Goal> {
    vec![of.of_live("/s, of row live", Subject::Signalbox, per_s, AtLeast(0.75))]
}

/// Relative to the provider's CPU time, which does the same work in both runs: the machine's speed may have changed.
fn costs_as_live(of: &Shown) -> Vec<Goal> {
    let cost: fn(&Figures) -> f64 = |figures| figures.cpu_ms.of_provider();
    vec![of.of_live(
        "CPU by the provider's, of row live",
        Subject::Signalbox,
        cost,
        AtMost(1.15),
    )]
}

fn per_s(figures: &Figures) -> f64 {
    figures.per_s
}

fn cpu(figures: &Figures) -> f64 {
    figures.cpu_ms.system()
}

fn p50(figures: &Figures) -> f64 {
    figures.latency.map_or(f64::NAN, |latency| latency.p50_ms)
}

fn p99(figures: &Figures) -> f64 {
    figures.latency.map_or(f64::NAN, |latency| latency.p99_ms)
}
