//! I31: a replay has no effect and one item, runs what its source turn ran, in a thread of its own, and ends once, with its session.
//! The source turn stays as it was. Counts rows by their sessions and turns.

use std::collections::BTreeMap;

use delivery::turn::work::Work;
use domain::{AccountId, ContextReason, NotificationId, ReplayId, ReplayState, SessionId, TurnId, replay::replay_item};

use super::Witness;
use crate::simulation::database::{Database, DeadLetter, TurnRow, replays::ReplayRow};

#[derive(Debug, Default)]
pub(super) struct Replays {
    /// By session, so that a call is known as a replay's.
    ids: BTreeMap<SessionId, ReplayId>,
    /// The rows of the source turns when they were replayed first.
    sources: BTreeMap<TurnId, String>,
    /// How those that have ended have ended.
    over: BTreeMap<ReplayId, ReplayState>,
}

impl Witness {
    pub(super) fn look_at_replays(&mut self, database: &Database) {
        for ((account, id), replay) in &database.replays {
            self.replays.ids.insert(replay.session, *id);
            let source = &database.turns[&(account.clone(), replay.source)];
            let before = self.replays.sources.entry(replay.source);
            before.or_insert_with(|| format!("{source:?}"));
            self.has_no_effect(database, account, (*id, replay));
            let turns: Vec<&TurnRow> = database
                .turns
                .values()
                .filter(|turn| turn.session == replay.session)
                .collect();
            for turn in &turns {
                let knows_past = source.context.reason != Some(ContextReason::First);
                let is_lost = turn.context.lost_after.is_some();
                let is_same = (&turn.task, turn.agent, &turn.tools) == (&source.task, source.agent, &source.tools)
                    && (is_lost || turn.context.is_assembled() == knows_past);
                if !is_same {
                    self.breaks("I31", || {
                        format!("replay {id} does not run what turn {} ran", replay.source)
                    });
                }
            }
            let is_closed = database.sessions[&(account.clone(), replay.session)].closed.is_some();
            let newest = turns.iter().max_by_key(|turn| turn.number).map(|turn| turn.state);
            let state = ReplayState::of(newest, is_closed);
            let state = matches!(state, ReplayState::Finished | ReplayState::Failed).then_some(state);
            let before = self.replays.over.get(id).copied();
            if before.is_some() && before != state {
                self.breaks("I31", || format!("replay {id} was {before:?} and is {state:?}"));
            }
            self.replays.over.extend(state.map(|state| (*id, state)));
        }
    }

    fn has_no_effect(&mut self, database: &Database, account: &AccountId, (id, replay): (ReplayId, &ReplayRow)) {
        let session = replay.session;
        let is_its = |turn: &TurnId| {
            let turn = database.turns.get(&(account.clone(), *turn));
            turn.is_some_and(|turn| turn.session == session)
        };
        let (item, letters) = (replay_item(id), &database.dead_letters);
        let is_of_item = |letter: &DeadLetter| letter.notification.as_ref() == Some(&item);
        let is_here = |of: SessionId| of == session;
        let effects = [
            ("a tool call", database.calls.values().any(|row| is_here(row.session))),
            (
                "a question",
                database.questions.values().any(|row| is_here(row.session)),
            ),
            ("a timer", database.timers.values().any(|row| is_here(row.session))),
            ("a branch", database.branches.values().any(|row| is_here(row.parent))),
            ("a message", database.messages.values().any(is_its)),
            ("a dead letter", letters.iter().any(is_of_item)),
        ];
        for (what, _) in effects.into_iter().filter(|(_, is_there)| *is_there) {
            self.breaks("I31", || format!("replay {id} has {what}"));
        }
        let rows = database.notifications.iter();
        let items = rows.filter(|(_, row)| row.place.is_some_and(|(of, _)| is_here(of)));
        let items: Vec<&NotificationId> = items.map(|((_, id), _)| id).collect();
        if items != [&item] {
            self.breaks("I31", || format!("replay {id} has the items {items:?}"));
        }
    }

    /// A call is sent.
    pub(super) fn replay_sent(&mut self, work: &Work) {
        let Some(id) = self.replays.ids.get(&work.turn.session).copied() else {
            return;
        };
        let thread = &work.thread.name;
        if !thread.starts_with(&format!("replay:{id}:")) {
            self.breaks("I31", || format!("replay {id} calls in the thread {thread}"));
        }
    }

    pub(super) fn replays_at_the_end(&mut self, database: &Database) {
        for ((account, id), replay) in &database.replays {
            if !self.replays.over.contains_key(id) {
                self.breaks("I31", || format!("replay {id} has not ended"));
            }
            let source = &database.turns[&(account.clone(), replay.source)];
            if self.replays.sources[&replay.source] != format!("{source:?}") {
                self.breaks("I31", || format!("replay {id} has changed turn {}", replay.source));
            }
        }
    }
}
