//! Whether a thread was told something twice (C1): read from the manifests of its turns. In one thread each notification, message,
//! entry and unchanged description occurs once. State, as a task's status, is no conversation and comes with each turn. Pure; not
//! used by a service: tests and the fault campaign judge by it what delivery has sent.
//!
//! What counts, and what does not:
//! - A thread is a number within a session: a replay and a branch have sessions of their own. What a fork's thread has from its
//!   parent's is not looked at.
//! - An entry of the past tells what its turn was about, and stands for each message that its turn has written: the extract leaves
//!   out the messages of turns of the past.
//! - A turn that broke off tells nothing: what it held may come again, in another turn or attempt, and after it also the texts that
//!   seldom change.
//! - A notification of a message tells the message. A message that was shown before its notification reached the queue is not
//!   twice: a queue drops no item.

use std::collections::{HashMap, HashSet};

use domain::{SessionId, TurnId};
use uuid::Uuid;

use crate::{
    Manifest,
    manifest::{Because, Hash, Layer, Part, PartKind, Source},
    marks::quotations,
};

/// A turn, as its thread has it.
#[derive(Clone, Debug)]
pub struct ToldTurn {
    pub session: SessionId,
    pub id: TurnId,
    /// It ended with an answer. Any other has broken off.
    pub is_answered: bool,
    pub manifest: Manifest,
    /// For the texts that seldom change: quotations have other marks in each turn, so the parts' hashes do not compare. Empty: these
    /// texts are not compared.
    pub input: String,
    /// The notifications that it got with results of its tools.
    pub noted: Vec<String>,
    /// The messages that it has written in its task's thread, its reply included.
    pub wrote: Vec<Uuid>,
}

/// Something that a thread was told twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Twice {
    pub source: Source,
    pub thread: i32,
    /// The turn that told it again, and the one that told it first: the same, if one prompt has it twice.
    pub turn: TurnId,
    pub before: TurnId,
}

/// Texts that seldom change and that a thread is known to have, as delivery remembers them (`domain::context::Told`).
const TEXTS_KEPT: usize = 4;

/// `turns`: of one account, those of a session in their order. Turns that entries name and that are not among them, and those whose
/// manifest says nothing of a thread (version 1), are passed over.
pub fn twice(turns: &[ToldTurn]) -> Vec<Twice> {
    let by_id: HashMap<Uuid, &ToldTurn> = turns.iter().map(|turn| (turn.id.uuid(), turn)).collect();
    let texts = texts(turns);
    let mut threads: HashMap<(SessionId, i32), Thread> = HashMap::new();
    let mut found = Vec::new();
    for turn in turns {
        let Some(context) = &turn.manifest.context else {
            continue;
        };
        let thread = threads.entry((turn.session, context.thread)).or_default();
        let mut prompt = Prompt {
            thread,
            turn: turn.id,
            told: HashSet::new(),
            again: Vec::new(),
        };
        prompt.read(turn, &by_id);
        let (told, mut again) = (prompt.told, prompt.again);
        again.extend(thread.texts(turn, &texts));
        found.extend(again.into_iter().map(|(source, before)| Twice {
            source,
            thread: context.thread,
            turn: turn.id,
            before,
        }));
        if turn.is_answered {
            let own = [Source::TurnInput(turn.id.uuid()), Source::TurnReply(turn.id.uuid())];
            let wrote = turn.wrote.iter().copied().map(Source::Message);
            for source in told.into_iter().chain(own).chain(wrote) {
                thread.told.entry(source).or_insert(turn.id);
            }
        } else {
            thread.texts.clear();
        }
    }
    found
}

/// What a thread has.
#[derive(Default)]
struct Thread {
    /// By the turn that told it.
    told: HashMap<Source, TurnId>,
    /// The newest first.
    texts: Vec<(Source, String, TurnId)>,
}

impl Thread {
    /// The texts of a turn that are as the thread has them.
    fn texts(&mut self, turn: &ToldTurn, texts: &HashMap<Hash, String>) -> Vec<(Source, TurnId)> {
        let mut again = Vec::new();
        for part in turn.manifest.parts.iter().filter(|part| seldom_changes(part)) {
            let Some(text) = texts.get(&part.sha256) else { continue };
            let known = self.texts.iter().find(|(source, _, _)| *source == part.source);
            if let Some((_, _, before)) = known.filter(|(_, known, _)| known == text) {
                again.push((part.source.clone(), *before));
            }
            self.texts.retain(|(source, _, _)| *source != part.source);
            self.texts.insert(0, (part.source.clone(), text.clone(), turn.id));
            self.texts.truncate(TEXTS_KEPT);
        }
        again
    }
}

