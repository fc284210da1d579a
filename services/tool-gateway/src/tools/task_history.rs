//! `task_history`: a task, its thread and its activities, by (account, task) only (S7, S9); in a branch, as its parent knew them. Fitted into a limit of
//! bytes: the newest messages stay, and a note names what was left out. Texts are escaped before they are measured.

use contracts::{
    Timestamp,
    quote::{inert, inert_json},
    tools::task_history::{
        ACTIVITY_LIMIT_DEFAULT, ACTIVITY_LIMIT_MAX, MESSAGE_LIMIT_DEFAULT, MESSAGE_LIMIT_MAX, RESULT_BYTES,
    },
};
use domain::{BranchId, TaskId};
use futures::join;
use serde_json::{Map, Value, json};

use super::{Running, ToolError, ToolOutcome, task_existing, task_named};
use crate::{
    call::{Effect, cut},
    refusal::Refusal,
    store::{ActivityRow, AgentRow, BaseAsked, MessageRow, Newest, TaskRow},
};

/// Limit of one message, so that a long one does not displace all others.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// The same in characters, and the limit of all messages, for the query.
pub(super) const CHARACTERS_MAX: i32 = BODY_BYTES_MAX as i32;
pub(super) const BYTES_MAX: i64 = RESULT_BYTES as i64;
const DESCRIPTION_BYTES_MAX: usize = 8 * 1024;
const TITLE_BYTES_MAX: usize = 2 * 1024;
/// Limit of one activity's detail.
const DETAIL_BYTES_MAX: usize = 2 * 1024;
/// Limit of all activities; the thread gets the rest.
const ACTIVITIES_BYTES_MAX: usize = 16 * 1024;
/// Bytes reserved for `meta`, names and brackets.
const FRAME_BYTES: usize = 1024;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let task = task_named(running);
    let limits = HistoryLimits::read(&arguments);
    if let Some(branch) = running.facts.branch {
        return Ok(Effect::new(known(running, task, branch.id, limits).await?, Vec::new()));
    }
    let name = (running.account.clone(), task.clone());
    let newest = |rows: i64| Newest {
        task: name.clone(),
        rows,
    };
    let row = task_existing(running, task).await?;
    let (assignees, messages, activities) = join!(
        running.questions.assignees(name.clone()),
        running.questions.messages(newest(limits.messages)),
        running.questions.activities(newest(limits.activities)),
    );
    Ok(Effect::new(
        fitted(&row, &assignees, &messages, &activities, limits),
        Vec::new(),
    ))
}

