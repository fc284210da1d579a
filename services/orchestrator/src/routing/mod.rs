//! The routing log (O20): why an item came to where it is, as steps, from the rows that are there. It has no table of its own; what retention has
//! removed is said to be removed.

pub mod http;
pub mod store;

use api::{
    mail::{Mail, MailParty},
    notifications::{Notification, RouteStep},
};
use domain::{NotificationState, QueueMode, notification::RouteStage};

use store::Placed;

const REMOVED: &str = "its record was removed by retention";

/// The mail that an item is of.
#[derive(Clone, Copy, Debug)]
pub enum Mailed<'a> {
    /// It is of none.
    No,
    /// Its row is removed.
    Removed,
    Is(&'a Mail),
}

/// The steps of a notification, in their order. Pure. `placed`: none as long as the resolver has not written its row, and for one to several
/// agents.
pub fn steps(item: &Notification, mail: Mailed<'_>, placed: Option<&Placed>) -> Vec<RouteStep> {
    let mut steps = Vec::new();
    let mut step = |stage: RouteStage, result: String, because: String| {
        let step = stage.to_string();
        steps.push(RouteStep { step, result, because });
    };
    match mail {
        Mailed::No => {}
        Mailed::Removed => step(RouteStage::Mail, "mail".to_owned(), REMOVED.to_owned()),
        Mailed::Is(mail) => {
            let to = mail.to.session_key.as_deref().unwrap_or_default();
            let because = format!(
                "{} wrote it ({}); it is {}",
                party(&mail.from),
                mail.why,
                mail.receipt.state
            );
            step(RouteStage::Mail, format!("{} reaches {to}", mail.to.name), because);
        }
    }
    if !item.parts.is_empty() {
        let ids: Vec<&str> = item.parts.iter().map(|part| part.id.as_str()).collect();
        step(
            RouteStage::Parts,
            ids.join(", "),
            "it is to several agents: each has its own".to_owned(),
        );
        return steps;
    }
    if let Some((slug, number)) = placed.and_then(Placed::persona) {
        let because = match placed.and_then(|placed| placed.persona_why.as_deref()) {
            Some("user") => "a person named it for the task",
            Some("inferred") => "an orchestrator named it for the task",
            Some("account") => "it was the account's default when the generation opened",
            Some(_) | None => "chosen when the generation opened",
        };
        step(
            RouteStage::Persona,
            format!("{slug}, version {number}"),
            because.to_owned(),
        );
    }
    let mode = item.queue_mode.as_deref().and_then(QueueMode::parse);
    if let Some(mode) = mode {
        let because = match mode {
            QueueMode::Followup => "it gets a turn of its own, after what waits",
            QueueMode::Collect => "it shares a turn with other items of its author",
            QueueMode::Steer => "it ends the turn in progress, and goes before all that wait",
            QueueMode::Inject => "it goes into the turn in progress",
        };
        step(RouteStage::Mode, mode.to_string(), because.to_owned());
    }
    let state = NotificationState::parse(&item.state);
    let reason = || {
        item.reason
            .clone()
            .unwrap_or_else(|| "no reason is recorded".to_owned())
    };
    if state == Some(NotificationState::Refused) {
        step(RouteStage::Refused, item.state.clone(), reason());
        return steps;
    }
    match (item.session_id, placed.and_then(|placed| placed.generation)) {
        (Some(session), Some(generation)) => {
            let key = item.session_key.clone().unwrap_or_else(|| session.to_string());
            let is_first = placed.is_some_and(|placed| placed.is_first(mode));
            let (result, because) = match (is_first, generation) {
                (true, 1) => ("created", "it opened the first generation"),
                (true, _) => ("reopened", "no generation was open: it opened the next one"),
                (false, _) => ("reused", "a generation was open"),
            };
            step(RouteStage::Session, format!("{result} {key}"), because.to_owned());
        }
        (Some(session), None) => step(RouteStage::Session, session.to_string(), REMOVED.to_owned()),
        (None, _) => {}
    }
    match (state, placed.and_then(|placed| placed.place)) {
        (Some(NotificationState::Queued), place) => {
            let place = place.filter(|place| *place > 0);
            let result = place.map_or_else(|| item.state.clone(), |place| format!("place {place}"));
            let because = item.why.as_ref().map(|why| why.text.clone());
            step(RouteStage::Place, result, because.unwrap_or_else(reason));
        }
        (Some(NotificationState::Failed | NotificationState::Cancelled), _) => {
            step(RouteStage::Place, item.state.clone(), reason());
        }
        (_, _) => {}
    }
    if let Some(turn) = item.turn_id {
        match placed.and_then(Placed::turn) {
            Some((number, state)) => {
                let because = format!("attempt {}", item.attempts.max(1));
                step(RouteStage::Turn, format!("turn {number} ({turn}): {state}"), because);
            }
            None => step(RouteStage::Turn, format!("turn {turn}"), REMOVED.to_owned()),
        }
    }
    steps
}

