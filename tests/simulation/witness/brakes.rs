//! I19, I20 and I24 to I26: what a brake ends and what it keeps, gates, and the order of a queue. Kept apart from the columns
//! that the models of the statements use: who asked what, which sessions are held, and the items' numbers.

use std::collections::{BTreeMap, BTreeSet};

use delivery::{
    providers::{CallInput, InputItem},
    store::SessionName,
    turn::work::Work,
};
use domain::{
    AccountId, ActorKind, BRANCH_ENDED, Fence, Gate, NotificationId, NotificationState, QueueMode, SESSION_RESET,
    SessionId, StopKind, StopThen, TASK_CLOSED, TurnId, TurnState, branch::RESULT, queue::is_own_kind,
};
use storage::lifecycle::close_reason;

use super::Witness;
use crate::simulation::{
    database::{Database, NotificationRow, TurnRow},
    settings::Settings,
};

#[derive(Debug, Default)]
pub(super) struct Brakes {
    asked: BTreeMap<TurnId, Vec<Asked>>,
    /// Sessions in which nothing may start.
    held: BTreeSet<SessionId>,
    /// An item's session, its number there, and its place among those that wait.
    numbers: BTreeMap<(AccountId, NotificationId), (SessionId, i64, i64)>,
    /// What went with a call: a turn, and the number of answers before the call.
    notes: BTreeMap<(TurnId, usize), String>,
    called: BTreeSet<TurnId>,
    /// The fence under which a turn began.
    begun: BTreeMap<TurnId, Fence>,
    /// The last turn of a session that was stopped, until another one has an answer: one that was called comes before others.
    untold: BTreeMap<SessionId, TurnId>,
}

/// A request to stop a turn, and how far the turn was.
#[derive(Debug)]
struct Asked {
    because: String,
    kind: StopKind,
    then: StopThen,
    fence: Fence,
    progress: (usize, i32),
}

impl Brakes {
    /// Nothing may start in the session.
    pub(super) fn hold(&mut self, session: SessionId) {
        self.held.insert(session);
    }
}

/// Rounds and attempt.
fn progress(turn: &TurnRow) -> (usize, i32) {
    (turn.journal.rounds.len(), turn.attempt)
}

/// Whether it is the error of a stopped turn, or the reason of one of its items.
fn is_of_a_stop(text: &str) -> bool {
    text.split_once(": by ")
        .is_some_and(|(kind, _)| StopKind::parse(kind).is_some())
}

impl Witness {
    /// The turn was in progress, and is to end.
    pub(crate) fn stop_asked(
        &mut self,
        database: &Database,
        account: &AccountId,
        turn: TurnId,
        (kind, by, then): (StopKind, &str, StopThen),
    ) {
        let row = &database.turns[&(account.clone(), turn)];
        let asked = Asked {
            because: kind.because(by),
            kind,
            then,
            fence: database.sessions[&(account.clone(), row.session)].fence,
            progress: progress(row),
        };
        self.brakes.asked.entry(turn).or_default().push(asked);
    }

    /// A person went on with a session, or sent something new: what waits goes on, also if its turn is still to end.
    pub(crate) fn resumed(&mut self, database: &Database, (account, session): &SessionName) {
        self.brakes.held.remove(session);
        let row = database.sessions.get(&(account.clone(), *session));
        let turn = row.and_then(|row| row.active_turn);
        let asked = turn.and_then(|turn| self.brakes.asked.get_mut(&turn));
        if let Some(last) = asked.and_then(|asked| asked.last_mut()) {
            last.then = StopThen::Continue;
        }
    }

    /// A call is sent: not by a claim after the request to stop its turn, and with the note that the same call had before.
    pub(crate) fn sent(&mut self, work: &Work) {
        self.replay_sent(work);
        let text = match &work.input {
            CallInput::ToolResults { note, .. } => note.clone().unwrap_or_default(),
            CallInput::Conversation(items) => match items.last() {
                Some(InputItem::User(text)) => text.clone(),
                _ => String::new(),
            },
            CallInput::Message(_) => String::new(),
        };
        self.brakes.called.insert(work.turn.id);
        let call = (work.turn.id, work.journal.rounds.len());
        let before = self.brakes.notes.entry(call).or_insert_with(|| text.clone()).clone();
        if before != text {
            self.breaks("I26", || {
                format!(
                    "a call of turn {} was sent with the note {before:?}, then with {text:?}",
                    call.0
                )
            });
        }
        let asked = self.brakes.asked.get(&work.turn.id).and_then(|asked| asked.first());
        if let Some(asked) = asked
            && work.turn.fence > asked.fence
        {
            let (turn, fence) = (work.turn.id, work.turn.fence);
            self.breaks("I19", || {
                format!("turn {turn} called under fence {fence}, and was to end before")
            });
        }
    }

