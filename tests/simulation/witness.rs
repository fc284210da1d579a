//! Checks the invariants I1 to I11, I18 to I28, I30, I31 and I35 to I38 independently of the rows that they concern: some after every
//! transaction, the rest at the end.

mod brakes;
mod branches;
mod breaker;
mod control;
mod people;
mod questions;
mod replays;
mod resets;

use std::collections::{BTreeMap, BTreeSet};

use delivery::{queue::dispatcher::DispatchQueue, store::SessionName};
use domain::{
    AccountId, CloseReason, Conversation, Generation, NotificationId, NotificationState, SessionAddress, SessionId,
    SessionKind, SessionOf, SessionPhase, TurnId, TurnState,
};
use storage::lifecycle::reply_message_id;
use uuid::Uuid;

use self::brakes::Brakes;
use super::{
    database::{
        Database, NotificationRow, SessionRow,
        calls::Effect,
        claims::Claimed,
        outbox::{Message, Published},
        outcomes::Outcome,
    },
    provider::Request,
    settings::Settings,
};

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Broken {
    /// `I1` … `I11`, `I18` …, or `stuck`.
    pub(crate) invariant: &'static str,
    pub(crate) how: String,
}

/// An offered notification.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) account: AccountId,
    pub(crate) id: NotificationId,
    pub(crate) published: Published,
    pub(crate) by_api: bool,
    /// The publisher was told that it was accepted.
    pub(crate) accepted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Witness {
    pub(crate) offers: Vec<Offer>,
    pub(crate) broken: Option<Broken>,
    seen_version: u64,
    notifications: BTreeMap<(AccountId, NotificationId), NotificationState>,
    turns_over: BTreeMap<TurnId, TurnState>,
    closed: BTreeSet<SessionId>,
    effects: BTreeMap<(TurnId, i32), u32>,
    /// Notifications that agents' tool calls caused.
    requests: BTreeSet<(AccountId, NotificationId)>,
    /// The last head of a turn, of steers and of all others.
    started: BTreeMap<(SessionId, bool), (i64, NotificationId)>,
    brakes: Brakes,
    tries: breaker::Tries,
    asked: questions::Asked,
    control: control::Control,
    resets: resets::Resets,
    branches: branches::Branches,
    replays: replays::Replays,
    people: people::People,
    /// Calls that a person has approved, by their records.
    pub(crate) approved: BTreeSet<(AccountId, Uuid)>,
    accepted: BTreeMap<(AccountId, SessionId, (u16, u64)), u64>,
}

