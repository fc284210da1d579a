//! The input of a turn: the notification, the state of its task and what is new in the task's thread; for the coordinator's chat
//! also the overview of tasks and the briefing. Text from outside is quoted (`text.rs`). Each part has a function of its own, by
//! which an audit renders its source again.

use contracts::quote;
use domain::{
    Actor, BranchId, MailId, MessageId, MessageType, NotificationId, QuestionId, StopKind, TaskId, TaskStatus,
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    manifest::{Because, Layer, LeftOut, Limit, Manifest, PartKind, Source},
    marks::Marks,
    text::{Cap, ModelText},
};

/// Limit of a notification's body in the prompt; a publisher may send up to 256 KiB.
pub(crate) const BODY: Cap = (Limit::BodyBytesMax, 64 * 1024);
/// The same of the results of subagents, each of which was cut when it was stored.
const RESULTS: Cap = (Limit::BodyBytesMax, 256 * 1024);
const MESSAGE: Cap = (Limit::MessageBytesMax, 600);
const DESCRIPTION: Cap = (Limit::DescriptionBytesMax, 2_000);
const BRIEFING: Cap = (Limit::BriefingBytesMax, 16 * 1024);
pub(crate) const TITLE: Cap = (Limit::TitleBytesMax, 200);
/// Limit of what a stopped turn was about.
const ABOUT: Cap = (Limit::AboutBytesMax, 200);
/// Limit of a publisher's notification id: 128 characters of any script.
const ID: Cap = (Limit::IdBytesMax, 512);
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
    #[sea_orm(skip)]
    pub answer_to: Option<QuestionId>,
    /// The group of this conversation's subagents whose results it brings.
    #[sea_orm(skip)]
    pub result_of: Option<Uuid>,
    /// The mail to this conversation that it brings.
    #[sea_orm(skip)]
    pub mail: Option<MailFacts>,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub title: Option<String>,
    pub body: String,
    #[sea_orm(from_alias = "message_id")]
    pub about_message: Option<MessageId>,
    #[sea_orm(nested(prefix = "task_"))]
    pub task: Option<TaskFacts>,
    /// What is new in the task's thread.
    #[sea_orm(skip)]
    pub extract: Extract,
    /// Why the task's description goes along. None: the provider's thread has it.
    #[sea_orm(skip)]
    pub description: Option<Because>,
    /// The account's briefing, and why it goes along; for the coordinator's chat only (S6).
    #[sea_orm(skip)]
    pub briefing: Option<(String, Because)>,
    /// The account's tasks, for the coordinator's chat only (S6).
    #[sea_orm(skip)]
    pub overview: Option<Vec<OverviewEntry>>,
    /// The further items of its run, from the same author and on the same task.
    #[sea_orm(skip)]
    pub further: Vec<Further>,
    /// An earlier turn was interrupted, and its progress is unknown. After a handover it is another agent's.
    #[sea_orm(skip)]
    pub is_interrupted: bool,
    /// The previous turn was stopped.
    #[sea_orm(skip)]
    pub stopped: Option<Stopped>,
    /// This conversation's subagents at work, where the prompt is assembled.
    #[sea_orm(skip)]
    pub subagents: Vec<Subagent>,
}

/// Mail that is told in a turn.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct MailFacts {
    pub id: MailId,
    pub message_type: MessageType,
    /// The task that it is about.
    pub about: Option<TaskId>,
    /// The sender's address, which an answer goes to.
    pub from: Option<String>,
}

impl TryGetableFromJson for MailFacts {}

/// A subagent at work.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Subagent {
    pub id: BranchId,
    pub label: Option<String>,
    pub agent: String,
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

