//! I8: turns run in the order in which their notifications were accepted, notifications are accepted in the order of the
//! stream, and the calls of an answer run in its order. I24: the exceptions, which are steers and runs. Always. I10 for turns: what the stream was told of them.

use std::collections::{BTreeMap, BTreeSet};

use domain::QueueMode;

use super::{
    Violation,
    evidence::{CallRow, Evidence, NotificationRow, is_on},
};
use crate::{
    plan::PLANNED,
    records::{Answer, EditOp, Fired, Offer, Offered, Via},
    system::COLLECT_ITEMS_MAX,
};

/// Faults that remove messages from the stream.
const WIPES: &[&str] = &["nats_wipe", "stream_deleted"];

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I8",
        expected,
        found,
    }
}

/// An interrupted turn puts its notification back at its position, so positions never decrease: those of steers, below zero, and those
/// of the others, which steers pass. A steer that was carried into the next generation has a place among the others. While a plan
/// awaits approval, answers and what people send pass the others.
pub(super) fn turns_in_order(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for ((account, session), turns) in &evidence.turns_of {
        if is_promoted(evidence, session) {
            continue;
        }
        let row = evidence.sessions.get(&(account, session));
        let has_plans = row.is_some_and(|row| is_on(row, PLANNED));
        let mut before: BTreeMap<(bool, bool), (i64, &str)> = BTreeMap::new();
        for row in turns.iter().flat_map(|turn| evidence.items_of(turn)) {
            // An item that was carried into the next generation has its position there.
            let here = row.session_id.as_deref() == Some(*session);
            let Some(position) = row.position.filter(|_| here) else {
                continue;
            };
            let passes = has_plans && passes_plans(row);
            if let Some((last, other)) = before.insert((position < 0, passes), (position, &row.id))
                && last > position
            {
                let id = &row.id;
                found.push(broken(
                    "turns run in the order of the queue",
                    format!("session {session} of {account}: {other} at {last} ran before {id} at {position}"),
                ));
            }
        }
    }
    found
}

/// I24: the items of a turn are of one mode, author and task, and end together.
pub(super) fn runs_are_one(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for turn in &evidence.rows.turns {
        let rows: Vec<&NotificationRow> = evidence.items_of(turn).collect();
        let mut broken = |expected| {
            let items = rows.iter().map(|row| {
                let (mode, kind, sender, task) = (row.queue_mode, &row.sender_kind, &row.sender_id, &row.task_id);
                format!(
                    "{} ({mode} of {kind} {sender} on {}) {}",
                    row.id,
                    task.as_deref().unwrap_or("-"),
                    row.state
                )
            });
            found.push(Violation {
                invariant: "I24",
                expected,
                found: format!(
                    "turn {} of {}: {}",
                    turn.id,
                    turn.account_id,
                    items.collect::<Vec<_>>().join(", ")
                ),
            });
        };
        let joins = |row: &NotificationRow| row.is_steer() || (row.queue_mode == QueueMode::Collect && row.joins);
        let kinds: BTreeSet<_> = rows
            .iter()
            .map(|row| (row.queue_mode, &row.sender_kind, &row.sender_id, &row.task_id))
            .collect();
        let is_run = kinds.len() == 1 && rows.len() <= COLLECT_ITEMS_MAX && rows.iter().all(|row| joins(row));
        if rows.len() > 1 && !is_run {
            broken("a run is of one mode, author and task");
        }
        let ended = rows.iter().filter(|row| row.turn_id.as_ref() == Some(&turn.id));
        if ended.map(|row| &row.state).collect::<BTreeSet<_>>().len() > 1 {
            broken("the items of a run end together");
        }
    }
    found
}

