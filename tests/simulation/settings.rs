//! A seed's settings: limits small enough to be reached, the behaviour of the agents' providers, and the rate of each fault. Many
//! seeds disable most faults: some mistakes show only with a single fault.

use delivery::{
    providers::{Continuation, Effects, Thread},
    settings::DeliverySettings,
    turn::claim::ProviderFacts,
};
use domain::Rotation;
use runtime::settings::{Bytes, Count, Millis as Ms};

use super::{database::Millis, random::Random};

/// As `[replica]`: length of a lease, interval of renewals, and the holder's earlier end.
pub(crate) const LEASE: Millis = 4_000;
pub(crate) const RENEW: Millis = 1_000;
pub(crate) const MARGIN: Millis = LEASE / 8;
pub(crate) const PARTITIONS: usize = 2;
/// As `ack_wait_ms`.
pub(crate) const ACK_WAIT: Millis = 30_000;
/// The broker's window for the streams that have one.
pub(crate) const DEDUP_WINDOW: Millis = 120_000;

/// Chances in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Per step of the scheduler.
    pub(crate) crash: u32,
    pub(crate) freeze: u32,
    pub(crate) cut_off: u32,
    pub(crate) broker_down: u32,
    pub(crate) broker_wiped: u32,
    pub(crate) tail_lost: u32,
    pub(crate) duplicate: u32,
    pub(crate) lose: u32,
    pub(crate) stale: u32,
    pub(crate) time_jump: u32,
    pub(crate) close: u32,
    /// A person stops the turn of a session, or resumes a parked one; ends a question; edits a queue; pauses, or lets go on.
    pub(crate) stop: u32,
    pub(crate) resume: u32,
    pub(crate) answer: u32,
    pub(crate) edit: u32,
    pub(crate) hold: u32,
    /// A person resets a session.
    pub(crate) reset: u32,
    /// A person ends a branch.
    pub(crate) end_branch: u32,
    /// A person replays a turn.
    pub(crate) replay: u32,
    /// A person writes mail, or reads what waits for a session; makes tasks wait for others, or moves one.
    pub(crate) mail: u32,
    pub(crate) block: u32,
    /// Per transaction: it fails, or it commits and its answer is lost.
    pub(crate) transaction_failed: u32,
    pub(crate) answer_lost: u32,
    /// Per message: the broker does not store it, or its acknowledgement is lost.
    pub(crate) publish_failed: u32,
    pub(crate) ack_lost: u32,
    /// Per provider call.
    pub(crate) refused: u32,
    pub(crate) failed: u32,
    pub(crate) broken: u32,
    pub(crate) calls_tools: u32,
    /// Per tool call: it is one for mail, a child or a board.
    pub(crate) people: u32,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) delivery: DeliverySettings,
    pub(crate) continuation: Continuation,
    /// How long the providers keep a thread.
    pub(crate) keeps: Thread,
    /// Whether the record of an agent with effects of its own can be read.
    pub(crate) has_record: bool,
    pub(crate) rates: Rates,
    /// Of all accounts. An answer counts ten tokens.
    pub(crate) rotation: Rotation,
    /// Processes of each service.
    pub(crate) replicas: usize,
    /// Steps with faults; then faults end.
    pub(crate) steps: u64,
    pub(crate) offers: usize,
    /// Chances in a thousand that an offer collects, steers, or else injects.
    pub(crate) collects: u32,
    pub(crate) steers: u32,
    pub(crate) injects: u32,
    /// Chance in a thousand that an offer goes to the first agent's session of the first task.
    pub(crate) focus: u32,
}

pub(crate) const GATEWAY_ONLY: &str = "plain";
pub(crate) const OWN: &str = "own";