/// Messages of a task's thread that are new to its agent, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Extract {
    pub messages: Vec<ThreadMessage>,
    /// How many are new, the shown ones included; at most one more than [`THREAD_COUNTED_MAX`].
    pub new: i64,
}

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
pub fn input(facts: &InputFacts, mut marks: Marks, manifest: &mut Manifest) -> String {
    let mut input = Input {
        text: String::new(),
        manifest,
    };
    if facts.is_interrupted {
        input.add(PartKind::Interruption, Source::named("session"), None, &interruption());
    }
    if let Some(about) = &facts.stopped {
        let piece = stopped(about, &mut marks);
        input.add(PartKind::Stopped, Source::named("session"), None, &piece);
    }
    match &facts.further[..] {
        [] => {
            let [heading, rest] = notification(facts, &mut marks);
            input.add(
                PartKind::Notification,
                Source::notification(&facts.notification),
                None,
                &heading,
            );
            input.state(facts);
            input.add(
                PartKind::Notification,
                Source::notification(&facts.notification),
                None,
                &rest,
            );
        }
        further => run(facts, further, &mut marks, &mut input),
    }
    if let (Some(task), Some(because)) = (&facts.task, facts.description)
        && let Some(piece) = description(&task.description, &mut marks)
    {
        input.add(PartKind::Task, of_task(task), Some(because), &piece);
    }
    let extract = &facts.extract;
    if !extract.messages.is_empty() {
        input.add(PartKind::Thread, Source::named("thread"), None, &heading(extract));
    }
    for message in &extract.messages {
        let piece = thread_message(message, &mut marks);
        input.add(PartKind::Message, Source::Message(message.id.uuid()), None, &piece);
    }
    let left_out = usize::try_from(extract.new)
        .unwrap_or_default()
        .saturating_sub(extract.messages.len());
    if left_out > 0 {
        input.manifest.left_out.push(LeftOut {
            part: PartKind::Message,
            count: left_out,
            bytes: 0,
            by: Limit::ThreadMessagesMax,
        });
    }
    for subagent in &facts.subagents {
        let source = Source::named(format!("branch/{}", subagent.id));
        input.add(PartKind::Subagents, source, None, &at_work(subagent));
    }
    if let Some((text, because)) = &facts.briefing
        && let Some(piece) = briefing(text, &mut marks)
    {
        input.add(
            PartKind::Briefing,
            Source::named("account/briefing"),
            Some(*because),
            &piece,
        );
    }
    if let Some(tasks) = &facts.overview {
        input.add(
            PartKind::Overview,
            Source::named("account/tasks"),
            None,
            &overview(tasks),
        );
    }
    input.text
}

/// An input under construction.
struct Input<'a> {
    text: String,
    manifest: &'a mut Manifest,
}

impl Input<'_> {
    fn add(&mut self, part: PartKind, source: Source, because: Option<Because>, piece: &ModelText) {
        self.manifest
            .parts
            .push(piece.part(Layer::Input, part, source, because));
        self.text.push_str(piece.as_str());
    }

    /// The lines of the task.
    fn state(&mut self, facts: &InputFacts) {
        let source = facts.task.as_ref().map_or_else(|| Source::named("task"), of_task);
        self.add(PartKind::TaskState, source, None, &task_state(facts.task.as_ref()));
    }
}

fn of_task(task: &TaskFacts) -> Source {
    Source::named(format!("task/{}", task.id.key()))
}

pub fn interruption() -> ModelText {
    ModelText::default().ours(INTERRUPTED)
}

/// The task's description; none: it is blank.
pub fn description(text: &str, marks: &mut Marks) -> Option<ModelText> {
    titled("\nDescription of the task:\n", text, DESCRIPTION, marks)
}

/// The account's briefing; none: it is blank.
pub fn briefing(text: &str, marks: &mut Marks) -> Option<ModelText> {
    titled("\nThe account's briefing:\n", text, BRIEFING, marks)
}

fn titled(title: &'static str, text: &str, cap: Cap, marks: &mut Marks) -> Option<ModelText> {
    let text = text.trim();
    (!text.is_empty()).then(|| ModelText::default().ours(title).block(text, cap, marks))
}

fn heading(extract: &Extract) -> ModelText {
    let heading = ModelText::default()
        .ours("\nNew in this task's thread since your last turn: ")
        .value(extract.messages.len())
        .ours(" of ");
    let heading = match extract.new {
        all @ ..=THREAD_COUNTED_MAX => heading.value(all),
        _ => heading.ours("more than ").value(THREAD_COUNTED_MAX),
    };
    heading.ours(", oldest first:\n")
}

