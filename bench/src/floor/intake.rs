//! From the stream into Postgres: notification and session rows, one transaction a batch, whose statements are pipelined.

use std::collections::HashMap;

use anyhow::Context;
use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, DeliverPolicy, pull},
};
use futures::{StreamExt, future::try_join_all};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_postgres::{Client, Statement, types::ToSql};

use super::{BATCH_MAX, Job, SECOND_SUBJECT, STREAM};

const SESSIONS_OPEN: &str = "\
insert into session (account, task, agent)
select distinct new.account, new.task, new.agent
from unnest($1::text[], $2::text[], $3::text[]) as new (account, task, agent)
where not exists (
    select from session
    where session.account = new.account and session.task = new.task and session.agent = new.agent
)
on conflict do nothing";
const NOTIFICATIONS_INSERT: &str = "\
insert into notification (place, session_id, payload)
select new.place, session.id, new.payload
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) as new (place, account, task, agent, payload)
join session on session.account = new.account and session.task = new.task and session.agent = new.agent
on conflict do nothing
returning place, session_id";
const KNOWN: &str = "select place, session_id from notification where place = any($1::bigint[])";
const UNFINISHED: &str = "\
select place, session_id, payload from notification
where not exists (select from turn where turn.place = notification.place)
order by place";

#[derive(Deserialize)]
struct Fields {
    agent: String,
}

/// One process: the stream offset is the highest stored one, so messages are not acknowledged.
pub(super) async fn to_line(
    jetstream: &jetstream::Context,
    client: Client,
    line: mpsc::Sender<Vec<Job>>,
) -> anyhow::Result<()> {
    let place: i64 = client
        .query_one("select coalesce(max(place), 0) from notification", &[])
        .await
        .context("could not read the stream offset")?
        .get(0);
    let unfinished = client
        .query(UNFINISHED, &[])
        .await
        .context("could not read unfinished notifications")?;
    let unfinished = unfinished.into_iter().map(|row| Job {
        place: row.get(0),
        session: row.get(1),
        payload: row.get(2),
        reply: String::new(),
        message: None,
    });
    line.send(unfinished.collect())
        .await
        .context("the dispatch queue is closed")?;
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: u64::try_from(place).context("a place in a stream")? + 1,
        },
        ..pull::Config::default()
    };
    let mut writer = Writer::new(client).await?;
    let mut batches = batches(jetstream, STREAM, config).await?;
    let mut batch = Vec::new();
    while batches.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let jobs = writer.write(&batch).await?;
        batch.clear();
        line.send(jobs).await.context("the dispatch queue is closed")?;
    }
    Ok(())
}

/// The first of two processes: stored notifications are published on the second stream, and acknowledged after that stream has
/// stored them.
pub(super) async fn to_stream(jetstream: &jetstream::Context, client: Client) -> anyhow::Result<()> {
    let config = pull::Config {
        durable_name: Some("intake".to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 20_000,
        ..pull::Config::default()
    };
    let mut writer = Writer::new(client).await?;
    let mut batches = batches(jetstream, STREAM, config).await?;
    let mut batch = Vec::new();
    while batches.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let mut stored = Vec::with_capacity(batch.len());
        for job in writer.write(&batch).await? {
            let subject = format!("{SECOND_SUBJECT}.{}.{}", job.session, job.place);
            stored.push(
                jetstream
                    .publish(subject, job.payload.into())
                    .await
                    .context("could not publish")?,
            );
        }
        try_join_all(stored.into_iter().map(IntoFuture::into_future))
            .await
            .context("the second stream did not take a message")?;
        for message in batch.drain(..) {
            message.ack().await.ok().context("could not acknowledge")?;
        }
    }
    Ok(())
}

/// Reads messages one by one; the channel groups them into batches.
pub(super) async fn batches(
    jetstream: &jetstream::Context,
    stream: &str,
    config: pull::Config,
) -> anyhow::Result<mpsc::Receiver<jetstream::Message>> {
    let consumer = jetstream
        .get_stream(stream)
        .await
        .context("could not find the stream")?
        .create_consumer(config)
        .await
        .context("could not create a consumer")?;
    let mut messages = consumer
        .stream()
        .max_messages_per_batch(BATCH_MAX)
        .messages()
        .await
        .context("could not read the stream")?;
    let (sender, receiver) = mpsc::channel(2 * BATCH_MAX);
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            // An empty fetch is followed by the next one.
            let Ok(message) = message else { continue };
            if sender.send(message).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

struct Writer {
    client: Client,
    open: Statement,
    insert: Statement,
    known: Statement,
}

impl Writer {
    async fn new(client: Client) -> anyhow::Result<Writer> {
        let (open, insert, known) = tokio::try_join!(
            client.prepare(SESSIONS_OPEN),
            client.prepare(NOTIFICATIONS_INSERT),
            client.prepare(KNOWN)
        )
        .context("could not prepare the floor's statements")?;
        Ok(Writer {
            client,
            open,
            insert,
            known,
        })
    }

    async fn write(&mut self, messages: &[jetstream::Message]) -> anyhow::Result<Vec<Job>> {
        let mut rows = Rows::default();
        for message in messages {
            rows.push(message)?;
        }
        let pairs: [&(dyn ToSql + Sync); 3] = [&rows.accounts, &rows.tasks, &rows.agents];
        let all: [&(dyn ToSql + Sync); 5] = [&rows.places, &rows.accounts, &rows.tasks, &rows.agents, &rows.payloads];
        // Pipelined: sent together, answered together.
        let (_, _, inserted, _) = tokio::try_join!(
            self.client.batch_execute("begin"),
            self.client.execute(&self.open, &pairs),
            self.client.query(&self.insert, &all),
            self.client.batch_execute("commit"),
        )
        .context("could not store a batch")?;
        let mut sessions: HashMap<i64, i64> = inserted.iter().map(|row| (row.get(0), row.get(1))).collect();
        if sessions.len() < rows.places.len() {
            let known = self.client.query(&self.known, &[&rows.places]).await;
            let known = known.context("could not read already stored notifications")?;
            sessions.extend(known.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))));
        }
        let places = rows.places.iter().zip(&rows.payloads);
        places
            .map(|(place, payload)| {
                Ok(Job {
                    place: *place,
                    session: *sessions.get(place).context("a stored notification has a session")?,
                    payload: (*payload).to_owned(),
                    reply: String::new(),
                    message: None,
                })
            })
            .collect()
    }
}

#[derive(Default)]
struct Rows<'a> {
    places: Vec<i64>,
    accounts: Vec<&'a str>,
    tasks: Vec<&'a str>,
    agents: Vec<String>,
    payloads: Vec<&'a str>,
}

impl<'a> Rows<'a> {
    fn push(&mut self, message: &'a jetstream::Message) -> anyhow::Result<()> {
        let info = message.info().ok().context("a message of a stream")?;
        let mut tokens = message.subject.as_str().rsplitn(3, '.');
        let (task, account) = (tokens.next(), tokens.next());
        let fields: Fields = serde_json::from_slice(&message.payload).context("a notification")?;
        self.places
            .push(i64::try_from(info.stream_sequence).context("a place in a stream")?);
        self.accounts.push(account.context("a subject with an account")?);
        self.tasks.push(task.context("a subject with a task")?);
        self.agents.push(fields.agent);
        self.payloads
            .push(std::str::from_utf8(&message.payload).context("text")?);
        Ok(())
    }
}