impl Settings {
    pub(crate) fn new(random: &mut Random) -> Settings {
        let delivery = DeliverySettings {
            attempts_max: Count::new(3),
            rounds_max: Count::new(4),
            calls_max: Count::new(6),
            retry_delay_ms: Ms::new(100),
            retry_delay_ms_max: Ms::new(1_000),
            pause_delay_ms: Ms::new(2_000),
            breaker_failures: Count::new(if random.chance(500) { 2 } else { 5 }),
            breaker_open_ms: Ms::new(500),
            breaker_open_ms_max: Ms::new(4_000),
            breaker_probe_ms_max: Ms::new(3_000),
            look_up_delay_ms: Ms::new(300),
            look_up_ms_max: Ms::new(6_000),
            tools_again_ms: Ms::new(3_000),
            tools_wait_ms_max: Ms::new(20_000),
            turns_in_flight_max: Count::new(if random.chance(500) { 2 } else { 8 }),
            turns_in_flight_account_max: Count::new(if random.chance(500) { 2 } else { 4 }),
            claim_batch_max: Count::new(3),
            settle_batch_max: Count::new(3),
            collect_debounce_ms: Ms::new(1_000),
            collect_wait_ms_max: Ms::new(4_000),
            collect_items_max: Count::new(3),
            collect_bytes_max: Bytes::new(if random.chance(800) { 1_000 } else { 2 }),
            stop_confirm_ms_max: Ms::new(1_000),
            hold_look_ms: Ms::new(3_000),
            ..DeliverySettings::default()
        };
        let (continuation, keeps) = *random.pick(&[
            (Continuation::Key, Thread::Durable),
            (Continuation::Key, Thread::Process),
            (Continuation::Whole, Thread::None),
        ]);
        Settings {
            delivery,
            continuation,
            keeps,
            has_record: random.chance(700),
            rates: Rates::new(random),
            rotation: rotation(random),
            replicas: 1 + random.below(2),
            steps: 120 + random.below(240) as u64,
            offers: 3 + random.below(8),
            collects: *random.pick(&[0, 150, 700]),
            steers: *random.pick(&[0, 150, 300]),
            injects: *random.pick(&[200, 200, 700]),
            focus: *random.pick(&[0, 0, 700]),
        }
    }

    pub(crate) fn provider(&self, provider: &str) -> ProviderFacts {
        ProviderFacts {
            effects: self.effects(provider),
            keeps: self.keeps,
            found_by: self.continuation,
        }
    }

    pub(crate) fn effects(&self, provider: &str) -> Effects {
        if provider == OWN {
            Effects::Own
        } else {
            Effects::GatewayOnly
        }
    }
}

fn rotation(random: &mut Random) -> Rotation {
    let (failures_max, tokens_max) = *random.pick(&[
        (None, None),
        (Some(3), None),
        (Some(1), None),
        (Some(2), Some(30)),
        (None, Some(10)),
    ]);
    Rotation {
        failures_max,
        tokens_max,
        ..Rotation::default()
    }
}

impl Rates {
    fn new(random: &mut Random) -> Rates {
        // Each fault is in about half of the seeds, and in some of them often.
        let mut rate = |often: u32| match random.below(4) {
            0 | 1 => 0,
            2 => often,
            _ => often * 3,
        };
        Rates {
            crash: rate(12),
            freeze: rate(8),
            cut_off: rate(8),
            broker_down: rate(5),
            broker_wiped: rate(3),
            tail_lost: rate(2),
            duplicate: rate(15),
            lose: rate(8),
            stale: rate(10),
            time_jump: rate(6),
            close: rate(12),
            transaction_failed: rate(40),
            answer_lost: rate(40),
            publish_failed: rate(40),
            ack_lost: rate(60),
            refused: rate(60),
            failed: rate(40),
            broken: rate(60),
            calls_tools: 250 + rate(150),
            stop: rate(25),
            resume: rate(15),
            answer: rate(60),
            edit: rate(10),
            hold: rate(6),
            reset: rate(8),
            end_branch: rate(40),
            replay: rate(15),
            mail: rate(30),
            block: rate(30),
            people: rate(200),
        }
    }

    /// Ends faults: agents still call tools, and no call fails.
    pub(crate) fn calm(self) -> Rates {
        Rates {
            calls_tools: self.calls_tools.min(250),
            people: self.people,
            ..Rates::default()
        }
    }
}