/// I24: what ended a turn is next. It was accepted with the request to end the turn, so it waits when the turn has ended; unless
/// somebody withdrew it meanwhile, or it waited too long. While a plan awaits approval, answers and what people send pass it.
pub(super) fn steers_first(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for ((account, session), turns) in &evidence.turns_of {
        let row = evidence.sessions.get(&(account, session));
        let has_plans = row.is_some_and(|row| is_on(row, PLANNED));
        for pair in turns.windows(2) {
            let (steered, next) = (pair[0], pair[1]);
            let follows = steered.error_class.as_deref() == Some("steered") && next.number == steered.number + 1;
            let head = evidence.items_of(next).next();
            let Some(head) = head.filter(|head| follows && !head.is_steer()) else {
                continue;
            };
            let is_later = |row: &NotificationRow| {
                let mut after = turns.iter().filter(|turn| turn.number > next.number);
                row.state == "queued" || after.any(|turn| turn.notification_ids.contains(&row.id))
            };
            let was_passed = evidence.rows.notifications.iter().find(|row| {
                let is_here = row.account_id == **account && row.session_id.as_deref() == Some(*session);
                let is_first = row.is_steer() && row.revision == 1 && row.created_at <= next.started_at;
                is_here && is_first && is_later(row) && !(has_plans && passes_plans(head) && !passes_plans(row))
            });
            found.extend(was_passed.map(|steer| Violation {
                invariant: "I24",
                expected: "a steer goes before all that waits",
                found: format!(
                    "turn {} of {account} was steered, and {} was next, while {} waited",
                    steered.id, head.id, steer.id
                ),
            }));
        }
    }
    found
}

/// An item that begins although a plan awaits approval.
fn passes_plans(row: &NotificationRow) -> bool {
    matches!(row.kind.as_str(), "answer" | "branch_result") || row.sender_kind == "user"
}

/// A notification that was acknowledged before another was sent is accepted first. Only if each was sent once and the stream was
/// not wiped before the notification was read, since a repeated one has a new sequence. One that failed and is repeated begins
/// again, behind what waits.
pub(super) fn queues_in_order(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut places: BTreeMap<(&str, &str, i64), &str> = BTreeMap::new();
    for row in &evidence.rows.notifications {
        let (Some(session), Some(position)) = (row.session_id.as_deref(), row.position) else {
            continue;
        };
        if let Some(other) = places.insert((&row.account_id, session, position), &row.id) {
            found.push(broken(
                "a place in a queue is one notification's",
                format!(
                    "session {session} of {}: {other} and {} at {position}",
                    row.account_id, row.id
                ),
            ));
        }
    }
    let mut queues: BTreeMap<(&str, &str), Vec<(&Offer, i64)>> = BTreeMap::new();
    for offer in evidence.records.offers.iter().filter(|offer| said_once(offer)) {
        let Offered::Notification { id, agents, task, .. } = &offer.what else {
            continue;
        };
        let Some(task) = task.as_deref().filter(|_| agents.len() == 1) else {
            continue;
        };
        let Some(row) = evidence.notifications.get(&(offer.account.as_str(), id.as_str())) else {
            continue;
        };
        if let (Some(session), Some(position)) = (row.session_id.as_deref(), row.number()) {
            if row.revision > 1
                || has_been_carried(evidence, row)
                || may_have_moved(evidence, offer, task, session)
                || may_be_repeated(evidence, offer, row)
            {
                continue;
            }
            queues
                .entry((&offer.account, session))
                .or_default()
                .push((offer, position));
        }
    }
    for ((account, session), mut offers) in queues {
        if is_promoted(evidence, session) {
            continue;
        }
        offers.sort_by_key(|(_, position)| *position);
        for pair in offers.windows(2) {
            let ((first, at), (second, behind)) = (&pair[0], &pair[1]);
            if second.tries[0].ended_at < first.tries[0].sent_at {
                found.push(broken(
                    "what was acknowledged first is first in the queue",
                    format!(
                        "session {session} of {account}: offer {} at {at}, offer {} at {behind}, which was acknowledged before the other was sent: {:?}",
                        first.number, second.number, first.what
                    ),
                ));
            }
        }
    }
    found
}

