//! The input of a turn: the notification, the task it belongs to, a short extract of that task's thread; for the
//! coordinator's chat also the overview of tasks and the briefing. Strangers' text is quoted.

use domain::{Actor, MessageId, NotificationId, TaskId, TaskStatus};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    manifest::Manifest,
    quote::{one_line, quoted},
};

/// A notification's body is shown whole up to this; the publisher may send up to 256 KiB.
const BODY_BYTES_MAX: usize = 64 * 1024;
const MESSAGE_BYTES_MAX: usize = 600;
const DESCRIPTION_BYTES_MAX: usize = 2_000;
const BRIEFING_BYTES_MAX: usize = 16 * 1024;
const TITLE_BYTES_MAX: usize = 200;
/// A thread is counted up to this; of a longer one it is said that it is longer. Counting all of it would make each turn
/// dearer than the one before.
pub const THREAD_COUNTED_MAX: i64 = 100;

#[derive(Clone, Debug)]
pub struct InputFacts {
    pub notification: NotificationId,
    pub kind: String,
    pub sender: Actor,
    pub title: Option<String>,
    pub body: String,
    pub about_message: Option<MessageId>,
    pub task: Option<TaskFacts>,
    /// Oldest first; the newest few of the thread.
    pub thread: Vec<ThreadMessage>,
    /// At most one more than [`THREAD_COUNTED_MAX`].
    pub thread_total: i64,
    /// For the coordinator's chat alone (S6).
    pub overview: Option<(String, Vec<OverviewEntry>)>,
    pub interruption: Option<Interruption>,
}

#[derive(Clone, Debug)]
pub struct TaskFacts {
    pub id: TaskId,
    pub title: String,
    pub description: String,
    pub status: TaskStatus,
}

#[derive(Clone, Debug)]
pub struct ThreadMessage {
    pub id: MessageId,
    pub author: Actor,
    pub body: String,
    pub at: OffsetDateTime,
}

#[derive(Clone, Debug)]
pub struct OverviewEntry {
    pub id: TaskId,
    pub title: String,
    pub status: TaskStatus,
}

/// The turn before this one broke off and nobody knows how far it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interruption;

const INTERRUPTED: &str = "Note from Signalbox: your previous turn in this conversation was interrupted, and what it did \
before that is not known. Look at what has already been done before you act; do not repeat it.\n\n";

/// Builds the input and enters its parts into the manifest.
pub fn input(facts: &InputFacts, manifest: &mut Manifest) -> String {
    let mut text = String::new();
    let mut add = |part: &str, source: String, piece: &str, cut: usize| {
        manifest.add("input", part, source, piece, cut);
        text.push_str(piece);
    };
    if facts.interruption.is_some() {
        add("interruption", "session".to_owned(), INTERRUPTED, 0);
    }
    let (notification, cut) = notification_text(facts);
    add(
        "notification",
        format!("notification/{}", facts.notification),
        &notification,
        cut,
    );
    if let Some(task) = &facts.task
        && !task.description.trim().is_empty()
    {
        let (body, cut) = quoted(task.description.trim(), DESCRIPTION_BYTES_MAX);
        add(
            "task",
            format!("task/{}", task.id.key()),
            &format!("\nDescription of the task:\n{body}\n"),
            cut,
        );
    }
    if !facts.thread.is_empty() {
        let shown = facts.thread.len();
        let total = match facts.thread_total {
            all @ ..=THREAD_COUNTED_MAX => all.to_string(),
            _ => format!("more than {THREAD_COUNTED_MAX}"),
        };
        let heading = format!("\nThe last {shown} of {total} messages in this task's thread, oldest first:\n");
        add("thread", "thread".to_owned(), &heading, 0);
        for message in &facts.thread {
            let (body, cut) = quoted(&message.body, MESSAGE_BYTES_MAX);
            let piece = format!("{} {}:\n{body}\n", moment(message.at), actor(&message.author));
            add("message", format!("message/{}", message.id), &piece, cut);
        }
    }
    if let Some((briefing, tasks)) = &facts.overview {
        if !briefing.trim().is_empty() {
            let (body, cut) = quoted(briefing.trim(), BRIEFING_BYTES_MAX);
            add(
                "briefing",
                "account/briefing".to_owned(),
                &format!("\nThe account's briefing:\n{body}\n"),
                cut,
            );
        }
        let mut piece = String::from("\nTasks of the account, newest first:\n");
        for task in tasks {
            piece.push_str(&format!(
                "- {} [{}] {}\n",
                task.id,
                task.status,
                one_line(&task.title, TITLE_BYTES_MAX)
            ));
        }
        add("overview", "account/tasks".to_owned(), &piece, 0);
    }
    text
}

fn notification_text(facts: &InputFacts) -> (String, usize) {
    let mut text = format!("Notification: {}\nType: {}\n", facts.notification, facts.kind);
    match &facts.task {
        Some(task) => {
            text.push_str(&format!(
                "Task: {}\nTask status: {}\nTask title: {}\n",
                task.id,
                task.status,
                one_line(&task.title, TITLE_BYTES_MAX)
            ));
        }
        None => text.push_str("Task: -\n"),
    }
    text.push_str(&format!("From: {}\n", actor(&facts.sender)));
    if let Some(title) = &facts.title {
        text.push_str(&format!("Title: {}\n", one_line(title, TITLE_BYTES_MAX)));
    }
    if let Some(message) = facts.about_message {
        text.push_str(&format!("About message: {message}\n"));
    }
    let (body, cut) = quoted(&facts.body, BODY_BYTES_MAX);
    text.push_str(&format!("Body:\n{body}\n"));
    (text, cut)
}

fn actor(actor: &Actor) -> String {
    format!(
        "{} ({} {})",
        one_line(&actor.name, 64),
        actor.kind,
        one_line(&actor.id, 64)
    )
}

fn moment(at: OffsetDateTime) -> String {
    let second = at.replace_nanosecond(0).expect("zero is a nanosecond");
    second
        .format(&Rfc3339)
        .expect("a moment between years 0 and 9999 has an RFC 3339 form")
}
