//! Rules for what a turn gets after its first call: results of tools, and notes with the items that came meanwhile. Their parts follow
//! from their rows.

use contracts::{
    json,
    tools::{self, Audience, Reach, ToolDefinition, ask_model::form},
};
use domain::{ArtifactId, NotificationId, TaskId, ToolCallState};
use prompt::{Injected, Marks, NOT_RECORDED, RESULT_MISSING, arguments_too_large, manifest::Hash, note, note_parts};
use serde::Deserialize;
use storage::session::items_join::Note;

use super::{
    input::item_for,
    judge::{Ruling, foreign, gone, is_coordinator, of_part, proven, unknown_source, whole},
    store::{AuditedTurn, Call, Item, Sources},
    verdict::{
        Doubt::{Changed, Outside, Retention, UnknownTool, Unread},
        Fault::{ForeignTask, ForeignThread, HashMismatch, SourceMissing, UncoveredBytes},
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
        let covered = parts.iter().map(|part| part.bytes).fold(0, usize::saturating_add);
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
    let calls = sources.calls.get(&turn.id).map_or(&[][..], Vec::as_slice);
    for call in calls {
        let ruling = match &*call.what {
            RECORDED => continue,
            ANSWERED => answered(turn, call, calls),
            _ => result(turn, call),
        };
        judged.push(Judged {
            source: format!("tool_call/{}/{}", call.name, call.call_id),
            ..whole(
                "tool_result",
                usize::try_from(call.result_bytes).unwrap_or_default(),
                ruling,
            )
        });
    }
}

/// What delivery answered a call itself.
const ANSWERED: &str = "answered";
/// What the call of a replay's source turn was answered.
const RECORDED: &str = "recorded";

/// No tool ran: an answer is our own words; or, in a replay, one of the source turn's to the same tool.
fn answered(turn: &AuditedTurn, call: &Call, all: &[Call]) -> Ruling {
    let mut recorded = all
        .iter()
        .filter(|other| other.what == RECORDED && other.name == call.name);
    let is_recorded = recorded.any(|other| other.sha256 == call.sha256);
    let is_ours = [NOT_RECORDED, RESULT_MISSING, &arguments_too_large()]
        .iter()
        .any(|words| Some(Hash::of(words).to_string()) == call.sha256);
    match (is_recorded || is_ours, turn.source_turn_id, &turn.home_kind) {
        (true, _, _) => proven(),
        (false, None, _) => (
            Violation(HashMismatch),
            "no tool gave this answer, and the words are not ours".to_owned(),
        ),
        (false, Some(_), None) => gone(turn, "the source turn"),
        (false, Some(_), Some(_)) => (
            Violation(HashMismatch),
            "its source turn has no such answer of this tool".to_owned(),
        ),
    }
}

/// What a call of an external model keeps of its request.
#[derive(Deserialize)]
struct Asked {
    task: TaskId,
    context_version: Option<i32>,
    artifacts: Vec<ArtifactId>,
    text_sha256: String,
}

/// An external model is told the context of the turn's own task and the request, and is shown artifacts of the task.
fn of_model(turn: &AuditedTurn, call: &Call) -> Ruling {
    let Some(request) = &call.request else {
        return match ToolCallState::parse(&call.state) {
            // Nothing was sent: the words are ours.
            Some(ToolCallState::Failed | ToolCallState::Refused) => proven(),
            Some(_) | None => (Violation(SourceMissing), "what it sent is not there".to_owned()),
        };
    };
    let Ok(asked) = Asked::deserialize(request) else {
        return unknown_source();
    };
    if let Some(ruling) = foreign(turn, Some(&asked.task), "its request") {
        return ruling;
    }
    let own = turn.task.as_ref().map(|task| task.key().to_string());
    let tasks = call.artifact_tasks.as_deref().unwrap_or_default();
    if let Some(task) = tasks.iter().find(|task| Some(*task) != own.as_ref()) {
        return (Violation(ForeignTask), format!("it showed an artifact of task {task}"));
    }
    let Some(arguments) = &call.arguments else {
        return unread();
    };
    let is_kept = asked.context_version.is_none() || call.context.is_some();
    if !is_kept || tasks.len() < asked.artifacts.len() {
        return (Unproven(Retention), "what it was told or shown was removed".to_owned());
    }
    let arguments = json::read(arguments.as_bytes()).unwrap_or_default();
    let request = arguments.get("request").and_then(serde_json::Value::as_str);
    let text = form(call.context.as_deref(), request.unwrap_or_default());
    match Hash::of(&text).to_string() == asked.text_sha256 {
        true => proven(),
        false => (
            Violation(HashMismatch),
            "its request and the task's context give another text than the one that was sent".to_owned(),
        ),
    }
}

fn unread() -> Ruling {
    let found = "its arguments are too long to be read with the others";
    (Unproven(Unread), found.to_owned())
}

/// A result belongs to its turn, and its tool could reach no other task.
fn result(turn: &AuditedTurn, call: &Call) -> Ruling {
    if call.session_id != turn.session {
        return (
            Violation(ForeignThread),
            format!("its record is of session {}", call.session_id),
        );
    }
    let mut all = tools::all().iter();
    let tool = all.find(|tool| tool.name == call.name || tool.aliases.contains(&&*call.name));
    let is_refused = ToolCallState::parse(&call.state) == Some(ToolCallState::Refused);
    if is_refused && !call.is_refusal {
        let found = "it was refused, and its result is no refusal";
        return (Violation(HashMismatch), found.to_owned());
    }
    match tool {
        // No tool ran.
        None if is_refused => proven(),
        None => (Unproven(UnknownTool), "no tool of this version has the name".to_owned()),
        Some(tool) => match (tool.reach, task_of(tool, call)) {
            (Reach::Outside, _) if matches!(tool.offered_to, Audience::Model(_)) => of_model(turn, call),
            // It reached nothing.
            (_, _) if is_refused => proven(),
            (Reach::Outside, _) => (Unproven(Outside), "somebody outside gave it".to_owned()),
            (_, _)
                if matches!(
                    tool.offered_to,
                    Audience::Orchestrator | Audience::Own | Audience::Account
                ) =>
            {
                of_orchestrator(turn)
            }
            (_, _) if matches!(tool.offered_to, Audience::Board | Audience::OnBoard) => of_board(turn),
            (_, Err(ruling)) => ruling,
            (_, Ok(None)) => proven(),
            (Reach::OwnTask | Reach::Account | Reach::Board, Ok(Some(task))) => {
                let foreign = foreign(turn, Some(&task), "the task of its arguments");
                let by_policy = || {
                    (
                        ByPolicy(Policy::Coordinator),
                        format!("the coordinator reached task {task}"),
                    )
                };
                foreign.map_or_else(proven, |ruling| match (tool.reach, is_coordinator(turn)) {
                    (Reach::Account, true) => by_policy(),
                    (Reach::Account | Reach::OwnTask | Reach::Board | Reach::Outside, _) => ruling,
                })
            }
        },
    }
}

/// It shows what is on the board of the session's owner.
fn of_orchestrator(turn: &AuditedTurn) -> Ruling {
    match turn.session_kind.as_deref() {
        Some("orchestrator" | "guest") => (
            ByPolicy(Policy::Orchestrator),
            "an orchestrator looked at its own board".to_owned(),
        ),
        Some(_) => (
            Violation(ForeignThread),
            "only an orchestrator has this tool".to_owned(),
        ),
        None => gone(turn, "its session"),
    }
}

/// It shows the tasks of a session: its own, and those of its board that it was given.
fn of_board(turn: &AuditedTurn) -> Ruling {
    match turn.session_kind.as_deref() {
        Some("orchestrator" | "guest") | None => of_orchestrator(turn),
        Some(_) => (
            ByPolicy(Policy::Board),
            "a session looked at the tasks that it was given".to_owned(),
        ),
    }
}

/// The task that the arguments name; none: the tool's own, or that of the turn.
fn task_of(tool: &ToolDefinition, call: &Call) -> Result<Option<TaskId>, Ruling> {
    let Some(argument) = tool.task_argument() else {
        return Ok(None);
    };
    let Some(arguments) = &call.arguments else {
        return Err(unread());
    };
    // A call with arguments that are no object was refused by its schema.
    let arguments = json::read(arguments.as_bytes()).unwrap_or_default();
    let task = arguments.get(argument).and_then(serde_json::Value::as_str);
    Ok(task.and_then(|task| TaskId::parse(task).ok()))
}

#[cfg(test)]
mod tests {
    use domain::SessionId;
    use serde_json::json;
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
            what: "call".to_owned(),
            result_bytes: 3,
            is_refusal: state == "refused",
            arguments: arguments.map(str::to_owned),
            request: None,
            context: None,
            artifact_tasks: None,
            sha256: None,
        }
    }

    #[test]
    fn a_tool_reaches_its_own_task() {
        let own = r#"{"task_id": "T-1"}"#;
        let other = r#"{"task_id": "t-2"}"#;
        let check = |call: &Call, is_coordinator: bool, expected: &str| {
            let mut turn = turn();
            turn.coordinator_task = turn.task.as_ref().cloned().filter(|_| is_coordinator);
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
        for (tool, arguments) in [("task_history", Some(other)), ("shell", None)] {
            let told = Call {
                is_refusal: false,
                ..call(tool, "refused", arguments)
            };
            check(&told, false, "violation hash_mismatch");
        }
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
        for (kind, expected) in [
            ("task", "violation foreign_thread"),
            ("orchestrator", "by_policy orchestrator"),
            ("guest", "by_policy orchestrator"),
        ] {
            let mut turn = turn();
            turn.session_kind = Some(kind.to_owned());
            let call = call("get_session_status", "finished", Some(r#"{"session_id": "x"}"#));
            assert_eq!(words(&result(&turn, &call)), expected);
        }
        let elsewhere = Call {
            session_id: SessionId(Uuid::nil()),
            ..call("task_history", "refused", Some(own))
        };
        check(&elsewhere, false, "violation foreign_thread");
    }
    #[test]
    fn a_model_is_told_of_its_own_task_only() {
        let artifact = ArtifactId(Uuid::nil());
        let sent = |task: &str, version: Option<i32>, artifacts: &[ArtifactId], text: &str| {
            let sha256 = Hash::of(text).to_string();
            json!({"task": task, "context_version": version, "artifacts": artifacts, "text_sha256": sha256, "tries": 1})
        };
        let check = |request: Option<serde_json::Value>, change: &dyn Fn(&mut Call), expected: &str| {
            let mut call = call("ask_model", "finished", Some(r#"{"request": "Review."}"#));
            call.request = request;
            change(&mut call);
            assert_eq!(words(&result(&turn(), &call)), expected, "{call:?}");
        };
        let bare = || Some(sent("T-1", None, &[], "Review."));
        check(bare(), &|_| {}, "proven");
        check(bare(), &|call| call.arguments = None, "unproven unread");
        check(None, &|call| call.state = "failed".to_owned(), "proven");
        check(None, &|_| {}, "violation source_missing");
        let refused = |call: &mut Call| {
            call.state = "refused".to_owned();
            call.is_refusal = true;
        };
        check(None, &refused, "proven");
        check(
            Some(sent("t-2", None, &[], "Review.")),
            &refused,
            "violation foreign_task",
        );
        check(Some(json!({"task": 7})), &|_| {}, "unproven unknown_source");
        check(
            Some(sent("t-2", None, &[], "Review.")),
            &|_| {},
            "violation foreign_task",
        );
        let foreign = "Review. And this is of another task.";
        check(
            Some(sent("t-1", None, &[], foreign)),
            &|_| {},
            "violation hash_mismatch",
        );
        let told = || {
            Some(sent(
                "t-1",
                Some(1),
                &[artifact],
                "[Task Context]\nA shop.\n\n[Request]\nReview.",
            ))
        };
        let knows = |tasks: &[&str]| {
            let tasks: Vec<String> = tasks.iter().map(|task| (*task).to_owned()).collect();
            move |call: &mut Call| {
                call.context = Some("A shop.".to_owned());
                call.artifact_tasks = Some(tasks.clone());
            }
        };
        check(told(), &knows(&["t-1"]), "proven");
        check(told(), &knows(&["t-2"]), "violation foreign_task");
        check(told(), &knows(&[]), "unproven retention");
        check(
            told(),
            &|call| call.artifact_tasks = Some(vec!["t-1".to_owned()]),
            "unproven retention",
        );
    }

    #[test]
    fn a_replay_is_answered_by_its_source_turn_or_by_us() {
        let of = |what: &str, name: &str, answer: &str| Call {
            what: what.to_owned(),
            sha256: Some(Hash::of(answer).to_string()),
            ..call(name, "finished", None)
        };
        let all = [
            of(RECORDED, "task_history", "A history."),
            of(RECORDED, "shell", "A list."),
        ];
        for (name, answer, expected) in [
            ("task_history", "A history.", "proven"),
            ("task_history", NOT_RECORDED, "proven"),
            ("no_such_tool", RESULT_MISSING, "proven"),
            ("task_history", "A list.", "violation hash_mismatch"),
            ("task_history", "A history of another task.", "violation hash_mismatch"),
        ] {
            let ruling = answered(&turn(), &of(ANSWERED, name, answer), &all);
            assert_eq!(words(&ruling), expected, "{name} {answer}");
        }
    }
}
