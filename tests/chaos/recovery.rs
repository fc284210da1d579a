//! How long it takes until work goes on after a fault, with the settings of an installation: not those of a campaign,
//! which are short. Each trial begins with everything at rest, gives every session something to do at the moment of the
//! fault, and sees when each session's next turn has ended. Nothing else happens meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use sqlx::Row;
use storage::Role;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    arguments::RecoveryArguments,
    clients::Clients,
    dice::Dice,
    plan::{AGENTS, Process, account_id},
    provider::{Pace, Stub},
    records::Answer,
    system::{System, signal},
};

/// All that is set; the rest are the defaults.
const SETTINGS: &str = r#"
[process]
dependencies_timeout_ms = 60000
[providers.default]
kind = "openresponses"
model = "stub"
"#;
/// Of one account: what is measured is one session's way, not how accounts share.
const TASKS: usize = 8;
const PACE: Pace = Pace {
    think_ms: (150, 300),
    think_long_ms: (150, 300),
};
const POLL: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);
/// None of them waits for a provider.
const WIPED_PACE: Pace = Pace {
    think_ms: (0, 0),
    think_long_ms: (0, 0),
};
const WIPED_LIMIT: Duration = Duration::from_secs(600);

const TRIALS: &[&str] = &[
    "kill_resolver",
    "kill_delivery",
    "kill_tool-gateway",
    "kill_orchestrator",
    "nats_restart",
    "postgres_restart",
    "nats_half_open",
    "nats_wiped",
];

/// What was measured, in milliseconds.
#[derive(Default, Serialize)]
struct Measured {
    /// Name → from the fault (or from when the server accepted again) to the end of a session's next turn.
    samples: BTreeMap<String, Vec<i64>>,
    notes: Vec<String>,
}

#[expect(clippy::print_stdout, reason = "the figures are what the program is for")]
pub(crate) async fn run(arguments: &RecoveryArguments) -> anyhow::Result<ExitCode> {
    if let Some(unknown) = arguments.kinds.iter().find(|kind| !TRIALS.contains(&kind.as_str())) {
        bail!("no trial is called {unknown}; there are {}", TRIALS.join(", "));
    }
    let wanted = |name: &str| arguments.kinds.is_empty() || arguments.kinds.iter().any(|kind| kind == name);
    let mut measured = Measured::default();
    if TRIALS.iter().any(|name| *name != "nats_wiped" && wanted(name)) {
        Box::pin(short_trials(arguments, &wanted, &mut measured)).await?;
    }
    if wanted("nats_wiped") {
        for nth in 0..arguments.trials.div_ceil(10) {
            Box::pin(wiped(arguments, nth, &mut measured)).await?;
        }
    }
    if arguments.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&measured).context("figures are JSON")?
        );
    } else {
        print!("{measured}");
    }
    Ok(ExitCode::SUCCESS)
}

/// A system with one account, and where each session's last turn ended.
struct Bench {
    system: System,
    stub: Stub,
    clients: Clients,
    next: usize,
}

