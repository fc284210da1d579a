//! The input of a turn: the notification, its task and a short extract of the task's thread; for the coordinator's chat
//! also the overview of tasks and the briefing. Text from outside is quoted (`text.rs`).

use std::sync::Arc;

use domain::{Actor, MessageId, NotificationId, QuestionId, StopKind, TaskId, TaskStatus};
use sea_orm::FromQueryResult;
use serde::Deserialize;
use storage::manifest::{Layer, Manifest, PartKind, Source};
use time::OffsetDateTime;

use super::{marks::Marks, text::ModelText};

/// Limit of a notification's body in the prompt; a publisher may send up to 256 KiB.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;
const MESSAGE_BYTES_MAX: usize = 600;
const DESCRIPTION_BYTES_MAX: usize = 2_000;
const BRIEFING_BYTES_MAX: usize = 16 * 1024;
pub(super) const TITLE_BYTES_MAX: usize = 200;
/// Limit of what a stopped turn was about.
const ABOUT_BYTES_MAX: usize = 200;
/// Limit of a publisher's notification id: 128 characters of any script.
const ID_BYTES_MAX: usize = 512;
/// Messages of a thread are counted up to this limit; a longer thread is shown as "more than" it. Counting all of them
/// would make each turn slower than the one before.
pub const THREAD_COUNTED_MAX: i64 = 100;

/// The next item of a session's queue, and what its agent is told with it.
#[derive(Clone, Debug, FromQueryResult)]
pub struct InputFacts {
    #[sea_orm(from_alias = "id")]
    pub notification: NotificationId,
    pub kind: String,
    /// The question of this conversation that it answers.
    pub answer_to: Option<QuestionId>,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub title: Option<String>,
    pub body: String,
    #[sea_orm(from_alias = "message_id")]
    pub about_message: Option<MessageId>,
    #[sea_orm(nested(prefix = "task_"))]
    pub task: Option<TaskFacts>,
    /// The newest few messages of the task's thread, oldest first.
    #[sea_orm(skip)]
    pub thread: ThreadExtract,
    /// At most one more than [`THREAD_COUNTED_MAX`].
    pub thread_total: i64,
    /// The briefing and the account's tasks, for the coordinator's chat only (S6).
    #[sea_orm(skip)]
    pub overview: Option<(String, Vec<OverviewEntry>)>,
    /// The further items of its run, from the same author and on the same task.
    #[sea_orm(skip)]
    pub further: Vec<Further>,
    /// An earlier turn was interrupted, and its progress is unknown. After a handover it is another agent's.
    #[sea_orm(skip)]
    pub is_interrupted: bool,
    /// The previous turn was stopped.
    #[sea_orm(skip)]
    pub stopped: Option<Stopped>,
}

/// A further item of a run.
#[derive(Clone, Debug)]
pub struct Further {
    pub notification: NotificationId,
    pub title: Option<String>,
    pub body: String,
}

/// Who stopped the previous turn, when, and what the turn was about.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub kind: StopKind,
    pub by: String,
    pub at: OffsetDateTime,
    /// The sender and the beginning of its first item; none: the item was removed.
    pub about: Option<(Actor, String)>,
}

/// Shared with the cache of them.
pub type ThreadExtract = Arc<[Arc<ThreadMessage>]>;

#[derive(Clone, Debug, FromQueryResult)]
pub struct TaskFacts {
    pub id: TaskId,
    pub title: String,
    pub description: String,
    pub status: TaskStatus,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ThreadMessage {
    pub id: MessageId,
    pub author: Actor,
    pub body: String,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

#[derive(Clone, Debug, FromQueryResult)]
pub struct OverviewEntry {
    #[sea_orm(from_alias = "display_id")]
    pub id: TaskId,
    pub title: String,
    pub status: TaskStatus,
}

const INTERRUPTED: &str = "Note from Signalbox: an earlier turn on this work, yours or that of the agent before you, was \
interrupted, and what it did before that is not known. Look at what has already been done before you act; do not repeat it.\n\n";

/// Whether the input of a turn, as built here, begins with the note of an interruption.
pub fn tells_of_interruption(input: &str) -> bool {
    input.starts_with(INTERRUPTED)
}

/// Builds the input and adds its parts to the manifest. The same facts and marks give the same bytes.
pub fn input(facts: &InputFacts, marks: Marks, manifest: &mut Manifest) -> String {
    let mut input = Input {
        text: String::new(),
        marks,
        manifest,
    };
    if facts.is_interrupted {
        input.add(
            PartKind::Interruption,
            named("session"),
            ModelText::default().ours(INTERRUPTED),
        );
    }
    if let Some(stopped) = &facts.stopped {
        let piece = told(stopped, &mut input.marks);
        input.add(PartKind::Stopped, named("session"), piece);
    }
    let piece = notification(facts);
    if facts.further.is_empty() {
        let piece = piece
            .ours("\nBody:\n")
            .block(&facts.body, BODY_BYTES_MAX, &mut input.marks);
        input.add(PartKind::Notification, of_notification(&facts.notification), piece);
    } else {
        run(facts, piece, &mut input);
    }
    if let Some(task) = &facts.task
        && !task.description.trim().is_empty()
    {
        let piece = ModelText::default().ours("\nDescription of the task:\n").block(
            task.description.trim(),
            DESCRIPTION_BYTES_MAX,
            &mut input.marks,
        );
        input.add(PartKind::Task, Source::Named(format!("task/{}", task.id.key())), piece);
    }
    let thread = &facts.thread;
    if !thread.is_empty() {
        let heading = ModelText::default()
            .ours("\nThe last ")
            .value(thread.len())
            .ours(" of ");
        let heading = match facts.thread_total {
            all @ ..=THREAD_COUNTED_MAX => heading.value(all),
            _ => heading.ours("more than ").value(THREAD_COUNTED_MAX),
        };
        let heading = heading.ours(" messages in this task's thread, oldest first:\n");
        input.add(PartKind::Thread, named("thread"), heading);
    }
    for message in thread.iter() {
        let piece = ModelText::default()
            .timestamp(message.at)
            .ours(" ")
            .actor(&message.author)
            .ours(":\n")
            .block(&message.body, MESSAGE_BYTES_MAX, &mut input.marks);
        input.add(PartKind::Message, Source::Message(message.id.uuid()), piece);
    }
    if let Some((briefing, tasks)) = &facts.overview {
        if !briefing.trim().is_empty() {
            let piece = ModelText::default().ours("\nThe account's briefing:\n").block(
                briefing.trim(),
                BRIEFING_BYTES_MAX,
                &mut input.marks,
            );
            input.add(PartKind::Briefing, named("account/briefing"), piece);
        }
        let heading = ModelText::default().ours("\nTasks of the account, newest first:\n");
        input.add(
            PartKind::Overview,
            named("account/tasks"),
            tasks.iter().fold(heading, entry),
        );
    }
    input.text
}

/// An input under construction.
pub(super) struct Input<'a> {
    pub(super) text: String,
    pub(super) marks: Marks,
    pub(super) manifest: &'a mut Manifest,
}

impl Input<'_> {
    pub(super) fn add(&mut self, part: PartKind, source: Source, piece: ModelText) {
        self.manifest
            .add(Layer::Input, part, source, piece.as_str(), piece.left_out());
        self.text.push_str(piece.as_str());
    }
}

