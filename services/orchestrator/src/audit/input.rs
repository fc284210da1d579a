//! Rules for a turn's input: every part is rendered again from the row that it names, with the marks of its own quotations.

use std::collections::HashMap;

use domain::{Actor, NotificationId, SessionId, StopKind, TaskId, TaskStatus, branch::RESULT, mail};
use prompt::{
    Further, InputFacts, Marks, TaskFacts, ThreadMessage, briefing, description, interruption, is_thread_heading,
    manifest::{Layer, Part, PartKind, Source},
    notification, run_headings, run_item, task_state, tells_of_stopped, tells_who_stopped, thread_message,
};

use super::{
    judge::{Case, Ruling, foreign, gone, unknown_source, whole},
    store::{AuditedTurn, Before, Item},
    verdict::{
        Doubt::{Changed, Retention, UnknownSource, Unread},
        Fault::{ForeignTask, ForeignThread, HashMismatch, SourceMissing, UncoveredBytes},
        Judged, Policy,
        Verdict::{ByPolicy, Unproven, Violation},
    },
};
use crate::turns::sent::word;

pub(super) const NOTIFICATION: &str = "notification/";

/// The parts of an input, counted by kind: what is rendered depends on their places.
#[derive(Default)]
struct Places(HashMap<String, usize>);

impl Places {
    fn next(&mut self, of: String) -> usize {
        let place = self.0.entry(of).or_default();
        *place += 1;
        *place - 1
    }
}