pub fn thread_message(message: &ThreadMessage, marks: &mut Marks) -> ModelText {
    ModelText::default()
        .timestamp(message.at)
        .ours(" ")
        .actor(&message.author)
        .ours(":\n")
        .block(&message.body, MESSAGE, marks)
}

/// A line of a subagent at work.
pub fn at_work(subagent: &Subagent) -> ModelText {
    ModelText::default()
        .ours("\nsubagent ")
        .line(subagent.label.as_deref().unwrap_or(&subagent.agent), ID)
        .ours(": running\n")
}

/// The account's tasks.
pub fn overview(tasks: &[OverviewEntry]) -> ModelText {
    let heading = ModelText::default().ours("\nTasks of the account, newest first:\n");
    tasks.iter().fold(heading, entry)
}

/// Whether a text is the heading of a thread's messages: numbers and our own words.
pub fn is_thread_heading(text: &str) -> bool {
    const FORMS: [(&str, &str); 2] = [
        (
            "\nNew in this task's thread since your last turn: ",
            ", oldest first:\n",
        ),
        // Of version 1.
        ("\nThe last ", " messages in this task's thread, oldest first:\n"),
    ];
    let counts = FORMS
        .iter()
        .find_map(|(before, after)| text.strip_prefix(before)?.strip_suffix(after));
    let counts = counts.and_then(|counts| counts.split_once(" of "));
    let is_number = |text: &str| !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    counts.is_some_and(|(shown, all)| is_number(shown) && is_number(all.strip_prefix("more than ").unwrap_or(all)))
}

/// Whether a text tells that this person or agent ended the turn in this way.
pub fn tells_who_stopped(text: &str, kind: StopKind, by: &str) -> bool {
    text.starts_with(stopped_by(kind, by).ours(" at ").as_str())
}

/// Whether a text is what an agent is told of a stopped turn that was about this. When the turn was stopped is known from the text
/// alone, and who stopped it is for [`tells_who_stopped`]: a session keeps the last stop only.
pub fn tells_of_stopped(text: &str, about: Option<&(Actor, String)>) -> bool {
    let rest = StopKind::ALL.iter().find_map(|kind| {
        let before = format!("{STOPPED}{} by ", how_it_ended(*kind));
        text.strip_prefix(&*before)
    });
    let rest = rest.and_then(|by| {
        let rest = quote::line_end(by)?;
        // With its quotation marks, and the sign of a cut.
        (by.len() - rest.len() <= ID.1 + 5)
            .then_some(rest)?
            .strip_prefix(" at ")
    });
    let told = rest.and_then(|rest| rest.split_once(PARTLY_DONE));
    let is_time = |at: &str| {
        at.len() <= 40
            && at
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b"TZ:.+-".contains(&byte))
    };
    let marks = &mut Marks::recorded(text);
    told.is_some_and(|(at, rest)| is_time(at) && rest == stopped_about(ModelText::default(), about, marks).as_str())
}

fn how_it_ended(kind: StopKind) -> &'static str {
    match kind {
        StopKind::Stopped => "stopped",
        StopKind::Steered => "ended for a newer message",
        StopKind::Paused => "ended by a pause",
        StopKind::Cancelled => "ended with its task",
        StopKind::HandedOver => "ended, and its task given to another agent,",
        StopKind::Reset => "ended by a reset",
        StopKind::BranchEnded => "ended with its branch",
    }
}

const STOPPED: &str = "Note from Signalbox: your previous turn in this conversation was ";
const PARTLY_DONE: &str = ". It may be partly done. Check before you repeat it.";

fn stopped_by(kind: StopKind, by: &str) -> ModelText {
    let how = ModelText::default().ours(STOPPED).ours(how_it_ended(kind));
    how.ours(" by ").line(by, ID)
}

/// What the agent is told of its previous turn, which was stopped.
pub fn stopped(stopped: &Stopped, marks: &mut Marks) -> ModelText {
    let text = stopped_by(stopped.kind, &stopped.by)
        .ours(" at ")
        .timestamp(stopped.at)
        .ours(PARTLY_DONE);
    stopped_about(text, stopped.about.as_ref(), marks)
}