pub(super) fn named(source: &str) -> Source {
    Source::Named(source.to_owned())
}

pub(super) fn of_notification(id: &NotificationId) -> Source {
    Source::Named(format!("notification/{id}"))
}

/// What the agent is told of its previous turn, which was stopped.
fn told(stopped: &Stopped, marks: &mut Marks) -> ModelText {
    let what = match stopped.kind {
        StopKind::Stopped => "stopped",
        StopKind::Steered => "ended for a newer message",
        StopKind::Paused => "ended by a pause",
        StopKind::Cancelled => "ended with its task",
        StopKind::HandedOver => "ended, and its task given to another agent,",
    };
    let text = ModelText::default()
        .ours("Note from Signalbox: your previous turn in this conversation was ")
        .ours(what)
        .ours(" by ")
        .line(&stopped.by, ID_BYTES_MAX)
        .ours(" at ")
        .timestamp(stopped.at)
        .ours(". It may be partly done. Check before you repeat it.");
    match &stopped.about {
        None => text.ours("\n\n"),
        Some((sender, body)) => text
            .ours(" It was about this, from ")
            .actor(sender)
            .ours(":\n")
            .block(body, ABOUT_BYTES_MAX, marks)
            .ours("\n"),
    }
}

/// The items of a run, numbered, each a part of its own.
fn run(facts: &InputFacts, heading: ModelText, input: &mut Input<'_>) {
    let heading = heading
        .ours("\n[Follow-up messages from @")
        .line(&facts.sender.name, ID_BYTES_MAX)
        .ours("]:\n");
    input.add(PartKind::Followup, named("queue"), heading);
    let first = (&facts.notification, facts.title.as_ref(), &facts.body);
    let further = facts
        .further
        .iter()
        .map(|one| (&one.notification, one.title.as_ref(), &one.body));
    for (n, (id, title, body)) in (1_usize..).zip(std::iter::once(first).chain(further)) {
        let mut piece = ModelText::default().value(n).ours(". ");
        if let Some(title) = title {
            piece = piece.line(title, TITLE_BYTES_MAX);
        }
        let piece = piece.ours("\n").block(body, BODY_BYTES_MAX, &mut input.marks);
        input.add(PartKind::Notification, of_notification(id), piece);
    }
}

/// The fields of a notification, or of a run's, without the body.
fn notification(facts: &InputFacts) -> ModelText {
    let is_run = !facts.further.is_empty();
    let mut text = match is_run {
        false => ModelText::default()
            .ours("Notification: ")
            .line(facts.notification.as_str(), ID_BYTES_MAX)
            .ours("\nType: ")
            .line(&facts.kind, ID_BYTES_MAX),
        true => ModelText::default()
            .ours("Notifications: ")
            .value(facts.further.len() + 1),
    };
    text = match &facts.task {
        Some(task) => text
            .ours("\nTask: ")
            .value(&task.id)
            .ours("\nTask status: ")
            .value(task.status)
            .ours("\nTask title: ")
            .line(&task.title, TITLE_BYTES_MAX),
        None => text.ours("\nTask: -"),
    };
    if let Some(question) = facts.answer_to {
        text = text.ours("\nAnswer to your question: ").value(question);
    }
    text = text.ours("\nFrom: ").actor(&facts.sender);
    if let Some(title) = facts.title.as_ref().filter(|_| !is_run) {
        text = text.ours("\nTitle: ").line(title, TITLE_BYTES_MAX);
    }
    if let Some(message) = facts.about_message.filter(|_| !is_run) {
        text = text.ours("\nAbout message: ").value(message);
    }
    text
}

fn entry(text: ModelText, task: &OverviewEntry) -> ModelText {
    text.ours("- ")
        .value(&task.id)
        .ours(" [")
        .value(task.status)
        .ours("] ")
        .line(&task.title, TITLE_BYTES_MAX)
        .ours("\n")
}
