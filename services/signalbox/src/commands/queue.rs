//! `signalbox queue`: what waits in a session, each with the reason, and edits of it. An edit that names no revision changes what
//! is there now.

use std::process::ExitCode;

use anyhow::bail;
use api::{
    notifications::Notification,
    number::Whole,
    queue::{IntoTurn, Item, ItemChange, Order, Promotion, Queue},
    text::Text,
};
use domain::NotificationId;
use serde_json::Value;

use super::moment;
use crate::{
    cli::{QueueArgs, QueueCommand, QueueEditArgs, QueueItemArgs, QueueOrderArgs, QueueTurnArgs},
    client::{Client, PAGE_ITEMS, read_as},
    print::show,
    table::Table,
    text::one_line,
};

const WHY_CHARS_MAX: usize = 100;

pub(crate) async fn run(args: &QueueArgs, json: bool) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => {
            let client = args.list.of.access.client()?;
            let session = args.session.as_deref().unwrap_or_default();
            let queue = queue(&client, &path(&args.list.of.account, session), args.list.limit.into()).await?;
            show(json, &queue, |queue| Ok(table(queue)))
        }
        Some(QueueCommand::Edit(args)) => edit(args, json).await,
        Some(QueueCommand::Withdraw(args)) => withdraw(args, json).await,
        Some(QueueCommand::Promote(args)) => promote(args, json).await,
        Some(QueueCommand::Order(args)) => order(args, json).await,
        Some(QueueCommand::Steer(args)) => into_turn(args, "steer", json).await,
        Some(QueueCommand::Inject(args)) => into_turn(args, "inject", json).await,
    }
}

fn path<'a>(account: &'a str, session: &'a str) -> Vec<&'a str> {
    vec!["api", "orgs", account, "sessions", session, "queue"]
}

