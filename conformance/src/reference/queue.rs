//! The queue of one session: what each request, each answer of the model and each crash does to it. Pure: time is a parameter,
//! and calls are made elsewhere (`worker.rs`). It is the meaning of the cases in code, with a place for each planted bug.

use std::time::Duration;

use tokio::time::Instant;

use super::bug::Bug;
use crate::protocol::{
    Answer, Author, AuthorKind, Edit, EditOp, Gate, ItemState, Mode, Outcome, QueueItem, QueueState, Running,
    RunningTurn, Send, StopState, Stopping, Then, Verb,
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
/// The type of items that the service itself sends.
const SYSTEM: &str = "answer";

#[derive(Debug)]
struct Item {
    id: String,
    by: Author,
    mode: Mode,
    text: String,
    is_system: bool,
    /// It came to a session at rest, and joins no run.
    is_alone: bool,
    arrived: Instant,
    place: i64,
    revision: u32,
    state: State,
}

#[derive(PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// The turn in progress has it from its beginning, or the model has answered a call that brought it.
    Taken,
    /// The call in progress brings it, with tool results.
    Noted,
    Ended(Outcome),
}

/// A part of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    User(String),
    Reply(String),
    /// Id and name of a tool call of the model, whose result is there.
    Tool(String, String),
}

#[derive(Debug)]
struct Turn {
    id: String,
    said: Vec<Part>,
    stop: Option<Stop>,
    failures: u32,
    retry_at: Option<Instant>,
}

#[derive(Debug)]
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

#[derive(Default)]
pub struct Queue {
    bug: Option<Bug>,
    /// All that were ever accepted, in the order in which they came.
    items: Vec<Item>,
    turn: Option<Turn>,
    /// The conversation of the turns that have ended with a reply.
    history: Vec<Part>,
    is_stopped: bool,
    is_paused: bool,
    is_crashed: bool,
    turns: u64,
    edits: u64,
}

