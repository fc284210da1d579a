//! Measures how much one account's long queue slows another account. The other account sends a notification from time to time, and
//! the time to the end of its turn is measured in three phases: alone, while the first account's notifications arrive, and while
//! they are processed. Also measures each process's memory.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::json;
use sqlx::Row;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::{
    arguments::FairArguments,
    plan::{AGENTS, account_id},
    provider::Pace,
    records::Answer,
    recovery::{bench::Bench, measured::Measured},
};

/// A fast provider: a slower one would only make the machine less busy.
const PACE: Pace = Pace {
    think_ms: (20, 40),
    think_long_ms: (20, 40),
};
const FLOOD: usize = 0;
const OTHER: usize = 1;
/// Published messages without an acknowledgement.
const AT_ONCE: usize = 250;
/// The other account's notifications, each in its own session.
const OTHER_TASKS: usize = 5;
const OTHER_PAUSE: Duration = Duration::from_millis(100);
/// Interval of counting all rows, which costs the database.
const COUNT_PAUSE: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(900);

#[expect(clippy::print_stdout, reason = "the figures are what the program is for")]
pub(crate) async fn run(arguments: &FairArguments) -> anyhow::Result<ExitCode> {
    let directory = TempDir::with_prefix("signalbox-fair-")?;
    let measured = Box::pin(measure(arguments, directory.path())).await?;
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

async fn measure(arguments: &FairArguments, directory: &Path) -> anyhow::Result<Measured> {
    let bench = Bench::open(directory, PACE, arguments.seed).await?;
    let mut measured = Measured::default();
    measured.note_load("before");
    // A warm-up: first requests are slower.
    other(&bench, "warm", OTHER_TASKS).await?;
    for (name, ms) in other(&bench, "alone", arguments.turns).await? {
        measured.add(format!("alone: {name}"), ms);
    }
    let before = memory(&bench).await;

    let over = AtomicBool::new(false);
    let flooding = async {
        let begun = Instant::now();
        let flooded = flood(&bench, arguments).await;
        // Ends the other account's polling in any case.
        over.store(true, Ordering::Relaxed);
        anyhow::Ok((flooded?, begun.elapsed()))
    };
    let meanwhile = async {
        let mut taken = Vec::new();
        while !over.load(Ordering::Relaxed) {
            taken.extend(other(&bench, &format!("coming-{}", taken.len()), 1).await?);
        }
        anyhow::Ok(taken)
    };
    let ((published, written), meanwhile) = tokio::try_join!(flooding, meanwhile)?;
    for (_, ms) in meanwhile {
        measured.add("flood comes in: a reply", ms);
    }
    measured.note(format!(
        "the flood was published within {} s, and written down within {} s",
        published.as_secs(),
        written.as_secs()
    ));
    let waiting = bench.count(WAITING).await?;
    let (begun, turns) = (Instant::now(), bench.count(TURNS).await?);
    for (name, ms) in other(&bench, "beside", arguments.turns).await? {
        measured.add(format!("flood waits: {name}"), ms);
    }
    let turns = bench.count(TURNS).await? - turns;
    measured.note(format!(
        "of {}, {waiting} waited at the beginning and {} at the end; {:.0} turns of the flood a second meanwhile",
        arguments.waiting,
        bench.count(WAITING).await?,
        turns as f64 / begun.elapsed().as_secs_f64()
    ));
    for (process, (was, highest)) in memory(&bench).await.into_iter().map(|(process, (_, now_highest))| {
        let was = before.get(&process).map_or(0, |(now, _)| *now);
        (process, (was, now_highest))
    }) {
        measured.note(format!("{process}: {was} MiB before, {highest} MiB at most"));
    }
    measured.note_load("after");
    bench.system.stop().await?;
    Ok(measured)
}

const WRITTEN: &str = "select count(*) from notification where account_id = 'account-0'";
const WAITING: &str = "select count(*) from notification where account_id = 'account-0' and state = 'queued'";
const TURNS: &str = "select count(*) from turn where account_id = 'account-0' and state = 'finished'";

/// Publishes as fast as the broker accepts, until the resolver has stored all of them. Gives the publishing time.
async fn flood(bench: &Bench, arguments: &FairArguments) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let all: Vec<usize> = (0..arguments.waiting).collect();
    for part in all.chunks(AT_ONCE) {
        let publishing = part.iter().map(|number| {
            let task = format!("F-{}", number % arguments.sessions);
            publish(bench, FLOOD, task, format!("f-{number}"), "reply")
        });
        futures::future::try_join_all(publishing).await?;
    }
    let published = begun.elapsed();
    let total = i64::try_from(arguments.waiting).context("a number of notifications")?;
    while bench.count(WRITTEN).await? < total {
        if begun.elapsed() > LIMIT {
            bail!("the flood was not written down within {LIMIT:?}");
        }
        sleep(COUNT_PAUSE).await;
    }
    Ok(published)
}

async fn publish(bench: &Bench, account: usize, task: String, id: String, work: &str) -> anyhow::Result<()> {
    let payload = json!({"id": id, "agent": AGENTS[0], "body": format!("work={work} effect={id};")});
    let subject = format!("signalbox.notification.{}.{task}", account_id(account));
    loop {
        match bench
            .clients
            .publish(subject.clone(), Bytes::from(payload.to_string()))
            .await
        {
            Answer::Accepted => return Ok(()),
            Answer::Unknown { .. } => sleep(OTHER_PAUSE).await,
            refused @ Answer::Refused { .. } => bail!("a notification was not taken: {refused:?}"),
        }
    }
}

/// Notifications of the other account, one after the other, with or without a tool call. Gives the time of each.
async fn other(bench: &Bench, name: &str, count: usize) -> anyhow::Result<Vec<(&'static str, i64)>> {
    const ENDED: &str = "select t.finished_at from notification n
        join turn t on t.account_id = n.account_id and t.id = n.turn_id
        where n.account_id = $1 and n.id = $2 and n.state = 'delivered'";
    let mut taken = Vec::new();
    for number in 0..count {
        let (id, task) = (format!("{name}-{number}"), format!("O-{}", number % OTHER_TASKS));
        let (work, label) = [("reply", "a reply"), ("message", "with a tool call")][number % 2];
        let sent = OffsetDateTime::now_utc();
        publish(bench, OTHER, task, id.clone(), work).await?;
        let deadline = Instant::now() + LIMIT;
        let ended: OffsetDateTime = loop {
            let row = sqlx::query(ENDED).bind(account_id(OTHER)).bind(&id);
            if let Some(row) = row.fetch_optional(&bench.system.observer).await? {
                break row.get(0);
            }
            if Instant::now() > deadline {
                bail!("{id} had no turn within {LIMIT:?}");
            }
            sleep(Duration::from_millis(10)).await;
        };
        taken.push((
            label,
            i64::try_from((ended - sent).whole_milliseconds()).unwrap_or(i64::MAX),
        ));
        sleep(OTHER_PAUSE).await;
    }
    Ok(taken)
}

/// Process → MiB now, and its maximum.
async fn memory(bench: &Bench) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    for service in &bench.system.services {
        let Some(pid) = service.life().await.pid() else {
            continue;
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mib = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.map_or(0, |kib| kib / 1024)
        };
        all.insert(service.process.name(), (mib("VmRSS"), mib("VmHWM")));
    }
    all
}
