//! Brakes and gates. I19: a stop ends its turn and no other, and nothing of that turn happens later. I20: nothing starts behind a
//! gate before it was opened. I25: a brake loses nothing that waits. All always, except that a gate may be closed before the end.
//! Runs and steers are in `order`.

use std::collections::BTreeMap;

use domain::{HoldRunning, QueueMode, SESSION_RESET, StopKind, TASK_CLOSED};
use time::{Duration, OffsetDateTime};

use super::{
    Violation,
    evidence::{Evidence, HoldRow, NotificationRow, TurnRow},
    holds::{covers, edits},
    resets::resets,
    sessions::LOCKS_WAIT_MAX,
    turns::{LOG_SLACK, is_known, journal_calls, sent_by_a_zombie},
};
use crate::{
    records::{Aim, EditOp, Offer, Offered},
    system::{COLLECT_DEBOUNCE, COLLECT_ITEMS_MAX, COLLECT_WAIT_MAX},
};

/// The database rounds how long an item has waited.
const ROUNDED: Duration = Duration::milliseconds(2);

fn broken(invariant: &'static str, expected: &'static str, found: String) -> Violation {
    Violation {
        invariant,
        expected,
        found,
    }
}

/// Why a turn was stopped, if it was; its error says it.
pub(super) fn stopped(turn: &TurnRow) -> Option<(StopKind, &str)> {
    let error = turn.error.as_deref().filter(|_| turn.state == "aborted")?;
    if error == SESSION_RESET {
        return Some((StopKind::Reset, error));
    }
    let (kind, _) = error.split_once(": by ")?;
    Some((StopKind::parse(kind)?, error))
}

fn of(turn: &TurnRow) -> String {
    format!("turn {} of {} in session {}", turn.id, turn.account_id, turn.session_id)
}

/// The stops or the resumptions that were sent to a session.
fn aimed<'a>(evidence: &Evidence<'a>, turn: &'a TurnRow, is_stop: bool) -> impl Iterator<Item = &'a Aim> {
    let offers = &evidence.records.offers;
    evidence.records.aims.iter().filter(move |aim| {
        let offer = &offers[aim.offer];
        let is_kind = matches!(offer.what, Offered::Stop { .. }) == is_stop;
        aim.target == turn.session_id && offer.account == turn.account_id && is_kind
    })
}

/// The turn that a stop ends by its answer. None: no answer is known.
fn told(evidence: &Evidence<'_>, aim: &Aim) -> Option<(String, String)> {
    let (path, key) = (format!("/sessions/{}/stop", aim.target), format!("offer-{}", aim.offer));
    let answer = evidence
        .records
        .answers
        .iter()
        .find(|answer| answer.key.as_ref() == Some(&key) && answer.path.ends_with(&path) && answer.status < 300)?;
    let body: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
    let word = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    Some((word("state"), word("turn_id")))
}

/// I19.
pub(super) fn stops_were_asked(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for turn in &evidence.rows.turns {
        let Some((kind, error)) = stopped(turn) else { continue };
        let is_asked = match kind {
            // One that names no turn may have been carried out in an attempt whose answer was lost.
            StopKind::Stopped => aimed(evidence, turn, true).any(|aim| match &aim.named {
                Some(named) => *named == turn.id,
                None => {
                    let once = evidence.records.offers[aim.offer].tries.len() == 1;
                    told(evidence, aim).is_none_or(|(_, hit)| !once || hit == turn.id)
                }
            }),
            StopKind::Steered => evidence.rows.notifications.iter().any(|row| {
                let same = row.account_id == turn.account_id && row.task_id == turn.task_id;
                same && row.is_steer() && error.ends_with(&row.sender_id)
            }),
            StopKind::Paused => evidence.rows.holds.iter().any(|hold| {
                stops(evidence, hold, turn)
                    && covers(evidence, hold, turn)
                    && turn.finished_at.is_none_or(|ended_at| hold.created_at < ended_at)
                    && hold.released_at.is_none_or(|released_at| turn.started_at < released_at)
            }),
            StopKind::Reset => resets(evidence, &turn.account_id, &turn.session_id).next().is_some(),
            // The error of a cancelled task has no name in it.
            StopKind::Cancelled | StopKind::HandedOver | StopKind::BranchEnded => false,
        };
        if !is_asked {
            let what = "a turn is stopped only if a stop named it, or something steered it";
            found.push(broken("I19", what, format!("{} ended as \"{error}\"", of(turn))));
        }
    }
    found
}