impl Queue {
    pub fn new(bug: Option<Bug>) -> Queue {
        let empty = Queue::default();
        Queue { bug, ..empty }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Indices of the waiting items, in their order.
    fn waiting(&self) -> Vec<usize> {
        let all = 0..self.items.len();
        let mut waiting: Vec<usize> = all.filter(|at| self.items[*at].state == State::Waiting).collect();
        waiting.sort_by_key(|at| self.items[*at].place);
        waiting
    }

    /// The items of the turn in progress.
    fn in_turn(&mut self) -> impl Iterator<Item = &mut Item> {
        let items = self.items.iter_mut();
        items.filter(|item| matches!(item.state, State::Taken | State::Noted))
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.items.iter().position(|item| item.id == id)
    }

    fn revision(&self) -> String {
        format!("{}.{}.{}", self.items.len(), self.turns, self.edits)
    }

    // Requests.

    pub fn answer(&mut self, by: Author, verb: Verb, now: Instant) -> Answer {
        match verb {
            Verb::Send(new) => return self.send(by, new, now),
            Verb::Edit(edit) => return self.edit(&by, edit),
            Verb::Order { items, revision } => return self.order(&items, revision.as_deref()),
            Verb::Stop { then, turn } => return self.stop_asked(&by, then, turn.as_deref()),
            Verb::Queue => return Answer::ok(self.look()),
            Verb::Outcome { item } => {
                return match self.find(&item).map(|at| &self.items[at].state) {
                    None => Answer::refused("not_found", "no such item"),
                    Some(State::Ended(outcome)) => Answer::ok(outcome),
                    Some(State::Waiting) => Answer::ok(outcome(ItemState::Queued, "")),
                    Some(State::Taken | State::Noted) => Answer::ok(outcome(ItemState::Running, "")),
                };
            }
            Verb::Hold { running } => {
                self.is_paused = true;
                if running == Running::Stop {
                    self.stop(format!("paused: by {}", by.name), Then::Continue);
                }
            }
            Verb::Resume { gate: Gate::Stopped } => self.open(),
            Verb::Resume { gate: Gate::Pause } => self.is_paused = false,
            Verb::Hello { .. } | Verb::Session { .. } | Verb::Crash { .. } => {
                return Answer::refused("invalid", "not of a session");
            }
        }
        Answer::done()
    }

    fn send(&mut self, by: Author, new: Send, now: Instant) -> Answer {
        let Some(mode) = Mode::parse(&new.mode) else {
            return Answer::refused("invalid_field", "queue modes are followup, collect, steer, inject");
        };
        let waiting = self.waiting().len();
        let max = match by.kind {
            AuthorKind::Person => ITEMS_MAX,
            AuthorKind::Service => ITEMS_MAX_SERVICE,
        };
        if self.find(&new.item).is_some() {
            return Answer::done();
        }
        if waiting >= max {
            return Answer::refused("queue_full", format!("{max} items wait"));
        }
        if by.kind == AuthorKind::Person || mode == Mode::Steer {
            self.open();
        }
        if mode == Mode::Steer {
            self.steer(&by);
        }
        let number = i64::try_from(self.items.len()).expect("far fewer items fit into memory");
        self.items.push(Item {
            id: new.item,
            by,
            mode,
            text: new.text,
            is_system: new.kind.is_some_and(|kind| kind == SYSTEM),
            is_alone: self.turn.is_none() && waiting == 0,
            arrived: now,
            place: if mode == Mode::Steer { number - STEER } else { number },
            revision: 1,
            state: State::Waiting,
        });
        Answer::done()
    }

    fn order(&mut self, items: &[String], revision: Option<&str>) -> Answer {
        let order: Option<Vec<usize>> = items.iter().map(|id| self.find(id)).collect();
        let mut sorted = order.clone().unwrap_or_default();
        sorted.sort_by_key(|at| self.items[*at].place);
        let is_old = revision.is_some_and(|revision| revision != self.revision()) && !self.has(Bug::RevisionIgnored);
        match order {
            Some(order) if sorted == self.waiting() && !is_old => {
                self.edits += 1;
                self.rearrange(&order);
                Answer::done()
            }
            Some(_) | None => Answer::conflict("queue_changed", format!("the revision is {}", self.revision())),
        }
    }

    fn stop_asked(&mut self, by: &Author, then: Then, turn: Option<&str>) -> Answer {
        let named = turn.filter(|_| !self.has(Bug::StopHitsSuccessor));
        let state = match &self.turn {
            None => StopState::Nothing,
            Some(running) if named.is_some_and(|turn| turn != running.id) => StopState::Over,
            Some(_) => {
                self.stop(format!("stopped: by {}", by.name), then);
                StopState::Stopping
            }
        };
        Answer::ok(Stopping { state })
    }

    fn edit(&mut self, by: &Author, edit: Edit) -> Answer {
        let Some(at) = self.find(&edit.item) else {
            return Answer::refused("not_found", "no such item");
        };
        match self.edit_check(at, by, &edit) {
            Ok(()) => self.apply(at, by, edit),
            Err(answer) => return answer,
        }
        Answer::done()
    }

    /// All that is in this struct counts as stored.
    pub fn crash(&mut self) {
        self.is_crashed = true;
    }

    fn edit_check(&self, at: usize, by: &Author, edit: &Edit) -> Result<(), Answer> {
        let op = edit.op;
        let revision = edit.revision.as_ref().filter(|_| !self.has(Bug::RevisionIgnored));
        let turn = edit.turn.as_ref().filter(|_| !self.has(Bug::StopHitsSuccessor));
        let item = &self.items[at];
        match &item.state {
            State::Waiting => {}
            State::Ended(outcome) => return Err(Answer::conflict("already_ended", outcome.state)),
            State::Taken | State::Noted if op == EditOp::Withdraw && self.has(Bug::WithdrawAfterClaim) => {}
            State::Taken | State::Noted => return Err(Answer::conflict("already_started", "its turn is in progress")),
        }
        if item.is_system && op != EditOp::Promote {
            return Err(Answer::refused("immutable_item", "an item of the service itself"));
        }
        if matches!(op, EditOp::Replace | EditOp::Withdraw) && item.by != *by {
            return Err(Answer::refused("not_author", format!("its author is {}", item.by.name)));
        }
        let (current, code) = match op {
            EditOp::Promote => (self.revision(), "queue_changed"),
            EditOp::Replace | EditOp::Withdraw | EditOp::Steer | EditOp::Inject => {
                (item.revision.to_string(), "item_changed")
            }
        };
        if revision.is_some_and(|revision| *revision != current) {
            return Err(Answer::conflict(code, format!("the revision is {current}")));
        }
        let running = self.turn.as_ref().map(|turn| &turn.id);
        if turn.is_some() && turn != running {
            return Err(Answer::conflict("stale_turn", "another turn is in progress, or none"));
        }
        if op == EditOp::Inject && running.is_none() {
            return Err(Answer::conflict("no_turn", "no turn is in progress"));
        }
        Ok(())
    }

    fn apply(&mut self, at: usize, by: &Author, edit: Edit) {
        self.edits += 1;
        let item = &mut self.items[at];
        item.revision += 1;
        match edit.op {
            EditOp::Replace => item.text = edit.text.unwrap_or_default(),
            EditOp::Withdraw => item.state = ended(ItemState::Cancelled, &format!("withdrawn: by {}", by.name)),
            EditOp::Promote => {
                let mut others = self.waiting();
                others.retain(|other| *other != at);
                let steers = others.partition_point(|other| self.items[*other].place < 0);
                others.insert(steers, at);
                self.rearrange(&others);
                self.open();
            }
            EditOp::Steer => {
                item.mode = Mode::Steer;
                item.place -= if item.place < 0 { 0 } else { STEER };
                self.steer(by);
                self.open();
            }
            EditOp::Inject => {
                item.mode = Mode::Inject;
                self.open();
            }
        }
    }

    /// Gives these items the places that they have, in this order.
    fn rearrange(&mut self, order: &[usize]) {
        let mut places: Vec<i64> = order.iter().map(|at| self.items[*at].place).collect();
        places.sort_unstable();
        for (at, place) in order.iter().zip(places) {
            self.items[*at].place = place;
        }
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
            for at in self.waiting() {
                self.items[at].state = ended(ItemState::Cancelled, "steered");
            }
        }
        if !self.has(Bug::SteerWaits) {
            self.stop(format!("steered: by {}", by.name), Then::Continue);
        }
    }

