//! Rules for what a turn gets after its first call: results of tools, and notes with the items that came meanwhile. Their parts follow
//! from their rows.

use contracts::{
    json,
    tools::{self, Reach, ToolDefinition},
};
use domain::{NotificationId, TaskId, ToolCallState};
use prompt::{Injected, Marks, note, note_parts};
use storage::session::items_join::Note;

use super::{
    input::item_for,
    judge::{Ruling, foreign, is_coordinator, of_part, proven, whole},
    store::{AuditedTurn, Call, Item, Sources},
    verdict::{
        Doubt::{Changed, Outside, UnknownTool, Unread},
        Fault::{ForeignThread, HashMismatch, UncoveredBytes},
        Judged, Policy,
        Verdict::{ByPolicy, Unproven, Violation},
    },
};

pub(super) fn notes(turn: &AuditedTurn, sources: &Sources, judged: &mut Vec<Judged>) {
    for note in &turn.notes.0 {
        let items: Vec<Result<&Item, Ruling>> = note
            .notification_ids
            .iter()
            .map(|id| item_for(turn, &sources.notifications, id))
            .collect();
        let whole_note = is_rendered(note, &items);
        let parts = note_parts(&note.text, &note.notification_ids);
        let covered: usize = parts.iter().map(|part| part.bytes).sum();
        for part in &parts {
            let source = part.source.to_string();
            let place = source.strip_prefix(super::input::NOTIFICATION).and_then(|id| {
                let mut ids = note.notification_ids.iter();
                ids.position(|known| known == id)
            });
            let item = place.and_then(|place| items.get(place));
            let ruling = match (item, whole_note) {
                (Some(Err(ruling)), _) => ruling.clone(),
                (_, Some(true)) => proven(),
                (Some(Ok(item)), _) if item.revision > 1 => (Unproven(Changed), format!("{source} has changed since")),
                (None, None) => (Unproven(Unread), "an item of the note is not there".to_owned()),
                (_, _) => (
                    Violation(HashMismatch),
                    format!("{source} gives another text than the one that was sent"),
                ),
            };
            judged.push(of_part(part, ruling));
        }
        if covered != note.text.len() {
            let bytes = note.text.len().abs_diff(covered);
            let ruling = (
                Violation(UncoveredBytes),
                format!("{bytes} bytes for which no part accounts"),
            );
            judged.push(whole("notes", bytes, ruling));
        }
    }
}

/// Whether its items give the note. None: not all of them are there.
fn is_rendered(recorded: &Note, items: &[Result<&Item, Ruling>]) -> Option<bool> {
    let mut injected = Vec::new();
    for (item, id) in items.iter().zip(&recorded.notification_ids) {
        let item = item.as_ref().ok()?;
        injected.push(Injected {
            notification: NotificationId::parse(id).ok()?,
            sender: item.sender.clone(),
            title: item.title.clone(),
            body: item.body.clone(),
        });
    }
    Some(note(&injected, Marks::recorded(&recorded.text)) == recorded.text)
}

pub(super) fn calls(turn: &AuditedTurn, sources: &Sources, judged: &mut Vec<Judged>) {
    for call in sources.calls.get(&turn.id).into_iter().flatten() {
        judged.push(Judged {
            source: format!("tool_call/{}/{}", call.name, call.call_id),
            ..whole(
                "tool_result",
                usize::try_from(call.result_bytes).unwrap_or_default(),
                result(turn, call),
            )
        });
    }
}