    /// An item was queued under this number.
    pub(super) fn arrived(
        &mut self,
        database: &Database,
        name: (AccountId, NotificationId),
        session: SessionId,
        number: i64,
    ) {
        let row = &database.notifications[&name];
        let is_steer = row.mode == QueueMode::Steer;
        if is_steer && row.author.0 == ActorKind::Agent {
            self.breaks("I24", || format!("{} steers in an agent's name", name.1));
        }
        let is_inject = row.mode == QueueMode::Inject;
        let waits = |((account, id), other): (&(AccountId, NotificationId), &NotificationRow)| {
            // One that was redriven had a number before.
            (account, id) != (&name.0, &name.1)
                && other.state == NotificationState::Queued
                && other.place.is_some_and(|(of, _)| of == session)
                && self
                    .brakes
                    .numbers
                    .get(&(account.clone(), id.clone()))
                    .is_some_and(|(_, before, _)| *before < number)
        };
        // Nothing of what the stop kept is left.
        let alone = !database.notifications.iter().any(waits);
        if is_steer || is_inject || row.is_from_person() {
            self.resumed(database, &(name.0.clone(), session));
        } else if alone {
            self.brakes.held.remove(&session);
        }
        let row_of = database.sessions.get(&(name.0.clone(), session));
        let active = row_of.and_then(|session| session.active_turn);
        if let Some(turn) = active.filter(|_| is_steer) {
            let task = database.turns[&(name.0.clone(), turn)]
                .task
                .as_ref()
                .map(|task| task.key());
            if task == row.task {
                let asked = (StopKind::Steered, row.author_name.as_str(), StopThen::Continue);
                self.stop_asked(database, &name.0, turn, asked);
            }
        }
        let place = row.mode.position(number);
        self.brakes.numbers.insert(name, (session, number, place));
    }

    /// An item waits: one that was carried into the next generation is noted before an edit may move it.
    pub(super) fn waits(&mut self, name: &(AccountId, NotificationId), session: SessionId, row: &NotificationRow) {
        let known = self.brakes.numbers.get(name);
        if known.is_none_or(|(placed, _, _)| *placed != session) {
            self.order(name.clone(), row);
        }
    }

    /// The place of an item among those that wait.
    pub(super) fn order(&mut self, name: (AccountId, NotificationId), row: &NotificationRow) -> i64 {
        let (session, position) = row.place.expect("it is queued");
        match self.brakes.numbers.get(&name) {
            Some((placed, _, place)) if *placed == session => *place,
            // It moved to the next generation, with the place that it has there: a carried steer's is among the carried items.
            _ => {
                self.brakes.numbers.insert(name, (session, position, position));
                position
            }
        }
    }

    /// An edit gave an item another place.
    pub(super) fn moved(&mut self, name: (AccountId, NotificationId), place: i64) {
        self.brakes.numbers.entry(name).and_modify(|known| known.2 = place);
    }