    fn stop(&mut self, reason: String, then: Then) {
        if let Some(turn) = &mut self.turn {
            turn.stop = Some(Stop { reason, then });
        }
    }

    fn look(&mut self) -> QueueState {
        let gate = match (self.is_paused, self.is_stopped) {
            (true, _) => Some("pause"),
            (false, true) => Some("stopped"),
            (false, false) => None,
        };
        let in_turn = self.in_turn().map(|item| item.id.clone()).collect();
        let turn = self.turn.as_ref().map(|turn| turn.id.clone());
        let waiting = self.waiting().into_iter().map(|at| &self.items[at]);
        let item = |item: &Item| (item.id.clone(), Some(item.revision.to_string()));
        QueueState {
            revision: Some(self.revision()),
            gate: gate.map(str::to_owned),
            running: turn.map(|turn| RunningTurn { turn, items: in_turn }),
            items: waiting
                .map(item)
                .map(|(item, revision)| QueueItem { item, revision })
                .collect(),
        }
    }

    // Turns.

    /// Decides what comes next. No call is in progress at this moment.
    pub fn next(&mut self, now: Instant) -> Next {
        if std::mem::take(&mut self.is_crashed)
            && self.has(Bug::NoteLostAtCrash)
            && let Some(turn) = &mut self.turn
            && self.items.iter().any(|item| item.state == State::Noted)
        {
            turn.said.pop();
        }
        self.turn_stop();
        if self.turn.is_none() {
            let is_paused = self.is_paused && !self.has(Bug::PauseNotRead);
            let run = self.run();
            if is_paused || self.is_stopped || run.is_empty() {
                return Next::Rest(None);
            }
            if let Some(at) = self.due(&run).filter(|at| *at > now) {
                return Next::Rest(Some(at));
            }
            self.turns += 1;
            self.turn = Some(Turn {
                id: format!("turn-{}", self.turns),
                said: vec![self.take(&run, || State::Taken)],
                stop: None,
                failures: 0,
                retry_at: None,
            });
        }
        let turn = self.turn.as_ref().expect("one was there, or was just made");
        match turn.retry_at {
            Some(at) if at > now => Next::Rest(Some(at)),
            Some(_) | None => Next::Call(self.history.iter().chain(&turn.said).cloned().collect()),
        }
    }

