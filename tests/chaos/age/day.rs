//! One simulated day, an hour at a time, while the other account works.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use orchestrator::{app::App, forget::forget_once, settings::OrchestratorSettings};
use reqwest::Method;
use resolver::sweeps::{closed_sessions_remove, refused_notifications_remove};
use runtime::{Shutdown, settings::Hours};
use serde_json::{Value, json};
use storage::{
    Database, DatabaseOptions, Role,
    directory::{NeglectedRound, WaitingRound, account_directory},
};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{plant::OPEN, posted::posted_and_closed};
use crate::{
    arguments::AgeArguments,
    plan::{AGENTS, account_id},
    records::Answer,
    recovery::{bench::Bench, measured::Measured},
    system::OPERATOR_TOKEN,
};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const OTHER: usize = 1;
/// Interval of the other account's requests.
const PACE: Duration = Duration::from_millis(100);
/// Interval of polling.
const LOOK_EVERY: Duration = Duration::from_millis(10);
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// Pages read of each list.
const PAGES: usize = 5;

const LISTS: [&str; 6] = [
    "/tasks?limit=50",
    "/sessions?limit=50",
    "/notifications?limit=50",
    "/dead-letters?limit=50",
    "/tasks/OLD-1/messages?limit=50",
    "/tasks/OLD-1/activities?limit=50",
];

/// Expired rows that still exist after the day.
const LEFT: [(&str, &str); 6] = [
    (
        "closed sessions",
        "select count(*) from session where closed_at < now() - interval '30 days' - interval '5 minutes' and emptied_at is null",
    ),
    (
        "what hangs on emptied sessions",
        "select count(*) from notification n join session s on s.account_id = n.account_id and s.id = n.session_id
         where s.emptied_at is not null",
    ),
    (
        "refused notifications",
        "select count(*) from notification where state = 'refused' and created_at < now() - interval '30 days 5 minutes'",
    ),
    (
        "accepted notifications",
        "select count(*) from accepted_notification where created_at < now() - interval '7 days 5 minutes'",
    ),
    (
        "mail",
        "select count(*) from mail where settled_at < now() - interval '365 days 5 minutes' and to_session is not null",
    ),
    (
        "answers",
        "select count(*) from idempotency where created_at < now() - interval '24 hours 5 minutes'",
    ),
];

/// Gives the violations.
pub(super) async fn go_by(
    bench: &Bench,
    arguments: &AgeArguments,
    measured: &mut Measured,
) -> anyhow::Result<Vec<String>> {
    let limit_ms = i64::try_from(arguments.limit_ms).context("a limit in milliseconds")?;
    let mut broken = Vec::new();
    for (name, ms) in other(bench, "alone", &AtomicBool::new(false), Some(20)).await? {
        measured.add(format!("other account, alone: {name}"), ms);
    }
    let over = AtomicBool::new(false);
    let day = async {
        let mut steps = Vec::new();
        let mut gone_by = hours(bench, arguments.hours, &mut steps).await;
        let mut left = Vec::new();
        if gone_by.is_ok() {
            // Right after the last sweeps: rows become due all the time.
            gone_by = left_due(bench).await.map(|found| left = found);
        }
        if gone_by.is_ok() {
            gone_by = posted_and_closed(bench, arguments.posted, &mut steps).await;
        }
        over.store(true, Ordering::Relaxed);
        gone_by.map(|()| (steps, left))
    };
    let (day, others) = tokio::join!(day, other(bench, "beside", &over, None));
    let (steps, left) = day?;
    for (name, ms) in steps {
        // The time limit of sweeps and long queues is per statement, and is checked from the server's log.
        let of_many = ["sweep", "close a task with", "posted"];
        if ms > limit_ms && !of_many.iter().any(|many| name.starts_with(many)) {
            broken.push(format!("{name} took {ms} ms"));
        }
        measured.add(name, ms);
    }
    for (name, ms) in others? {
        if ms > limit_ms {
            broken.push(format!("the other account waited {ms} ms for {name}"));
        }
        measured.add(format!("other account, meanwhile: {name}"), ms);
    }
    for (what, left) in left {
        if left > 0 {
            broken.push(format!("{left} left that were due: {what}"));
        }
    }
    Ok(broken)
}

async fn left_due(bench: &Bench) -> anyhow::Result<Vec<(&'static str, i64)>> {
    let mut found = Vec::with_capacity(LEFT.len());
    for (what, sql) in LEFT {
        found.push((what, bench.count(sql).await?));
    }
    Ok(found)
}

