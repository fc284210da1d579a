//! Waits until the system is idle: every fault is healed, and every queue becomes empty within a limit. A queue that does not is
//! stuck: a finding, described here while its rows exist. Sessions that the campaign stopped are resumed first,
//! and what agents ask is answered.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Context;
use async_nats::jetstream;
use contracts::Root;
use messaging::{Durable, Stream, topology::PARTITIONS};
use sqlx::{PgPool, Row};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    campaign::Campaign,
    clients::publisher,
    records::{Offered, Via},
};

/// Without progress for this long, the remaining work is stuck, unless the machine was too slow. Longer than any wait of the
/// system: the longest is a call without an answer.
pub(crate) const STILL_LIMIT: Duration = Duration::from_secs(45);
/// Total limit: a long campaign on a busy machine leaves much work.
const LIMIT: Duration = Duration::from_secs(1_200);
/// Interval of progress lines.
const SAY_EVERY: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Consecutive empty checks that are required, since an item between two queues is in neither.
const CALM_LOOKS: usize = 4;

/// Queries that must be empty, with the columns to show.
const QUEUES: &[(&str, &str)] = &[
    (
        "notifications without an outcome",
        "select account_id || ' ' || id || ' ' || state || ' attempts ' || attempts || ' task ' || coalesce(task_id, '-')
         from notification where state in ('queued', 'running') limit 10",
    ),
    (
        "sessions with something to do",
        "select account_id || ' ' || key || ' ' || phase || ' queued ' || queued || ' fence ' || fence
             || coalesce(' wakes ' || wake_at::text, '') || coalesce(' gate ' || gate, '') || case when closed_at is null then '' else ' closed' end
         from session where queued > 0 or (phase <> 'idle' and not (phase = 'backoff' and closed_at is not null and active_turn_id is null))
         limit 10",
    ),
    (
        "turns without an end",
        "select account_id || ' ' || id || ' ' || state || ' attempt ' || attempt || coalesce(' ' || error, '')
         from turn where state in ('started', 'calling', 'awaiting_tools') limit 10",
    ),
    (
        "questions without an end",
        "select account_id || ' ' || id || ' ' || created_at from question where state = 'open' limit 10",
    ),
    (
        "timers that are due",
        "select account_id || ' ' || id || coalesce(' ' || reason, '') from timer where state = 'waiting' and kind = 'check_later' limit 10",
    ),
    (
        "branches at work",
        "select account_id || ' ' || id || ' ' || session_id from branch where state = 'live' limit 10",
    ),
    (
        "mail without an outcome",
        "select account_id || ' ' || id from mail where to_session is not null and settled_at is null limit 10",
    ),
    (
        "messages in the outbox",
        "select service || ' ' || subject || ' ' || created_at || coalesce(' claimed ' || claimed_at::text, '')
         from outbox limit 10",
    ),
];