    /// Changes the state of items that go to the model, and gives their texts.
    fn take(&mut self, items: &[usize], state: impl Fn() -> State) -> Part {
        let mut text = String::new();
        for at in items {
            let item = &mut self.items[*at];
            item.state = state();
            text += &item.text;
            text += "\n";
        }
        Part::User(text)
    }

    /// The items that are one turn, from the head.
    fn run(&self) -> Vec<usize> {
        let waiting = self.waiting();
        let Some(head) = waiting.first().map(|at| &self.items[*at]) else {
            return waiting;
        };
        let is_merged = match head.mode {
            Mode::Collect => !self.has(Bug::CollectNeverMerges),
            Mode::Steer => true,
            Mode::Followup | Mode::Inject => false,
        };
        let may_join = |item: &Item| !item.is_alone && (!item.is_system || self.has(Bug::AnswersMerged));
        let joins = |at: &usize| {
            let item = &self.items[*at];
            let by_same = item.by == head.by || self.has(Bug::AuthorsMerged);
            is_merged && may_join(head) && may_join(item) && item.mode == head.mode && by_same
        };
        let rest = waiting[1..].iter().copied().take_while(joins);
        waiting[..1].iter().copied().chain(rest).take(RUN_ITEMS_MAX).collect()
    }

    /// When a run may start; none: at once.
    fn due(&self, run: &[usize]) -> Option<Instant> {
        let (first, newest) = (&self.items[*run.first()?], &self.items[*run.last()?]);
        let waits = first.mode == Mode::Collect && !first.is_alone && !first.is_system;
        waits.then(|| (newest.arrived + DEBOUNCE).min(first.arrived + DEBOUNCE_MAX))
    }

    /// `answer`: a reply or a tool; none: the call failed.
    pub fn answered(&mut self, answer: Option<Part>, now: Instant) {
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        match answer {
            // A reply that came before the stop was carried out counts.
            Some(reply @ (Part::Reply(_) | Part::User(_))) => {
                self.end_taken(ItemState::Delivered, "", |_| true);
                self.history.append(&mut turn.said);
                self.history.push(reply);
                return;
            }
            Some(tool @ Part::Tool(..)) => {
                for item in self.items.iter_mut().filter(|item| item.state == State::Noted) {
                    item.state = State::Taken;
                }
                turn.said.push(tool);
                let mut notes = self.waiting();
                notes.retain(|at| self.items[*at].mode == Mode::Inject && turn.stop.is_none());
                if !notes.is_empty() {
                    let twice = self.has(Bug::NoteTwice);
                    let note = self.take(&notes, || if twice { State::Waiting } else { State::Noted });
                    turn.said.push(note);
                }
                turn.retry_at = None;
            }
            None => {
                turn.failures += 1;
                turn.retry_at = Some(now + RETRY_DELAY);
                if turn.failures >= FAILURES_MAX {
                    self.end_taken(ItemState::Failed, "the model failed", |state| *state == State::Taken);
                    return;
                }
            }
        }
        self.turn = Some(turn);
    }

    /// Whether the call in progress is to be dropped.
    pub fn is_cut(&self) -> bool {
        self.is_crashed || self.turn.as_ref().is_some_and(|turn| turn.stop.is_some())
    }

    /// Ends the turn in progress, if that was requested. What the model has not answered goes back to its place.
    fn turn_stop(&mut self) {
        if let Some(Turn { stop: Some(stop), .. }) = self.turn.take_if(|turn| turn.stop.is_some()) {
            self.end_taken(ItemState::Cancelled, &stop.reason, |state| *state == State::Taken);
            let holds = stop.then == Then::Hold && !self.has(Bug::StopRestarts);
            self.is_stopped |= holds && !self.waiting().is_empty();
        }
    }

    /// Ends the items of the turn that `ends` chooses; the others wait again.
    fn end_taken(&mut self, state: ItemState, reason: &str, ends: impl Fn(&State) -> bool) {
        for item in self.in_turn() {
            let is_end = ends(&item.state);
            item.state = if is_end { ended(state, reason) } else { State::Waiting };
        }
    }
}

fn outcome(state: ItemState, reason: &str) -> Outcome {
    let reason = reason.to_owned();
    Outcome { state, reason }
}

fn ended(state: ItemState, reason: &str) -> State {
    State::Ended(outcome(state, reason))
}