/// A call has its effect only after the earlier calls of its answer have ended: an agent that posts and then closes its task relies
/// on that.
pub(super) fn calls_in_order(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut ended: BTreeMap<(&str, &str, i64), &CallRow> = BTreeMap::new();
    for call in &evidence.rows.calls {
        let turn = call.turn_id.as_deref().unwrap_or_default();
        let place = (call.account_id.as_str(), turn, i64::from(call.ordinal));
        // If a call ran twice, which I5 reports, the first run counts.
        let first = ended.entry(place).or_insert(call);
        if call.finished_at < first.finished_at {
            *first = call;
        }
    }
    let mut found = Vec::new();
    for turn in &evidence.rows.turns {
        for round in turn.journal.as_array().into_iter().flatten() {
            let calls = round["calls"].as_array().into_iter().flatten();
            let mut places: Vec<i64> = calls.filter_map(|call| call["ordinal"].as_i64()).collect();
            // Calls that delivery answered itself have no position.
            places.retain(|place| *place > 0);
            places.sort_unstable();
            for pair in places.windows(2) {
                let of = |place| ended.get(&(turn.account_id.as_str(), turn.id.as_str(), place));
                let Some(after) = of(pair[1]).filter(|call| call.state == "finished") else {
                    continue;
                };
                let is_over = of(pair[0]).is_some_and(|before| before.finished_at <= after.finished_at);
                if !is_over {
                    found.push(broken(
                        "the calls of an answer run in its order",
                        format!(
                            "turn {} of {}: call {} ({}) ran before call {}",
                            turn.id, turn.account_id, pair[1], after.name, pair[0]
                        ),
                    ));
                }
            }
        }
    }
    found
}

/// I10, when the system is idle: the events of a turn, unless the stream was wiped after it began.
pub(super) fn turns_announced(evidence: &Evidence<'_>) -> Vec<Violation> {
    let wiped = wipes(evidence).map(|wipe| wipe.until).max();
    let turns = evidence.rows.turns.iter();
    let kept = turns.filter(|turn| wiped.is_none_or(|at| at < turn.started_at));
    kept.flat_map(|turn| {
        let session = evidence
            .sessions
            .get(&(turn.account_id.as_str(), turn.session_id.as_str()));
        let is_replay = session.is_some_and(|session| session.kind == "replay");
        let events: &[&str] = if is_replay {
            &["replayed"]
        } else {
            &["started", "finished"]
        };
        events
            .iter()
            .map(move |event| (turn, format!("turn.{event}:{}:{}", turn.account_id, turn.id)))
    })
    .filter(|(_, event)| !evidence.records.heard.turns.contains(event))
    .map(|(_, event)| Violation {
        invariant: "I10",
        expected: "the beginning and the end of a turn are published in the end",
        found: format!("{event} was never published"),
    })
    .collect()
}

/// It came from the generation before: its place is the one that it had among those that waited, steers first.
fn has_been_carried(evidence: &Evidence<'_>, row: &NotificationRow) -> bool {
    let session = (row.account_id.as_str(), row.session_id.as_deref().unwrap_or_default());
    let session = evidence.sessions.get(&session);
    session.is_some_and(|session| row.created_at < session.opened_at)
}

/// A client has put an item of this session first, or of an earlier generation, whose items it has taken over in their places: these are
/// no longer the places in which the items were accepted, and an item that was put back meanwhile has another place than its turn.
fn is_promoted(evidence: &Evidence<'_>, session: &str) -> bool {
    let conversation = |id: &str| {
        let mut rows = evidence.rows.sessions.iter().filter(|row| row.id == id);
        rows.next()
            .map(|row| (&row.account_id, (&row.kind, row.origin()), &row.task_id, &row.agent_id))
    };
    let of = conversation(session);
    evidence.records.aims.iter().any(|aim| {
        let op = &evidence.records.offers[aim.offer].what;
        let promotes = matches!(
            op,
            Offered::Edit {
                op: EditOp::Promote,
                ..
            }
        );
        promotes && (aim.target == session || of.is_some() && conversation(&aim.target) == of)
    })
}