/// Whether the hold ended turns in progress before this one ended. The same caller's hold on the same thing is one row, which says what the
/// last one was to do: an earlier one is in the records.
fn stops(evidence: &Evidence<'_>, hold: &HoldRow, turn: &TurnRow) -> bool {
    let earlier = |offer: &Offer| {
        let sent = offer.tries.first().map(|tried| tried.sent_at);
        let is_earlier = sent.is_some_and(|sent_at| turn.finished_at.is_none_or(|ended_at| sent_at < ended_at));
        offer.account == hold.account_id
            && is_earlier
            && matches!(offer.what, Offered::Hold { scope, running: HoldRunning::Stop, .. } if scope == hold.scope_kind)
    };
    hold.running == HoldRunning::Stop || evidence.records.offers.iter().any(earlier)
}

/// Whether the task closed first: its end cancels the items of a turn that waits for its next attempt.
fn closed_with(evidence: &Evidence<'_>, turn: &TurnRow, item: &NotificationRow) -> bool {
    let session = (turn.account_id.as_str(), turn.session_id.as_str());
    let closed_at = evidence.sessions.get(&session).and_then(|session| session.closed_at);
    let is_first = |(closed_at, ended_at): (OffsetDateTime, _)| closed_at <= ended_at + LOCKS_WAIT_MAX;
    item.reason.as_deref() == Some(TASK_CLOSED) && closed_at.zip(turn.finished_at).is_some_and(is_first)
}

/// I19: a turn that is to stop ends as stopped or with its reply; its items are cancelled, and that is all.
pub(super) fn stops_end_their_turn(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for aim in &evidence.records.aims {
        let account = evidence.records.offers[aim.offer].account.as_str();
        let hit = told(evidence, aim).filter(|(state, _)| state == "stopping");
        let turn = hit.and_then(|(_, turn)| evidence.turns.get(&(account, turn.as_str())).copied());
        if let Some(turn) = turn.filter(|turn| matches!(turn.state.as_str(), "failed" | "unknown")) {
            let what = "a turn that is to stop ends as stopped, or with its reply";
            let error = turn.error.as_deref().unwrap_or_default();
            found.push(broken("I19", what, format!("{} is {}: {error}", of(turn), turn.state)));
        }
    }
    for turn in &evidence.rows.turns {
        let Some((_, error)) = stopped(turn) else { continue };
        for (place, id) in turn.notification_ids.iter().enumerate() {
            let row = evidence.notifications.get(&(turn.account_id.as_str(), id.as_str()));
            // The end of the session has judged it, or it was given to a turn in progress, which puts it back.
            let judges = |row: &&&NotificationRow| {
                let joined = place > 0 && row.queue_mode == QueueMode::Inject;
                row.session_id.as_deref() == Some(turn.session_id.as_str()) && !joined
            };
            let Some(row) = row.filter(judges) else { continue };
            if row.turn_id.as_ref() != Some(&turn.id) {
                let what = "an item of a stopped turn is not tried again";
                let next = row.turn_id.as_deref().unwrap_or("no turn");
                found.push(broken("I19", what, format!("{id} of {}: it is of {next}", of(turn))));
            } else if row.state != "cancelled"
                || (row.reason.as_deref() != Some(error) && !closed_with(evidence, turn, row))
            {
                let what = "the items of a stopped turn are cancelled, and say why";
                let (state, reason) = (&row.state, row.reason.as_deref().unwrap_or_default());
                found.push(broken(
                    "I19",
                    what,
                    format!("{id} of {} is {state}: \"{reason}\", and not \"{error}\"", of(turn)),
                ));
            }
        }
    }
    let buried = evidence.rows.buried.iter();
    let of_stops = buried.filter(|(_, _, reason)| StopKind::parse(reason).is_some() || reason == "stop_unconfirmed");
    found.extend(of_stops.map(|(account, id, reason)| {
        let what = "a stopped turn leaves no dead letter";
        broken("I19", what, format!("dead letter {id} of {account}: {reason}"))
    }));
    found
}