/// A turn's prompt while it is read.
struct Prompt<'a> {
    thread: &'a Thread,
    turn: TurnId,
    /// What it tells.
    told: HashSet<Source>,
    again: Vec<(Source, TurnId)>,
}

impl Prompt<'_> {
    fn read(&mut self, turn: &ToldTurn, by_id: &HashMap<Uuid, &ToldTurn>) {
        // The past is sent first.
        for part in turn.manifest.layer(Layer::Context) {
            self.entry(part, by_id);
        }
        for source in notifications(&turn.manifest) {
            self.notification(source.clone());
        }
        let messages = turn.manifest.layer(Layer::Input);
        for part in messages.filter(|part| part.part == PartKind::Message) {
            self.tell(part.source.clone());
        }
        for id in &turn.noted {
            self.notification(Source::named(format!("{NOTIFICATION}{id}")));
        }
    }

    /// An entry, with what it tells of its turn.
    fn entry(&mut self, part: &Part, by_id: &HashMap<Uuid, &ToldTurn>) {
        if part.part != PartKind::Entry {
            return;
        }
        self.tell(part.source.clone());
        match &part.source {
            Source::TurnInput(id) => {
                let Some(turn) = by_id.get(id).filter(|turn| turn.is_answered) else {
                    return;
                };
                let about = notifications(&turn.manifest).cloned();
                // A branch knows the turn that made it only as far as it had come.
                let noted = turn.noted.iter().filter(|_| part.because != Because::Base);
                let noted = noted.map(|id| Source::named(format!("{NOTIFICATION}{id}")));
                about.chain(noted).for_each(|source| self.notification(source));
            }
            Source::TurnReply(id) => {
                let wrote = by_id.get(id).into_iter().flat_map(|turn| &turn.wrote);
                self.told.extend(wrote.copied().map(Source::Message));
            }
            Source::Message(_) | Source::Named(_) => {}
        }
    }

    fn notification(&mut self, source: Source) {
        // The message may have been shown before.
        self.told.extend(message_of(&source));
        self.tell(source);
    }

    fn tell(&mut self, source: Source) {
        let before = match self.told.contains(&source) {
            true => Some(self.turn),
            false => self.thread.told.get(&source).copied(),
        };
        self.again.extend(before.map(|before| (source.clone(), before)));
        self.told.insert(source);
    }
}

const NOTIFICATION: &str = "notification/";

/// Those that a prompt is about. One that stands alone has two parts, around the lines of its task.
fn notifications(manifest: &Manifest) -> impl Iterator<Item = &Source> {
    let is_run = manifest.layer(Layer::Input).any(|part| part.part == PartKind::Followup);
    let parts = manifest
        .layer(Layer::Input)
        .filter(|part| part.part == PartKind::Notification);
    parts.step_by(if is_run { 1 } else { 2 }).map(|part| &part.source)
}

/// The message of whose notification this is the source: `notification/message:{id}:{agent}`.
fn message_of(source: &Source) -> Option<Source> {
    let Source::Named(name) = source else { return None };
    let (id, _) = name
        .strip_prefix(NOTIFICATION)?
        .strip_prefix("message:")?
        .split_once(':')?;
    Uuid::try_parse(id).ok().map(Source::Message)
}

fn seldom_changes(part: &Part) -> bool {
    matches!(part.part, PartKind::Task | PartKind::Briefing)
}

