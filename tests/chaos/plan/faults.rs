//! The kinds of faults: name, rows of the fault matrix, frequency, and random parameters. [`KINDS`] is the whole list.

use storage::Role;

use super::{BEFOREHAND_MS, GAP_MS, PlannedFault};
use crate::dice::Dice;

/// A service process; there are two of each service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process(pub(crate) usize);

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];
const REPLICAS: usize = 2;

impl Process {
    pub(crate) fn all() -> impl Iterator<Item = Process> {
        (0..ROLES.len() * REPLICAS).map(Process)
    }

    pub(crate) fn role(self) -> Role {
        ROLES[self.0 / REPLICAS]
    }

    /// `delivery-0`
    pub(crate) fn name(self) -> String {
        format!("{}-{}", self.role().service(), self.0 % REPLICAS)
    }

    fn any(dice: &mut Dice) -> Process {
        Process(dice.below(ROLES.len() * REPLICAS))
    }

    fn of(role: Role, dice: &mut Dice) -> Process {
        let place = ROLES.iter().position(|of| *of == role).expect("a service");
        Process(place * REPLICAS + dice.below(REPLICAS))
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// A connection between a service process and a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    Nats,
    Postgres,
    Provider,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NetworkHarm {
    /// Connections are reset.
    Cut,
    /// A connection is reset in the middle of the server's answer.
    CutAnswer {
        after_bytes: u64,
    },
    /// Nothing passes, and the connection stays open: half open.
    Stall {
        for_ms: u64,
    },
    /// Connections are reset and new ones refused.
    Refuse {
        for_ms: u64,
    },
    Slow {
        by_ms: u64,
        for_ms: u64,
    },
    /// A bandwidth too low for a burst.
    Narrow {
        bytes_per_second: u64,
        for_ms: u64,
    },
    /// The service can receive but not send.
    HalfClose,
}

/// How the stub provider fails its next requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProviderFailure {
    Status {
        status: u16,
        retry_after: Option<&'static str>,
    },
    /// The limit of its account is used up.
    Quota,
    /// No byte.
    Silent,
    /// Headers and a first event, then silence.
    SilentInStream,
    /// A whole answer on a connection that stays open.
    NeverCloses,
    /// The stream ends without its last event.
    CutStream,
    /// The connection breaks within an event.
    CutEvent,
    /// Events repeated and reordered, the last one last.
    Disordered,
    MalformedJson,
    /// Nesting deeper than the parser's limit.
    DeepJson,
    /// Wrong types in the response object.
    WrongTypes,
    /// A response with a failure status.
    FailedResponse,
    /// Valid but unusual: unknown events, CRLF, comments, split characters. It must be parsed.
    Strange,
    /// One byte at a time for a while, then the rest.
    Drip,
    /// Larger than the limit.
    Huge,
    UnknownTool,
    BadArguments,
    /// A tool call with another account's task.
    ForeignTask,
    /// A thousand tool calls at once.
    ManyCalls,
    /// A tool call after each result.
    EndlessCalls,
}

/// Oversized input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Oversized {
    /// Published, over a limit of ours.
    Message,
    /// Part of a request.
    Body,
    Headers,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Fault {
    Kill {
        process: Process,
        down_ms: u64,
    },
    Terminate {
        process: Process,
        down_ms: u64,
    },
    CrashPoint {
        process: Process,
        point: &'static str,
        down_ms: u64,
    },
    Freeze {
        process: Process,
        for_ms: u64,
    },
    FreezeAtPoint {
        process: Process,
        point: &'static str,
        for_ms: u64,
    },
    AllDie {
        down_ms: u64,
    },
    RollingRestart,
    NatsTerminate {
        down_ms: u64,
    },
    NatsLameDuck {
        down_ms: u64,
    },
    NatsKill {
        down_ms: u64,
    },
    NatsFreeze {
        for_ms: u64,
    },
    NatsWipe {
        down_ms: u64,
    },
    NatsDiskFull {
        for_ms: u64,
    },
    ConsumerDeleted {
        nth: usize,
    },
    StreamDeleted {
        nth: usize,
    },
    PostgresRestart {
        down_ms: u64,
    },
    PostgresCrash {
        down_ms: u64,
    },
    PostgresKill {
        down_ms: u64,
    },
    BackendKill {
        nth: usize,
    },
    SessionsTerminate {
        process: Process,
    },
    PostgresFreeze {
        for_ms: u64,
    },
    ConnectionsTaken {
        for_ms: u64,
    },
    StatementsFail {
        sqlstate: &'static str,
        count: u64,
    },
    CommitLost {
        process: Process,
        count: u64,
    },
    Network {
        process: Process,
        link: Link,
        harm: NetworkHarm,
    },
    ClientsGone {
        count: usize,
        choice: u64,
    },
    Provider {
        failure: ProviderFailure,
        count: usize,
    },
    Repeat {
        count: usize,
        choice: u64,
    },
    Conflict {
        choice: u64,
    },
    Replay {
        count: usize,
        choice: u64,
    },
    OldGeneration {
        count: usize,
        choice: u64,
    },
    Burst {
        count: usize,
        choice: u64,
    },
    KeyReused {
        choice: u64,
    },
    Poison {
        nth: usize,
    },
    Oversize {
        what: Oversized,
    },
}

pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Rows of the fault matrix of docs/reliability.md.
    pub(crate) rows: &'static str,
    weight: u64,
    choose: fn(&mut Dice) -> Fault,
}