fn party(party: &MailParty) -> String {
    let of = party.id.as_deref().or(party.session_key.as_deref()).unwrap_or_default();
    format!("{} {of}", party.kind)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    fn item(change: Value) -> Notification {
        let mut item = json!({"id": "n-1", "task": "DEMO-1", "agent": "coder", "agent_id": ID, "type": "message", "state": "queued",
            "session_id": ID, "session_key": "task:demo-1:v2", "turn_id": null, "attempts": 0, "reason": null, "title": null,
            "sender": null, "message_id": null, "cause": null, "hops": 0, "queue_mode": "followup", "revision": 1,
            "created_at": "2026-01-02T03:04:05Z"});
        for (name, value) in change.as_object().unwrap() {
            item[name] = value.clone();
        }
        serde_json::from_value(item).unwrap()
    }

    fn placed() -> Placed {
        Placed {
            position: Some(1),
            generation: Some(2),
            persona_slug: Some("reviewer".to_owned()),
            persona_number: Some(3),
            persona_why: Some("account".to_owned()),
            place: Some(1),
            turn_number: None,
            turn_state: None,
        }
    }

    fn check(item: &Notification, mail: Mailed<'_>, placed: Option<&Placed>, expected: &[(&str, &str)]) {
        let steps = steps(item, mail, placed);
        let found: Vec<(&str, &str)> = steps
            .iter()
            .map(|step| (step.step.as_str(), step.result.as_str()))
            .collect();
        assert_eq!(found, expected);
        assert!(steps.iter().all(|step| !step.because.is_empty()), "{steps:?}");
    }

    #[test]
    fn says_each_step_of_the_way() {
        let (persona, mode) = (("persona", "reviewer, version 3"), ("mode", "followup"));
        let reopened = ("session", "reopened task:demo-1:v2");
        let waits = [persona, mode, reopened, ("place", "place 1")];
        check(&item(json!({})), Mailed::No, Some(&placed()), &waits);
        let later = Placed {
            position: Some(7),
            place: Some(0),
            turn_number: Some(4),
            turn_state: Some("finished".to_owned()),
            ..placed()
        };
        let delivered = item(json!({"state": "delivered", "turn_id": ID}));
        let turn = format!("turn 4 ({ID}): finished");
        let taken = [persona, mode, ("session", "reused task:demo-1:v2"), ("turn", &turn)];
        check(&delivered, Mailed::No, Some(&later), &taken);
        // A steer's place is before all others'.
        let steer = item(json!({"queue_mode": "steer"}));
        let first = Placed {
            position: Some(QueueMode::Steer.position(1)),
            generation: Some(1),
            persona_slug: None,
            ..placed()
        };
        check(
            &steer,
            Mailed::No,
            Some(&first),
            &[
                ("mode", "steer"),
                ("session", "created task:demo-1:v2"),
                ("place", "place 1"),
            ],
        );
        let parts = item(
            json!({"queue_mode": null, "session_id": null, "parts": [{"id": "n-1:a", "agent": "a", "state": "queued"}]}),
        );
        check(&parts, Mailed::No, None, &[("parts", "n-1:a")]);
        let accepted = item(json!({"queue_mode": null, "session_id": null, "reason": "waits_for_resolver"}));
        check(&accepted, Mailed::No, None, &[("place", "queued")]);
    }

    #[test]
    fn a_refusal_and_what_is_removed_are_said() {
        let refused = item(json!({"state": "refused", "reason": "unknown_agent", "session_id": null}));
        let found = steps(&refused, Mailed::No, None);
        assert_eq!(found.last().unwrap().because, "unknown_agent");
        let gone = Placed {
            position: Some(1),
            generation: None,
            persona_slug: None,
            ..placed()
        };
        let delivered = item(json!({"state": "delivered", "turn_id": ID, "session_key": null}));
        let found = steps(&delivered, Mailed::Removed, Some(&gone));
        let removed: Vec<&str> = found
            .iter()
            .filter(|step| step.because == REMOVED)
            .map(|step| step.step.as_str())
            .collect();
        assert_eq!(removed, ["mail", "session", "turn"]);
    }
}
