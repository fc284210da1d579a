//! `signalbox notifications`: notifications and their states.

use std::{process::ExitCode, slice::from_ref};

use api::notifications::Notification;
use serde_json::Value;

use super::{filters, moment};
use crate::{cli::NotificationsArgs, client::read_as, print::show, table::Table};

pub(crate) async fn run(args: &NotificationsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.list.of.access.client()?;
    let account = args.list.of.account.as_str();
    if let Some(id) = &args.id {
        let notification: Value = client.get(&["api", "orgs", account, "notifications", id], &[]).await?;
        return show(json, &notification, |notification| table(from_ref(notification)));
    }
    let path = ["api", "orgs", account, "notifications"];
    let named = [("task", &args.task), ("agent", &args.agent), ("state", &args.state)];
    let query = filters(named.map(|(name, value)| (name, value.as_deref())));
    let notifications = client.list(&path, &query, args.list.limit.into()).await?;
    show(json, &notifications, |notifications| table(notifications))
}

pub(super) fn table(notifications: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&[
        "NOTIFICATION",
        "TASK",
        "AGENT",
        "TYPE",
        "STATE",
        "CREATED",
        "TURN",
        "REASON",
    ]);
    for notification in notifications {
        let notification: Notification = read_as(notification)?;
        table.row([
            &notification.id,
            notification.task.as_deref().unwrap_or_default(),
            notification.agent.as_deref().unwrap_or_default(),
            &notification.r#type,
            &notification.state,
            &moment(Some(notification.created_at)),
            &notification.turn_id.map(|id| id.to_string()).unwrap_or_default(),
            notification.reason.as_deref().unwrap_or_default(),
        ]);
    }
    Ok(table.render("no notifications"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_an_outcome_with_its_reason() {
        let refused = json!({"id": "n-1", "task": "DEMO-1", "agent": "coder", "type": "message", "state": "refused",
            "session_id": null, "session_key": null, "turn_id": null, "attempts": 0, "reason": "unknown_agent", "hops": 0,
            "created_at": "2026-01-02T03:04:05Z"});
        assert_eq!(
            table(&[refused]).unwrap().lines().last().unwrap(),
            "n-1           DEMO-1  coder  message  refused  2026-01-02 03:04:05  -     unknown_agent"
        );
    }
}
