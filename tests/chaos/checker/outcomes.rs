//! I1: every accepted notification has exactly one outcome, and no row exists that was not offered. `effects` has I17: one request,
//! one effect.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, evidence::Evidence};
use crate::records::{Answer, Offered};

const OUTCOMES: [&str; 4] = ["delivered", "failed", "refused", "cancelled"];

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I1",
        expected,
        found,
    }
}

/// When idle: every accepted notification exists and has an outcome.
pub(super) fn nothing_lost(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for offer in &evidence.records.offers {
        let accepted = offer.tries.iter().any(|tried| tried.answer == Answer::Accepted);
        if !accepted {
            continue;
        }
        if let Offered::Message { work, .. } = &offer.what
            && evidence.posted(&offer.account, &work.effect).next().is_none()
        {
            found.push(broken(
                "a message that was accepted is in its thread",
                format!(
                    "offer {} of {}: no message has effect={}",
                    offer.number, offer.account, work.effect
                ),
            ));
        }
        for id in evidence.ids_of(offer) {
            let row = evidence.notifications.get(&(offer.account.as_str(), id.as_str()));
            let what = match row {
                None => "is not there".to_owned(),
                Some(row) if row.state == "refused" => {
                    format!("was refused: {}", row.reason.as_deref().unwrap_or_default())
                }
                Some(row) if OUTCOMES.contains(&row.state.as_str()) => continue,
                Some(row) => format!("is {}", row.state),
            };
            found.push(broken(
                "an accepted notification is delivered, failed or cancelled in the end",
                format!("offer {} of {}: notification {id} {what}", offer.number, offer.account),
            ));
        }
    }
    // Notifications of agents were accepted with their tool call.
    for row in &evidence.rows.notifications {
        if !OUTCOMES.contains(&row.state.as_str()) {
            found.push(broken(
                "a notification that is written down has an outcome in the end",
                format!("notification {} of {} is {}", row.id, row.account_id, row.state),
            ));
        }
    }
    found
}

/// Always: no notification is answered by two turns, and every answered one is delivered.
pub(super) fn at_most_one(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut finished: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for turn in evidence.rows.turns.iter().filter(|turn| turn.state == "finished") {
        for id in &turn.notification_ids {
            finished.entry((&turn.account_id, id)).or_default().push(&turn.id);
        }
    }
    let mut found = Vec::new();
    for ((account, id), turns) in &finished {
        if turns.len() > 1 {
            found.push(broken(
                "one turn answers a notification",
                format!(
                    "notification {id} of {account} was answered by the turns {}",
                    turns.join(", ")
                ),
            ));
        }
        let state = evidence
            .notifications
            .get(&(*account, *id))
            .map(|row| row.state.as_str());
        if state != Some("delivered") {
            found.push(broken(
                "a notification whose turn has finished is delivered",
                format!(
                    "notification {id} of {account}, turn {}: {}",
                    turns[0],
                    state.unwrap_or("not there")
                ),
            ));
        }
    }
    for row in evidence
        .rows
        .notifications
        .iter()
        .filter(|row| row.state == "delivered")
    {
        if !finished.contains_key(&(row.account_id.as_str(), row.id.as_str())) {
            found.push(broken(
                "a delivered notification has the turn that answered it",
                format!("notification {} of {} has none", row.id, row.account_id),
            ));
        }
    }
    found
}