impl Bench {
    async fn open(directory: &Path, pace: Pace, seed: u64) -> anyhow::Result<Bench> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711))?;
        let stub = Stub::start(seed, pace, BTreeMap::new(), BTreeMap::new()).await?;
        let system = System::prepare(directory, stub.address, SETTINGS).await?;
        system.start().await?;
        let clients = Clients::furnish(&system, seed).await?;
        Ok(Bench {
            system,
            stub,
            clients,
            next: 0,
        })
    }

    /// One to every session, as fast as the broker takes them; tried until it does.
    async fn wake_all(&mut self, work: &str) -> anyhow::Result<()> {
        let mut publishing = Vec::new();
        for task in 0..TASKS {
            for agent in AGENTS {
                self.next += 1;
                let payload = json!({"id": format!("r-{}", self.next), "agent": agent,
                    "body": format!("work={work} effect=r{};", self.next)});
                publishing.push((format!("signalbox.notification.{}.R-{task}", account_id(0)), payload));
            }
        }
        let clients = &self.clients;
        let all = publishing.into_iter().map(|(subject, payload)| async move {
            loop {
                let answer = clients.publish(subject.clone(), Bytes::from(payload.to_string())).await;
                if answer == Answer::Accepted {
                    return;
                }
                sleep(POLL).await;
            }
        });
        futures::future::join_all(all).await;
        Ok(())
    }

    /// Nothing of the trial before is left: every session has had a turn since.
    async fn settle(&mut self) -> anyhow::Result<()> {
        for service in &self.system.services {
            self.system.ready(service).await?;
        }
        self.wake_all("reply").await?;
        self.at_rest().await
    }

    async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        Ok(sqlx::query(sql).fetch_one(&self.system.observer).await?.get(0))
    }

    /// Until this is so, by the database.
    async fn until(&self, what: &str, sql: &'static str, count: i64, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.count(sql).await;
            if found.as_ref().is_ok_and(|found| *found == count) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("did not happen within {limit:?}: {what}; found {found:?} of {count}");
            }
            sleep(POLL * 5).await;
        }
    }

    async fn at_rest(&self) -> anyhow::Result<()> {
        const BUSY: &str = "select (select count(*) from notification where state in ('queued', 'running'))
            + (select count(*) from session where phase <> 'idle' or queued > 0) + (select count(*) from outbox)";
        let expected = i64::try_from(self.next).context("a number of notifications")?;
        self.until(
            "all were written down",
            "select count(*) from notification",
            expected,
            LIMIT,
        )
        .await?;
        self.until("everything is at rest", BUSY, 0, LIMIT).await
    }

    /// Session key → how long after the moment its next turn ended.
    async fn next_turns(&self, since: OffsetDateTime) -> anyhow::Result<BTreeMap<String, i64>> {
        const ENDED: &str = "select s.key, min(t.finished_at) from turn t
            join session s on s.account_id = t.account_id and s.id = t.session_id
            where t.state = 'finished' and t.finished_at > $1 group by 1";
        let rows = sqlx::query(ENDED).bind(since).fetch_all(&self.system.observer).await?;
        let after = |row: &sqlx::postgres::PgRow| {
            let ended: OffsetDateTime = row.get(1);
            i64::try_from((ended - since).whole_milliseconds()).unwrap_or(i64::MAX)
        };
        Ok(rows.iter().map(|row| (row.get(0), after(row))).collect())
    }
}

impl Measured {
    fn add(&mut self, name: impl Into<String>, value_ms: i64) {
        self.samples.entry(name.into()).or_default().push(value_ms);
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<34} {:>6} {:>8} {:>8} {:>8}", "ms", "n", "p50", "p99", "max")?;
        for (name, samples) in &self.samples {
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)];
            writeln!(
                f,
                "{name:<34} {:>6} {:>8} {:>8} {:>8}",
                sorted.len(),
                at(50),
                at(99),
                at(100)
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[expect(clippy::print_stderr, reason = "how far it is, for whoever watches")]
async fn short_trials(
    arguments: &RecoveryArguments,
    wanted: &impl Fn(&str) -> bool,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("signalbox-recovery-")?;
    let mut bench = Bench::open(directory.path(), PACE, arguments.seed).await?;
    let mut dice = Dice::new(arguments.seed, "recovery");
    bench.wake_all("message").await?;
    bench.at_rest().await?;
    for round in 1..=arguments.trials {
        for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
            if wanted(&format!("kill_{}", role.service())) {
                killed(&mut bench, role, &mut dice, measured).await?;
            }
        }
        if wanted("nats_restart") {
            bench.settle().await?;
            bench.wake_all("message").await?;
            let accepts = {
                let mut nats = bench.system.nats.lock().await;
                nats.kill().await?;
                nats.restart().await?;
                OffsetDateTime::now_utc()
            };
            bench.wake_all("reply").await?;
            bench.at_rest().await?;
            let turns = bench.next_turns(accepts).await?;
            turns
                .values()
                .for_each(|ms| measured.add("nats_restart: next turn", *ms));
        }
        if wanted("postgres_restart") {
            bench.settle().await?;
            bench.wake_all("message").await?;
            let accepts = {
                let mut postgres = bench.system.postgres.lock().await;
                postgres.crash().await?;
                postgres.restart().await?;
                OffsetDateTime::now_utc()
            };
            bench.wake_all("reply").await?;
            bench.at_rest().await?;
            let turns = bench.next_turns(accepts).await?;
            turns
                .values()
                .for_each(|ms| measured.add("postgres_restart: next turn", *ms));
        }
        if wanted("nats_half_open") {
            half_open(&mut bench, measured).await?;
        }
        // An interrupted run has shown something, too.
        eprintln!("after round {round} of {}\n{measured}", arguments.trials);
    }
    bench.system.stop().await
}