/// A handover to the session's agent ended after the item was sent: its item may have come with the handover, behind what waited there.
fn may_have_moved(evidence: &Evidence<'_>, sent: &Offer, of: &str, session: &str) -> bool {
    let mut accounts = evidence.records.accounts.iter();
    let Some(account) = accounts.find(|account| account.id == sent.account) else {
        return false;
    };
    let mut rows = evidence.rows.sessions.iter();
    let agent = rows
        .find(|row| row.account_id == sent.account && row.id == session)
        .and_then(|row| row.agent_id.as_ref());
    let slug = account
        .agents
        .iter()
        .find(|one| Some(&one.id) == agent)
        .map(|one| &one.slug);
    let mut offers = evidence.records.offers.iter();
    offers.any(|offer| {
        let is_to_it = matches!(&offer.what, Offered::Handover { task, to, .. } if task == of && Some(to) == slug);
        let is_over = offer.tries.iter().all(|tried| tried.ended_at < sent.tries[0].sent_at);
        is_to_it && offer.account == sent.account && !is_over
    })
}

fn wipes<'a>(evidence: &Evidence<'a>) -> impl Iterator<Item = &'a Fired> {
    let faults = evidence.records.faults.iter();
    faults.filter(|fault| WIPES.contains(&fault.kind.as_str()))
}

/// The message may have been lost with the stream before it was read, however long a reader was away: what was accepted is a
/// repetition, from the stream's successor.
fn may_be_repeated(evidence: &Evidence<'_>, offer: &Offer, row: &NotificationRow) -> bool {
    wipes(evidence).any(|wipe| offer.tries[0].sent_at < wipe.until && wipe.from < row.created_at)
}