fn stopped_about(text: ModelText, about: Option<&(Actor, String)>, marks: &mut Marks) -> ModelText {
    match about {
        None => text.ours("\n\n"),
        Some((sender, body)) => text
            .ours(" It was about this, from ")
            .actor(sender)
            .ours(":\n")
            .block(body, ABOUT, marks)
            .ours("\n"),
    }
}

/// The items of a run, numbered, each a part of its own.
fn run(facts: &InputFacts, further: &[Further], marks: &mut Marks, input: &mut Input<'_>) {
    let [heading, rest] = run_headings(facts);
    input.add(PartKind::Followup, Source::named("queue"), None, &heading);
    input.state(facts);
    input.add(PartKind::Followup, Source::named("queue"), None, &rest);
    let first = (&facts.notification, facts.title.as_deref(), &*facts.body);
    let further = further
        .iter()
        .map(|further| (&further.notification, further.title.as_deref(), &*further.body));
    for (n, (id, title, body)) in (1_usize..).zip(std::iter::once(first).chain(further)) {
        let piece = run_item(n, title, body, marks);
        input.add(PartKind::Notification, Source::notification(id), None, &piece);
    }
}

/// An item of a run: the n-th, from 1.
pub fn run_item(n: usize, title: Option<&str>, body: &str, marks: &mut Marks) -> ModelText {
    let mut piece = ModelText::default().value(n).ours(". ");
    if let Some(title) = title {
        piece = piece.line(title, TITLE);
    }
    piece.ours("\n").block(body, BODY, marks)
}

/// What stands before and after the lines of the task, above the items of a run.
pub fn run_headings(facts: &InputFacts) -> [ModelText; 2] {
    let rest = from(facts)
        .ours("\n[Follow-up messages from @")
        .line(&facts.sender.name, ID)
        .ours("]:\n");
    [
        ModelText::default()
            .ours("Notifications: ")
            .value(facts.further.len() + 1),
        rest,
    ]
}

/// A notification that stands alone: what stands before and after the lines of its task.
pub fn notification(facts: &InputFacts, marks: &mut Marks) -> [ModelText; 2] {
    let heading = ModelText::default()
        .ours("Notification: ")
        .line(facts.notification.as_str(), ID)
        .ours("\nType: ")
        .line(&facts.kind, ID);
    let mut rest = from(facts);
    if let Some(title) = &facts.title {
        rest = rest.ours("\nTitle: ").line(title, TITLE);
    }
    if let Some(message) = facts.about_message {
        rest = rest.ours("\nAbout message: ").value(message);
    }
    let cap = match facts.result_of {
        Some(_) => RESULTS,
        None => BODY,
    };
    [heading, rest.ours("\nBody:\n").block(&facts.body, cap, marks)]
}

fn from(facts: &InputFacts) -> ModelText {
    let text = match facts.answer_to {
        Some(question) => ModelText::default().ours("\nAnswer to your question: ").value(question),
        None => ModelText::default(),
    };
    let text = match facts.result_of {
        Some(group) => text.ours("\nResults of your subagents: ").value(group),
        None => text,
    };
    let text = match &facts.mail {
        Some(mail) => mail_lines(text, mail),
        None => text,
    };
    text.ours("\nFrom: ").actor(&facts.sender)
}

fn mail_lines(text: ModelText, mail: &MailFacts) -> ModelText {
    let text = text
        .ours("\nMail: ")
        .value(mail.id)
        .ours("\nMail type: ")
        .value(mail.message_type);
    let text = match &mail.about {
        Some(task) => text.ours("\nMail about task: ").value(task),
        None => text,
    };
    match &mail.from {
        Some(address) => text.ours("\nMail address of the sender: ").line(address, ID),
        None => text,
    }
}