impl Case<'_> {
    pub(super) fn input(&self, judged: &mut Vec<Judged>) {
        let instructions = self.turn.instructions.as_deref().unwrap_or_default();
        let Some(text) = self.manifest.own_input(instructions, &self.turn.input) else {
            let ruling = (
                Violation(UncoveredBytes),
                "its input does not begin with its instructions".to_owned(),
            );
            judged.push(whole("input", self.turn.input.len(), ruling));
            return;
        };
        let mut places = Places::default();
        let rule = |part: &Part, text: &str| match part.part {
            PartKind::Notification => self.notification(part, text, places.next(word(&part.part))),
            PartKind::Followup => self.followup(text, places.next(word(&part.part))),
            PartKind::Interruption | PartKind::Stopped | PartKind::Task | PartKind::TaskState | PartKind::Thread => {
                let kind = word(&part.part);
                match places.next(kind.clone()) {
                    0 => self.input_part(part, text),
                    _ => (
                        Violation(HashMismatch),
                        format!("a prompt has one part of the kind {kind}"),
                    ),
                }
            }
            PartKind::Policy
            | PartKind::Coordinator
            | PartKind::Taskless
            | PartKind::Role
            | PartKind::Message
            | PartKind::Briefing
            | PartKind::Overview
            | PartKind::Injected
            | PartKind::Entry
            | PartKind::EntriesLeftOut
            | PartKind::ToolResult
            | PartKind::Branch
            | PartKind::TaskContext
            | PartKind::Persona
            | PartKind::Orchestrator
            | PartKind::Identity
            | PartKind::Subagents => self.input_part(part, text),
        };
        self.slices(Layer::Input, text, rule, judged);
    }

    /// A part whose text does not depend on its place.
    pub(super) fn input_part(&self, part: &Part, text: &str) -> Ruling {
        match part.part {
            PartKind::Interruption => self.rendered(text == interruption().as_str(), "the note of an interruption"),
            PartKind::Stopped => self.stopped(text),
            PartKind::TaskState => self.of_own_task(part).unwrap_or_else(|| self.task_state(text)),
            PartKind::Task => self.of_own_task(part).unwrap_or_else(|| self.description(text)),
            PartKind::Thread => self.rendered(is_thread_heading(text), "the heading of the messages"),
            PartKind::Message => self.message(part, text),
            PartKind::Briefing => self.of_coordinator(Some(text)),
            PartKind::Overview => self.of_coordinator(None),
            PartKind::Subagents => self.subagent(part, text),
            PartKind::Policy
            | PartKind::Coordinator
            | PartKind::Taskless
            | PartKind::Role
            | PartKind::Notification
            | PartKind::Followup
            | PartKind::Injected
            | PartKind::Entry
            | PartKind::EntriesLeftOut
            | PartKind::ToolResult
            | PartKind::Branch
            | PartKind::TaskContext
            | PartKind::Persona
            | PartKind::Orchestrator
            | PartKind::Identity => unknown_source(),
        }
    }

    /// `place`: among the parts of notifications. One that stands alone has two, around the lines of its task.
    fn notification(&self, part: &Part, text: &str, place: usize) -> Ruling {
        let item = match item_of(self, part) {
            Ok(item) => item,
            Err(ruling) => return ruling,
        };
        let source = part.source.to_string();
        let id = source.strip_prefix(NOTIFICATION).unwrap_or_default();
        let Some(facts) = facts(id, item, 0) else {
            return unknown_source();
        };
        let mut marks = Marks::recorded(text);
        let is_run = self
            .manifest
            .layer(Layer::Input)
            .any(|part| part.part == PartKind::Followup);
        let is_same = match (is_run, self.manifest.version, place) {
            (true, _, place) => {
                let rendered = run_item(place + 1, item.title.as_deref(), &item.body, &mut marks);
                rendered.as_str() == text
            }
            (false, 1, _) => {
                let [heading, rest] = notification(&facts, &mut marks);
                let lines = self.task_lines(text).unwrap_or_default();
                [heading.as_str(), &lines, rest.as_str()].concat() == text
            }
            (false, _, 0) => notification(&facts, &mut marks)[0].as_str() == text,
            (false, _, _) => notification(&facts, &mut marks)[1].as_str() == text,
        };
        self.of_item(is_same, item, id)
    }

    /// What stands around the lines of the task, above the items of a run.
    fn followup(&self, text: &str, place: usize) -> Ruling {
        let items = self
            .manifest
            .layer(Layer::Input)
            .filter(|part| part.part == PartKind::Notification);
        let items: Vec<&Part> = items.collect();
        let Some(first) = items.first() else {
            return (Violation(SourceMissing), "a run without items".to_owned());
        };
        let item = match item_of(self, first) {
            Ok(item) => item,
            Err(ruling) => return ruling,
        };
        let source = first.source.to_string();
        let id = source.strip_prefix(NOTIFICATION).unwrap_or_default();
        let Some(facts) = facts(id, item, items.len() - 1) else {
            return unknown_source();
        };
        let [heading, rest] = run_headings(&facts);
        let is_same = match (self.manifest.version, place) {
            (1, _) => {
                [
                    heading.as_str(),
                    &self.task_lines(text).unwrap_or_default(),
                    rest.as_str(),
                ]
                .concat()
                    == text
            }
            (_, 0) => heading.as_str() == text,
            (_, _) => rest.as_str() == text,
        };
        self.of_item(is_same, item, id)
    }

    /// An item can be edited before a turn takes it, and a later turn may take it again after that. The question that it answers, and
    /// the branches whose results it brings, are kept for a time of their own.
    pub(super) fn of_item(&self, is_same: bool, item: &Item, id: &str) -> Ruling {
        let of = format!("notification {id}");
        let removed = match &*item.kind {
            "answer" if item.answer_to.is_none() => Some("the question that it answers was removed"),
            RESULT if item.result_of.is_none() => Some("the branches whose results it brings were removed"),
            mail::ITEM if item.mail.is_none() => Some("the mail that it brings was removed"),
            _ => None,
        };
        if let Some(removed) = removed.filter(|_| !is_same) {
            return (Unproven(Retention), format!("{of}: {removed}"));
        }
        self.rendered_before(is_same, item.revision > 1, &of)
    }

    fn message(&self, part: &Part, text: &str) -> Ruling {
        let Source::Message(id) = part.source else {
            return unknown_source();
        };
        let of = format!("message {id}");
        let Some(message) = self.sources.messages.get(&id) else {
            // Messages are kept as long as their account.
            return (Violation(SourceMissing), format!("{of} is not there"));
        };
        if let Some(ruling) = foreign(self.turn, message.task_id.as_ref(), &of) {
            return ruling;
        }
        if self.branch().is_some_and(|branch| !branch.messages.contains(&id)) {
            return (
                Violation(ForeignThread),
                format!("{of} is not in the base of its branch"),
            );
        }
        let message = ThreadMessage {
            id: id.into(),
            author: message.sender.clone(),
            body: message.body.clone(),
            at: message.at,
        };
        let rendered = thread_message(&message, &mut Marks::recorded(text));
        self.rendered(rendered.as_str() == text, &of)
    }

    /// A source of the form `task/{key}` is the turn's own task. None: it is.
    fn of_own_task(&self, part: &Part) -> Option<Ruling> {
        let source = part.source.to_string();
        let task = source.strip_prefix("task/").and_then(|task| TaskId::parse(task).ok());
        foreign(self.turn, task.as_ref(), "a part")
    }

    /// The task as it is now, in the status that the text says; of a branch, as its parent knew it.
    fn task_facts(&self, text: &str) -> Option<TaskFacts> {
        const STATUS: &str = "\nTask status: ";
        let (_, rest) = text.split_once(STATUS)?;
        let status = rest.split('\n').next().and_then(TaskStatus::parse)?;
        let base = self.branch().map(|branch| &branch.base);
        Some(TaskFacts {
            id: self.turn.task_display.clone()?,
            title: base.map(|base| base.title.clone()).or(self.turn.task_title.clone())?,
            description: String::new(),
            status: base.map_or(status, |base| base.status),
        })
    }

    /// The lines of the task, in the status that the text says. None: they are of no task that is there.
    fn task_lines(&self, text: &str) -> Option<String> {
        match &*self.turn.task {
            None => Some(task_state(None).into_string()),
            Some(_) => Some(task_state(Some(&self.task_facts(text)?)).into_string()),
        }
    }

    fn task_state(&self, text: &str) -> Ruling {
        let is_same = self.task_lines(text).is_some_and(|lines| lines == text);
        self.rendered_before(is_same, self.task_has_changed(), "the title of the task")
    }

    fn description(&self, text: &str) -> Ruling {
        let base = self.branch().map(|branch| &*branch.base.description);
        let shown = base.or(self.turn.task_description.as_deref()).unwrap_or_default();
        let rendered = description(shown, &mut Marks::recorded(text));
        let is_same = rendered.is_some_and(|rendered| rendered.as_str() == text);
        self.rendered_before(is_same, self.task_has_changed(), "the description of the task")
    }

    /// The briefing, or the overview of tasks (no text): for turns on the coordinator task.
    fn of_coordinator(&self, text: Option<&str>) -> Ruling {
        let rendered = text.and_then(|text| briefing(&self.turn.briefing, &mut Marks::recorded(text)));
        let is_same = text.is_none_or(|text| rendered.is_some_and(|rendered| rendered.as_str() == text));
        match (self.is_coordinator(), self.was_coordinator(), is_same) {
            (true, _, true) => (
                ByPolicy(Policy::Coordinator),
                "the turn is on the coordinator task".to_owned(),
            ),
            (true, _, false) => (Unproven(Changed), "the account's briefing has changed since".to_owned()),
            (false, true, _) => (Unproven(Changed), "its task is not the coordinator task now".to_owned()),
            (false, false, _) => (
                Violation(ForeignTask),
                "it is of the whole account, and the turn is not the coordinator's".to_owned(),
            ),
        }
    }

    /// What the agent is told of a stopped turn: it was about the first item of one of the turns before, or about none that is kept. A
    /// reset puts the items of the turn that it stopped into the next generation, and a rotation hands the note on.
    fn stopped(&self, text: &str) -> Ruling {
        let turn = self.turn;
        let continued = turn.continues_id.map(|id| (SessionId(id), i64::MAX));
        let places = [Some((turn.home_id, turn.home_number)), continued];
        let before = places.into_iter().flatten();
        let before: Vec<&Before> = before
            .filter_map(|place| self.sources.before.get(&place))
            .flatten()
            .collect();
        let is_before = before.iter().any(|before| tells_of_stopped(text, Some(&before.about)));
        let is_same = is_before || tells_of_stopped(text, None) || self.tells_of_own_item(text);
        if !is_same && turn.home_generation.0 > 1 {
            let found = "the stopped turn may be of a generation whose turns the audit of this version does not read";
            return (Unproven(UnknownSource), found.to_owned());
        }
        let is_first = turn.home_number == 1 && turn.home_generation.0 == 1;
        if is_same && (is_first || turn.home_kind.is_some() && turn.stop_kind.is_none()) {
            let found = "no turn before it was stopped";
            return (Violation(SourceMissing), found.to_owned());
        }
        if is_same && !self.names_a_stop(text, &before) {
            let found = "who stopped the turn is not known now: the session keeps its last stop only";
            return (Unproven(Changed), found.to_owned());
        }
        self.rendered(is_same, "what is told of a stopped turn")
    }

    /// Whether who stopped the turn is known: from the last stop of the session, or from the error of one of the turns before.
    fn names_a_stop(&self, text: &str, before: &[&Before]) -> bool {
        let last = self.turn.stop_kind.zip(self.turn.stop_by.as_deref());
        let errors = before.iter().filter_map(|before| before.error.as_deref());
        let mut stops = errors.filter_map(|error| {
            let (kind, by) = error.split_once(": by ")?;
            Some((StopKind::parse(kind)?, by))
        });
        let tells = |(kind, by)| tells_who_stopped(text, kind, by);
        last.is_some_and(tells) || stops.any(tells)
    }

    /// What is told of a stopped turn was about an item of this turn.
    fn tells_of_own_item(&self, text: &str) -> bool {
        let mut parts = self.manifest.layer(Layer::Input);
        parts.any(|part| {
            item_of(self, part).is_ok_and(|item| {
                let about: (Actor, String) = (item.sender.clone(), item.body.chars().take(ABOUT_READ).collect());
                tells_of_stopped(text, Some(&about))
            })
        })
    }
}