const fn kind(name: &'static str, rows: &'static str, weight: u64, choose: fn(&mut Dice) -> Fault) -> Kind {
    Kind {
        name,
        rows,
        weight,
        choose,
    }
}

/// More calls than a breaker lets through while a fault lasts.
const QUOTA_CALLS: usize = 60;
/// Serialization failure, deadlock, lock timeout.
const SQLSTATES: &[&str] = &["40001", "40P01", "55P03"];

/// Down for a moment, until a supervisor restarts it.
fn down(dice: &mut Dice) -> u64 {
    dice.between(0, 600)
}

/// Some are shorter than the lease (4 s here), some longer.
fn around_the_lease(dice: &mut Dice) -> u64 {
    *dice.pick(&[1_000, 4_600, 5_200, 6_000])
}

pub(crate) const KINDS: &[Kind] = &[
    kind("kill", "F1-F4", 10, |dice| Fault::Kill {
        process: Process::any(dice),
        down_ms: down(dice),
    }),
    kind("terminate", "F37", 4, |dice| Fault::Terminate {
        process: Process::any(dice),
        down_ms: down(dice),
    }),
    kind("crash_point", "F1-F4", 14, |dice| {
        let (process, point) = crash_point(dice);
        Fault::CrashPoint {
            process,
            point,
            down_ms: down(dice),
        }
    }),
    kind("freeze", "F36", 5, |dice| Fault::Freeze {
        process: Process::any(dice),
        for_ms: around_the_lease(dice),
    }),
    kind("freeze_at_point", "F36", 5, |dice| {
        let (process, point) = crash_point(dice);
        Fault::FreezeAtPoint {
            process,
            point,
            for_ms: around_the_lease(dice),
        }
    }),
    kind("all_die", "F5", 1, |dice| Fault::AllDie { down_ms: down(dice) }),
    kind("rolling_restart", "F37", 1, |_| Fault::RollingRestart),
    kind("nats_terminate", "F6", 1, |dice| Fault::NatsTerminate {
        down_ms: down(dice),
    }),
    kind("nats_lame_duck", "F6", 1, |dice| Fault::NatsLameDuck {
        down_ms: down(dice),
    }),
    kind("nats_kill", "F6", 2, |dice| Fault::NatsKill { down_ms: down(dice) }),
    kind("nats_freeze", "F9", 2, |dice| Fault::NatsFreeze {
        for_ms: dice.between(300, 4_000),
    }),
    kind("nats_wipe", "F7", 1, |dice| Fault::NatsWipe { down_ms: down(dice) }),
    kind("nats_disk_full", "F11", 1, |dice| Fault::NatsDiskFull {
        for_ms: dice.between(500, 3_000),
    }),
    kind("consumer_deleted", "F12", 1, |dice| Fault::ConsumerDeleted {
        nth: dice.below(5),
    }),
    kind("stream_deleted", "F12", 1, |dice| Fault::StreamDeleted {
        nth: dice.below(8),
    }),
    kind("postgres_restart", "F14", 1, |dice| Fault::PostgresRestart {
        down_ms: down(dice),
    }),
    // Longer than all that waits for Postgres only for a while.
    kind("postgres_away", "F14", 1, |dice| Fault::PostgresRestart {
        down_ms: dice.between(5_000, 8_000),
    }),
    kind("postgres_crash", "F14", 1, |dice| Fault::PostgresCrash {
        down_ms: down(dice),
    }),
    kind("postgres_kill", "F14", 1, |dice| Fault::PostgresKill {
        down_ms: down(dice),
    }),
    kind("backend_kill", "F14", 1, |dice| Fault::BackendKill {
        nth: dice.below(64),
    }),
    kind("sessions_terminated", "F14", 3, |dice| Fault::SessionsTerminate {
        process: Process::any(dice),
    }),
    kind("postgres_freeze", "F16", 2, |dice| Fault::PostgresFreeze {
        for_ms: dice.between(200, 3_500),
    }),
    kind("connections_taken", "F17", 1, |dice| Fault::ConnectionsTaken {
        for_ms: dice.between(300, 1_500),
    }),
    kind("statements_fail", "F18", 4, |dice| Fault::StatementsFail {
        sqlstate: SQLSTATES[dice.below(SQLSTATES.len())],
        count: dice.between(1, 6),
    }),
    kind("commit_lost", "F19", 8, |dice| Fault::CommitLost {
        process: Process::any(dice),
        count: dice.between(1, 3),
    }),
    kind("network_cut", "F8", 4, |dice| network(dice, |_| NetworkHarm::Cut)),
    kind("network_cut_answer", "F8", 3, |dice| {
        network(dice, |dice| NetworkHarm::CutAnswer {
            after_bytes: dice.between(1, 6_000),
        })
    }),
    kind("network_stall", "F8-F9, F16", 4, |dice| {
        network(dice, |dice| NetworkHarm::Stall {
            for_ms: dice.between(200, 4_000),
        })
    }),
    kind("network_refuse", "F8, F21", 2, |dice| {
        network(dice, |dice| NetworkHarm::Refuse {
            for_ms: dice.between(200, 2_000),
        })
    }),
    kind("network_slow", "F16", 3, |dice| {
        network(dice, |dice| NetworkHarm::Slow {
            by_ms: dice.between(5, 150),
            for_ms: dice.between(500, 3_000),
        })
    }),
    kind("network_narrow", "F13, F16", 2, |dice| {
        network(dice, |dice| NetworkHarm::Narrow {
            bytes_per_second: dice.between(2_000, 40_000),
            for_ms: dice.between(500, 3_000),
        })
    }),
    kind("network_half_close", "F8-F9", 2, |dice| {
        network(dice, |_| NetworkHarm::HalfClose)
    }),
    kind("clients_gone", "F20", 4, |dice| Fault::ClientsGone {
        count: 20,
        choice: dice.next(),
    }),
    kind("provider_status", "F21", 6, |dice| provider(dice, provider_status)),
    // As many as come in its time: a breaker lets few of them through.
    kind("provider_quota", "F21", 1, |_| Fault::Provider {
        failure: ProviderFailure::Quota,
        count: QUOTA_CALLS,
    }),
    kind("provider_silent", "F22", 3, |dice| {
        provider(dice, |dice| {
            *dice.pick(&[
                ProviderFailure::Silent,
                ProviderFailure::SilentInStream,
                ProviderFailure::NeverCloses,
            ])
        })
    }),
    kind("provider_stream", "F23", 5, |dice| {
        provider(dice, |dice| {
            *dice.pick(&[
                ProviderFailure::CutStream,
                ProviderFailure::CutEvent,
                ProviderFailure::Strange,
                ProviderFailure::Disordered,
            ])
        })
    }),
    kind("provider_malformed", "F24", 4, |dice| {
        provider(dice, |dice| {
            *dice.pick(&[
                ProviderFailure::MalformedJson,
                ProviderFailure::DeepJson,
                ProviderFailure::WrongTypes,
                ProviderFailure::FailedResponse,
                ProviderFailure::Drip,
                ProviderFailure::Huge,
            ])
        })
    }),
    kind("provider_tools", "F25", 3, |dice| {
        provider(dice, |dice| {
            *dice.pick(&[
                ProviderFailure::UnknownTool,
                ProviderFailure::BadArguments,
                ProviderFailure::ForeignTask,
                ProviderFailure::ManyCalls,
                ProviderFailure::EndlessCalls,
            ])
        })
    }),
    kind("repeat", "F26", 6, |dice| Fault::Repeat {
        count: dice.below(20) + 1,
        choice: dice.next(),
    }),
    kind("conflict", "F26", 2, |dice| Fault::Conflict { choice: dice.next() }),
    kind("replay", "F26-F27", 5, |dice| Fault::Replay {
        count: dice.below(30) + 1,
        choice: dice.next(),
    }),
    kind("old_generation", "F28", 3, |dice| Fault::OldGeneration {
        count: dice.below(6) + 1,
        choice: dice.next(),
    }),
    kind("burst", "F13", 2, |dice| Fault::Burst {
        count: dice.below(9) + 8,
        choice: dice.next(),
    }),
    kind("key_reused", "I17", 2, |dice| Fault::KeyReused { choice: dice.next() }),
    kind("poison", "F29", 4, |dice| Fault::Poison { nth: dice.below(64) }),
    kind("oversize", "F30", 2, |dice| Fault::Oversize {
        what: *dice.pick(&[Oversized::Message, Oversized::Body, Oversized::Headers]),
    }),
];