fn said_once(offer: &Offer) -> bool {
    matches!(offer.tries.as_slice(), [only] if only.via == Via::Nats && only.answer == Answer::Accepted)
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::{
        super::fabricated::{Story, at},
        *,
    };
    use crate::records::{Aim, Fired};

    /// A second notification, published after the first one, behind it in the queue.
    fn two() -> Story {
        let mut story = Story::delivered();
        let mut row = story.rows.notifications[0].clone();
        "n-2".clone_into(&mut row.id);
        row.position = Some(2);
        story.rows.notifications.push(row);
        let mut turn = story.rows.turns[0].clone();
        "turn-2".clone_into(&mut turn.id);
        turn.number = 2;
        turn.notification_ids = vec!["n-2".to_owned()];
        story.rows.turns.push(turn);
        let mut offer = story.records.offers[0].clone();
        offer.number = 1;
        if let Offered::Notification { id, .. } = &mut offer.what {
            "n-2".clone_into(id);
        }
        (offer.tries[0].sent_at, offer.tries[0].ended_at) = (at(3), at(4));
        story.records.offers.push(offer);
        story
    }

    #[test]
    fn a_plan_lets_people_pass_and_no_service() {
        let mut story = two();
        (story.rows.turns[0].number, story.rows.turns[1].number) = (2, 1);
        "service".clone_into(&mut story.rows.notifications[0].sender_kind);
        assert!(story.finds(turns_in_order, "n-2 at 2 ran before n-1 at 1"));
        story.rows.sessions[0].task_id = Some(PLANNED.to_lowercase());
        assert_eq!(story.judge(turns_in_order), []);
        "service".clone_into(&mut story.rows.notifications[1].sender_kind);
        assert!(story.finds(turns_in_order, "n-2 at 2 ran before n-1 at 1"));
    }

    #[test]
    fn one_after_the_other_is_fine() {
        assert_eq!(two().judge(turns_in_order), []);
        assert_eq!(two().judge(queues_in_order), []);
    }

    /// The turn's answer asks to post and then to end the task.
    fn posted_and_done() -> Story {
        let mut story = Story::delivered();
        let mut done = story.rows.calls[0].clone();
        (done.ordinal, done.finished_at) = (2, Some(at(5)));
        "task_status".clone_into(&mut done.name);
        story.rows.calls.push(done);
        let mut asked = story.rows.turns[0].journal[0]["calls"][0].clone();
        asked["ordinal"] = 2.into();
        let calls = story.rows.turns[0].journal[0]["calls"].as_array_mut().unwrap();
        calls.insert(0, asked);
        story
    }

    #[test]
    fn a_call_that_overtook_another_of_its_answer_is_found() {
        let mut story = posted_and_done();
        assert_eq!(story.judge(calls_in_order), []);
        story.rows.calls[1].finished_at = Some(at(3));
        assert!(story.finds(calls_in_order, "call 2 (task_status) ran before call 1"));
        // A refused call has no effect.
        "refused".clone_into(&mut story.rows.calls[1].state);
        assert_eq!(story.judge(calls_in_order), []);
        let mut story = posted_and_done();
        story.rows.calls.remove(0);
        assert!(story.finds(calls_in_order, "call 2 (task_status) ran before call 1"));
    }

    #[test]
    fn a_turn_that_overtook_is_found() {
        let mut story = two();
        story.rows.turns[0].number = 2;
        story.rows.turns[1].number = 1;
        assert!(story.finds(turns_in_order, "n-2 at 2 ran before n-1 at 1"));
    }

    #[test]
    fn a_steer_passes_what_waits_and_no_other_steer() {
        let mut story = two();
        story.rows.turns[0].error_class = Some("steered".to_owned());
        assert_eq!(story.judge(steers_first), [], "the steer was withdrawn");
        let mut waits = story.rows.notifications[1].clone();
        (waits.id, waits.queue_mode, waits.state) = ("n-3".to_owned(), QueueMode::Steer, "queued".to_owned());
        story.rows.notifications.push(waits);
        assert!(story.finds(steers_first, "n-2 was next, while n-3 waited"));
        let mut third = story.rows.turns[1].clone();
        (third.number, third.notification_ids) = (third.number + 1, vec!["n-3".to_owned()]);
        story.rows.turns.push(third);
        "delivered".clone_into(&mut story.rows.notifications[2].state);
        assert!(story.finds(steers_first, "n-2 was next, while n-3 waited"));
        story.rows.turns.pop();
        story.rows.notifications.pop();
        let steer = &mut story.rows.notifications[1];
        (steer.queue_mode, steer.position) = (QueueMode::Steer, Some(QueueMode::Steer.position(2)));
        for check in [turns_in_order, queues_in_order, steers_first] {
            assert_eq!(story.judge(check), []);
        }
        let first = &mut story.rows.notifications[0];
        (first.queue_mode, first.position) = (QueueMode::Steer, Some(QueueMode::Steer.position(3)));
        assert!(story.finds(turns_in_order, "ran before n-2"));
    }

    #[test]
    fn a_run_that_mixes_is_found() {
        let run = |change: fn(&mut NotificationRow)| {
            let mut story = two();
            story.rows.turns.pop();
            story.rows.turns[0].notification_ids = vec!["n-1".to_owned(), "n-2".to_owned()];
            for row in &mut story.rows.notifications {
                (row.queue_mode, row.joins) = (QueueMode::Collect, true);
                row.turn_id = Some("turn-1".to_owned());
            }
            change(&mut story.rows.notifications[1]);
            story
        };
        assert_eq!(run(|_| ()).judge(runs_are_one), []);
        assert_eq!(
            run(|row| row.queue_mode = QueueMode::Inject).judge(runs_are_one),
            [],
            "given to the turn in progress"
        );
        assert!(run(|row| row.queue_mode = QueueMode::Steer).finds(runs_are_one, "turn turn-1"));
        assert!(run(|row| "bob".clone_into(&mut row.sender_id)).finds(runs_are_one, "bob"));
        assert!(run(|row| row.task_id = None).finds(runs_are_one, "on -"));
        assert!(run(|row| row.joins = false).finds(runs_are_one, "turn turn-1"));
        assert!(run(|row| "failed".clone_into(&mut row.state)).finds(runs_are_one, "failed"));
    }

    #[test]
    fn a_turn_that_began_in_silence_is_found() {
        let mut story = Story::delivered();
        assert_eq!(story.judge(turns_announced), []);
        story.records.heard.turns.remove("turn.started:acme:turn-1");
        assert!(story.finds(turns_announced, "turn.started:acme:turn-1 was never"));
        story.records.faults.push(Fired {
            kind: "nats_wipe".to_owned(),
            target: "nats".to_owned(),
            from: at(60),
            until: at(61),
        });
        assert_eq!(story.judge(turns_announced), []);
    }

    #[test]
    fn a_turn_that_broke_off_comes_again_at_its_place() {
        let mut story = two();
        story.rows.turns[1].notification_ids = vec!["n-1".to_owned()];
        assert_eq!(story.judge(turns_in_order), []);
    }

    #[test]
    fn a_queue_in_another_order_than_the_stream_is_found() {
        let mut story = two();
        story.rows.notifications[0].position = Some(3);
        assert!(story.finds(queues_in_order, "offer 1 at 2, offer 0 at 3"));
        let mut wiped = two();
        wiped.rows.notifications[0].position = Some(3);
        wiped.records.faults.push(Fired {
            kind: "nats_wipe".to_owned(),
            target: "nats".to_owned(),
            from: at(60),
            until: at(61),
        });
        assert!(wiped.finds(queues_in_order, "offer 1 at 2"), "long after");
        wiped.rows.notifications[0].created_at = at(62);
        assert_eq!(
            wiped.judge(queues_in_order),
            [],
            "it may have been lost with the stream, and sent again"
        );
        let mut again = two();
        again.rows.notifications[0].position = Some(3);
        again.rows.notifications[0].revision = 2;
        assert_eq!(again.judge(queues_in_order), [], "it began again");
        let mut handed_over = story.records.offers[0].clone();
        handed_over.number = 2;
        story.records.offers.push(handed_over);
        let at_once = story.records.offers[0].tries[0].sent_at;
        for (task, to, ended, may_have_moved) in [
            ("T-10", "coder", at(60), false),
            ("T-1", "writer", at(60), false),
            ("T-1", "coder", at_once - Duration::SECOND, false),
            ("T-1", "coder", at(60), true),
        ] {
            let handover = &mut story.records.offers[2];
            handover.what = Offered::Handover {
                task: task.to_owned(),
                from: "tester".to_owned(),
                to: to.to_owned(),
            };
            handover.tries[0].ended_at = ended;
            assert_eq!(
                story.judge(queues_in_order).is_empty(),
                may_have_moved,
                "{task} {to} {ended}"
            );
        }
        story.records.offers.pop();
        story.records.offers[1].tries[0].sent_at = at(1);
        assert_eq!(story.judge(queues_in_order), [], "both were under way at once");
    }

    #[test]
    fn a_generation_takes_over_what_was_promoted_in_the_one_before() {
        let mut story = two();
        story.rows.notifications[0].position = Some(3);
        let mut before = story.rows.sessions[0].clone();
        "session-0".clone_into(&mut before.id);
        story.rows.sessions.push(before);
        let mut promoted = story.records.offers[0].clone();
        promoted.number = 2;
        promoted.what = Offered::Edit {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
            op: EditOp::Promote,
        };
        story.records.offers.push(promoted);
        let aimed = |target: &str| Aim {
            offer: 2,
            target: target.to_owned(),
            named: None,
        };
        story.records.aims.push(aimed("session-0"));
        assert_eq!(story.judge(queues_in_order), []);
        story.rows.sessions[1].task_id = Some("t-other".to_owned());
        assert!(story.finds(queues_in_order, "offer 1 at 2"), "of another task");
    }

    #[test]
    fn a_place_is_taken_once() {
        let mut story = two();
        story.rows.notifications[1].position = Some(1);
        assert!(story.finds(queues_in_order, "n-1 and n-2 at 1"));
    }
}