/// I19: after its end a stopped turn calls no provider and has no effect, not even over HTTP before the session's next turn.
pub(super) fn nothing_after_a_stop(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut calls: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for call in &evidence.records.calls {
        let (turn, _) = call.idempotency_key.split_once(':').unwrap_or_default();
        calls.entry(turn).or_default().push(call);
    }
    let mut effects: BTreeMap<(&str, &str), Vec<_>> = BTreeMap::new();
    for call in evidence.rows.calls.iter().filter(|call| call.state == "finished") {
        effects
            .entry((&call.account_id, &call.session_id))
            .or_default()
            .push(call);
    }
    let mut found = Vec::new();
    for turn in &evidence.rows.turns {
        let Some(ended_at) = turn.finished_at.filter(|_| stopped(turn).is_some()) else {
            continue;
        };
        for call in calls.get(turn.id.as_str()).into_iter().flatten() {
            let is_late = call.begun_at > ended_at + LOG_SLACK;
            if is_late && is_known(evidence, call) && !sent_by_a_zombie(evidence, call) {
                let (order, caller, at) = (call.order, &call.caller, call.begun_at);
                found.push(broken(
                    "I19",
                    "a stopped turn calls no provider after its end",
                    format!(
                        "{}: call {order} of {caller} at {at}, and the turn ended at {ended_at}",
                        of(turn)
                    ),
                ));
            }
        }
        let next_at = next_of(evidence, turn).map(|next| next.started_at);
        let session = (turn.account_id.as_str(), turn.session_id.as_str());
        for call in effects.get(&session).into_iter().flatten() {
            let at = call.finished_at.unwrap_or(call.started_at);
            let is_of_it = call.turn_id.as_deref() == Some(turn.id.as_str());
            let what = if call.ordinal == 0 {
                // Read after the locks: with the turn in progress, it would be the turn's.
                let writes = !matches!(call.name.as_str(), "task_history" | "no_reply");
                let is_between = ended_at < at && next_at.is_none_or(|next| at < next);
                (writes && call.turn_id.is_none() && is_between)
                    .then_some("the agent of a stopped turn writes nothing before its next turn")
            } else if is_of_it && !journal_calls(turn).any(|id| id == call.call_id) {
                Some("a call that was not passed on has no effect")
            } else {
                (is_of_it && !call.late && at > ended_at + LOCKS_WAIT_MAX)
                    .then_some("a stopped turn has no effect after its end")
            };
            found.extend(what.map(|what| {
                let text = format!(
                    "{}: call {} ({}) at {at}, and the turn ended at {ended_at}",
                    of(turn),
                    call.call_id,
                    call.name
                );
                broken("I19", what, text)
            }));
        }
    }
    found
}

fn next_of<'a>(evidence: &Evidence<'a>, turn: &TurnRow) -> Option<&'a TurnRow> {
    let turns = evidence
        .turns_of
        .get(&(turn.account_id.as_str(), turn.session_id.as_str()))?;
    turns.iter().find(|next| next.number == turn.number + 1).copied()
}