/// A crash point that the process can reach.
fn crash_point(dice: &mut Dice) -> (Process, &'static str) {
    let point = *dice.pick(runtime::crash::CRASH_POINTS);
    let owner = point
        .split('.')
        .next()
        .expect("a text has a first part")
        .replace('_', "-");
    let process = match ROLES.iter().find(|role| role.service() == owner) {
        Some(role) => Process::of(*role, dice),
        // Of the outbox, which every service has.
        None => Process::any(dice),
    };
    (process, point)
}

fn network(dice: &mut Dice, harm: fn(&mut Dice) -> NetworkHarm) -> Fault {
    let link = *dice.pick(&[Link::Nats, Link::Nats, Link::Postgres, Link::Postgres, Link::Provider]);
    let process = match link {
        Link::Nats | Link::Postgres => Process::any(dice),
        Link::Provider => Process::of(Role::Delivery, dice),
    };
    let harm = harm(dice);
    Fault::Network { process, link, harm }
}

fn provider(dice: &mut Dice, failure: fn(&mut Dice) -> ProviderFailure) -> Fault {
    Fault::Provider {
        failure: failure(dice),
        count: dice.below(6) + 1,
    }
}

fn provider_status(dice: &mut Dice) -> ProviderFailure {
    let status = *dice.pick(&[400, 401, 403, 404, 408, 429, 429, 429, 500, 502, 503, 503, 504, 529]);
    let retry_after = match status {
        429 | 503 => *dice.pick(&[
            None,
            Some("0"),
            Some("1"),
            Some("Fri, 31 Dec 1999 23:59:59 GMT"),
            Some("soon"),
        ]),
        _ => None,
    };
    ProviderFailure::Status { status, retry_after }
}

