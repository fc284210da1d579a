//! `check_later`: sets a timer that wakes the agent in the same conversation. A chain of timers ends: each is set in a turn that
//! the one before began.

use contracts::{
    Timestamp,
    tools::check_later::{AFTER_MINUTES_MAX, CHAIN_MAX, NOTE_BYTES_MAX, TIMERS_MAX},
};
use domain::TimerKind;
use serde_json::{Map, Value, json};
use storage::timer::{CheckLater, NewTimer, timer_set};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{Running, ToolError, ToolOutcome, task_open};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    store::{self, Later},
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let note = arguments["note"].as_str().unwrap_or_default();
    if note.len() > NOTE_BYTES_MAX {
        let what = format!(
            "{} bytes; at most {NOTE_BYTES_MAX} are taken, so shorten it",
            note.len()
        );
        return Err(invalid_field("note", &what).into());
    }
    if note.trim().is_empty() {
        return Err(invalid_field("note", "must not be blank").into());
    }
    let due_at = due_at(&arguments, running.facts.now)?;
    let Some(turn) = &running.facts.turn else {
        let answer = ToolAnswer::failed(
            "no_turn",
            "No turn of this conversation is in progress, and timers are set during a turn.",
            "No timer was set. Set it in the next turn, while you work on it.",
        );
        return Err(answer.into());
    };
    task_open(running).await?;
    let tx = running.questions.tx;
    let Later { waiting, chain } = store::later(tx, running.account, (running.session, turn.id)).await?;
    if waiting >= TIMERS_MAX {
        let answer = ToolAnswer::failed(
            "too_many_timers",
            format!("{waiting} timers of this conversation wait, as many as may."),
            "No timer was set. When one of them fires, look at everything that is due, and set one timer for what is left.",
        );
        return Err(answer.into());
    }
    if chain > CHAIN_MAX {
        let answer = ToolAnswer::failed(
            "timer_chain",
            format!("{CHAIN_MAX} timers in a row have woken you, each set in a turn that the one before began."),
            "No timer was set. Say in your reply what you wait for and who can tell you; a message from somebody else begins anew.",
        );
        return Err(answer.into());
    }
    let facts = running.facts;
    let payload = CheckLater {
        agent: facts.agent,
        hops: facts.hops(),
        of_task: facts.session_task.is_some(),
    };
    let new = NewTimer {
        account: running.account,
        kind: TimerKind::CheckLater,
        key: &running.call.to_string(),
        due_at,
        task: facts.task(),
        session: Some(running.session),
        agent: Some(facts.agent),
        note,
        payload: serde_json::to_value(payload).expect("a payload has string keys"),
        chain,
    };
    let (timer, messages) = timer_set(tx, &new, running.setting).await?;
    let told = "You are woken then. Finish your turn.";
    let result = json!({"timer_id": timer, "due_at": Timestamp::from(due_at), "note": told});
    Ok(Effect::new(result, messages))
}

/// From one argument or the other, within the bounds. Pure.
fn due_at(arguments: &Map<String, Value>, now: OffsetDateTime) -> Result<OffsetDateTime, ToolError> {
    let (earliest, latest) = (now + Duration::minutes(1), now + Duration::minutes(AFTER_MINUTES_MAX));
    let after = arguments.get("after_minutes").and_then(Value::as_i64);
    match (after, arguments.get("at").and_then(Value::as_str)) {
        (Some(minutes), None) => Ok(now + Duration::minutes(minutes)),
        (None, Some(at)) => {
            let at = OffsetDateTime::parse(at, &Rfc3339).ok();
            at.filter(|at| (earliest..=latest).contains(at)).ok_or_else(|| {
                let (earliest, latest) = (Timestamp::from(earliest), Timestamp::from(latest));
                let bounds = format!("expected a time in RFC 3339 from {earliest} to {latest}");
                invalid_field("at", &bounds).into()
            })
        }
        (Some(_), Some(_)) => Err(invalid_field("at", "give after_minutes or at, not both").into()),
        (None, None) => Err(invalid_field("after_minutes", "missing: give after_minutes or at").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_within_its_bounds() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let at = |seconds: i64| json!({"at": (now + Duration::seconds(seconds)).format(&Rfc3339).unwrap()});
        let check = |arguments: Value, expected: Result<i64, &str>| {
            let found = due_at(arguments.as_object().unwrap(), now);
            match (&found, expected) {
                (Ok(found), Ok(seconds)) => assert_eq!((*found - now).whole_seconds(), seconds, "{arguments}"),
                (Err(ToolError::ToolAnswer(answer)), Err(words)) => {
                    assert!(answer.message.contains(words), "{arguments}: {}", answer.message);
                }
                _ => panic!("{arguments}: {found:?}"),
            }
        };
        check(json!({"after_minutes": 1}), Ok(60));
        check(json!({"after_minutes": 43_200}), Ok(2_592_000));
        check(at(120), Ok(120));
        check(at(60), Ok(60));
        check(at(2_592_000), Ok(2_592_000));
        check(json!({"at": "2027-01-15T10:05:00+02:00"}), Ok(300));
        let bounds = "at: expected a time in RFC 3339 from 2027-01-15T08:01:00Z to 2027-02-14T08:00:00Z";
        check(at(59), Err(bounds));
        check(at(-1), Err(bounds));
        check(at(2_592_001), Err(bounds));
        check(json!({"at": "tomorrow"}), Err(bounds));
        check(json!({"at": "2027-01-15"}), Err(bounds));
        check(json!({}), Err("give after_minutes or at"));
        check(
            json!({"after_minutes": 5, "at": "2027-01-16T08:00:00Z"}),
            Err("not both"),
        );
    }
}