/// Always: every row comes from an offer, a posted message, an agent's tool call, or a question, which `questions` judges.
pub(super) fn nothing_unasked(evidence: &Evidence<'_>) -> Vec<Violation> {
    let offered = evidence.offered();
    let is_offered = |account: &str, id: &str| offered.contains(&(account.to_owned(), id.to_owned()));
    let replays = evidence.rows.replays.iter();
    let replays: BTreeSet<(&str, String)> = replays
        .map(|replay| (replay.account_id.as_str(), format!("replay:{}", replay.id)))
        .collect();
    let is_replay = |account: &str, id: &str| replays.contains(&(account, id.to_owned()));
    let rows = evidence.rows.notifications.iter();
    rows.filter(|row| {
        !is_offered(&row.account_id, &row.id)
            && !row.body.contains("-asked;")
            && row.of.is_none()
            && !is_replay(&row.account_id, &row.id)
            && row.state != "refused"
    })
    .map(|row| {
        let text: String = row.body.chars().take(120).collect();
        broken(
            "a notification was offered by somebody",
            format!("notification {} of {} was not: {text}", row.id, row.account_id),
        )
    })
    .collect()
}

/// Always: no item waits in a closed session, where no turn would take it.
pub(super) fn nothing_out_of_reach(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for row in evidence.rows.notifications.iter().filter(|row| row.state == "queued") {
        let session = row.session_id.as_deref().unwrap_or_default();
        let session = evidence.sessions.get(&(row.account_id.as_str(), session));
        if session.is_none_or(|session| session.closed_at.is_some()) {
            found.push(broken(
                "what waits does so in an open session",
                format!(
                    "notification {} of {} waits in {}",
                    row.id,
                    row.account_id,
                    session.map_or("no session", |session| session.key.as_str())
                ),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fabricated::Story, *};

    #[test]
    fn a_delivered_notification_is_fine() {
        let story = Story::delivered();
        for check in [nothing_lost, at_most_one, nothing_unasked, nothing_out_of_reach] {
            assert_eq!(story.judge(check), []);
        }
    }

    #[test]
    fn a_notification_that_is_gone_was_lost() {
        let mut story = Story::delivered();
        story.rows.notifications.clear();
        assert!(story.finds(nothing_lost, "is not there"));
        let mut story = Story::delivered();
        story.records.offers[0].tries.clear();
        story.rows.notifications.clear();
        assert_eq!(story.judge(nothing_lost), [], "nobody said that it was accepted");
    }

    #[test]
    fn one_that_waits_or_was_refused_has_no_outcome_of_its_own() {
        for (state, word) in [
            ("queued", "is queued"),
            ("running", "is running"),
            ("refused", "was refused"),
        ] {
            let mut story = Story::delivered();
            story.rows.notifications[0].state = state.to_owned();
            assert!(story.finds(nothing_lost, word), "{state}");
        }
    }

    #[test]
    fn two_turns_for_one_notification_are_two_outcomes() {
        let mut story = Story::delivered();
        let mut second = story.rows.turns[0].clone();
        second.id = "turn-2".to_owned();
        second.number = 2;
        story.rows.turns.push(second.clone());
        assert!(story.finds(at_most_one, "turn-1, turn-2"));
        "failed".clone_into(&mut story.rows.turns[0].state);
        assert_eq!(story.judge(at_most_one), [], "the first one broke off");
    }

    #[test]
    fn delivered_and_finished_go_together() {
        let mut story = Story::delivered();
        "cancelled".clone_into(&mut story.rows.notifications[0].state);
        assert!(story.finds(at_most_one, "cancelled"));
        let mut story = Story::delivered();
        story.rows.turns.clear();
        assert!(story.finds(at_most_one, "has none"));
    }

    #[test]
    fn a_row_that_nobody_offered_is_found() {
        let mut story = Story::delivered();
        let mut again = story.rows.notifications[0].clone();
        again.id = "n-1.17".to_owned();
        story.rows.notifications.push(again);
        assert!(story.finds(nothing_unasked, "n-1.17"));
    }

    #[test]
    fn waiting_in_a_closed_session_is_waiting_for_ever() {
        let mut story = Story::delivered();
        "queued".clone_into(&mut story.rows.notifications[0].state);
        assert_eq!(story.judge(nothing_out_of_reach), []);
        story.rows.sessions[0].closed_at = Some(story.records.quiet_at);
        assert!(story.finds(nothing_out_of_reach, "n-1"));
    }
}