/// What a branch's parent knew of the task. Who is assigned is not a part of it.
async fn known(
    running: Running<'_>,
    task: &TaskId,
    branch: BranchId,
    limits: HistoryLimits,
) -> Result<Value, ToolError> {
    let asked = BaseAsked {
        account: running.account.clone(),
        branch,
        messages: limits.messages,
        activities: limits.activities,
    };
    let known = running.questions.base(asked).await;
    let known = known.ok_or_else(|| Refusal::not_there(task, running.facts).told())?;
    let row = TaskRow {
        id: known.task,
        title: known.base.title,
        description: known.base.description,
        status: known.base.status,
        created_at: known.created_at,
        updated_at: known.base.updated_at.0,
    };
    let mut shown = fitted(&row, &[], &known.messages, &known.activities, limits);
    if let Some(task) = shown["task"].as_object_mut() {
        task.remove("assignees");
    }
    Ok(shown)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HistoryLimits {
    messages: i64,
    activities: i64,
    /// The requested limit, where it exceeds the maximum.
    messages_asked: Option<i64>,
    activities_asked: Option<i64>,
}

impl HistoryLimits {
    fn read(arguments: &Map<String, Value>) -> HistoryLimits {
        // A number beyond i64 counts as the maximum.
        let asked = |field: &str, default: i64| match arguments.get(field) {
            None => default,
            Some(value) => value.as_i64().unwrap_or(i64::MAX),
        };
        let messages = asked("message_limit", MESSAGE_LIMIT_DEFAULT);
        let activities = asked("activity_limit", ACTIVITY_LIMIT_DEFAULT);
        HistoryLimits {
            messages: messages.min(MESSAGE_LIMIT_MAX),
            activities: activities.min(ACTIVITY_LIMIT_MAX),
            messages_asked: Some(messages).filter(|asked| *asked > MESSAGE_LIMIT_MAX),
            activities_asked: Some(activities).filter(|asked| *asked > ACTIVITY_LIMIT_MAX),
        }
    }
}

/// Builds the result: JSON text of at most [`RESULT_BYTES`]. Rows come newest first.
fn fitted(
    task: &TaskRow,
    assignees: &[AgentRow],
    messages: &[MessageRow],
    activities: &[ActivityRow],
    limits: HistoryLimits,
) -> Value {
    let task = task_json(task, assignees);
    let room = (RESULT_BYTES - FRAME_BYTES).saturating_sub(size(&task));
    let (activities_kept, used) = newest_that_fit(activities, room.min(ACTIVITIES_BYTES_MAX), activity_json);
    let (mut messages_kept, _) = newest_that_fit(messages, room.saturating_sub(used), message_json);
    messages_kept.reverse();

    // The query skips messages that cannot fit, so its own count is used.
    let messages_asked = messages.first().map_or(0, |first| first.asked_rows);
    let messages_asked = usize::try_from(messages_asked)
        .unwrap_or_default()
        .max(messages_kept.len());

    let mut meta = Map::new();
    meta.insert("message_limit_applied".to_owned(), limits.messages.into());
    meta.insert("activity_limit_applied".to_owned(), limits.activities.into());
    let mut notes = Vec::new();
    for (what, asked, applied) in [
        ("message_limit", limits.messages_asked, limits.messages),
        ("activity_limit", limits.activities_asked, limits.activities),
    ] {
        if let Some(asked) = asked {
            notes.push(format!("{what} {asked} was more than is given; {applied} was applied."));
        }
    }
    for (what, left_out) in [
        ("messages", messages_asked - messages_kept.len()),
        ("activities", activities.len() - activities_kept.len()),
    ] {
        if left_out > 0 {
            meta.insert(format!("{what}_left_out"), left_out.into());
            notes.push(format!(
                "The {left_out} oldest of the {what} asked for were left out: the result is at most 64 KiB."
            ));
        }
    }
    if !notes.is_empty() {
        meta.insert("note".to_owned(), notes.join(" ").into());
    }
    json!({"task": task, "messages": messages_kept, "activities": activities_kept, "meta": meta})
}

/// Returns as many rows as fit, from the first on, and their size.
fn newest_that_fit<T>(rows: &[T], bytes_max: usize, json: fn(&T) -> Value) -> (Vec<Value>, usize) {
    let (mut kept, mut used) = (Vec::new(), 0);
    for row in rows {
        let value = json(row);
        let bytes = size(&value) + 1; // the comma
        if used + bytes > bytes_max {
            break;
        }
        used += bytes;
        kept.push(value);
    }
    (kept, used)
}

fn size(value: &Value) -> usize {
    value.to_string().len()
}

fn task_json(task: &TaskRow, assignees: &[AgentRow]) -> Value {
    let assignees: Vec<Value> = assignees
        .iter()
        .take(contracts::notification::AGENTS_MAX)
        .map(|agent| json!({"id": agent.id, "slug": agent.slug}))
        .collect();
    let (title, description) = (inert(&task.title), inert(&task.description));
    let shown = cut_json(&description, DESCRIPTION_BYTES_MAX);
    let mut value = json!({
        "id": task.id,
        "title": cut_json(&title, TITLE_BYTES_MAX),
        "description": shown,
        "status": task.status,
        "assignees": assignees,
        "created_at": Timestamp::from(task.created_at),
        "updated_at": Timestamp::from(task.updated_at),
    });
    if shown.len() < description.len() {
        value["description_cut_of_bytes"] = task.description.len().into();
    }
    value
}

fn message_json(message: &MessageRow) -> Value {
    let body = inert(&message.body);
    let shown = cut_json(&body, BODY_BYTES_MAX);
    let mut value = json!({
        "id": message.id,
        "author": message.author,
        "body": shown,
        "created_at": Timestamp::from(message.created_at),
    });
    // The body was cut here or by the query.
    let is_longer = usize::try_from(message.body_bytes).is_ok_and(|bytes| bytes > message.body.len());
    if shown.len() < body.len() || is_longer {
        value["body_cut_of_bytes"] = message.body_bytes.into();
    }
    inert_json(&mut value);
    value
}

fn activity_json(activity: &ActivityRow) -> Value {
    let mut detail = activity.detail.clone();
    inert_json(&mut detail);
    if size(&detail) > DETAIL_BYTES_MAX {
        detail = json!({"cut": "too long to be shown"});
    }
    let mut value = json!({
        "id": activity.id,
        "kind": activity.kind,
        "actor": {"kind": activity.actor_kind, "id": activity.actor_id, "name": activity.actor_name},
        "detail": detail,
        "created_at": Timestamp::from(activity.created_at),
    });
    inert_json(&mut value);
    value
}

/// The beginning of a text that takes at most this many bytes *as JSON*, where a control character takes six.
fn cut_json(text: &str, bytes_max: usize) -> &str {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += match character {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            control if control < ' ' => 6,
            other => other.len_utf8(),
        };
        if used > bytes_max {
            return cut(text, at);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use domain::{Actor, ActorKind, MessageId, TaskStatus};
    use time::{Duration, OffsetDateTime};
    use uuid::Uuid;

    use super::*;

    fn task(description: &str) -> TaskRow {
        TaskRow {
            id: TaskId::parse("PROJ-7").unwrap(),
            title: "Seven".to_owned(),
            description: description.to_owned(),
            status: TaskStatus::InProgress,
            created_at: OffsetDateTime::UNIX_EPOCH,
            updated_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    /// `count` messages with this body, newest first; numbered from the newest.
    fn messages(count: usize, body: &str) -> Vec<MessageRow> {
        (0..count)
            .map(|number| MessageRow {
                id: MessageId(Uuid::from_u128(number as u128)),
                author: Actor {
                    kind: ActorKind::User,
                    id: "u-1".to_owned(),
                    name: "A person".to_owned(),
                    via: None,
                },
                body: body.to_owned(),
                body_bytes: i32::try_from(body.len()).unwrap(),
                created_at: OffsetDateTime::UNIX_EPOCH + Duration::seconds(1000 - number as i64),
                asked_rows: count as i64,
            })
            .collect()
    }

    fn activities(count: usize, detail: &str) -> Vec<ActivityRow> {
        (0..count)
            .map(|number| ActivityRow {
                id: Uuid::from_u128(number as u128),
                kind: "task.status_changed".to_owned(),
                actor_kind: "agent".to_owned(),
                actor_id: "a-1".to_owned(),
                actor_name: "An agent".to_owned(),
                detail: json!({"text": detail}),
                created_at: OffsetDateTime::UNIX_EPOCH,
            })
            .collect()
    }

    fn limits(arguments: &Value) -> HistoryLimits {
        HistoryLimits::read(arguments.as_object().unwrap())
    }

    #[test]
    fn limits_have_their_defaults_and_their_ends() {
        let check = |arguments: Value, messages: i64, activities: i64| {
            let read = limits(&arguments);
            assert_eq!((read.messages, read.activities), (messages, activities), "{arguments}");
        };
        check(json!({}), 25, 30);
        check(json!({"message_limit": 0, "activity_limit": 0}), 0, 0);
        check(json!({"message_limit": 1, "activity_limit": 2}), 1, 2);
        check(json!({"message_limit": 200, "activity_limit": 201}), 200, 200);
        check(json!({"message_limit": u64::MAX, "activity_limit": 1e6}), 200, 200);
    }

    #[test]
    fn messages_are_oldest_first_and_a_clamped_limit_is_said() {
        let result = fitted(
            &task("d"),
            &[],
            &messages(3, "hi"),
            &activities(2, "x"),
            limits(&json!({"message_limit": 500})),
        );
        let times: Vec<&str> = result["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["created_at"].as_str().unwrap())
            .collect();
        assert!(times.is_sorted());
        assert_eq!(result["meta"]["message_limit_applied"], 200);
        assert_eq!(result["meta"]["activity_limit_applied"], 30);
        assert_eq!(
            result["meta"]["note"],
            "message_limit 500 was more than is given; 200 was applied."
        );
        assert!(result["meta"].get("messages_left_out").is_none());
    }

    /// Texts of other authors stay inside their JSON strings, with invisible characters escaped, in every field.
    #[test]
    fn hostile_texts_are_values_and_visible() {
        for &hostile in testkit::hostile::TEXTS {
            let mut shown = task(hostile);
            hostile.clone_into(&mut shown.title);
            let mut messages = messages(1, hostile);
            hostile.clone_into(&mut messages[0].author.name);
            hostile.clone_into(&mut messages[0].author.id);
            messages[0].author.via = Some((*hostile).to_owned());
            let mut activities = activities(1, hostile);
            hostile.clone_into(&mut activities[0].actor_name);
            activities[0].detail = json!({ hostile: [hostile] });
            let result = fitted(&shown, &[], &messages, &activities, limits(&json!({})));
            let text = crate::call::ok_text(result.clone());
            assert_eq!(text.lines().count(), 1);
            assert_eq!(contracts::quote::inert(&text), text, "{hostile:?}");
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read, {
                let mut expected = result;
                expected["ok"] = json!(true);
                expected
            });
            let shown = contracts::quote::inert(hostile);
            assert_eq!(read["task"]["title"], *shown);
            assert_eq!(read["messages"][0]["author"]["name"], *shown);
            assert_eq!(read["messages"][0]["author"]["via"], *shown);
            assert_eq!(read["activities"][0]["detail"][&*shown][0], *shown);
        }
    }

    #[test]
    fn the_result_fits_and_loses_the_oldest_first() {
        let long = "x".repeat(40_000);
        let check = |task: &TaskRow, messages: &[MessageRow], activities: &[ActivityRow]| {
            let result = fitted(task, &[], messages, activities, limits(&json!({})));
            let text = crate::call::ok_text(result.clone());
            assert!(text.len() <= RESULT_BYTES, "{}", text.len());
            result
        };
        let result = check(&task("d"), &messages(200, &"y".repeat(1000)), &activities(200, "z"));
        let kept = result["messages"].as_array().unwrap();
        let left_out = result["meta"]["messages_left_out"].as_u64().unwrap();
        assert_eq!(kept.len() as u64 + left_out, 200);
        assert!(kept.len() > 20, "{}", kept.len());
        // The newest message is the last one shown.
        assert_eq!(kept.last().unwrap()["id"], Uuid::from_u128(0).to_string());
        assert!(result["meta"]["activities_left_out"].as_u64().unwrap() > 0);

        let result = check(&task(&long), &messages(2, &long), &activities(200, &long));
        assert_eq!(result["task"]["description_cut_of_bytes"], 40_000);
        assert_eq!(result["messages"][1]["body_cut_of_bytes"], 40_000);
        assert_eq!(result["messages"][1]["body"].as_str().unwrap().len(), BODY_BYTES_MAX);
        assert_eq!(result["activities"][0]["detail"]["cut"], "too long to be shown");

        // Invisible characters take more bytes when escaped, and do not displace everything else.
        let result = check(&task("d"), &messages(2, &"\u{202e}".repeat(40_000)), &[]);
        assert_eq!(result["messages"].as_array().unwrap().len(), 2);
        assert_eq!(result["messages"][1]["body_cut_of_bytes"], 120_000);

        let control = "\u{1}".repeat(40_000);
        check(&task(&control), &messages(200, &control), &activities(200, "\u{1}"));
        check(
            &task(&"ä\"\n".repeat(9_000)),
            &messages(200, &"ä\"\n".repeat(9_000)),
            &[],
        );
    }
}