/// Kills one of two while every session has work, and starts it again at once, as a supervisor does.
async fn killed(bench: &mut Bench, role: Role, dice: &mut Dice, measured: &mut Measured) -> anyhow::Result<()> {
    bench.settle().await?;
    let both: Vec<Process> = Process::all().filter(|process| process.role() == role).collect();
    let process = *dice.pick(&both);
    let work = if role == Role::ToolGateway { "message" } else { "reply" };
    bench.wake_all(work).await?;
    // Somewhere in the middle of it.
    sleep(Duration::from_millis(dice.between(50, 400))).await;
    let owners = partition_fences(bench).await?;
    let calling = bench.stub.in_flight_of(&process.name());
    let holder = holder_of(bench, &calling).await?;
    let service = bench.system.service(process);
    let killed_at = {
        let mut life = service.life().await;
        life.kill().await?;
        let killed_at = OffsetDateTime::now_utc();
        service.start(&mut life)?;
        killed_at
    };
    // What the dead one held is nobody else's yet.
    let mut affected = match role {
        Role::Delivery => held_by(bench, holder).await?,
        Role::ToolGateway => keys(bench, "select key from session where phase = 'waiting'").await?,
        Role::Resolver | Role::Orchestrator | Role::Owner => BTreeSet::new(),
    };
    bench.wake_all("reply").await?;
    bench.at_rest().await?;
    if role == Role::Resolver {
        // Partitions that someone else reads now were the dead one's, or were given up for an even share.
        let moved = moved(&owners, &partition_fences(bench).await?);
        affected = of_partitions(bench, &moved).await?;
    }
    for (key, ms) in bench.next_turns(killed_at).await? {
        let which = if affected.contains(&key) { "affected" } else { "others" };
        measured.add(format!("kill_{}: {which}", role.service()), ms);
    }
    bench.system.ready(bench.system.service(process)).await
}

/// In whose name a process holds its leases, by sessions that it is known to hold.
async fn holder_of(bench: &Bench, keys: &[String]) -> anyhow::Result<Option<Uuid>> {
    const OWNER: &str = "select lease_owner from session where key = any($1) and lease_owner is not null limit 1";
    let row = sqlx::query(OWNER)
        .bind(keys)
        .fetch_optional(&bench.system.observer)
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// Session keys.
async fn held_by(bench: &Bench, holder: Option<Uuid>) -> anyhow::Result<BTreeSet<String>> {
    const HELD: &str = "select key from session where lease_owner = $1";
    let rows = sqlx::query(HELD).bind(holder).fetch_all(&bench.system.observer).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn keys(bench: &Bench, sql: &'static str) -> anyhow::Result<BTreeSet<String>> {
    let rows = sqlx::query(sql).fetch_all(&bench.system.observer).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn partition_fences(bench: &Bench) -> anyhow::Result<BTreeMap<i32, i64>> {
    let rows = sqlx::query("select partition, fence from resolver_partition")
        .fetch_all(&bench.system.observer)
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn moved(before: &BTreeMap<i32, i64>, after: &BTreeMap<i32, i64>) -> BTreeSet<i32> {
    let changed = after
        .iter()
        .filter(|(partition, fence)| before.get(partition) != Some(fence));
    changed.map(|(partition, _)| *partition).collect()
}

/// Keys of the sessions whose tasks are read in these partitions: the stream knows.
async fn of_partitions(bench: &Bench, partitions: &BTreeSet<i32>) -> anyhow::Result<BTreeSet<String>> {
    let client = crate::clients::publisher(&bench.system.nats_url).await?;
    let root = contracts::Root::default();
    let jetstream = async_nats::jetstream::new(client);
    let stream = jetstream
        .get_stream(messaging::Stream::Notification.name(&root))
        .await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        for partition in partitions {
            let subject = format!("{root}.partition.{partition}.{}.R-{task}", account_id(0));
            if stream.get_last_raw_message_by_subject(&subject).await.is_ok() {
                tasks.push(format!("task:r-{task}:"));
            }
        }
    }
    let all = keys(bench, "select key from session").await?;
    Ok(all
        .into_iter()
        .filter(|key| tasks.iter().any(|task| key.starts_with(task)))
        .collect())
}

/// The server says nothing any more, and its connections stay open.
async fn half_open(bench: &mut Bench, measured: &mut Measured) -> anyhow::Result<()> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(3))
        .build()?;
    let nats = bench.system.nats.lock().await;
    let pid = nats.pid().context("nats-server runs")?;
    signal(&[pid], "STOP").await?;
    let begun = Instant::now();
    let mut unaware: Vec<_> = bench.system.services.iter().collect();
    while !unaware.is_empty() && begun.elapsed() < LIMIT {
        let mut left = Vec::new();
        for service in unaware {
            let answer = client.get(format!("{}/readyz", service.url())).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                left.push(service);
            } else {
                let ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
                measured.add("nats_half_open: noticed", ms);
            }
        }
        unaware = left;
        sleep(POLL).await;
    }
    signal(&[pid], "CONT").await?;
    drop(nats);
    for service in &bench.system.services {
        bench.system.ready(service).await?;
    }
    Ok(())
}

