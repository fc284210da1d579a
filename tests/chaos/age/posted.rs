//! One task to which the API posts as many messages as a queue may hold, and which is then closed: from the first request to the
//! last event.

use std::time::Instant;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::{Client, Method, StatusCode};
use serde_json::json;

use super::day::{LIMIT, ask, note, until, url};
use crate::{
    plan::{AGENTS, account_id},
    recovery::bench::Bench,
    system::OPERATOR_TOKEN,
};

/// Concurrent requests.
const AT_ONCE: usize = 16;

const QUEUED: &str = "select queued::bigint from session where account_id = 'account-0' and task_id = 'posted'";
const CANCELLED: &str = "select count(*) from notification
    where account_id = 'account-0' and task_id = 'posted' and state = 'cancelled' and reason = 'task closed'";
const UNTOLD: &str =
    "select count(*) from outbox where account_id = 'account-0' and subject like '%.POSTED.notification.cancelled'";

pub(super) async fn posted_and_closed(bench: &Bench, count: u64, steps: &mut Vec<(String, i64)>) -> anyhow::Result<()> {
    let (big, expected) = (account_id(0), i64::try_from(count).context("a number of rows")?);
    let client = Client::builder().no_proxy().timeout(LIMIT).build()?;
    let notifications = url(bench, &format!("/api/orgs/{big}/notifications"))?;
    let begun = Instant::now();
    stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |n| {
            let (client, notifications) = (&client, &notifications);
            async move {
                let body = json!({"id": format!("posted-{n}"), "task": "POSTED", "agent": AGENTS[0], "body": "a body"});
                until(&format!("posted-{n} is accepted"), async || {
                    let request = client.post(notifications).bearer_auth(OPERATOR_TOKEN).json(&body);
                    match request.send().await?.status() {
                        StatusCode::ACCEPTED => Ok(Some(())),
                        // More than a request's share at the moment.
                        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Ok(None),
                        other => bail!("posted-{n}: {other}"),
                    }
                })
                .await
            }
        })
        .await?;
    note(steps, "posted: until all is accepted", begun);
    bench
        .until("all that was posted waits", QUEUED, expected, LIMIT)
        .await?;
    note(steps, "posted: until all waits", begun);

    let begun = Instant::now();
    let done = json!({"status": "done"});
    ask(
        bench,
        Method::PATCH,
        &format!("/api/orgs/{big}/tasks/POSTED"),
        Some(done),
    )
    .await?;
    note(steps, "posted: the task is closed", begun);
    bench.until("all of it is told", UNTOLD, 0, LIMIT).await?;
    note(steps, "posted: until all is told", begun);
    bench.until("all of it is cancelled", CANCELLED, expected, LIMIT).await
}