    /// A turn begins with these items.
    pub(super) fn begins(
        &mut self,
        database: &Database,
        (account, session): &SessionName,
        turn: TurnId,
        items: &[NotificationId],
        settings: &Settings,
    ) {
        if self.brakes.held.contains(session) {
            self.breaks("I20", || {
                format!("turn {turn} began in session {session}, where a stop holds what waits")
            });
        }
        let begun = database.turns[&(account.clone(), turn)].fence;
        self.brakes.begun.insert(turn, begun);
        let named = |id: &NotificationId| (account.clone(), id.clone());
        let rows: Vec<&NotificationRow> = items.iter().map(|id| &database.notifications[&named(id)]).collect();
        let run: Vec<i64> = items
            .iter()
            .zip(&rows)
            .map(|(id, row)| self.order(named(id), row))
            .collect();
        let mut next: Option<(i64, &NotificationRow)> = None;
        for ((owner, id), row) in &database.notifications {
            let waits = row.state == NotificationState::Queued && row.place.is_some_and(|(of, _)| of == *session);
            if !waits || owner != account {
                continue;
            }
            let order = self.order(named(id), row);
            if run.iter().any(|taken| *taken > order) {
                self.breaks("I24", || {
                    format!("turn {turn} of {items:?} began before {id}, which is earlier in the queue")
                });
            }
            if next.is_none_or(|(next, _)| order < next) {
                next = Some((order, row));
            }
        }
        if !run.is_sorted() {
            self.breaks("I24", || {
                format!("the items {items:?} of turn {turn} are not in their order")
            });
        }
        let head = rows[0];
        self.starts(database, &named(&items[0]), head);
        let is_like_head = |row: &NotificationRow| {
            (row.mode, &row.author, &row.task) == (head.mode, &head.author, &head.task)
                && match row.mode {
                    QueueMode::Steer => true,
                    QueueMode::Collect => row.joins && head.joins && !is_own_kind(&row.kind),
                    QueueMode::Followup | QueueMode::Inject => false,
                }
        };
        let is_one_run = rows.len() == 1 || rows.iter().all(|row| is_like_head(row));
        let items_max = settings.delivery.collect_items_max.usize();
        if !is_one_run || rows.len() > items_max {
            self.breaks("I24", || format!("turn {turn} mixes {items:?}, or takes too many"));
        }
        if head.mode != QueueMode::Collect || !head.joins || is_own_kind(&head.kind) {
            return;
        }
        let is_full = rows.len() == items_max || next.is_some_and(|(_, row)| is_like_head(row));
        let newest = rows[rows.len() - 1];
        let own = newest.debounce_ms.as_ref().and_then(serde_json::Value::as_i64);
        let debounce = own.unwrap_or(settings.delivery.collect_debounce_ms.i64());
        let due = (newest.created_at + debounce).min(head.created_at + settings.delivery.collect_wait_ms_max.i64());
        if !is_full && database.now < due {
            self.breaks("I20", || {
                format!("the run {items:?} began at {}, and may grow until {due}", database.now)
            });
        }
    }

    /// A queued item was cancelled: only the end of its task or of its session does this, and who withdraws it.
    pub(super) fn cancelled_waiting(
        &mut self,
        database: &Database,
        name: &(AccountId, NotificationId),
        row: &NotificationRow,
    ) {
        let session = row
            .place
            .and_then(|(session, _)| database.sessions.get(&(name.0.clone(), session)));
        let is_closed = session.is_none_or(|session| session.closed.is_some());
        let task = row
            .task
            .as_ref()
            .and_then(|task| database.tasks.get(&(name.0.clone(), task.clone())));
        let has_ended = task.is_some_and(|task| close_reason(task.status).is_some());
        if !is_closed && !has_ended && !self.is_withdrawn(name) {
            self.breaks("I25", || {
                format!("{} waited and was cancelled: {:?}", name.1, row.reason)
            });
        }
    }

    /// A turn in progress: a request to stop it lets it do nothing more, and its items are its own.
    pub(super) fn goes_on_as_asked(&mut self, database: &Database, account: &AccountId, id: TurnId, row: &TurnRow) {
        let asked = self.brakes.asked.get(&id).and_then(|asked| asked.first());
        if asked.is_some_and(|asked| asked.progress != progress(row)) {
            self.breaks("I19", || {
                format!("turn {id} was to end, and went on: {:?}", progress(row))
            });
        }
        let session = &database.sessions[&(account.clone(), row.session)];
        for item in &row.notifications {
            let item_row = &database.notifications[&(account.clone(), item.clone())];
            let is_its_own = item_row.turn == Some(id) && item_row.state == NotificationState::Running;
            if session.closed.is_none() && !is_its_own {
                let (state, of) = (item_row.state, item_row.turn);
                self.breaks("I24", || {
                    format!("item {item} of turn {id} is {state}, and of turn {of:?}")
                });
            }
        }
    }