/// The broker's store goes while so many notifications wait, each in a session of its own: none of their wake-ups is
/// left, and all are delivered.
async fn wiped(arguments: &RecoveryArguments, nth: usize, measured: &mut Measured) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("signalbox-recovery-")?;
    let bench = Bench::open(directory.path(), WIPED_PACE, arguments.seed + nth as u64).await?;
    let system = &bench.system;
    for service in system.of_role(Role::Delivery) {
        service.life().await.kill().await?;
    }
    let subject = |number: usize| format!("signalbox.notification.{}.W-{number}", account_id(0));
    for part in (0..arguments.in_flight).collect::<Vec<_>>().chunks(200) {
        let clients = &bench.clients;
        let publishing = part.iter().map(|number| async move {
            let payload = json!({"id": format!("w-{number}"), "agent": AGENTS[0], "body": "work=reply effect=w;"});
            clients
                .publish(subject(*number), Bytes::from(payload.to_string()))
                .await
        });
        if let Some(answer) = futures::future::join_all(publishing)
            .await
            .iter()
            .find(|one| **one != Answer::Accepted)
        {
            bail!("a notification was not taken: {answer:?}");
        }
    }
    let total = i64::try_from(arguments.in_flight).context("a number of notifications")?;
    const WAITING: &str = "select count(*) from notification where state = 'queued'";
    bench.until("all wait", WAITING, total, WIPED_LIMIT).await?;
    for service in system.of_role(Role::Delivery) {
        service.start(&mut *service.life().await)?;
    }
    // Some are under way when it happens.
    bench
        .until_more_than("turns begin", "select count(*) from turn", 50)
        .await?;
    let left = bench
        .count("select count(*) from notification where state <> 'delivered'")
        .await?;
    let accepts = {
        let mut nats = system.nats.lock().await;
        nats.wipe_store().await?;
        nats.restart().await?;
        OffsetDateTime::now_utc()
    };
    const DELIVERED: &str = "select count(*) from notification where state = 'delivered'";
    bench.until("all are delivered", DELIVERED, total, WIPED_LIMIT).await?;
    const FIRST: &str = "select min(started_at) from turn where started_at > $1";
    const LAST: &str = "select max(finished_at) from turn";
    let first: OffsetDateTime = sqlx::query(FIRST)
        .bind(accepts)
        .fetch_one(&system.observer)
        .await?
        .get(0);
    let last: OffsetDateTime = sqlx::query(LAST).fetch_one(&system.observer).await?.get(0);
    let ms = |moment: OffsetDateTime| i64::try_from((moment - accepts).whole_milliseconds()).unwrap_or(i64::MAX);
    measured.add("nats_wiped: first turn", ms(first));
    measured.add("nats_wiped: all delivered", ms(last));
    let turns = bench.count("select count(*) from turn").await?;
    measured.notes.push(format!(
        "nats_wiped: {total} in flight, {left} of them not delivered when the store went; delivered {total} in {turns} turns, \
         lost 0"
    ));
    system.stop().await
}

impl Bench {
    async fn until_more_than(&self, what: &str, sql: &'static str, count: i64) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.count(sql).await? <= count {
            if Instant::now() > deadline {
                bail!("did not happen within {LIMIT:?}: {what}");
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}
