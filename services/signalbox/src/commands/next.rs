//! `signalbox next`: what moves tasks next, from what is stored.

use std::process::ExitCode;

use api::tasks::Task;
use domain::TaskStatus;
use serde_json::Value;

use super::moment;
use crate::{cli::NextArgs, client::read_as, print::show, table::Table, text::one_line};

const TEXT_CHARS_MAX: usize = 100;

pub(crate) async fn run(args: &NextArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.list.of.access.client()?;
    let account = args.list.of.account.as_str();
    let mut tasks: Vec<Value> = Vec::new();
    match &args.task {
        Some(task) => tasks.push(client.get(&["api", "orgs", account, "tasks", task], &[]).await?),
        None => {
            let limit: usize = args.list.limit.into();
            for status in TaskStatus::ALL.iter().filter(|status| !status.is_terminal()) {
                let query = [("status", status.as_str())];
                let left = limit - tasks.len();
                tasks.extend(client.list(&["api", "orgs", account, "tasks"], &query, left).await?);
            }
        }
    }
    show(json, &tasks, |tasks| table(tasks))
}

fn table(tasks: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["TASK", "STATUS", "NEXT", "SINCE", "UNTIL", "TEXT"]);
    for task in tasks {
        let task: Task = read_as(task)?;
        let Some(next) = task.next else { continue };
        let what = next.on.map_or(next.code.clone(), |on| format!("{} ({on})", next.code));
        table.row([
            &task.id,
            &task.status,
            &one_line(&what, 40),
            &moment(next.since),
            &moment(next.until),
            &one_line(&next.text, TEXT_CHARS_MAX),
        ]);
    }
    Ok(table.render("no open tasks"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_what_moves_each_task() {
        let task = |id: &str, next: Value| {
            json!({"id": id, "title": "t", "description": "", "status": "in_progress", "assignees": [],
                "created_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z", "next": next})
        };
        let next = |code: &str, on: Value, until: Value| json!({"code": code, "on": on, "ref": null, "text": "why\nso", "since": "2026-01-02T03:04:05Z", "until": until});
        let timer = next("waiting", json!("timer"), json!("2026-01-03T03:04:05Z"));
        let tasks = [
            task("PROJ-7", timer),
            task("PROJ-8", next("of a newer server", Value::Null, Value::Null)),
        ];
        assert_eq!(
            table(&tasks).unwrap(),
            "TASK    STATUS       NEXT               SINCE                UNTIL                TEXT\n\
             PROJ-7  in_progress  waiting (timer)    2026-01-02 03:04:05  2026-01-03 03:04:05  why so\n\
             PROJ-8  in_progress  of a newer server  2026-01-02 03:04:05  -                    why so\n"
        );
    }
}
