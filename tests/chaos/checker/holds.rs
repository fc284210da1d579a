//! Holds and edits. I20: no turn begins behind a hold. I25: an item that was withdrawn is cancelled, and a replaced one has its new
//! text. Always.

use domain::HoldScope;

use super::{
    Violation,
    evidence::{Evidence, HoldRow, NotificationRow, TurnRow},
    resets::is_one_line,
};
use crate::{
    clients::edited,
    records::{Answer, EditOp, Offer, Offered},
};

pub(super) fn covers(evidence: &Evidence<'_>, hold: &HoldRow, turn: &TurnRow) -> bool {
    let is = |id: Option<&str>| id == Some(hold.scope_id.as_str());
    let session = evidence
        .sessions
        .get(&(turn.account_id.as_str(), turn.session_id.as_str()));
    hold.account_id == turn.account_id
        && match hold.scope_kind {
            HoldScope::Account => true,
            HoldScope::Task => is(turn.task_id.as_deref()),
            HoldScope::Agent => is(session.and_then(|session| session.agent_id.as_deref())),
            // A hold goes to the next generation.
            HoldScope::Session => is_one_line(evidence, &turn.account_id, [&turn.session_id, &hold.scope_id]),
        }
}

/// I20: the transaction that begins a turn is over before the turn's first call. So a turn began behind a hold if the hold was answered
/// before the beginning, and released after the call.
pub(super) fn nothing_starts(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for aim in &evidence.records.aims {
        let offer = &evidence.records.offers[aim.offer];
        let mut tries = offer.tries.iter();
        let set = tries
            .find(|tried| tried.answer == Answer::Accepted)
            .map(|tried| tried.ended_at);
        let holds = evidence.rows.holds.iter();
        let (Some(set_at), true) = (set, matches!(offer.what, Offered::Hold { .. })) else {
            continue;
        };
        for hold in holds.filter(|hold| hold.id == aim.target && hold.account_id == offer.account) {
            let turns = evidence.rows.turns.iter();
            for turn in turns.filter(|turn| set_at < turn.started_at && covers(evidence, hold, turn)) {
                let calls = evidence.records.calls.iter();
                let first = calls
                    .filter(|call| call.idempotency_key.starts_with(&turn.id))
                    .map(|call| call.begun_at);
                let first = first.min();
                if first.is_some_and(|at| hold.released_at.is_none_or(|released_at| at < released_at)) {
                    found.push(Violation {
                        invariant: "I20",
                        expected: "no turn begins behind a hold",
                        found: format!(
                            "turn {} of {} began at {}: hold {} was set before {set_at} and released at {:?}",
                            turn.id, turn.account_id, turn.started_at, hold.id, hold.released_at
                        ),
                    });
                }
            }
        }
    }
    found
}

/// Offers of such an edit, their sessions and items.
pub(super) fn edits<'a>(
    evidence: &Evidence<'a>,
    wanted: EditOp,
) -> impl Iterator<Item = (&'a Offer, &'a str, Option<&'a str>)> {
    let records = evidence.records;
    records.aims.iter().filter_map(move |aim| {
        let offer = &records.offers[aim.offer];
        let is_it = matches!(offer.what, Offered::Edit { op, .. } if op == wanted);
        is_it.then_some((offer, aim.target.as_str(), aim.named.as_deref()))
    })
}

/// I25. An edit may have been accepted after the rows were read, if the item could still change then.
pub(super) fn edits_stand(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let may_change = |row: &NotificationRow| !evidence.at_rest && matches!(row.state.as_str(), "queued" | "running");
    for op in [EditOp::Withdraw, EditOp::Replace] {
        for (offer, _, item) in edits(evidence, op).filter(|(offer, ..)| offer.is_accepted()) {
            let row = evidence
                .notifications
                .get(&(offer.account.as_str(), item.unwrap_or_default()));
            let Some(row) = row.filter(|row| !may_change(row)) else {
                continue;
            };
            let is_so = match op {
                EditOp::Withdraw => row.is_withdrawn(),
                EditOp::Replace | EditOp::Promote => row.body.contains(&edited(offer.number)),
            };
            if !is_so {
                found.push(Violation {
                    invariant: "I25",
                    expected: "an item that was withdrawn has no turn, and a replaced one its new text",
                    found: format!(
                        "offer {} ({op:?}) of {}: {} is {}",
                        offer.number, offer.account, row.id, row.state
                    ),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use domain::HoldRunning;

    use super::{
        super::fabricated::{Story, at},
        *,
    };
    use crate::records::Aim;

    fn offered(story: &mut Story, what: Offered, target: &str, named: Option<&str>) {
        let offer = story.records.offers.len();
        let mut made = story.records.offers[0].clone();
        (made.number, made.what) = (offer, what);
        story.records.offers.push(made);
        story.records.aims.push(Aim {
            offer,
            target: target.to_owned(),
            named: named.map(str::to_owned),
        });
    }

    #[test]
    fn a_turn_that_begins_behind_a_hold_is_found() {
        for (scope, id) in [
            (HoldScope::Task, "t-1"),
            (HoldScope::Agent, "agent-1"),
            (HoldScope::Session, "session-1"),
            (HoldScope::Account, "acme"),
        ] {
            let mut story = Story::delivered();
            let hold = Offered::Hold {
                scope,
                task: "T-1".to_owned(),
                agent: "coder".to_owned(),
                running: HoldRunning::Finish,
                for_ms: 1,
            };
            offered(&mut story, hold, "hold-1", None);
            story.rows.holds.push(HoldRow {
                account_id: "acme".to_owned(),
                id: "hold-1".to_owned(),
                scope_kind: scope,
                scope_id: id.to_owned(),
                running: HoldRunning::Finish,
                created_at: at(1),
                released_at: Some(at(9)),
            });
            assert!(story.finds(nothing_starts, "hold hold-1"), "{scope}");
            story.rows.holds[0].released_at = Some(at(3));
            assert_eq!(story.judge(nothing_starts), [], "released before its call");
            story.rows.holds[0].released_at = None;
            story.records.offers[1].tries[0].ended_at = at(3);
            assert_eq!(story.judge(nothing_starts), [], "it had begun");
            story.records.offers[1].tries[0].ended_at = at(2);
            story.rows.holds[0].scope_id = "another".to_owned();
            assert_eq!(story.finds(nothing_starts, "hold-1"), scope == HoldScope::Account);
        }
    }

    #[test]
    fn an_edit_that_did_not_stand_is_found() {
        let edit = |op| Offered::Edit {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
            op,
        };
        let mut story = Story::delivered();
        offered(&mut story, edit(EditOp::Withdraw), "session-1", Some("n-1"));
        assert!(story.finds(edits_stand, "n-1 is delivered"));
        let item = &mut story.rows.notifications[0];
        "cancelled".clone_into(&mut item.state);
        item.reason = Some("withdrawn: by ann".to_owned());
        assert_eq!(story.judge(edits_stand), []);
        let mut story = Story::delivered();
        offered(&mut story, edit(EditOp::Replace), "session-1", Some("n-1"));
        assert!(story.finds(edits_stand, "Replace"));
        story.rows.notifications[0].body.push_str(&edited(1));
        assert_eq!(story.judge(edits_stand), []);
    }
}