/// A result belongs to its turn, and its tool could reach no other task.
fn result(turn: &AuditedTurn, call: &Call) -> Ruling {
    if call.session_id != turn.session {
        return (
            Violation(ForeignThread),
            format!("its record is of session {}", call.session_id),
        );
    }
    let mut all = tools::all().into_iter();
    let tool = all.find(|tool| tool.name == call.name || tool.aliases.contains(&&*call.name));
    // The words of a refusal are ours.
    let is_refused = ToolCallState::parse(&call.state) == Some(ToolCallState::Refused);
    match tool {
        _ if is_refused => proven(),
        None => (Unproven(UnknownTool), "no tool of this version has the name".to_owned()),
        Some(tool) => match (tool.reach, task_of(&tool, call)) {
            (Reach::Outside, _) => (Unproven(Outside), "somebody outside gave it".to_owned()),
            (_, Err(ruling)) => ruling,
            (_, Ok(None)) => proven(),
            (Reach::OwnTask | Reach::Account, Ok(Some(task))) => {
                let foreign = foreign(turn, Some(&task), "the task of its arguments");
                let by_policy = || {
                    (
                        ByPolicy(Policy::Coordinator),
                        format!("the coordinator reached task {task}"),
                    )
                };
                foreign.map_or_else(proven, |ruling| match (tool.reach, is_coordinator(turn)) {
                    (Reach::Account, true) => by_policy(),
                    (Reach::Account | Reach::OwnTask | Reach::Outside, _) => ruling,
                })
            }
        },
    }
}

/// The task that the arguments name; none: the tool's own, or that of the turn.
fn task_of(tool: &ToolDefinition, call: &Call) -> Result<Option<TaskId>, Ruling> {
    let Some(argument) = tool.task_argument() else {
        return Ok(None);
    };
    let Some(arguments) = &call.arguments else {
        return Err((
            Unproven(Unread),
            "its arguments are too long to be read with the others".to_owned(),
        ));
    };
    // A call with arguments that are no object was refused by its schema.
    let arguments = json::read(arguments.as_bytes()).unwrap_or_default();
    let task = arguments.get(argument).and_then(serde_json::Value::as_str);
    Ok(task.and_then(|task| TaskId::parse(task).ok()))
}

#[cfg(test)]
mod tests {
    use domain::SessionId;
    use uuid::Uuid;

    use super::{
        super::judge::tests::{turn, words},
        *,
    };

    fn call(name: &str, state: &str, arguments: Option<&str>) -> Call {
        Call {
            turn_id: turn().id,
            session_id: turn().session,
            call_id: "c-1".to_owned(),
            name: name.to_owned(),
            state: state.to_owned(),
            result_bytes: 3,
            arguments: arguments.map(str::to_owned),
        }
    }

    #[test]
    fn a_tool_reaches_its_own_task() {
        let own = r#"{"task_id": "T-1"}"#;
        let other = r#"{"task_id": "t-2"}"#;
        let check = |call: &Call, is_coordinator: bool, expected: &str| {
            let mut turn = turn();
            turn.coordinator_task = turn.task.clone().filter(|_| is_coordinator);
            assert_eq!(words(&result(&turn, call)), expected, "{call:?}");
        };
        for (tool, arguments, expected) in [
            ("task_history", Some(own), "proven"),
            ("task_load", Some(own), "proven"),
            ("task_history", Some(other), "violation foreign_task"),
            ("task_load", Some(other), "violation foreign_task"),
            ("task_history", Some("{}"), "proven"),
            ("task_history", Some("nonsense"), "proven"),
            ("task_history", Some(r#"{"task_id": "no task"}"#), "proven"),
            ("task_history", None, "unproven unread"),
            ("submit_plan", Some(other), "violation foreign_task"),
            ("check_later", None, "proven"),
            ("shell", None, "unproven unknown_tool"),
        ] {
            check(&call(tool, "finished", arguments), false, expected);
        }
        check(&call("task_history", "refused", Some(other)), false, "proven");
        check(&call("shell", "refused", None), false, "proven");
        check(
            &call("task_history", "finished", Some(other)),
            true,
            "by_policy coordinator",
        );
        check(
            &call("submit_plan", "finished", Some(other)),
            true,
            "violation foreign_task",
        );
        let elsewhere = Call {
            session_id: SessionId(Uuid::nil()),
            ..call("task_history", "refused", Some(own))
        };
        check(&elsewhere, false, "violation foreign_thread");
    }
}