    /// A turn has ended.
    pub(super) fn ended(&mut self, database: &Database, account: &AccountId, id: TurnId, row: &TurnRow) {
        let error = row.error.as_deref().unwrap_or_default();
        let asked = self.brakes.asked.get(&id).map(Vec::as_slice).unwrap_or_default();
        let last = asked.last();
        // The end of a task is the reason of turns too that nobody has stopped; a reset has its own.
        let is_cut = last.is_some_and(|last| match last.kind {
            StopKind::Cancelled => error == TASK_CLOSED,
            StopKind::Reset => error == SESSION_RESET,
            StopKind::BranchEnded => error == BRANCH_ENDED,
            StopKind::Stopped | StopKind::Steered | StopKind::Paused | StopKind::HandedOver => false,
        });
        let is_stopped = row.state == TurnState::Aborted && (is_of_a_stop(error) || is_cut);
        // One of the newest kind, since a batch may have several steers.
        let is_asked = asked
            .iter()
            .any(|asked| asked.because == error && last.is_some_and(|last| last.kind == asked.kind));
        let (then, kind) = (last.map(|last| last.then), last.map(|last| last.kind));
        if is_stopped && !is_asked {
            self.breaks("I19", || {
                format!("turn {id} ended as \"{error}\", which nobody had asked for")
            });
        }
        if then.is_some() && !is_stopped && row.state != TurnState::Finished {
            self.breaks("I19", || format!("turn {id} was to end, and is {}: {error}", row.state));
        }
        let session = &database.sessions[&(account.clone(), row.session)];
        for item in &row.notifications {
            let item_row = &database.notifications[&(account.clone(), item.clone())];
            // The end of the session has judged the items of a turn that waited.
            if item_row.turn != Some(id) || session.closed.is_some() {
                continue;
            }
            let reason = item_row.reason.as_deref().unwrap_or_default();
            // It went with a call that had no answer, and is back in its place.
            let is_back = item_row.state == NotificationState::Queued
                && row
                    .notes
                    .of_round(row.journal.rounds.len())
                    .any(|note| note.notification_ids.contains(&item.to_string()));
            let is_right = match is_stopped {
                _ if is_back => true,
                true => item_row.state == NotificationState::Cancelled && reason == error,
                false => !is_of_a_stop(reason),
            };
            if !is_right {
                let state = item_row.state;
                self.breaks("I25", || {
                    format!("item {item} of turn {id} is {state}, \"{reason}\"; the turn ended as \"{error}\"")
                });
            }
        }
        let untold = &mut self.brakes.untold;
        // Another holder cannot know what the turn was to tell, nor whether the first one has called.
        let is_known = self.brakes.begun.get(&id) == Some(&row.fence);
        if !is_stopped && (row.state == TurnState::Finished || !row.journal.rounds.is_empty()) {
            untold.remove(&row.session);
        } else if !is_stopped && !is_known {
            match session.stopped_turn {
                Some(tells) => drop(untold.insert(row.session, tells)),
                None => drop(untold.remove(&row.session)),
            }
        } else if !is_stopped
            && let Some(told) = untold.get(&row.session).copied()
            && session.closed.is_none()
            && session.stopped_turn != Some(told)
        {
            let tells = session.stopped_turn;
            self.breaks("I19", || {
                format!("turn {id} had no answer; the next agent must be told of turn {told}, and is told of {tells:?}")
            });
        }
        if is_stopped {
            let is_called = self.brakes.called.contains(&id);
            // A reset that puts the stopped turn's items back tells the next generation of that turn.
            let of_the_last = session.stopped_turn.filter(|tells| {
                let turn = database.turns.get(&(account.clone(), *tells));
                !is_called && turn.is_some_and(|turn| turn.session != row.session)
            });
            let untold = &mut self.brakes.untold;
            let told = match is_called {
                true => *untold.entry(row.session).insert_entry(id).get(),
                false => *untold.entry(row.session).or_insert(of_the_last.unwrap_or(id)),
            };
            // Another holder tells of the turn that it has ended.
            if let Some(tells) = session.stopped_turn.filter(|_| !is_known) {
                untold.insert(row.session, tells);
            }
            if is_known && session.stopped_turn != Some(told) {
                let tells = session.stopped_turn;
                self.breaks("I19", || {
                    format!(
                        "turn {id} was stopped; the next agent must be told of turn {told}, and is told of {tells:?}"
                    )
                });
            }
        }
        // A branch that ends in the same transaction tells its parent before the turn has ended, or after: either is right.
        let has_waited = database.notifications.iter().any(|((owner, _), item)| {
            let waits = item.state == NotificationState::Queued && item.place.is_some_and(|(of, _)| of == row.session);
            owner == account && waits && (item.kind != RESULT || item.created_at < database.now)
        });
        let is_parked = session.gate == Some(Gate::Stopped);
        let may_hold = is_stopped && then == Some(StopThen::Hold) && session.queued > 0 && session.closed.is_none();
        let holds = may_hold && (has_waited || is_parked);
        if holds {
            self.brakes.held.insert(row.session);
        }
        if holds != is_parked {
            let (session, gate) = (row.session, session.gate);
            self.breaks("I20", || {
                format!("turn {id} ended, then {then:?}: session {session} has gate {gate:?}")
            });
        }
        self.reset_ended(database, account, (id, row), kind);
    }
}
