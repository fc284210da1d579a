//! I31: a replay has no effect, and one session with one item; a request makes one replay, however often it is sent. In the end each
//! has ended, with its session. Always, except the last.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Violation,
    evidence::{Evidence, Name, ReplayRow},
};
use crate::records::{Aim, Offered};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I31",
        expected,
        found,
    }
}

fn of(replay: &ReplayRow) -> String {
    format!("replay {} of {}", replay.id, replay.account_id)
}

/// The requests for replays of a turn, and whether each was accepted.
fn asked<'a>(evidence: &Evidence<'a>, replay: &'a ReplayRow) -> Vec<bool> {
    let offers = &evidence.records.offers;
    let is_of = |aim: &&Aim| {
        let offer = &offers[aim.offer];
        matches!(offer.what, Offered::Replay { .. })
            && offer.account == replay.account_id
            && aim.named.as_ref() == Some(&replay.source_turn_id)
    };
    let aims = evidence.records.aims.iter().filter(is_of);
    aims.map(|aim| offers[aim.offer].is_accepted()).collect()
}

/// Always.
pub(super) fn without_effect(evidence: &Evidence<'_>) -> Vec<Violation> {
    let rows = evidence.rows;
    let sessions: BTreeMap<Name<'_>, &ReplayRow> = rows
        .replays
        .iter()
        .map(|replay| ((replay.account_id.as_str(), replay.session_id.as_str()), replay))
        .collect();
    let turns: BTreeSet<Name<'_>> = rows
        .turns
        .iter()
        .filter(|turn| sessions.contains_key(&(turn.account_id.as_str(), turn.session_id.as_str())))
        .map(|turn| (turn.account_id.as_str(), turn.id.as_str()))
        .collect();
    let calls = rows
        .calls
        .iter()
        .filter_map(|row| Some((&row.account_id, row.turn_id.as_ref()?, "a tool call")));
    let messages = rows
        .messages
        .iter()
        .filter_map(|row| Some((&row.account_id, row.turn_id.as_ref()?, "a message")));
    let of_turns = calls
        .chain(messages)
        .filter(|(account, turn, _)| turns.contains(&(account.as_str(), turn.as_str())))
        .map(|(account, turn, what)| format!("{what} of turn {turn} of {account}"));
    let branches = rows
        .branches
        .iter()
        .map(|row| (&row.account_id, &row.parent_session_id, "a branch"));
    let questions = rows
        .questions
        .iter()
        .filter_map(|row| Some((&row.account_id, row.session_id.as_ref()?, "a question")));
    let timers = rows
        .timers
        .iter()
        .filter_map(|row| Some((&row.account_id, row.session_id.as_ref()?, "a timer")));
    let of_sessions = branches
        .chain(questions)
        .chain(timers)
        .filter(|(account, session, _)| sessions.contains_key(&(account.as_str(), session.as_str())))
        .map(|(account, session, what)| format!("{what} of session {session} of {account}"));
    let mut found: Vec<Violation> = of_turns
        .chain(of_sessions)
        .map(|what| broken("a replay has no effect", what))
        .collect();
    let mut made: BTreeMap<Name<'_>, usize> = BTreeMap::new();
    for replay in &rows.replays {
        let items = rows.notifications.iter().filter(|row| {
            row.account_id == replay.account_id && row.session_id.as_deref() == Some(replay.session_id.as_str())
        });
        let items: Vec<&str> = items.map(|row| row.id.as_str()).collect();
        if items != [format!("replay:{}", replay.id)] {
            found.push(broken(
                "a replay's session has its one item",
                format!("{}: {items:?}", of(replay)),
            ));
        }
        *made.entry((&replay.account_id, &replay.source_turn_id)).or_default() += 1;
    }
    for replay in &rows.replays {
        let asked = asked(evidence, replay).len();
        let made = made[&(replay.account_id.as_str(), replay.source_turn_id.as_str())];
        if made > asked {
            let found_here = format!(
                "turn {} of {}: {made} for {asked} requests",
                replay.source_turn_id, replay.account_id
            );
            found.push(broken("each replay was asked for, once", found_here));
        }
    }
    found
}

