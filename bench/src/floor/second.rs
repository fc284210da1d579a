//! The second of two processes: reads stored notifications from the second stream, and acknowledges each after its outcome is
//! recorded.

use anyhow::Context;
use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
};
use tokio::sync::mpsc;

use super::{BATCH_MAX, Job, SECOND_STREAM, intake};

pub(super) async fn to_line(jetstream: &jetstream::Context, line: mpsc::Sender<Vec<Job>>) -> anyhow::Result<()> {
    let config = pull::Config {
        durable_name: Some("turns".to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 20_000,
        ..pull::Config::default()
    };
    let mut batches = intake::batches(jetstream, SECOND_STREAM, config).await?;
    let mut batch = Vec::new();
    while batches.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let jobs: anyhow::Result<Vec<Job>> = batch.drain(..).map(job).collect();
        line.send(jobs?).await.context("the line ended")?;
    }
    Ok(())
}

fn job(message: jetstream::Message) -> anyhow::Result<Job> {
    let mut tokens = message.subject.as_str().rsplitn(3, '.');
    let mut number = || {
        tokens
            .next()
            .and_then(|token| token.parse().ok())
            .context("a subject of the floor")
    };
    let (place, session) = (number()?, number()?);
    Ok(Job {
        place,
        session,
        payload: String::from_utf8(message.payload.to_vec()).context("text")?,
        reply: String::new(),
        message: Some(message),
    })
}
