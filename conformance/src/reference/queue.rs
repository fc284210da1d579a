//! The queue of one session: what each request, each answer of the model and each crash does to it. Pure: time is a parameter,
//! and calls are made elsewhere (`worker.rs`). It is the meaning of the cases in code, with a place for each planted bug.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::bug::Bug;
use crate::protocol::{
    Answer, Author, AuthorKind, EditOp, ItemState, Mode, Outcome, QueueItem, QueueState, Running, RunningTurn,
    StopState, Stopping, Then,
};

/// How far before all others the places of steers are.
const STEER: i64 = 1 << 40;
const DEBOUNCE: Duration = Duration::from_millis(150);
const DEBOUNCE_MAX: Duration = Duration::from_millis(1_500);
const RUN_ITEMS_MAX: usize = 20;
const RETRY_DELAY: Duration = Duration::from_millis(400);
const FAILURES_MAX: u32 = 5;
pub const ITEMS_MAX: usize = 20;
/// A tenth is kept for persons.
const ITEMS_MAX_SERVICE: usize = ITEMS_MAX * 9 / 10;
/// Types of items that the service itself sends.
const SYSTEM: [&str; 3] = ["answer", "question", "timer"];

#[derive(Debug)]
struct Item {
    id: String,
    by: Author,
    mode: Mode,
    kind: Option<String>,
    text: String,
    revision: u32,
    arrived: Instant,
    /// It came to a session at rest, and joins no run.
    is_alone: bool,
}

impl Item {
    fn is_system(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| SYSTEM.contains(&kind))
    }
}

/// What an item is sent with.
pub struct NewItem {
    pub id: String,
    pub by: Author,
    pub mode: String,
    pub kind: Option<String>,
    pub text: String,
}

pub struct Edit<'a> {
    pub item: &'a str,
    pub op: EditOp,
    pub by: &'a Author,
    pub revision: Option<&'a str>,
    pub turn: Option<&'a str>,
    pub text: Option<String>,
}

/// A part of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    User(String),
    Reply(String),
    /// The model asked for a tool, and its result.
    Tool {
        call: String,
        name: String,
    },
}

type Placed = Vec<(i64, Item)>;

#[derive(Debug)]
struct Turn {
    id: String,
    items: Placed,
    /// Given to the model with tool results: in an answered call, and in the call in progress.
    notes: Placed,
    notes_unanswered: Placed,
    said: Vec<Part>,
    stop: Option<Stop>,
    failures: u32,
    retry_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Stop {
    reason: String,
    then: Then,
}

#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// Make this call, and report what comes of it.
    Call(Vec<Part>),
    /// Nothing to do before this time, or before a request.
    Rest(Option<Instant>),
}

/// What the model answered.
pub enum Answered {
    Reply(String),
    Tool { call: String, name: String },
    Failed,
}

#[derive(Default)]
pub struct Queue {
    bug: Option<Bug>,
    waiting: BTreeMap<i64, Item>,
    turn: Option<Turn>,
    outcomes: HashMap<String, Outcome>,
    /// The conversation of the turns that have ended with a reply.
    history: Vec<Part>,
    is_stopped: bool,
    is_paused: bool,
    is_crashed: bool,
    tail: i64,
    turns: u64,
    edits: u64,
}