/// I20 for gate `stopped`: where an event says that a session was parked, its next turn began after a resumption, or after an item
/// that opens the gate. A closed session has lost the items that show this.
pub(super) fn gates_hold(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, parked) in &evidence.records.heard.parked {
        let turn = name.split_once(':').and_then(|name| evidence.turns.get(&name).copied());
        let Some(turn) = turn else { continue };
        let (Some(next), Some(ended_at)) = (next_of(evidence, turn), turn.finished_at) else {
            continue;
        };
        let session = evidence
            .sessions
            .get(&(turn.account_id.as_str(), turn.session_id.as_str()));
        if session.is_none_or(|session| session.closed_at.is_some()) {
            continue;
        }
        let is_resumed = aimed(evidence, turn, false).any(|aim| {
            let offer = &evidence.records.offers[aim.offer];
            let meets = |from: OffsetDateTime, until: OffsetDateTime| {
                from <= next.started_at && until + LOCKS_WAIT_MAX > ended_at
            };
            !offer.is_answered() || offer.tries.iter().any(|tried| meets(tried.sent_at, tried.ended_at))
        });
        let is_opened = || {
            let mut waiting = waited(evidence, turn);
            waiting.sort_by_key(|row| row.number());
            waiting[(*parked).min(waiting.len())..].iter().any(|row| {
                let opens = row.sender_kind == "user" || row.is_steer() || row.queue_mode == QueueMode::Inject;
                opens && row.created_at < next.started_at + LOCKS_WAIT_MAX
            })
        };
        // The end of a task took what was parked: then any item opens the gate.
        let is_emptied = || {
            let gone = |row: &&NotificationRow| {
                row.account_id == turn.account_id
                    && row.session_id.as_deref() == Some(&turn.session_id)
                    && row.state == "cancelled"
                    && row.turn_id.is_none()
            };
            evidence.rows.notifications.iter().filter(gone).count() >= *parked
        };
        if !is_resumed && !is_opened() && !is_emptied() {
            found.push(broken(
                "I20",
                "nothing starts behind a stop before somebody goes on",
                format!(
                    "{} ended at {ended_at}, {parked} items were parked, and turn {} began at {}",
                    of(turn),
                    next.number,
                    next.started_at
                ),
            ));
        }
    }
    found
}

/// Items of the turn's session that waited when the turn had ended, or came later.
fn waited<'a>(evidence: &Evidence<'a>, turn: &TurnRow) -> Vec<&'a NotificationRow> {
    let later = |row: &NotificationRow| {
        let taken = row
            .turn_id
            .as_deref()
            .map(|id| evidence.turns.get(&(turn.account_id.as_str(), id)));
        // A withdrawn one may have waited.
        let is_gone = row.state == "cancelled" && row.turn_id.is_none();
        row.state == "queued" || is_gone || taken.flatten().is_some_and(|taken| taken.number > turn.number)
    };
    let rows = evidence.rows.notifications.iter();
    rows.filter(|row| {
        row.account_id == turn.account_id && row.session_id.as_deref() == Some(&turn.session_id) && later(row)
    })
    .collect()
}

/// I20 for gate `collect`: a run that is not full begins after its debounce.
pub(super) fn runs_are_due(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for turn in &evidence.rows.turns {
        let rows: Vec<&NotificationRow> = evidence.items_of(turn).collect();
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            continue;
        };
        let is_here = |row: &NotificationRow| row.session_id.as_deref() == Some(&turn.session_id);
        let grows = first.queue_mode == QueueMode::Collect && first.joins && rows.len() < COLLECT_ITEMS_MAX;
        let due = (last.created_at + COLLECT_DEBOUNCE).min(first.created_at + COLLECT_WAIT_MAX);
        if grows && is_here(first) && turn.started_at + ROUNDED < due {
            found.push(broken(
                "I20",
                "a run begins when no more items are to be expected",
                format!("{} began at {}, and was due at {due}", of(turn), turn.started_at),
            ));
        }
    }
    found
}