/// Empty: the system is idle.
pub(crate) async fn wait(campaign: &Campaign, still_limit: Duration) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    let jetstream = jetstream::new(publisher(&campaign.system.nats_url).await?);
    let mut resumed = BTreeSet::new();
    let (mut calm, mut least, mut moved_at, mut said_at) = (0, i64::MAX, begun, begun);
    loop {
        resume_stopped(campaign, &mut resumed).await?;
        answer_open(campaign).await?;
        let waiting = waiting(campaign, &jetstream).await?;
        calm = if waiting.is_empty() { calm + 1 } else { 0 };
        if calm >= CALM_LOOKS {
            return Ok(Vec::new());
        }
        let now = Instant::now();
        let left = left(&campaign.system.observer).await?;
        if left < least || waiting.is_empty() {
            (least, moved_at) = (left, now);
        }
        let is_still = now > moved_at + still_limit && !campaign.machine.is_starved_since(moved_at.into_std());
        if is_still || now > begun + LIMIT {
            campaign.clients.over.cancel();
            return Ok(waiting);
        }
        if now > said_at + SAY_EVERY {
            campaign.say(&format!(
                "{left} notifications wait for their outcome; {}",
                waiting.first().map_or("", |one| one)
            ));
            said_at = now;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Goes on with the sessions that the campaign itself stopped, once for each stop: a gate that stays closed, or that nobody closed,
/// is stuck.
async fn resume_stopped(campaign: &Campaign, resumed: &mut BTreeSet<(Uuid, i64)>) -> anyhow::Result<()> {
    const STOPPED: &str = "select s.account_id, s.id, s.turn_count, k.display_id, g.slug, array(
            select o.id::text from session o
            where o.account_id = s.account_id and o.task_id = s.task_id and o.agent_id = s.agent_id) as generations
        from session s
        join task k on k.account_id = s.account_id and k.id = s.task_id
        join agent g on g.account_id = s.account_id and g.id = s.agent_id
        where s.gate = 'stopped' and s.closed_at is null";
    let aims = campaign.book.aims();
    for row in sqlx::query(STOPPED).fetch_all(&campaign.system.observer).await? {
        let (account, session): (String, Uuid) = (row.get(0), row.get(1));
        // A stop after a reset holds the next generation.
        let generations: Vec<String> = row.get(5);
        let is_ours = aims.iter().any(|aim| generations.contains(&aim.target));
        if is_ours && resumed.insert((session, row.get(2))) {
            let what = Offered::Resume {
                task: row.get(3),
                agent: row.get(4),
            };
            campaign.offer(place_of(campaign, &account), Via::Http, what).await;
        }
    }
    Ok(())
}

/// Answers what is still asked. A question is also ended by its task.
async fn answer_open(campaign: &Campaign) -> anyhow::Result<()> {
    const OPEN: &str = "select account_id from question where state = 'open'";
    for row in sqlx::query(OPEN).fetch_all(&campaign.system.observer).await? {
        let what = Offered::Answer { withdraws: false };
        campaign.offer(place_of(campaign, row.get(0)), Via::Http, what).await;
    }
    Ok(())
}

fn place_of(campaign: &Campaign, account: &str) -> usize {
    let accounts = &campaign.clients.tenants;
    let place = accounts.iter().position(|tenant| tenant.id == account);
    place.expect("an account of the campaign")
}

async fn left(observer: &PgPool) -> anyhow::Result<i64> {
    const LEFT: &str = "select count(*) from notification where state in ('queued', 'running')";
    Ok(sqlx::query(LEFT).fetch_one(observer).await?.get(0))
}

async fn waiting(campaign: &Campaign, jetstream: &jetstream::Context) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let pending = campaign.pending();
    if pending > 0 {
        found.push(format!("{pending} offers without an answer"));
    }
    for (what, sql) in QUEUES {
        let rows = texts(&campaign.system.observer, sql)
            .await
            .with_context(|| (*what).to_owned())?;
        found.extend(rows.into_iter().map(|row| format!("{what}: {row}")));
    }
    for durable in Durable::all() {
        found.extend(consumer_waiting(jetstream, durable).await?);
    }
    found.extend(partitions_waiting(&campaign.system.observer, jetstream).await?);
    Ok(found)
}

async fn consumer_waiting(jetstream: &jetstream::Context, durable: &Durable) -> anyhow::Result<Option<String>> {
    let stream = durable.stream.name(&Root::default());
    let consumer: Result<jetstream::consumer::PullConsumer, _> =
        jetstream.get_consumer_from_stream(durable.name(), &stream).await;
    let Ok(mut consumer) = consumer else {
        return Ok(Some(format!("the consumer {} is not there", durable.name())));
    };
    let info = consumer.info().await.with_context(|| durable.name().to_owned())?;
    let (pending, unsettled) = (info.num_pending, info.num_ack_pending);
    let waits = pending > 0 || unsettled > 0;
    Ok(waits.then(|| {
        format!(
            "the consumer {}: {pending} not delivered, {unsettled} not settled",
            durable.name()
        )
    }))
}

/// Notifications are read by offset: the last one of every partition was read.
async fn partitions_waiting(observer: &PgPool, jetstream: &jetstream::Context) -> anyhow::Result<Vec<String>> {
    let root = Root::default();
    let Ok(stream) = jetstream.get_stream(Stream::Notification.name(&root)).await else {
        return Ok(vec!["the stream of notifications is not there".to_owned()]);
    };
    let rows = sqlx::query("select partition, sequence from resolver_partition")
        .fetch_all(observer)
        .await?;
    let mut found = Vec::new();
    for partition in 0..PARTITIONS {
        let subject = format!("{root}.partition.{partition}.>");
        let Ok(last) = stream.get_last_raw_message_by_subject(&subject).await else {
            continue;
        };
        let read = rows
            .iter()
            .find(|row| row.get::<i32, _>(0) == i32::from(partition))
            .map_or(0, |row| row.get::<i64, _>(1));
        if u64::try_from(read).unwrap_or_default() < last.sequence {
            found.push(format!("partition {partition}: read up to {read} of {}", last.sequence));
        }
    }
    Ok(found)
}

async fn texts(observer: &PgPool, sql: &'static str) -> anyhow::Result<Vec<String>> {
    let rows = sqlx::query(sql).fetch_all(observer).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
