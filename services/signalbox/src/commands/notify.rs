//! `signalbox notify`, and `signalbox steer`, which is `notify --queue-mode steer`: sends one notification over the API, and waits for
//! its outcome with `--wait`.

use std::{io::Read, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use api::{notifications::Notification, turns::Turn};
use domain::{NotificationState, QueueMode};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::{notifications::table, turns::said};
use crate::{
    cli::{ItemArgs, NotifyArgs},
    client::{ApiError, Client, read_as},
    print::{code, print, print_json, show},
    text::lines,
};

/// Interval of polling the API. An outcome takes a model's time, so a shorter one gains nothing.
const ASK_EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn steer(item: ItemArgs, json: bool) -> anyhow::Result<ExitCode> {
    let queue_mode = Some(QueueMode::Steer.to_string());
    run(&NotifyArgs { item, queue_mode }, json).await
}

pub(crate) async fn run(args: &NotifyArgs, json: bool) -> anyhow::Result<ExitCode> {
    let item = &args.item;
    let client = item.access.client()?;
    let notification = notification(args, body(&item.body)?);
    let id = client.notify(&item.account, &notification).await?;
    if !item.wait {
        return show(json, &json!({ "id": id }), |_| Ok(id.clone()));
    }
    let limit = Duration::from_secs(item.timeout);
    let outcome = outcome(&client, &item.account, &id, limit).await?;
    let notification: Notification = read_as(&outcome)?;
    let turn = match &notification.turn_id {
        Some(turn) => Some(
            client
                .get::<Value>(&["api", "orgs", &item.account, "turns", &turn.to_string()], &[])
                .await?,
        ),
        None => None,
    };
    if json {
        print_json(&json!({"notification": outcome, "turn": turn}))?;
    } else {
        print(&table(&[outcome])?)?;
        if let Some(turn) = turn {
            print(&format!("\n{}", lines(said(&read_as::<Turn>(&turn)?)).trim_end()))?;
        }
    }
    let delivered = NotificationState::parse(&notification.state) == Some(NotificationState::Delivered);
    Ok(code(delivered))
}

fn body(argument: &str) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut body = String::new();
    // Reads one byte more than fits, so that a body that is too long is refused and not truncated.
    let limit = u64::try_from(contracts::notification::BODY_BYTES_MAX).expect("a small constant") + 1;
    std::io::stdin()
        .take(limit)
        .read_to_string(&mut body)
        .context("cannot read the body from standard input")?;
    Ok(body)
}

fn notification(args: &NotifyArgs, body: String) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value.into());
        }
    };
    let item = &args.item;
    set("task", Some(&item.task));
    set("agent", Some(&item.agent));
    set("id", item.id.as_deref());
    set("type", item.kind.as_deref());
    set("title", item.title.as_deref());
    set("queue_mode", args.queue_mode.as_deref());
    set("body", Some(&body));
    Value::Object(fields)
}

/// Polls until the notification has an outcome. The first answers may be 404, before its row is visible.
async fn outcome(client: &Client, account: &str, id: &str, limit: Duration) -> anyhow::Result<Value> {
    let deadline = Instant::now() + limit;
    let mut state = "not known".to_owned();
    loop {
        let found = client
            .get::<Value>(&["api", "orgs", account, "notifications", id], &[])
            .await;
        match ApiError::not_found_as_none(found) {
            Ok(Some(found)) => {
                state = read_as::<Notification>(&found)?.state;
                if NotificationState::parse(&state).is_some_and(NotificationState::is_outcome) {
                    return Ok(found);
                }
            }
            Ok(None) => {}
            // The notification is accepted and survives a restart of the service.
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() + ASK_EVERY > deadline {
            bail!(
                "notification {id} had no outcome within {} s: it is {state}; `signalbox notifications {id}` has its session, and \
                 `signalbox queue SESSION` why it waits",
                limit.as_secs()
            );
        }
        sleep(ASK_EVERY).await;
    }
}