/// I25: in an open session only a stop cancels items, those of its turn, or a withdrawal, and the session counts what waits.
pub(super) fn nothing_dropped(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut queued: BTreeMap<(&str, &str), i32> = BTreeMap::new();
    for row in &evidence.rows.notifications {
        let Some(session) = row.session_id.as_deref() else {
            continue;
        };
        let name = (row.account_id.as_str(), session);
        *queued.entry(name).or_default() += i32::from(row.state == "queued");
        let is_open = evidence
            .sessions
            .get(&name)
            .is_some_and(|session| session.closed_at.is_none());
        if row.state != "cancelled" || !is_open {
            continue;
        }
        let turn = row.turn_id.as_deref().and_then(|id| evidence.turns.get(&(name.0, id)));
        let by_stop = turn.and_then(|turn| stopped(turn)).map(|(_, error)| error);
        let is_withdrawn = edits(evidence, EditOp::Withdraw)
            .any(|(offer, _, item)| offer.account == row.account_id && item == Some(row.id.as_str()));
        if !is_withdrawn && (by_stop.is_none() || by_stop != row.reason.as_deref()) {
            found.push(broken(
                "I25",
                "what waits is cancelled only with its task",
                format!(
                    "notification {} of {} in the open session {session} is cancelled: \"{}\"",
                    row.id,
                    row.account_id,
                    row.reason.as_deref().unwrap_or_default()
                ),
            ));
        }
    }
    for session in evidence
        .rows
        .sessions
        .iter()
        .filter(|session| session.closed_at.is_none())
    {
        let name = (session.account_id.as_str(), session.id.as_str());
        let waiting = queued.get(&name).copied().unwrap_or_default();
        if waiting != session.queued {
            found.push(broken(
                "I25",
                "a session counts what waits",
                format!("{} counts {}, and {waiting} items wait", session.key, session.queued),
            ));
        }
    }
    found
}