/// When the system is idle.
pub(super) fn all_have_ended(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for replay in &evidence.rows.replays {
        let session = (replay.account_id.as_str(), replay.session_id.as_str());
        let reason = evidence
            .sessions
            .get(&session)
            .and_then(|session| session.close_reason.as_deref());
        let turns = evidence.turns_of.get(&session).map_or(0, Vec::len);
        // A person may withdraw its item from the queue.
        let item = format!("replay:{}", replay.id);
        let item = evidence.notifications.get(&(replay.account_id.as_str(), item.as_str()));
        let expected = usize::from(!item.is_some_and(|item| item.is_withdrawn()));
        if (reason, turns) != (Some("replayed"), expected) {
            let found_here = format!("{}: closed as {reason:?}, with {turns} turns", of(replay));
            found.push(broken("a replay ends with its one turn, and its session", found_here));
        }
        let accepted = asked(evidence, replay)
            .into_iter()
            .filter(|is_accepted| *is_accepted)
            .count();
        let made =
            evidence.rows.replays.iter().filter(|other| {
                (&other.account_id, &other.source_turn_id) == (&replay.account_id, &replay.source_turn_id)
            });
        let made = made.count();
        if made < accepted {
            let found_here = format!(
                "turn {} of {}: {made} for {accepted}",
                replay.source_turn_id, replay.account_id
            );
            found.push(broken("an accepted request has its replay", found_here));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{
        super::fabricated::{Story, at},
        *,
    };

    /// Offer 1 has replayed the turn.
    fn story() -> Story {
        let mut story = Story::delivered();
        let mut offer = story.records.offers[0].clone();
        offer.number = 1;
        offer.what = Offered::Replay {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
        };
        story.records.offers.push(offer);
        story.records.aims.push(Aim {
            offer: 1,
            target: "session-1".to_owned(),
            named: Some("turn-1".to_owned()),
        });
        let rows = &mut story.rows;
        rows.replays.push(ReplayRow {
            account_id: "acme".to_owned(),
            id: "r-1".to_owned(),
            source_turn_id: "turn-1".to_owned(),
            session_id: "session-2".to_owned(),
        });
        let mut session = rows.sessions[0].clone();
        (session.id, session.kind) = ("session-2".to_owned(), "replay".to_owned());
        (session.closed_at, session.close_reason) = (Some(at(9)), Some("replayed".to_owned()));
        rows.sessions.push(session);
        let mut item = rows.notifications[0].clone();
        (item.id, item.session_id) = ("replay:r-1".to_owned(), Some("session-2".to_owned()));
        rows.notifications.push(item);
        let mut turn = rows.turns[0].clone();
        (turn.id, turn.session_id) = ("turn-2".to_owned(), "session-2".to_owned());
        rows.turns.push(turn);
        story
    }

    #[test]
    fn a_replay_without_effect_is_fine() {
        for story in [Story::delivered(), story()] {
            for check in [without_effect, all_have_ended] {
                assert_eq!(story.judge(check), []);
            }
        }
    }

    #[test]
    fn an_effect_of_a_replay_is_found() {
        let mut of_call = story();
        of_call.rows.calls[0].turn_id = Some("turn-2".to_owned());
        assert!(of_call.finds(without_effect, "a tool call of turn turn-2"));
        let mut of_message = story();
        of_message.rows.messages[0].turn_id = Some("turn-2".to_owned());
        assert!(of_message.finds(without_effect, "a message of turn turn-2"));
        let mut of_item = story();
        let mut item = of_item.rows.notifications[0].clone();
        item.session_id = Some("session-2".to_owned());
        of_item.rows.notifications.push(item);
        assert!(of_item.finds(without_effect, "n-1"));
    }

    #[test]
    fn a_replay_without_a_request_or_an_end_is_found() {
        let mut twice = story();
        let mut again = twice.rows.replays[0].clone();
        (again.id, again.session_id) = ("r-2".to_owned(), "session-3".to_owned());
        twice.rows.replays.push(again);
        assert!(twice.finds(without_effect, "2 for 1"));
        let mut open = story();
        open.rows.sessions[1].close_reason = None;
        assert!(open.finds(all_have_ended, "r-1"));
        let mut unheard = story();
        unheard.rows.turns.pop();
        assert!(unheard.finds(all_have_ended, "with 0 turns"));
        let item = unheard.rows.notifications.last_mut().unwrap();
        (item.state, item.reason) = ("cancelled".to_owned(), Some("withdrawn: by ann".to_owned()));
        assert_eq!(unheard.judge(all_have_ended), []);
    }
}