/// The lines of a task, as it is when the turn begins.
pub fn task_state(task: Option<&TaskFacts>) -> ModelText {
    match task {
        Some(task) => ModelText::default()
            .ours("\nTask: ")
            .value(&task.id)
            .ours("\nTask status: ")
            .value(task.status)
            .ours("\nTask title: ")
            .line(&task.title, TITLE),
        None => ModelText::default().ours("\nTask: -"),
    }
}

fn entry(text: ModelText, task: &OverviewEntry) -> ModelText {
    text.ours("- ")
        .value(&task.id)
        .ours(" [")
        .value(task.status)
        .ours("] ")
        .line(&task.title, TITLE)
        .ours("\n")
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, ActorKind, TurnId};
    use uuid::Uuid;

    use super::*;
    use crate::MarkSecret;

    fn ann() -> Actor {
        Actor {
            kind: ActorKind::User,
            id: "ann".to_owned(),
            name: "Ann \"the\" Great".to_owned(),
            via: None,
        }
    }

    #[test]
    fn what_is_told_of_a_stopped_turn_is_known_by_what_the_turn_was_about() {
        let account = AccountId::parse("acme").unwrap();
        let mut marks = MarkSecret::new([1; 32]).marks(&account, TurnId(Uuid::nil()));
        let about = (
            ann(),
            "Mend it. It may be partly done. Check before you repeat it.".to_owned(),
        );
        for kind in StopKind::ALL {
            for by in ["Ann", "\" at 1. \\", ""] {
                let mut told = |about| {
                    let told = Stopped {
                        kind: *kind,
                        by: by.to_owned(),
                        at: OffsetDateTime::UNIX_EPOCH,
                        about,
                    };
                    stopped(&told, &mut marks).into_string()
                };
                let (with, without) = (told(Some(about.clone())), told(None));
                assert!(tells_of_stopped(&with, Some(&about)), "{with}");
                assert!(tells_of_stopped(&without, None), "{without}");
                assert!(tells_who_stopped(&with, *kind, by), "{with}");
                assert!(!tells_who_stopped(&with, *kind, &format!("{by}a")), "{with}");
                let other = (ann(), "Mend that.".to_owned());
                for (text, about) in [
                    (&with, Some(&other)),
                    (&with, None),
                    (&without, Some(&about)),
                    (&format!("{with}And this."), Some(&about)),
                    (&with.replace("partly", "wholly"), Some(&about)),
                    (&with.replace("1970", "Ann 1970"), Some(&about)),
                ] {
                    assert!(!tells_of_stopped(text, about), "{text}");
                }
            }
        }
        assert!(!tells_of_stopped("", None));
        // A name is cut.
        let told = Stopped {
            kind: StopKind::Stopped,
            by: "é".repeat(600),
            at: OffsetDateTime::UNIX_EPOCH,
            about: None,
        };
        let text = stopped(&told, &mut marks).into_string();
        assert!(tells_of_stopped(&text, None) && tells_who_stopped(&text, told.kind, &told.by));
        assert!(!tells_of_stopped(&text.replacen('é', "éééééééé", 1), None));
    }

    #[test]
    fn a_heading_of_messages_has_nothing_but_numbers() {
        let new = |shown: usize, new: i64| {
            let message = ThreadMessage {
                id: MessageId(Uuid::nil()),
                author: ann(),
                body: String::new(),
                at: OffsetDateTime::UNIX_EPOCH,
            };
            heading(&Extract {
                messages: vec![message; shown],
                new,
            })
        };
        for heading in [new(1, 1), new(6, 40), new(6, 101)] {
            assert!(is_thread_heading(heading.as_str()), "{}", heading.as_str());
        }
        let first = "\nThe last 6 of 100 messages in this task's thread, oldest first:\n";
        assert!(is_thread_heading(first));
        for not in [
            "",
            "\nThe last 6 messages in this task's thread, oldest first:\n",
            "\nThe last six of 9 messages in this task's thread, oldest first:\n",
            "\nThe last  of 9 messages in this task's thread, oldest first:\n",
            "\nNew in this task's thread since your last turn: 1 of 2, and more, oldest first:\n",
        ] {
            assert!(!is_thread_heading(not), "{not}");
        }
    }
}