impl Queue {
    pub fn new(bug: Option<Bug>) -> Queue {
        Queue {
            bug,
            ..Queue::default()
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    // Requests.

    pub fn send(&mut self, new: NewItem, now: Instant) -> Answer {
        let Some(mode) = Mode::parse(&new.mode) else {
            return Answer::refused("invalid_field", "queue modes are followup, collect, steer, inject");
        };
        if self.state(&new.id).is_some() {
            return Answer::done();
        }
        let max = match new.by.kind {
            AuthorKind::Person => ITEMS_MAX,
            AuthorKind::Service => ITEMS_MAX_SERVICE,
        };
        if self.waiting.len() >= max {
            return Answer::refused("queue_full", format!("{max} items wait"));
        }
        let is_alone = self.turn.is_none() && self.waiting.is_empty();
        let NewItem { id, by, kind, text, .. } = new;
        if mode == Mode::Steer {
            self.steer(&by);
        }
        if by.kind == AuthorKind::Person || mode == Mode::Steer {
            self.open();
        }
        self.tail += 1;
        let place = if mode == Mode::Steer {
            self.tail - STEER
        } else {
            self.tail
        };
        let item = Item {
            id,
            by,
            mode,
            kind,
            text,
            revision: 1,
            arrived: now,
            is_alone,
        };
        self.waiting.insert(place, item);
        Answer::done()
    }

    pub fn edit(&mut self, edit: Edit<'_>) -> Answer {
        let Some(&place) = self
            .waiting
            .iter()
            .find(|(_, item)| item.id == edit.item)
            .map(|(place, _)| place)
        else {
            return self.not_waiting(&edit);
        };
        let item = &self.waiting[&place];
        let is_content = matches!(edit.op, EditOp::Replace | EditOp::Withdraw);
        if item.is_system() && edit.op != EditOp::Promote {
            return Answer::refused("immutable_item", "an item of the service itself");
        }
        if is_content && item.by != *edit.by {
            return Answer::refused("not_author", format!("its author is {}", item.by.name));
        }
        let current = match edit.op {
            EditOp::Promote => self.revision(),
            EditOp::Replace | EditOp::Withdraw | EditOp::Steer | EditOp::Inject => item.revision.to_string(),
        };
        if edit.revision.is_some_and(|revision| revision != current) && !self.has(Bug::RevisionIgnored) {
            let code = if edit.op == EditOp::Promote {
                "queue_changed"
            } else {
                "item_changed"
            };
            return Answer::conflict(code, format!("the revision is {current}"));
        }
        let running = self.turn.as_ref().map(|turn| turn.id.as_str());
        if edit.turn.is_some() && edit.turn != running && !self.has(Bug::StopHitsSuccessor) {
            return Answer::conflict("stale_turn", "another turn is in progress, or none");
        }
        if edit.op == EditOp::Inject && running.is_none() {
            return Answer::conflict("no_turn", "no turn is in progress");
        }
        self.edits += 1;
        self.apply(edit, place);
        Answer::done()
    }

    fn not_waiting(&mut self, edit: &Edit<'_>) -> Answer {
        match self.state(edit.item) {
            None => Answer::refused("not_found", "no such item"),
            Some(Outcome { state, .. }) if state.is_outcome() => Answer::conflict("already_ended", state),
            Some(_) if edit.op == EditOp::Withdraw && self.has(Bug::WithdrawAfterClaim) => {
                self.end(edit.item, ItemState::Cancelled, "withdrawn");
                Answer::done()
            }
            // A repeated inject of an item that the model has got, or will get with the call in progress.
            Some(_) if edit.op == EditOp::Inject && self.is_note(edit.item) => Answer::done(),
            Some(_) => Answer::conflict("already_started", "its turn is in progress"),
        }
    }

    fn is_note(&self, id: &str) -> bool {
        let notes = self
            .turn
            .iter()
            .flat_map(|turn| turn.notes.iter().chain(&turn.notes_unanswered));
        notes.into_iter().any(|(_, item)| item.id == id)
    }

    fn apply(&mut self, edit: Edit<'_>, place: i64) {
        let mut item = self.waiting.remove(&place).expect("its place was just found");
        item.revision += 1;
        match edit.op {
            EditOp::Replace => {
                item.text = edit.text.unwrap_or_default();
                self.waiting.insert(place, item);
            }
            EditOp::Withdraw => {
                let reason = format!("withdrawn: by {}", edit.by.name);
                self.end(&item.id, ItemState::Cancelled, &reason);
            }
            EditOp::Promote => {
                self.waiting.insert(place, item);
                let (mut steers, mut others): (Vec<i64>, Vec<i64>) = self.waiting.keys().partition(|place| **place < 0);
                others.retain(|other| *other != place);
                steers.retain(|other| *other != place);
                let order: Vec<i64> = steers.into_iter().chain([place]).chain(others).collect();
                self.rearrange(&order);
                self.open();
            }
            EditOp::Steer => {
                item.mode = Mode::Steer;
                let place = if place < 0 { place } else { place - STEER };
                self.waiting.insert(place, item);
                self.steer(edit.by);
                self.open();
            }
            EditOp::Inject => {
                item.mode = Mode::Inject;
                self.waiting.insert(place, item);
                self.open();
            }
        }
    }

    pub fn order(&mut self, items: &[String], revision: Option<&str>) -> Answer {
        if revision.is_some_and(|revision| revision != self.revision()) && !self.has(Bug::RevisionIgnored) {
            return Answer::conflict("queue_changed", format!("the revision is {}", self.revision()));
        }
        let place_of = |id: &String| {
            self.waiting
                .iter()
                .find(|(_, item)| item.id == *id)
                .map(|(place, _)| *place)
        };
        let places: Option<Vec<i64>> = items.iter().map(place_of).collect();
        let mut sorted = places.clone().unwrap_or_default();
        sorted.sort_unstable();
        match places {
            Some(places) if self.waiting.keys().eq(&sorted) => {
                self.edits += 1;
                self.rearrange(&places);
                Answer::done()
            }
            _ => Answer::conflict("queue_changed", "not the items that wait"),
        }
    }

    /// Gives the waiting items, named by their places, the same places in this order.
    fn rearrange(&mut self, order: &[i64]) {
        let items: Vec<Item> = order.iter().filter_map(|place| self.waiting.remove(place)).collect();
        let mut places = order.to_vec();
        places.sort_unstable();
        self.waiting = places.into_iter().zip(items).collect();
    }

    pub fn stop(&mut self, by: &Author, then: Then, turn: Option<&str>) -> Answer {
        let named = turn.filter(|_| !self.has(Bug::StopHitsSuccessor));
        let state = match &mut self.turn {
            None => StopState::Nothing,
            Some(running) if named.is_some_and(|turn| turn != running.id) => StopState::Over,
            Some(running) => {
                let reason = format!("stopped: by {}", by.name);
                running.stop = Some(Stop { reason, then });
                StopState::Stopping
            }
        };
        Answer::ok(Stopping { state })
    }

    pub fn hold(&mut self, by: &Author, running: Running) -> Answer {
        self.is_paused = true;
        if let (Some(turn), Running::Stop) = (&mut self.turn, running) {
            let reason = format!("paused: by {}", by.name);
            turn.stop = Some(Stop {
                reason,
                then: Then::Continue,
            });
        }
        Answer::done()
    }

    pub fn pause_end(&mut self) -> Answer {
        self.is_paused = false;
        Answer::done()
    }

    pub fn resume(&mut self) -> Answer {
        self.open();
        Answer::done()
    }

    /// Opens the gate `stopped`, also that of a stop which is not carried out yet.
    fn open(&mut self) {
        self.is_stopped = false;
        if let Some(stop) = self.turn.as_mut().and_then(|turn| turn.stop.as_mut()) {
            stop.then = Then::Continue;
        }
    }

    fn steer(&mut self, by: &Author) {
        if self.has(Bug::SteerDropsQueue) {
            for item in std::mem::take(&mut self.waiting).into_values() {
                self.end(&item.id, ItemState::Cancelled, "steered");
            }
        }
        if self.has(Bug::SteerWaits) {
            return;
        }
        if let Some(turn) = &mut self.turn {
            let reason = format!("steered: by {}", by.name);
            turn.stop = Some(Stop {
                reason,
                then: Then::Continue,
            });
        }
    }

    pub fn look(&self) -> QueueState {
        let gate = match (self.is_paused, self.is_stopped) {
            (true, _) => Some("pause"),
            (false, true) => Some("stopped"),
            (false, false) => None,
        };
        let ids = |turn: &Turn| {
            turn.items
                .iter()
                .chain(&turn.notes)
                .chain(&turn.notes_unanswered)
                .map(|(_, item)| item.id.clone())
                .collect()
        };
        let item = |item: &Item| QueueItem {
            item: item.id.clone(),
            revision: Some(item.revision.to_string()),
        };
        QueueState {
            revision: Some(self.revision()),
            gate: gate.map(str::to_owned),
            running: self.turn.as_ref().map(|turn| RunningTurn {
                turn: turn.id.clone(),
                items: ids(turn),
            }),
            items: self.waiting.values().map(item).collect(),
        }
    }

    fn revision(&self) -> String {
        format!("{}.{}.{}", self.tail, self.turns, self.edits)
    }

    pub fn state(&self, id: &str) -> Option<Outcome> {
        let without = |state| Outcome {
            state,
            reason: String::new(),
        };
        let in_turn = |turn: &Turn| {
            let mut items = turn.items.iter().chain(&turn.notes).chain(&turn.notes_unanswered);
            items.any(|(_, item)| item.id == id)
        };
        let outcome = self.outcomes.get(id).cloned();
        let waits = || {
            self.waiting
                .values()
                .any(|item| item.id == id)
                .then(|| without(ItemState::Queued))
        };
        let runs = || {
            self.turn
                .as_ref()
                .is_some_and(in_turn)
                .then(|| without(ItemState::Running))
        };
        outcome.or_else(waits).or_else(runs)
    }

    // Turns.

    /// Decides what comes next. The caller makes no call at this moment.
    pub fn next(&mut self, now: Instant) -> Next {
        if std::mem::take(&mut self.is_crashed) {
            self.recover();
        }
        self.turn_stop();
        if let Some(turn) = &self.turn {
            return match turn.retry_at {
                Some(at) if at > now => Next::Rest(Some(at)),
                Some(_) | None => Next::Call(self.history.iter().chain(&turn.said).cloned().collect()),
            };
        }
        let is_paused = self.is_paused && !self.has(Bug::PauseNotRead);
        let run = self.run();
        if is_paused || self.is_stopped || run.is_empty() {
            return Next::Rest(None);
        }
        match self.due(&run) {
            Some(at) if at > now => Next::Rest(Some(at)),
            Some(_) | None => {
                self.turn_begin(&run);
                self.next(now)
            }
        }
    }

    /// The places of the items that are one turn, from the head.
    fn run(&self) -> Vec<i64> {
        let mut waiting = self.waiting.iter();
        let Some((first, head)) = waiting.next() else {
            return Vec::new();
        };
        let is_merged = match head.mode {
            Mode::Collect => !self.has(Bug::CollectNeverMerges),
            Mode::Steer => true,
            Mode::Followup | Mode::Inject => false,
        };
        let is_system = |item: &Item| item.is_system() && !self.has(Bug::AnswersMerged);
        if !is_merged || head.is_alone || is_system(head) {
            return vec![*first];
        }
        let joins = |item: &Item| {
            let by_same = item.by == head.by || self.has(Bug::AuthorsMerged);
            item.mode == head.mode && by_same && !item.is_alone && !is_system(item)
        };
        let rest = waiting.take_while(|(_, item)| joins(item)).map(|(place, _)| *place);
        std::iter::once(*first).chain(rest).take(RUN_ITEMS_MAX).collect()
    }

    /// When a run may start; none: at once.
    fn due(&self, run: &[i64]) -> Option<Instant> {
        let (first, newest) = (&self.waiting[run.first()?], &self.waiting[run.last()?]);
        let waits = first.mode == Mode::Collect && !first.is_alone && !first.is_system();
        waits.then(|| (newest.arrived + DEBOUNCE).min(first.arrived + DEBOUNCE_MAX))
    }

    fn turn_begin(&mut self, run: &[i64]) {
        let items: Placed = run
            .iter()
            .filter_map(|place| self.waiting.remove_entry(place))
            .collect();
        self.turns += 1;
        self.turn = Some(Turn {
            id: format!("turn-{}", self.turns),
            said: vec![Part::User(texts(&items))],
            items,
            notes: Vec::new(),
            notes_unanswered: Vec::new(),
            stop: None,
            failures: 0,
            retry_at: None,
        });
    }

    pub fn answered(&mut self, answer: Answered, now: Instant) {
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        match answer {
            // A reply that came before the stop was carried out counts.
            Answered::Reply(text) => {
                turn.notes.append(&mut turn.notes_unanswered);
                for (_, item) in turn.items.iter().chain(&turn.notes) {
                    self.end(&item.id, ItemState::Delivered, "");
                }
                self.history.extend(turn.said);
                self.history.push(Part::Reply(text));
            }
            Answered::Tool { call, name } => {
                turn.notes.append(&mut turn.notes_unanswered);
                turn.said.push(Part::Tool { call, name });
                if turn.stop.is_none() {
                    turn.notes_unanswered = self.notes_take();
                    if !turn.notes_unanswered.is_empty() {
                        turn.said.push(Part::User(texts(&turn.notes_unanswered)));
                    }
                }
                (turn.failures, turn.retry_at) = (0, None);
                self.turn = Some(turn);
            }
            Answered::Failed => {
                turn.failures += 1;
                turn.retry_at = Some(now + RETRY_DELAY);
                if turn.failures < FAILURES_MAX {
                    self.turn = Some(turn);
                    return;
                }
                for (_, item) in turn.items.iter().chain(&turn.notes) {
                    self.end(&item.id, ItemState::Failed, "the model failed");
                }
                self.waiting.extend(turn.notes_unanswered);
            }
        }
    }

    fn notes_take(&mut self) -> Placed {
        let is_note = |item: &Item| item.mode == Mode::Inject;
        let places: Vec<i64> = self
            .waiting
            .iter()
            .filter(|(_, item)| is_note(item))
            .map(|(place, _)| *place)
            .collect();
        if self.has(Bug::NoteTwice) {
            let again = |place: &i64| {
                let item = &self.waiting[place];
                let copy = Item {
                    id: item.id.clone(),
                    by: item.by.clone(),
                    kind: None,
                    text: item.text.clone(),
                    ..*item
                };
                (*place, copy)
            };
            return places.iter().map(again).collect();
        }
        places
            .iter()
            .filter_map(|place| self.waiting.remove_entry(place))
            .collect()
    }

    /// Whether the call in progress is to be dropped.
    pub fn is_cut(&self) -> bool {
        self.is_crashed || self.turn.as_ref().is_some_and(|turn| turn.stop.is_some())
    }

    /// The process dies. All that is in this struct counts as stored.
    pub fn crash(&mut self) {
        self.is_crashed = true;
    }

    /// The process starts again.
    fn recover(&mut self) {
        if self.has(Bug::NoteLostAtCrash)
            && let Some(turn) = &mut self.turn
            && !turn.notes_unanswered.is_empty()
        {
            turn.said.pop();
        }
    }

    /// Ends the turn in progress, if that was requested.
    fn turn_stop(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        let Some(stop) = turn.stop else {
            self.turn = Some(turn);
            return;
        };
        for (_, item) in turn.items.iter().chain(&turn.notes) {
            self.end(&item.id, ItemState::Cancelled, &stop.reason);
        }
        // What the model has not answered goes back to its place.
        self.waiting.extend(turn.notes_unanswered);
        let holds = stop.then == Then::Hold && !self.has(Bug::StopRestarts);
        self.is_stopped |= holds && !self.waiting.is_empty();
    }

    fn end(&mut self, id: &str, state: ItemState, reason: &str) {
        let reason = reason.to_owned();
        self.outcomes.insert(id.to_owned(), Outcome { state, reason });
    }
}

fn texts(items: &Placed) -> String {
    let texts: Vec<&str> = items.iter().map(|(_, item)| item.text.as_str()).collect();
    texts.join("\n")
}