async fn hours(bench: &Bench, hours: u64, steps: &mut Vec<(String, i64)>) -> anyhow::Result<()> {
    let connect = async |role| {
        let options = DatabaseOptions::default();
        Database::connect(&bench.system.database_url, role, &options).await
    };
    let (resolver, delivery) = (connect(Role::Resolver).await?, connect(Role::Delivery).await?);
    let orchestrator = connect(Role::Orchestrator).await?;
    let stop = CancellationToken::new();
    let big = account_id(0);
    let mut neglected = NeglectedRound::default();
    for hour in 1..=hours {
        // The last hour has the retention times of an installation.
        let early = u32::try_from((hours - hour) * 24 / hours).context("hours of a day")?;
        let kept = DAY * 30 + HOUR * early;

        let begun = Instant::now();
        closed_sessions_remove(&resolver, kept, 500, &stop).await?;
        note(steps, "sweep: closed sessions", begun);
        let begun = Instant::now();
        refused_notifications_remove(&resolver, kept, 5_000, &stop).await?;
        note(steps, "sweep: refused notifications", begun);
        let settings = OrchestratorSettings {
            answers_kept_hours: Hours::new(24 + u64::from(early)),
            accepted_kept_hours: Hours::new(7 * 24 + u64::from(early)),
            ..OrchestratorSettings::default()
        };
        let app = App::new(
            (orchestrator.clone(), orchestrator.clone()),
            contracts::Root::default(),
            (
                settings,
                runtime::settings::Models::default(),
                Default::default(),
                Default::default(),
            ),
            Arc::new(|_| ()),
            Shutdown::new(),
        );
        let begun = Instant::now();
        forget_once(&app, &stop).await?;
        note(steps, "sweep: kept for a time", begun);

        let begun = Instant::now();
        neglected.look(&delivery, 500).await?;
        note(steps, "look: neglected sessions", begun);
        let begun = Instant::now();
        WaitingRound::default().look(&delivery, 1_000).await?;
        note(steps, "look: what waits", begun);
        let begun = Instant::now();
        account_directory::<serde_json::Value>(&orchestrator, None, 500).await?;
        note(steps, "look: accounts", begun);

        for list in LISTS {
            lists(bench, &big, list, steps).await?;
        }
        let (task, name) = match hour {
            1 => (0, "close a task with a long queue"),
            _ => (1 + usize::try_from(hour).context("an hour")? % OPEN, "close a task"),
        };
        let begun = Instant::now();
        let done = json!({"status": "done"});
        ask(
            bench,
            Method::PATCH,
            &format!("/api/orgs/{big}/tasks/OPEN-{task}"),
            Some(done),
        )
        .await?;
        note(steps, name, begun);

        // On a task that was finished long ago, whose session comes up again in its next generation, and on a new one.
        for (task, name) in [
            (format!("OLD-{hour}"), "a turn of a reopened session"),
            (format!("NEW-{hour}"), "a turn"),
        ] {
            let ms = turn(bench, 0, &task, &format!("day-{task}")).await?;
            steps.push((name.to_owned(), ms));
        }
    }
    for database in [resolver, delivery, orchestrator] {
        database.close().await;
    }
    Ok(())
}

pub(super) fn note(steps: &mut Vec<(String, i64)>, name: &str, begun: Instant) {
    let ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
    steps.push((name.to_owned(), ms));
}

async fn lists(bench: &Bench, account: &str, list: &str, steps: &mut Vec<(String, i64)>) -> anyhow::Result<()> {
    let mut cursor = String::new();
    for _ in 0..PAGES {
        let begun = Instant::now();
        let page = ask(bench, Method::GET, &format!("/api/orgs/{account}{list}{cursor}"), None).await?;
        note(steps, &format!("list: {list}"), begun);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    Ok(())
}

pub(super) async fn ask(bench: &Bench, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    let mut request = client.request(method, url(bench, path)?).bearer_auth(OPERATOR_TOKEN);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.with_context(|| format!("could not ask {path}"))?;
    let (status, text) = (answer.status(), answer.text().await?);
    if !status.is_success() {
        bail!("{path}: {status} {text}");
    }
    serde_json::from_str(&text).with_context(|| format!("{path}: not JSON"))
}

pub(super) fn url(bench: &Bench, path: &str) -> anyhow::Result<String> {
    let orchestrator = bench.system.of_role(Role::Orchestrator).next();
    Ok(format!(
        "{}{path}",
        orchestrator.context("there is an orchestrator")?.url()
    ))
}

/// Polls until the query gives a value, within the limit.
pub(super) async fn until<T>(what: &str, look: impl AsyncFn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if begun.elapsed() > LIMIT {
            bail!("did not happen within {LIMIT:?}: {what}");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Time from a notification's publication to the end of its turn.
async fn turn(bench: &Bench, account: usize, task: &str, id: &str) -> anyhow::Result<i64> {
    const ENDED: &str = "select 1 from notification where account_id = $1 and id = $2 and state = 'delivered'";
    let account = account_id(account);
    let payload = json!({"id": id, "agent": AGENTS[0], "body": format!("work=reply effect={id};")}).to_string();
    let begun = Instant::now();
    let subject = format!("signalbox.notification.{account}.{task}");
    until(&format!("{id} of {account} is published"), async || {
        let answer = bench
            .clients
            .publish(subject.clone(), Bytes::from(payload.clone()))
            .await;
        Ok((answer == Answer::Accepted).then_some(()))
    })
    .await?;
    until(&format!("{id} of {account} has its turn"), async || {
        let row = sqlx::query(ENDED).bind(&account).bind(id);
        Ok(row.fetch_optional(&bench.system.observer).await?.map(|_| ()))
    })
    .await?;
    Ok(i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX))
}

/// One turn and one list request after the other, so many or until the day ends.
async fn other(
    bench: &Bench,
    name: &str,
    over: &AtomicBool,
    count: Option<usize>,
) -> anyhow::Result<Vec<(&'static str, i64)>> {
    let mut taken = Vec::new();
    let mut number = 0;
    let mut ticks = interval(PACE);
    while count.map_or(!over.load(Ordering::Relaxed), |count| number < count) {
        ticks.tick().await;
        let ms = turn(bench, OTHER, &format!("O-{}", number % 5), &format!("{name}-{number}")).await?;
        taken.push(("a turn", ms));
        let begun = Instant::now();
        let path = format!("/api/orgs/{}/tasks?limit=50", account_id(OTHER));
        ask(bench, Method::GET, &path, None).await?;
        let ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
        taken.push(("a list", ms));
        number += 1;
    }
    // A warm-up: first requests are slower.
    Ok(taken.into_iter().skip(2).collect())
}