/// I25, when the system is idle: the campaign has resumed what it had stopped.
pub(super) fn gates_open_in_the_end(evidence: &Evidence<'_>) -> Vec<Violation> {
    let sessions = evidence.rows.sessions.iter();
    let gated = sessions.filter_map(|session| Some((session, session.gate.as_deref()?)));
    gated
        .map(|(session, gate)| {
            let what = "no gate is closed in the end";
            broken("I25", what, format!("{} is parked behind gate {gate}", session.key))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use domain::{HoldScope, StopThen};

    use super::{
        super::fabricated::{Story, at, provider_call},
        *,
    };
    use crate::records::{ApiAnswer, CallEnd, Offer};

    /// The turn's answer asked for a tool; then the turn was stopped, and another item waits behind it.
    fn story() -> Story {
        let mut story = Story::delivered();
        let (turn, item) = (&mut story.rows.turns[0], &mut story.rows.notifications[0]);
        "aborted".clone_into(&mut turn.state);
        turn.error = Some("stopped: by ann".to_owned());
        turn.error_class = Some("stopped".to_owned());
        (turn.response_id, turn.reply) = (None, None);
        "cancelled".clone_into(&mut item.state);
        item.reason.clone_from(&turn.error);
        let mut waits = item.clone();
        "n-2".clone_into(&mut waits.id);
        "queued".clone_into(&mut waits.state);
        "service".clone_into(&mut waits.sender_kind);
        (waits.position, waits.turn_id, waits.reason, waits.created_at) = (Some(2), None, None, at(4));
        story.rows.notifications.push(waits);
        let session = &mut story.rows.sessions[0];
        (session.queued, session.gate) = (1, Some("stopped".to_owned()));
        let stop = Offered::Stop {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
            then: StopThen::Hold,
            named: true,
            after_ms: 0,
        };
        let mut offer = Offer {
            number: 1,
            what: stop,
            ..story.records.offers[0].clone()
        };
        (offer.tries[0].sent_at, offer.tries[0].ended_at) = (at(5), at(6));
        story.records.offers.push(offer);
        aim(&mut story, 1, Some("turn-1"));
        story.records.answers.push(ApiAnswer {
            account: Some("acme".to_owned()),
            path: "/api/orgs/acme/sessions/session-1/stop".to_owned(),
            of_service: false,
            key: Some("offer-1".to_owned()),
            status: 202,
            body: r#"{"state": "stopping", "turn_id": "turn-1"}"#.to_owned(),
        });
        story.records.heard.parked.insert("acme:turn-1".to_owned(), 1);
        story
    }

    fn aim(story: &mut Story, offer: usize, turn: Option<&str>) {
        story.records.aims.push(Aim {
            offer,
            target: "session-1".to_owned(),
            named: turn.map(str::to_owned),
        });
    }

    /// The item that waited has its turn.
    fn went_on(story: &mut Story) {
        let mut next = story.rows.turns[0].clone();
        "turn-2".clone_into(&mut next.id);
        "finished".clone_into(&mut next.state);
        (next.number, next.error, next.error_class) = (2, None, None);
        next.notification_ids = vec!["n-2".to_owned()];
        next.journal = serde_json::json!([]);
        (next.started_at, next.finished_at) = (at(50), Some(at(51)));
        story.rows.turns.push(next);
        let item = &mut story.rows.notifications[1];
        "delivered".clone_into(&mut item.state);
        item.turn_id = Some("turn-2".to_owned());
        (story.rows.sessions[0].queued, story.rows.sessions[0].gate) = (0, None);
    }

    const ALL: [super::super::Check; 6] = [
        stops_were_asked,
        stops_end_their_turn,
        nothing_after_a_stop,
        gates_hold,
        runs_are_due,
        nothing_dropped,
    ];

    #[test]
    fn a_stop_that_holds_what_waits_is_fine() {
        for story in [Story::delivered(), story()] {
            for check in ALL {
                assert_eq!(story.judge(check), []);
            }
        }
        assert!(story().finds(gates_open_in_the_end, "behind gate stopped"));
    }

    #[test]
    fn a_stop_of_another_turn_is_found() {
        let mut story = story();
        story.records.aims[0].named = Some("turn-0".to_owned());
        assert!(story.finds(stops_were_asked, "turn turn-1"));
        story.records.aims[0].named = None;
        assert_eq!(story.judge(stops_were_asked), [], "it named none, and was answered so");
        story.records.answers[1].body = r#"{"state": "nothing", "turn_id": null}"#.to_owned();
        assert!(story.finds(stops_were_asked, "turn turn-1"));
    }

    #[test]
    fn nobody_steered_without_a_steer() {
        let mut story = story();
        story.rows.turns[0].error = Some("steered: by bob".to_owned());
        assert!(story.finds(stops_were_asked, "steered: by bob"));
        story.rows.notifications[1].queue_mode = QueueMode::Steer;
        "bob".clone_into(&mut story.rows.notifications[1].sender_id);
        assert_eq!(story.judge(stops_were_asked), []);
    }

    /// The same caller's next hold on the same thing changes the row.
    #[test]
    fn a_hold_that_stopped_once_may_say_finish_by_now() {
        let mut story = story();
        story.rows.turns[0].error = Some("paused: by chaos admin".to_owned());
        story.rows.holds.push(HoldRow {
            account_id: "acme".to_owned(),
            id: "hold-1".to_owned(),
            scope_kind: HoldScope::Account,
            scope_id: "acme".to_owned(),
            running: HoldRunning::Finish,
            created_at: at(1),
            released_at: None,
        });
        assert!(story.finds(stops_were_asked, "paused: by"));
        story.records.offers[1].what = Offered::Hold {
            scope: HoldScope::Account,
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
            running: HoldRunning::Stop,
            for_ms: 1,
        };
        assert_eq!(story.judge(stops_were_asked), []);
        story.records.offers[1].tries[0].sent_at = at(900);
        assert!(story.finds(stops_were_asked, "paused: by"), "it was sent later");
    }

    #[test]
    fn a_stop_ends_in_no_other_way() {
        let mut story = story();
        "failed".clone_into(&mut story.rows.turns[0].state);
        assert!(story.finds(stops_end_their_turn, "is failed"));
        let mut story = self::story();
        "queued".clone_into(&mut story.rows.notifications[0].state);
        assert!(story.finds(stops_end_their_turn, "n-1 of turn turn-1 of acme"));
        let mut story = self::story();
        story.rows.notifications[0].turn_id = Some("turn-2".to_owned());
        assert!(story.finds(stops_end_their_turn, "it is of turn-2"));
        let mut story = self::story();
        let letter = ("acme".to_owned(), "d-1".to_owned(), "stopped".to_owned());
        story.rows.buried.push(letter);
        assert!(story.finds(stops_end_their_turn, "dead letter d-1"));
    }

    #[test]
    fn what_a_stopped_turn_does_later_is_found() {
        let mut story = story();
        story.records.calls.push(provider_call(2, (30, 31), CallEnd::Aborted));
        assert!(story.finds(nothing_after_a_stop, "call 2 of delivery-0"));
        let mut story = self::story();
        story.rows.calls[0].finished_at = Some(at(30));
        assert!(story.finds(nothing_after_a_stop, "task_message"));
        let mut story = self::story();
        story.rows.turns[0].journal = serde_json::json!([]);
        assert!(story.finds(nothing_after_a_stop, "task_message"));
    }

    #[test]
    fn an_agent_that_writes_after_its_stop_is_found() {
        let mut story = story();
        let mut call = story.rows.calls[0].clone();
        (call.ordinal, call.turn_id, call.finished_at) = (0, None, Some(at(20)));
        story.rows.calls.push(call);
        assert!(story.finds(nothing_after_a_stop, "task_message"));
        went_on(&mut story);
        assert!(story.finds(nothing_after_a_stop, "task_message"));
        story.rows.calls[1].finished_at = Some(at(52));
        assert_eq!(story.judge(nothing_after_a_stop), [], "in or after its next turn");
        "refused".clone_into(&mut story.rows.calls[1].state);
        story.rows.calls[1].finished_at = Some(at(20));
        assert_eq!(story.judge(nothing_after_a_stop), []);
    }

    #[test]
    fn a_turn_behind_a_gate_is_found_unless_somebody_opened_it() {
        let mut story = story();
        went_on(&mut story);
        assert!(story.finds(gates_hold, "turn 2 began"));
        assert_eq!(story.judge(gates_open_in_the_end), []);
        let mut resumed = story;
        let resume = Offered::Resume {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
        };
        let mut offer = Offer {
            number: 2,
            what: resume,
            ..resumed.records.offers[1].clone()
        };
        (offer.tries[0].sent_at, offer.tries[0].ended_at) = (at(49), at(50));
        resumed.records.offers.push(offer);
        aim(&mut resumed, 2, None);
        assert_eq!(resumed.judge(gates_hold), []);
        resumed.records.offers[2].tries[0].sent_at = at(60);
        assert!(resumed.finds(gates_hold, "turn 2 began"), "too late");
        let mut opened = self::story();
        went_on(&mut opened);
        let mut person = opened.rows.notifications[1].clone();
        "n-3".clone_into(&mut person.id);
        "user".clone_into(&mut person.sender_kind);
        person.position = Some(3);
        opened.rows.notifications.push(person);
        assert_eq!(opened.judge(gates_hold), []);
        opened.records.heard.parked.insert("acme:turn-1".to_owned(), 2);
        assert!(
            opened.finds(gates_hold, "turn 2 began"),
            "the person's item was parked itself"
        );
    }

    #[test]
    fn a_run_that_begins_too_early_is_found() {
        let mut story = Story::delivered();
        let item = &mut story.rows.notifications[0];
        (item.queue_mode, item.joins, item.created_at) = (QueueMode::Collect, true, at(3));
        assert!(story.finds(runs_are_due, "was due"));
        story.rows.notifications[0].joins = false;
        assert_eq!(story.judge(runs_are_due), [], "it met a session at rest");
        story.rows.notifications[0].joins = true;
        story.rows.notifications[0].created_at = at(2);
        assert_eq!(story.judge(runs_are_due), []);
    }

    #[test]
    fn an_item_of_a_stopped_turn_says_who_ended_it_first() {
        let mut story = story();
        assert_eq!(story.judge(stops_end_their_turn), []);
        story.rows.notifications[0].reason = Some(TASK_CLOSED.to_owned());
        assert!(story.finds(stops_end_their_turn, "and not \"stopped: by ann\""));
        story.rows.sessions[0].closed_at = story.rows.turns[0].finished_at;
        assert_eq!(
            story.judge(stops_end_their_turn),
            [],
            "its task closed while it waited for its next attempt"
        );
    }

    #[test]
    fn what_a_brake_drops_is_found() {
        let mut story = story();
        "cancelled".clone_into(&mut story.rows.notifications[1].state);
        assert!(story.finds(nothing_dropped, "n-2 of acme"));
        assert!(story.finds(nothing_dropped, "counts 1, and 0 items wait"));
        story.rows.sessions[0].closed_at = Some(at(9));
        assert_eq!(story.judge(nothing_dropped), [], "its task is done");
    }
}