impl Witness {
    pub(crate) fn breaks(&mut self, invariant: &'static str, how: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(Broken { invariant, how: how() });
        }
    }

    /// After every step; checks only if a transaction committed.
    pub(crate) fn look(&mut self, database: &Database) {
        if self.seen_version == database.version {
            return;
        }
        self.seen_version = database.version;
        self.look_at_sessions(database);
        self.look_at_notifications(database);
        self.look_at_turns(database);
        self.look_at_asked(database);
        self.look_at_branches(database);
        self.look_at_replays(database);
        self.look_at_mail(database);
        self.look_at_board(database);
    }

    fn look_at_sessions(&mut self, database: &Database) {
        let mut waiting: BTreeMap<(&AccountId, SessionId), i32> = BTreeMap::new();
        let mut places = BTreeSet::new();
        for (name, row) in &database.notifications {
            if let (NotificationState::Queued, Some((session, position))) = (row.state, row.place) {
                let (account, id) = name;
                self.waits(name, session, row);
                *waiting.entry((account, session)).or_default() += 1;
                if !places.insert((account, session, position)) {
                    self.breaks("I24", || format!("{id} shares place {position} of session {session}"));
                }
            }
        }
        let mut generations: Vec<(&Conversation, i32, bool)> = Vec::with_capacity(database.sessions.len());
        for ((account, id), row) in &database.sessions {
            generations.push((&row.conversation, row.generation, row.closed.is_none()));
            if row.closed.is_some() {
                self.closed.insert(*id);
            } else if self.closed.contains(id) {
                self.breaks("I3", || format!("session {id} is open again"));
            }
            let counted = waiting.get(&(account, *id)).copied().unwrap_or_default();
            if counted != row.queued {
                self.breaks("I1", || {
                    format!("session {id} counts {} waiting, {counted} are", row.queued)
                });
            }
            if counted > 0 && row.closed.is_some() {
                self.breaks("I9", || {
                    format!("{counted} items wait in session {id}, which is closed")
                });
            }
            let is_child = || {
                let task = row.conversation.task();
                task.is_some_and(|task| database.tasks[&(account.clone(), task.clone())].is_child)
            };
            if row.queue_tail == 0 && !is_after_reset(database, (account, row)) && !is_child() {
                self.breaks("I3", || format!("session {id} was opened without an item"));
            }
            if row.closed.is_none()
                && matches!(row.conversation.kind(), SessionKind::Orchestrator | SessionKind::Guest)
                && database.was_removed(&row.conversation)
            {
                self.breaks("I35", || format!("session {id} is open, and its person was removed"));
            }
            if (row.phase == SessionPhase::Running) != row.lease_owner.is_some() {
                self.breaks("I4", || {
                    format!("session {id} is {} with lease {:?}", row.phase, row.lease_owner)
                });
            }
            let turn = row
                .active_turn
                .and_then(|turn| database.turns.get(&(account.clone(), turn)));
            if row.active_turn.is_some() && turn.is_none_or(|turn| turn.state.is_over() || turn.session != *id) {
                self.breaks("I4", || format!("session {id} names a turn that is not in progress"));
            }
        }
        generations.sort_unstable();
        for pair in generations.windows(2) {
            let [(one, generation, open), (other, next, _)] = pair else {
                continue;
            };
            if one == other && (*next != generation + 1 || *open) {
                let invariant = if *open { "I2" } else { "I3" };
                self.breaks(invariant, || {
                    format!("{one:?}: generation {generation} (open: {open}) is followed by {next}")
                });
            }
        }
        let mut before: Option<&Conversation> = None;
        for (conversation, generation, _) in generations {
            if before != Some(conversation) && generation != 1 {
                self.breaks("I3", || format!("{conversation:?} begins with generation {generation}"));
            }
            before = Some(conversation);
        }
    }

    fn look_at_notifications(&mut self, database: &Database) {
        for (name, row) in &database.notifications {
            let before = self.notifications.get(name).copied();
            if before == Some(row.state) {
                continue;
            }
            if let Some(before) = before
                && !may_follow(before, row.state)
            {
                self.breaks("I1", || {
                    format!("notification {} was {before} and is {}", name.1, row.state)
                });
            }
            if before == Some(NotificationState::Queued) && row.state == NotificationState::Cancelled {
                self.cancelled_waiting(database, name, row);
            }
            self.notifications.insert(name.clone(), row.state);
        }
    }

    fn look_at_turns(&mut self, database: &Database) {
        for ((account, id), row) in &database.turns {
            match self.turns_over.get(id) {
                Some(state) if *state != row.state => {
                    let state = *state;
                    self.breaks("I7", || format!("turn {id} was {state} and is {}", row.state));
                }
                Some(_) => {}
                None if row.state.is_over() => {
                    self.turns_over.insert(*id, row.state);
                    self.ended(database, account, *id, row);
                    if row.reply.as_ref().is_some_and(|reply| *reply != id.to_string()) {
                        self.breaks("I7", || format!("turn {id} has the reply of {:?}", row.reply));
                    }
                }
                None => {
                    let session = &database.sessions[&(account.clone(), row.session)];
                    if let Some(owner) = session.conversation.person() {
                        let mut kinds = row
                            .notifications
                            .iter()
                            .map(|item| database.kind_of(account, owner, item));
                        let first = kinds.next();
                        if kinds.any(|kind| Some(kind) != first) {
                            self.breaks("I36", || {
                                format!("turn {id} is about words of {owner} and about words of others")
                            });
                        }
                    }
                    if session.active_turn != Some(*id) {
                        self.breaks("I4", || {
                            format!("turn {id} is {} and its session does not name it", row.state)
                        });
                    }
                    self.goes_on_as_asked(database, account, *id, row);
                }
            }
        }
    }

    /// Items were queued: numbers in a queue follow the stream's order, by one reader's numbering.
    pub(crate) fn entered(
        &mut self,
        database: &Database,
        account: &AccountId,
        reader: (u16, u64),
        queued: &[(NotificationId, u64, SessionId, i64)],
    ) {
        for (id, sequence, session, number) in queued {
            let last = self.accepted.entry((account.clone(), *session, reader)).or_default();
            let (before, now) = (*last, *sequence);
            *last = now;
            if before > now {
                self.breaks("I8", || format!("{id} of place {now} was queued behind place {before}"));
            }
            self.addressed(database, (account, id), *session);
            self.arrived(database, (account.clone(), id.clone()), *session, *number);
        }
    }

    /// What a person's orchestrator gets, and a guest's session, was addressed to it, and it gets all of that.
    fn addressed(&mut self, database: &Database, (account, id): (&AccountId, &NotificationId), session: SessionId) {
        let row = &database.notifications[&(account.clone(), id.clone())];
        let message: serde_json::Value = serde_json::from_slice(&row.payload).expect("a wire type");
        let address = message["session"].as_str();
        let address = address.and_then(|address| SessionAddress::parse(address).ok()?.within(account));
        let is_own = |of: &SessionOf| matches!(of, SessionOf::Orchestrator(_) | SessionOf::Guest { .. });
        let asked = address.filter(is_own);
        let Some(of) = database.sessions.get(&(account.clone(), session)) else {
            return;
        };
        let of = Some(of.conversation.key(Generation::FIRST).of).filter(is_own);
        if asked != of {
            self.breaks("I35", || {
                format!("{id} was addressed to {asked:?}, and is in a session of {of:?}")
            });
        }
    }

    pub(crate) fn claimed(&mut self, database: &Database, claimed: &Claimed, settings: &Settings) {
        for (name, turn, notifications) in &claimed.started {
            let (account, session) = name;
            if self.closed.contains(session) {
                self.breaks("I9", || {
                    format!("turn {turn} began in session {session}, which is closed")
                });
            }
            let row = &database.notifications[&(account.clone(), notifications[0].clone())];
            self.in_order(*session, &notifications[0], row);
            self.begins(database, name, *turn, notifications, settings);
        }
    }

    /// The place of a session that goes on would not have gone to another account.
    pub(crate) fn goes_on(&mut self, line: &DispatchQueue, name: &SessionName) {
        let others = |line: &mut DispatchQueue| {
            let taken = line.take(usize::MAX);
            taken.into_iter().filter(|(account, _)| *account != name.0).count()
        };
        let (mut kept, mut freed) = (line.clone(), line.clone());
        freed.free(name.clone(), false);
        if others(&mut freed) > others(&mut kept) {
            self.breaks("I18", || {
                format!(
                    "session {} began its next turn in a place that another account waits for",
                    name.1
                )
            });
        }
    }

    fn in_order(&mut self, session: SessionId, id: &NotificationId, row: &NotificationRow) {
        let Some((_, position)) = row.place else { return };
        // A steer that was carried into the next generation stands among the carried items.
        let kind = (session, position < 0);
        if let Some((before, last)) = self.started.insert(kind, (position, id.clone()))
            && (before > position || (before == position && last != *id))
        {
            self.breaks("I8", || {
                format!("{id} of position {position} ran after {last} of position {before}")
            });
        }
    }

    pub(crate) fn recorded(&mut self, outcomes: &[Outcome]) {
        self.tried_out(outcomes);
        for outcome in outcomes {
            if outcome.fence != outcome.session_fence {
                self.breaks("I4", || {
                    format!(
                        "turn {} was written as {} under fence {}, its session has {}",
                        outcome.turn, outcome.state, outcome.fence, outcome.session_fence
                    )
                });
            }
        }
    }

    pub(crate) fn acted(&mut self, effect: &Effect) {
        self.requests.extend(effect.asked.clone());
        let count = self.effects.entry((effect.turn, effect.ordinal)).or_default();
        *count += 1;
        let count = *count;
        if count > 1 {
            self.breaks("I5", || {
                format!("call {} of turn {} ran {count} times", effect.ordinal, effect.turn)
            });
        }
        if !effect.was_asked_for {
            self.breaks("I5", || {
                format!(
                    "call {} of turn {} ran in other words than the turn asked for",
                    effect.ordinal, effect.turn
                )
            });
        }
        if !effect.overtook.is_empty() {
            self.breaks("I8", || {
                format!(
                    "call {} of turn {} ran before {:?}, which its answer has before it",
                    effect.ordinal, effect.turn, effect.overtook
                )
            });
        }
        if effect.needs_approval && !self.approved.contains(&effect.call) {
            self.breaks("I27", || {
                format!(
                    "call {} of turn {} ran, and nobody had approved it",
                    effect.ordinal, effect.turn
                )
            });
        }
        if effect.in_ended_turn {
            self.breaks("I19", || {
                format!(
                    "call {} of turn {} ran after the turn had ended",
                    effect.ordinal, effect.turn
                )
            });
        }
        if effect.in_closed_session {
            self.breaks("I9", || {
                format!(
                    "call {} of turn {} ran in a closed session",
                    effect.ordinal, effect.turn
                )
            });
        }
    }

    /// A provider is called while another call for the same session is open.
    pub(crate) fn overlapping(&mut self, one: &Request, turn: TurnId) {
        self.breaks("I4", || {
            format!(
                "turn {turn} calls for {}, while the call of turn {} by process {} is open",
                one.session_key, one.turn, one.holder
            )
        });
    }

    /// No step is left.
    pub(crate) fn look_at_the_end(&mut self, database: &Database, events: &BTreeSet<String>) {
        self.look(database);
        self.replays_at_the_end(database);
        self.mail_at_the_end(database);
        self.board_at_the_end(database);
        for ((account, id), turn) in &database.turns {
            let is_replay = database.sessions[&(account.clone(), turn.session)].replay.is_some();
            let is_over = turn.state.is_over();
            for (event, is_due) in [
                (Message::started(*id), !is_replay),
                (Message::finished(*id), is_over && !is_replay),
                (Message::replayed(*id), is_over && is_replay),
            ] {
                let event = event.id();
                if events.contains(&event) != is_due {
                    self.breaks("I10", || format!("{event} was to be published: {is_due}"));
                }
            }
        }
        for offer in self.offers.clone() {
            self.has_outcome(database, &offer);
        }
        self.requests_arrived(database);
        for ((account, id), row) in &database.notifications {
            if !row.state.is_outcome() {
                self.breaks("I1", || format!("notification {id} is {} for ever", row.state));
            }
            let delivered = database.turns.iter().filter(|((owner, _), turn)| {
                owner == account && turn.notifications.contains(id) && turn.state == TurnState::Finished
            });
            let (count, expected) = (
                delivered.count(),
                usize::from(row.state == NotificationState::Delivered),
            );
            if count != expected {
                self.breaks("I7", || {
                    format!("notification {id} is {}, {count} of its turns finished", row.state)
                });
            }
        }
        if let Some((id, row)) = database.outbox.iter().next() {
            self.breaks("I10", || {
                format!("outbox row {id} was never published: {:?}", row.messages)
            });
        }
        for ((_, id), row) in &database.sessions {
            if row.phase != SessionPhase::Idle && row.active_turn.is_some() {
                self.breaks("I1", || format!("session {id} is {} for ever", row.phase));
            }
        }
        for ((account, id), turn) in &database.turns {
            for call in turn.journal.calls().filter(|call| call.answered.is_none()) {
                let runs = self.effects.get(&(*id, call.ordinal)).copied().unwrap_or_default();
                let recorded = database.calls.values().any(|row| {
                    row.turn == Some(*id) && row.ordinal == call.ordinal && row.state == domain::ToolCallState::Finished
                });
                if (runs == 1) != recorded {
                    self.breaks("I5", || {
                        format!(
                            "call {} of turn {id} ran {runs} times, recorded: {recorded}",
                            call.ordinal
                        )
                    });
                }
            }
            let is_branch = database.sessions[&(account.clone(), turn.session)]
                .conversation
                .branch()
                .is_some();
            let speaks =
                turn.state == TurnState::Finished && !turn.late && !turn.no_reply && turn.task.is_some() && !is_branch;
            let posted = database
                .messages
                .contains_key(&(account.clone(), reply_message_id(*id)));
            if posted != speaks {
                self.breaks("I11", || {
                    format!("the reply of turn {id}: wanted {speaks}, posted {posted}")
                });
            }
        }
        for ((turn, ordinal), _) in self.effects.clone() {
            let asked = database.turns.iter().any(|((_, id), row)| {
                *id == turn
                    && row
                        .journal
                        .calls()
                        .any(|call| call.ordinal == ordinal && call.answered.is_none())
            });
            if !asked {
                self.breaks("I5", || {
                    format!("call {ordinal} of turn {turn} ran, and nobody had asked for it")
                });
            }
        }
    }

    /// Every requested agent got its notification.
    fn requests_arrived(&mut self, database: &Database) {
        for (account, id) in self.requests.clone() {
            if !database.notifications.contains_key(&(account, id.clone())) {
                self.breaks("I1", || format!("the request {id} of an agent is nowhere"));
            }
        }
    }

    fn has_outcome(&mut self, database: &Database, offer: &Offer) {
        if !offer.accepted {
            return;
        }
        let whole = offer.id.as_str();
        let known = database.notifications.keys().any(|(account, id)| {
            *account == offer.account
                && id
                    .as_str()
                    .strip_prefix(whole)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        let refused = database
            .dead_letters
            .iter()
            .any(|letter| letter.notification.as_ref() == Some(&offer.id));
        if !known && !refused {
            self.breaks("I1", || format!("notification {whole} was accepted and is nowhere"));
        }
    }

    /// Accepted offers without a row.
    pub(crate) fn unknown_offers(&self, database: &Database) -> Vec<usize> {
        (0..self.offers.len())
            .filter(|n| {
                let offer = &self.offers[*n];
                let mut fresh = Witness::default();
                fresh.has_outcome(database, offer);
                fresh.broken.is_some()
            })
            .collect()
    }

    pub(crate) fn offer(
        &mut self,
        account: AccountId,
        id: NotificationId,
        published: Published,
        by_api: bool,
    ) -> usize {
        self.offers.push(Offer {
            account,
            id,
            published,
            by_api,
            accepted: false,
        });
        self.offers.len() - 1
    }

    pub(crate) fn effects(&self) -> u64 {
        self.effects.values().map(|count| u64::from(*count)).sum()
    }
}

/// A person may reset a session in which nothing waits.
fn is_after_reset(database: &Database, (account, row): (&AccountId, &SessionRow)) -> bool {
    database.of_account(account).any(|(_, before)| {
        before.conversation == row.conversation
            && before.generation + 1 == row.generation
            && matches!(before.closed, Some((_, CloseReason::Reset)))
    })
}

/// An outcome is final, except that a person may redrive a refused or failed notification.
fn may_follow(before: NotificationState, after: NotificationState) -> bool {
    use NotificationState::{Cancelled, Delivered, Failed, Queued, Refused, Running};
    match before {
        Queued => matches!(after, Running | Cancelled),
        Running => matches!(after, Queued | Delivered | Failed | Cancelled),
        Refused | Failed => matches!(after, Queued | Cancelled),
        Delivered | Cancelled => false,
    }
}
