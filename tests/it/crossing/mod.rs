//! Tenant-crossing attempts, generated from a seed: one account's keys, sessions, notifications and models reach for another
//! account's things, by every route, tool, subject, id, cursor and key. No attempt succeeds, each gets the same answer as the same
//! attempt at a missing thing, none changes a row of the other account, and no answer holds its data. `CROSSING_ATTEMPTS` and
//! `CROSSING_SEED` change number and seed.
#![allow(clippy::print_stdout, reason = "the figures are for whoever asks to see them")]

pub(crate) mod attempt;
mod client;
pub(crate) mod field;
pub(crate) mod generator;
mod inside;
mod judge;
mod models;
mod names;
mod notifications;
mod own_tools;
mod persons;
pub(crate) mod routes;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use testkit::{Reply, Seen, StubProvider, Tenant, World, eventually};

use self::{
    attempt::{Attempt, Door},
    field::Field,
    generator::{Generator, Ids},
    judge::Marks,
    routes::{AGENT_ROUTES, ROUTES},
};
use crate::house::House;

/// On every change, and nightly.
const ATTEMPTS: [usize; 2] = [5_000, 20_000];
const SEED: u64 = 20_261_120;
pub(crate) const VICTIM: &str = "alder";
pub(crate) const ATTACKER: &str = "birch";

/// Longer intervals for sweeps, on which no attempt depends.
const CALM: &[(&str, &str)] = &[
    ("delivery.sweep_interval_ms", "2000"),
    ("orchestrator.liveness_interval_ms", "600000"),
    ("outbox.sweep_interval_ms", "2000"),
    ("replica.lease_ms", "20000"),
    ("replica.renew_ms", "4000"),
    // Rate limits would answer 429 and hide the result.
    ("http.address_requests_per_second", "100000"),
    ("http.account_requests_per_second", "100000"),
    ("http.account_requests_burst", "100000"),
];

/// A world whose services have looked for work that does not move on, as they do at their start: what that look finds of an account is a
/// change that no attempt made, and on a slow machine it came after the account was furnished.
async fn calm(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> House {
    let provider = StubProvider::start(script).await;
    let mut world = World::start().await;
    world.provider(&provider);
    for (setting, value) in CALM {
        world.set(setting, value);
    }
    Tenant::furnish(&world.database.owner, "looked-at").await;
    let house = House::open_in(world, provider).await;
    eventually("the first look is over", || async {
        let open = "select id::text from recovery where account_id = 'looked-at' and ended_at is null";
        house.world.database.texts(open).await.is_empty().then_some(())
    })
    .await;
    house
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Both accounts' ids by kind, and cursors.
pub(crate) async fn ids(house: &House, field: &Field, tenant: &Tenant) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut ids = tenant.ids(&house.world.database.owner).await;
    ids.insert("cursor", field.cursors(tenant).await.into_iter().collect());
    ids
}

fn marks(
    victim: &BTreeMap<&'static str, BTreeSet<String>>,
    attacker: &BTreeMap<&'static str, BTreeSet<String>>,
) -> Marks {
    let ids: Ids = victim
        .iter()
        .map(|(kind, ids)| (*kind, ids.difference(&attacker[kind]).cloned().collect()))
        .collect();
    Marks::of(VICTIM, &ids)
}

/// All attempts, the same for every part.
fn attempts(seed: u64, wanted: usize, generator: &mut Generator<'_>) -> Vec<Attempt> {
    let (mut attempts, mut seen) = (Vec::with_capacity(wanted), HashSet::new());
    for _ in 0..wanted * 20 {
        if attempts.len() == wanted {
            break;
        }
        let attempt = generator.attempt();
        if seen.insert(attempt.request.clone()) {
            attempts.push(attempt);
        }
    }
    assert_eq!(attempts.len(), wanted, "there are as many different ones");
    let rows: BTreeSet<&str> = attempts.iter().map(|attempt| attempt.row.as_str()).collect();
    assert_eq!(rows.len(), ROUTES.len() + AGENT_ROUTES.len(), "seed {seed}: all rows");
    attempts
}

/// The generator's rows are divided into several tests: on two cores, together they take no longer, and each one is short.
const PARTS: usize = 4;

/// The arguments of a tool call stand in the attacker's own turns afterwards, with foreign names. So the tools' routes are a
/// separate part, in which turns are not read.
fn part_of(attempt: &Attempt) -> usize {
    match attempt.request.door {
        Door::Agent => PARTS - 1,
        Door::Api => attempt.place % (PARTS - 1),
    }
}

async fn attempt_part(part: usize) {
    let house = calm(|_| Reply::text("ok")).await;
    let owner = house.world.database.owner.clone();
    let victim = Tenant::furnish(&owner, VICTIM).await;
    let attacker = Tenant::furnish(&owner, ATTACKER).await;
    let field = Field::of(&house);
    let (own, theirs) = (ids(&house, &field, &attacker).await, ids(&house, &field, &victim).await);
    let marks = Arc::new(marks(&theirs, &own));
    let seed = number("CROSSING_SEED", SEED);
    let wanted = usize::try_from(number(
        "CROSSING_ATTEMPTS",
        ATTEMPTS[usize::from(crate::is_nightly())] as u64,
    ))
    .unwrap();
    let mut generator = Generator::new(seed, (&attacker, &own), (&victim, &theirs));
    let mut rows: BTreeMap<String, usize> = BTreeMap::new();
    let attempts: Vec<Attempt> = attempts(seed, wanted, &mut generator)
        .into_iter()
        .filter(|attempt| part_of(attempt) == part)
        .collect();
    for attempt in &attempts {
        *rows.entry(attempt.row.clone()).or_default() += 1;
    }
    let made = attempts.len();
    println!("seed {seed}, {made} of {wanted} attempts, by row: {rows:?}");

    let before = victim.snapshot(&owner).await;
    let begun = std::time::Instant::now();
    let faults = field.attempt_all(attempts, &marks).await;
    println!("{made} attempts and their twins in {:.1?}", begun.elapsed());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(
        victim.snapshot(&owner).await,
        before,
        "a row of the victim's has changed"
    );
    assert!(!marks.secret_in(&field.everything(&attacker).await));
    house.close().await;
}

macro_rules! parts {
    ($($name:ident = $part:literal)*) => {
        const _: () = assert!([$($part),*].len() == PARTS);
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                attempt_part($part).await;
            }
        )*
    };
}
parts! {
    no_attempt_crosses_and_none_can_be_told_from_not_there_1 = 0
    no_attempt_crosses_and_none_can_be_told_from_not_there_2 = 1
    no_attempt_crosses_and_none_can_be_told_from_not_there_3 = 2
    no_attempt_crosses_and_none_can_be_told_from_not_there_4 = 3
}