/// Draws are repeated until they contain the requested words, so often at most.
const DRAWS_MAX: usize = 10_000;

/// A requested kind: `kill`, or `kill:delivery+down_ms` with words that its line in the schedule must contain.
pub(super) fn parts(wanted: &str) -> (&str, Vec<&str>) {
    let (name, words) = wanted.split_once(':').unwrap_or((wanted, ""));
    (name, words.split('+').filter(|word| !word.is_empty()).collect())
}

fn choose(kind: &Kind, only: &[String], dice: &mut Dice) -> Fault {
    let words: Vec<Vec<&str>> = only
        .iter()
        .map(|wanted| parts(wanted))
        .filter_map(|(name, words)| (name == kind.name).then_some(words))
        .collect();
    let fits = |fault: &Fault| {
        let line = format!("{fault:?}");
        words.is_empty() || words.iter().any(|all| all.iter().all(|word| line.contains(word)))
    };
    let mut fault = (kind.choose)(dice);
    for _ in 0..DRAWS_MAX {
        if fits(&fault) {
            break;
        }
        fault = (kind.choose)(dice);
    }
    fault
}

pub(super) fn plan(seed: u64, count: usize, only: &[String]) -> Vec<PlannedFault> {
    let mut dice = Dice::new(seed, "faults");
    let chosen: Vec<&Kind> = KINDS
        .iter()
        .filter(|kind| only.is_empty() || only.iter().any(|wanted| parts(wanted).0 == kind.name))
        .collect();
    let mut at_ms = BEFOREHAND_MS;
    (0..count)
        .map(|number| {
            let kind = *dice.weighted(&chosen, |kind| kind.weight);
            let planned = PlannedFault {
                number,
                at_ms,
                kind: kind.name,
                fault: choose(kind, only, &mut dice),
            };
            at_ms += dice.between(GAP_MS.0, GAP_MS.1);
            planned
        })
        .collect()
}