fn within<'a>(args: &'a QueueItemArgs, rest: &[&'a str]) -> Vec<&'a str> {
    let mut path = path(&args.of.account, &args.session);
    path.push(&args.notification);
    path.extend(rest);
    path
}

/// Up to `limit` items, page by page.
async fn queue(client: &Client, path: &[&str], limit: usize) -> anyhow::Result<Queue> {
    let mut queue: Queue = client
        .get(path, &[("limit", &limit.min(PAGE_ITEMS).to_string())])
        .await?;
    while let Some(cursor) = queue.next_cursor.take_if(|_| queue.items.len() < limit) {
        let more: Queue = client.get(path, &[("cursor", &cursor)]).await?;
        queue.items.extend(more.items);
        queue.next_cursor = more.next_cursor;
    }
    queue.items.truncate(limit);
    Ok(queue)
}

async fn edit(args: &QueueEditArgs, json: bool) -> anyhow::Result<ExitCode> {
    let item = &args.item;
    let client = item.of.access.client()?;
    let revision = match args.revision {
        Some(revision) => revision,
        None => {
            let path = ["api", "orgs", &item.of.account, "notifications", &item.notification];
            client.get::<Notification>(&path, &[]).await?.revision
        }
    };
    let title = args.title.as_deref().map(Text::parse).transpose();
    let change = ItemChange {
        revision: Whole::try_from(f64::from(revision)).map_err(|why| anyhow::anyhow!("revision: {why}"))?,
        body: args.body.clone(),
        title: title.map_err(|why| anyhow::anyhow!("title: {why}"))?,
        queue_mode: args.mode,
    };
    let changed: Value = client.patch(&within(item, &[]), &change).await?;
    show(json, &changed, |changed| said(&read_as(changed)?, "was changed"))
}

async fn withdraw(args: &QueueItemArgs, json: bool) -> anyhow::Result<ExitCode> {
    let gone: Value = args.of.access.client()?.delete(&within(args, &[])).await?;
    show(json, &gone, |gone| said(&read_as(gone)?, "was withdrawn"))
}

async fn promote(args: &QueueItemArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let Queue { revision, .. } = queue(&client, &path(&args.of.account, &args.session), 1).await?;
    let queue: Queue = client
        .post(&within(args, &["promote"]), &Promotion { revision })
        .await?;
    show(json, &queue, |queue| Ok(table(queue)))
}

async fn order(args: &QueueOrderArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = path(&args.of.account, &args.session);
    let Queue { revision, items, .. } = queue(&client, &path, usize::MAX).await?;
    let others = items
        .iter()
        .map(|item| &item.id)
        .filter(|id| !args.notifications.contains(id));
    let named = &args.notifications;
    for (n, id) in named.iter().enumerate() {
        if !items.iter().any(|item| item.id == *id) {
            bail!(
                "notification {id} does not wait in session {}; `signalbox queue {}` shows what does",
                args.session,
                args.session
            );
        }
        if named[..n].contains(id) {
            bail!("notification {id} is named twice");
        }
    }
    let ids = named.iter().chain(others);
    let items = ids.map(|id| NotificationId::parse(id)).collect::<Result<Vec<_>, _>>()?;
    let queue: Queue = client
        .put(&[&path[..], &["order"]].concat(), &Order { revision, items })
        .await?;
    show(json, &queue, |queue| Ok(table(queue)))
}

async fn into_turn(args: &QueueTurnArgs, how: &str, json: bool) -> anyhow::Result<ExitCode> {
    let body = IntoTurn { turn_id: args.turn };
    let item: Value = args
        .item
        .of
        .access
        .client()?
        .post(&within(&args.item, &[how]), &body)
        .await?;
    show(json, &item, |item| {
        let item: Item = read_as(item)?;
        let why = item.why.as_ref().map_or("", |why| &why.text);
        said(
            &item,
            &format!(
                "has mode {}: {}",
                one_line(&item.queue_mode, 20),
                one_line(why, WHY_CHARS_MAX)
            ),
        )
    })
}

fn said(item: &Item, what: &str) -> anyhow::Result<String> {
    Ok(format!(
        "{} {what} (revision {})",
        one_line(&item.id, 128),
        item.revision
    ))
}

fn table(queue: &Queue) -> String {
    let mut table = Table::new(&["PLACE", "NOTIFICATION", "MODE", "AUTHOR", "SINCE", "TEXT", "WHY"]);
    let running = queue.running.iter().flat_map(|running| &running.items);
    for item in running.chain(&queue.items) {
        let place = item.place.map_or_else(String::new, |place| place.to_string());
        let why = item.why.as_ref().map_or("", |why| &why.text);
        table.row([
            &place,
            &item.id,
            &item.queue_mode,
            &item.author.name,
            &moment(Some(item.created_at)),
            &one_line(item.title.as_deref().unwrap_or(&item.body), 40),
            &one_line(why, WHY_CHARS_MAX),
        ]);
    }
    let more = if queue.next_cursor.is_some() {
        "more wait: raise --limit\n"
    } else {
        ""
    };
    format!("{}{more}", table.render("nothing waits"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn shows_each_item_with_its_reason() {
        let item = |id: &str, place: Value, why: &str| {
            json!({"id": id, "place": place, "queue_mode": "followup", "author": {"kind": "user", "id": "u", "name": "Ann"},
                "type": "notification", "title": null, "body": "some\\ntext", "body_cut": false, "revision": 1,
                "created_at": "2026-01-02T03:04:05Z", "editable": true,
                "why": {"code": "of a newer server", "on": null, "ref": null, "text": why, "since": null, "until": null}})
        };
        let queue = json!({"revision": "1.1.0", "gate": null, "stopping": false, "next_cursor": "c",
            "running": {"turn_id": "0190b5a8-0000-7000-8000-000000000001", "items": [item("n-1", json!(null), "in progress")]},
            "items": [item("n-2", json!(1), "place 1: behind the turn")]});
        assert_eq!(
            table(&read_as(&queue).unwrap()),
            "PLACE  NOTIFICATION  MODE      AUTHOR  SINCE                TEXT        WHY\n\
             -      n-1           followup  Ann     2026-01-02 03:04:05  some\\ntext  in progress\n\
             1      n-2           followup  Ann     2026-01-02 03:04:05  some\\ntext  place 1: behind the turn\n\
             more wait: raise --limit\n"
        );
    }

    #[test]
    fn a_session_alone_is_listed() {
        const S: &str = "0190b5a8-0000-7000-8000-000000000001";
        let read = |line: String| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Queue(args) => args,
            other => panic!("{other:?}"),
        };
        let list = read(format!("signalbox queue {S} --limit 7 --account acme"));
        assert_eq!((list.session.as_deref(), list.command.is_none()), (Some(S), true));
        let order = read(format!("signalbox queue order {S} n-2 n-1 --account acme"));
        let Some(QueueCommand::Order(args)) = order.command else {
            panic!("{:?}", order.command)
        };
        assert_eq!(
            (args.session.as_str(), &args.notifications[..]),
            (S, &["n-2".to_owned(), "n-1".to_owned()][..])
        );
    }
}
