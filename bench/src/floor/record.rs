//! Writes outcomes into Postgres, one transaction a batch, then starts the next job of each session.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::{BATCH_MAX, Job, line::Line};
use crate::{
    load::{now_us, published_at_us},
    print,
};

const TURNS_INSERT: &str = "\
insert into turn (place, session_id, reply)
select * from unnest($1::bigint[], $2::bigint[], $3::text[])
on conflict do nothing";

pub(super) async fn run(line: Arc<Line>, client: Client, mut outcomes: mpsc::Receiver<Job>, done: mpsc::Sender<u64>) {
    let recording = async {
        let insert = client
            .prepare(TURNS_INSERT)
            .await
            .context("could not prepare the insert of turns")?;
        let mut batch: Vec<Job> = Vec::new();
        while outcomes.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let places: Vec<i64> = batch.iter().map(|job| job.place).collect();
            let sessions: Vec<i64> = batch.iter().map(|job| job.session).collect();
            let replies: Vec<&str> = batch.iter().map(|job| job.reply.as_str()).collect();
            client
                .execute(&insert, &[&places, &sessions, &replies])
                .await
                .context("could not record outcomes")?;
            let now = now_us();
            for job in batch.drain(..) {
                line.release(job.session);
                if let Some(message) = job.message {
                    message.ack().await.ok().context("could not acknowledge")?;
                }
                let published = published_at_us(&job.payload).context("a notification without a publication time")?;
                done.send(now.saturating_sub(published))
                    .await
                    .context("the latency channel is closed")?;
            }
        }
        anyhow::Ok(())
    };
    if let Err(error) = recording.await {
        print::say(&format!("the floor's recorder failed: {error:#}"));
    }
}