/// Characters of what a stopped turn was about that delivery reads.
const ABOUT_READ: usize = 400;

/// The notification of a part, if the turn may have it: of its own task, and of its own session or of another generation of it, into which
/// it has moved. A branch has one session, and no item leaves it. After a handover an item is another agent's.
pub(super) fn item_for<'a>(
    turn: &AuditedTurn,
    notifications: &'a HashMap<String, Item>,
    id: &str,
) -> Result<&'a Item, Ruling> {
    let of = format!("notification {id}");
    let Some(item) = notifications.get(id) else {
        return Err(gone(turn, &of));
    };
    if let Some(ruling) = foreign(turn, item.task_id.as_ref(), &of) {
        return Err(ruling);
    }
    let is_branch = |kind: &Option<String>| kind.as_deref() == Some("branch");
    let is_generation =
        item.agent_id == Some(turn.agent) && !is_branch(&turn.home_kind) && !is_branch(&item.session_kind);
    if item.session_id != Some(turn.home_id) && !is_generation {
        let may_have_moved = turn.task.is_some() && turn.was_handed_over && !is_branch(&item.session_kind);
        return Err(match may_have_moved {
            true => (
                Unproven(Changed),
                format!("{of} is of another agent, as after a handover"),
            ),
            false => (Violation(ForeignThread), format!("{of} is of another session")),
        });
    }
    match item.is_whole {
        true => Ok(item),
        false => Err((Unproven(Unread), format!("{of} is too long to be read with the others"))),
    }
}

fn item_of<'a>(case: &Case<'a>, part: &Part) -> Result<&'a Item, Ruling> {
    let source = part.source.to_string();
    let Some(id) = source.strip_prefix(NOTIFICATION) else {
        return Err(unknown_source());
    };
    item_for(case.turn, &case.sources.notifications, id)
}

/// What a notification's texts are rendered from, with so many further items of its run. None: its id is none.
fn facts(id: &str, item: &Item, further: usize) -> Option<InputFacts> {
    let id = NotificationId::parse(id).ok()?;
    let one = Further {
        notification: id.clone(),
        title: None,
        body: String::new(),
    };
    Some(InputFacts {
        notification: id,
        kind: item.kind.clone(),
        answer_to: item.answer_to,
        result_of: item.result_of,
        mail: item.mail.clone(),
        sender: item.sender.clone(),
        title: item.title.clone(),
        body: item.body.clone(),
        about_message: item.message_id,
        task: None,
        extract: prompt::Extract::default(),
        description: None,
        briefing: None,
        overview: None,
        further: vec![one; further],
        is_interrupted: false,
        stopped: None,
        subagents: Vec::new(),
    })
}