/// The texts that seldom change, without their marks, by their parts' hashes: a prompt that carries one of an earlier turn has the same.
fn texts(turns: &[ToldTurn]) -> HashMap<Hash, String> {
    let mut texts = HashMap::new();
    for turn in turns {
        let slices = turn.manifest.slices(Layer::Input, &turn.input).unwrap_or_default();
        for slice in slices.iter().filter(|slice| seldom_changes(slice.part)) {
            let quoted = quotations(slice.text);
            let text: String = quoted.iter().map(|quotation| quotation.text).collect();
            texts.insert(slice.part.sha256, format!("{text} {}", slice.part.cut_bytes));
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, ContextMode, InstructionLayout, TurnContext};

    use super::*;
    use crate::{MarkSecret, description};

    /// Turn `n` in a thread, about notification `n-{n}`, with an answer that is message `100 + n`.
    fn turn(n: u128, thread: i32) -> ToldTurn {
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        manifest.context = Some(TurnContext {
            asked: ContextMode::Continue,
            used: ContextMode::Continue,
            reason: None,
            thread,
            from: None,
            base_sha256: None,
            lost_after: None,
            unconfirmed: false,
        });
        let turn = ToldTurn {
            session: SessionId(Uuid::from_u128(1)),
            id: TurnId(Uuid::from_u128(n)),
            is_answered: true,
            manifest,
            input: String::new(),
            noted: Vec::new(),
            wrote: vec![Uuid::from_u128(100 + n)],
        };
        turn.about(&format!("n-{n}"))
    }

    impl ToldTurn {
        fn with(mut self, layer: Layer, kind: PartKind, source: Source) -> ToldTurn {
            self.manifest.parts.push(Part::of(layer, kind, source, ""));
            self
        }

        fn about(mut self, id: &str) -> ToldTurn {
            let is_about = |part: &Part| part.part == PartKind::Notification;
            self.manifest.parts.retain(|part| !is_about(part));
            let source = || Source::named(format!("notification/{id}"));
            self.with(Layer::Input, PartKind::Notification, source()).with(
                Layer::Input,
                PartKind::Notification,
                source(),
            )
        }

        fn shows(self, message: u128) -> ToldTurn {
            self.with(
                Layer::Input,
                PartKind::Message,
                Source::Message(Uuid::from_u128(message)),
            )
        }

        /// Has an entry of turn `n`.
        fn knows(self, n: u128) -> ToldTurn {
            self.with(Layer::Context, PartKind::Entry, Source::TurnInput(Uuid::from_u128(n)))
                .with(Layer::Context, PartKind::Entry, Source::TurnReply(Uuid::from_u128(n)))
        }

        fn described(mut self, text: &str) -> ToldTurn {
            let account = AccountId::parse("acme").unwrap();
            let mut marks = MarkSecret::new([7; 32]).marks(&account, self.id);
            let piece = description(text, &mut marks).unwrap();
            let source = Source::named("task/t-1");
            self.manifest
                .parts
                .push(piece.part(Layer::Input, PartKind::Task, source, None));
            self.input.push_str(piece.as_str());
            self
        }

        fn broke_off(self) -> ToldTurn {
            ToldTurn {
                is_answered: false,
                ..self
            }
        }

        fn noted(mut self, id: &str) -> ToldTurn {
            self.noted.push(id.to_owned());
            self
        }
    }

    fn check(turns: &[ToldTurn], expected: &[&str]) {
        let line = |twice: &Twice| {
            let (turn, before) = (twice.turn.uuid().as_u128(), twice.before.uuid().as_u128());
            format!("{} in t{} by {turn}, {before}", twice.source, twice.thread)
        };
        let found: Vec<String> = twice(turns).iter().map(line).collect();
        assert_eq!(found, expected);
    }

    fn message(n: u128) -> String {
        Source::Message(Uuid::from_u128(n)).to_string()
    }

    #[test]
    fn what_a_thread_has_is_not_told_again() {
        check(&[turn(1, 1).shows(7), turn(2, 1).shows(8), turn(3, 1)], &[]);
        let seven = format!("{} in t1", message(7));
        check(
            &[turn(1, 1).shows(7), turn(2, 1).shows(7)],
            &[&format!("{seven} by 2, 1")],
        );
        check(&[turn(1, 1).shows(7).shows(7)], &[&format!("{seven} by 1, 1")]);
        check(
            &[turn(1, 1), turn(2, 1).about("n-1")],
            &["notification/n-1 in t1 by 2, 1"],
        );
        // Another thread, another generation.
        check(&[turn(1, 1).shows(7), turn(2, 2).shows(7)], &[]);
        let next = ToldTurn {
            session: SessionId(Uuid::from_u128(2)),
            ..turn(2, 1).shows(7)
        };
        check(&[turn(1, 1).shows(7), next], &[]);
    }

    #[test]
    fn an_agents_own_words_are_not_told_it() {
        let own = format!("{} in t1 by 2, 1", message(101));
        check(&[turn(1, 1), turn(2, 1).shows(101)], &[&own]);
        // In an assembled prompt by its entry.
        let assembled = format!("{} in t2 by 2, 2", message(101));
        check(&[turn(1, 1), turn(2, 2).knows(1).shows(101)], &[&assembled]);
        check(&[turn(1, 1), turn(2, 2).shows(101)], &[]);
    }

    #[test]
    fn an_entry_tells_what_its_turn_was_about() {
        check(&[turn(1, 1), turn(2, 1), turn(3, 2).knows(1).knows(2), turn(4, 2)], &[]);
        let turns = [turn(1, 1), turn(2, 2).knows(1), turn(3, 2).about("n-1")];
        check(&turns, &["notification/n-1 in t2 by 3, 2"]);
        let of = |n| Source::TurnInput(Uuid::from_u128(n)).to_string();
        let reply = Source::TurnReply(Uuid::from_u128(1)).to_string();
        let again = [of(1), "notification/n-1".to_owned(), reply].map(|source| format!("{source} in t1 by 2, 1"));
        check(
            &[turn(1, 1), turn(2, 1).knows(1)],
            &again.each_ref().map(String::as_str),
        );
    }

    /// By a person's item, by the next attempt, and in a prompt that has the turn as one that ended without an answer.
    #[test]
    fn what_a_turn_that_broke_off_was_told_may_come_again() {
        let broken = || turn(1, 1).shows(7).described("Mend it.").broke_off();
        check(&[broken(), turn(2, 1).about("n-1").shows(7).described("Mend it.")], &[]);
        check(&[broken(), turn(2, 2).knows(1).about("n-1").shows(7)], &[]);
        // What the thread had before it is still there.
        let turns = [turn(1, 1).shows(7), turn(2, 1).broke_off(), turn(3, 1).shows(7)];
        check(&turns, &[&format!("{} in t1 by 3, 1", message(7))]);
    }

    #[test]
    fn a_note_tells_its_notifications() {
        let turns = [turn(1, 1).noted("n-2"), turn(2, 1)];
        check(&turns, &["notification/n-2 in t1 by 2, 1"]);
        check(&[turn(1, 1).noted("n-2").broke_off(), turn(2, 1)], &[]);
        check(&[turn(1, 1).noted("n-1")], &["notification/n-1 in t1 by 1, 1"]);
    }

    #[test]
    fn a_notification_of_a_message_tells_the_message() {
        let id = format!("message:{}:{}", Uuid::from_u128(7), Uuid::from_u128(9));
        let again = |turn| format!("{} in t1 by {turn}, 1", message(7));
        check(&[turn(1, 1).about(&id).shows(7)], &[&again(1)]);
        check(&[turn(1, 1).about(&id), turn(2, 1).shows(7)], &[&again(2)]);
        check(&[turn(1, 1).noted(&id), turn(2, 1).shows(7)], &[&again(2)]);
        // It was shown first.
        check(&[turn(1, 1).shows(7), turn(2, 1).about(&id)], &[]);
    }

    #[test]
    fn a_description_comes_again_when_it_changes() {
        let told = |texts: &[&str]| -> Vec<ToldTurn> {
            let numbered = (1..).zip(texts);
            numbered.map(|(n, text)| turn(n, 1).described(text)).collect()
        };
        check(&told(&["Mend it.", "Mend all.", "Mend it."]), &[]);
        check(&told(&["Mend it.", "Mend it."]), &["task/t-1 in t1 by 2, 1"]);
        // Carried along with the past.
        let first = turn(1, 1).described("Mend it.");
        let carried = first
            .manifest
            .layer(Layer::Input)
            .find(|part| part.part == PartKind::Task);
        let mut assembled = turn(2, 2).knows(1);
        assembled.manifest.parts.push(Part {
            layer: Layer::Context,
            ..carried.unwrap().clone()
        });
        check(&[first.clone(), assembled.clone(), turn(3, 2)], &[]);
        let turns = [first, assembled, turn(3, 2).described("Mend it.")];
        check(&turns, &["task/t-1 in t2 by 3, 2"]);
    }

    #[test]
    fn a_run_has_each_of_its_items_once() {
        let run = |ids: &[&str]| {
            let first = turn(1, 1).with(Layer::Input, PartKind::Followup, Source::named("queue"));
            let mut turn = first;
            turn.manifest.parts.retain(|part| part.part != PartKind::Notification);
            let add = |turn: ToldTurn, id: &&str| {
                turn.with(
                    Layer::Input,
                    PartKind::Notification,
                    Source::named(format!("notification/{id}")),
                )
            };
            ids.iter().fold(turn, add)
        };
        check(&[run(&["a", "b", "c"])], &[]);
        check(&[run(&["a", "b", "a"])], &["notification/a in t1 by 1, 1"]);
        check(
            &[run(&["a", "b"]), turn(2, 1).about("b")],
            &["notification/b in t1 by 2, 1"],
        );
    }

    #[test]
    fn a_turn_of_version_1_is_passed_over() {
        let mut first = turn(1, 1);
        first.manifest.context = None;
        check(&[first, turn(2, 1).about("n-1")], &[]);
    }
}
