//! `docs/queue-modes.md`: what the queue modes, edits and brakes mean, generated from the cases, so that no sentence there is untested.

use std::fmt::Write;

use crate::{
    case::{Chapter, Expect, SESSION, Step},
    protocol::{EditOp, Gate, Running, StopState, Then, Victim},
};

const HEAD: &str = "\
# Queue modes, edits and brakes by example

Generated from `conformance/cases/` by `queue-conformance --doc docs/queue-modes.md`. Each section is a case that
[queue-conformance](../conformance/README.md) runs against a service.

`ann` and `bob` are persons, `ci` is a service. Items are a, b, c …; b/2 is the second text of b. A call is a request of the
service to the model: \"called with b, c\" means that the model gets exactly these new items, in this order, in one call.
";

pub fn document(chapters: &[Chapter]) -> String {
    let mut text = HEAD.to_owned();
    for Chapter { title, about, cases } in chapters {
        let _ = writeln!(text, "\n## {title}\n{}", about.trim());
        for case in cases {
            let title = case.name.replace("_s_", "'s ").replace('_', " ");
            let _ = writeln!(
                text,
                "\n### {}{}\n{}\n",
                title[..1].to_uppercase(),
                &title[1..],
                case.about.trim()
            );
            let _ = writeln!(text, "> {}", sentence(&case.steps));
        }
    }
    text
}

/// The steps as one paragraph.
fn sentence(steps: &[Step]) -> String {
    let step = |step: &Step| {
        let mut text = step_text(step);
        if let Step::Edit(step) = step {
            for (answer, steps) in [("accepted", &step.ok), ("refused", &step.conflict)] {
                if !steps.is_empty() {
                    text += &format!(" (if {answer}: {})", sentence(steps));
                }
            }
        }
        text
    };
    steps.iter().map(step).collect::<Vec<_>>().join(" → ")
}

/// A step in words; also in messages about failures.
pub fn step_text(step: &Step) -> String {
    let text = match step {
        Step::Send(step) => {
            let kind = step
                .r#type
                .as_ref()
                .map_or(String::new(), |kind| format!(", type {kind}"));
            let sent = format!("{} sends {} ({}{kind})", step.by, step.send, step.mode);
            with_answer(sent, step.expect, step.code.as_deref())
        }
        Step::Fill(step) => format!(
            "{} sends items until the queue is full, which is refused with queue_full",
            step.by
        ),
        Step::Edit(step) => {
            let verb = match step.op {
                EditOp::Replace => "replaces the text of",
                EditOp::Withdraw => "withdraws",
                EditOp::Promote => "promotes",
                EditOp::Steer => "turns into a steer:",
                EditOp::Inject => "turns into an inject:",
            };
            let turn = step
                .turn
                .as_ref()
                .map_or(String::new(), |kept| format!(", for the turn of {kept}"));
            let done = format!(
                "{} {verb} {}{turn}{}",
                step.by,
                step.edit,
                by_revision(step.revision.as_ref())
            );
            with_answer(done, step.expect, step.code.as_deref())
        }
        Step::Order(step) => {
            let done = format!(
                "{} orders {}{}",
                step.by,
                list(&step.order),
                by_revision(step.revision.as_ref())
            );
            with_answer(done, step.expect, step.code.as_deref())
        }
        Step::Stop(step) => {
            let then = match step.stop {
                Then::Hold => "what waits is held",
                Then::Continue => "what waits goes on",
            };
            let turn = step
                .turn
                .as_ref()
                .map_or(String::new(), |kept| format!(", for the turn of {kept}"));
            match step.state {
                StopState::Stopping => format!("{} stops the turn; {then}{turn}", step.by),
                StopState::Nothing => format!("{} asks for a stop: no turn is in progress", step.by),
                StopState::Over => format!("{} asks for a stop{turn}: that turn is not in progress", step.by),
            }
        }
        Step::Hold(step) => match step.hold {
            Running::Finish => format!("{} pauses the session; the turn in progress may finish", step.by),
            Running::Stop => format!("{} pauses the session and stops its turn", step.by),
        },
        Step::Resume(step) => match step.resume {
            Gate::Stopped => format!("{} resumes the stopped session", step.by),
            Gate::Pause => format!("{} ends the pause", step.by),
        },
        Step::Queue(step) => {
            let mut text = format!("the queue has {}", list(&step.queue));
            if let Some(running) = &step.running {
                text += &format!("; the turn has {}", list(running));
            }
            if let Some(gate) = &step.gate {
                text += &format!("; the gate is {gate}");
            }
            if let Some(keep) = &step.keep {
                text += &format!(" (kept as {keep})");
            }
            text
        }
        Step::Outcome(step) => {
            let reason = step
                .reason
                .as_ref()
                .map_or(String::new(), |reason| format!(", \"{reason}\""));
            format!("{} is {}{reason}", step.outcome, step.is)
        }
        Step::Crash(step) => match step.crash {
            Victim::Service => "the service is killed and starts again".to_owned(),
            Victim::Replica => "the replica that has the turn is killed".to_owned(),
        },
        Step::Call(step) if step.call.is_empty() => "called with tool results only".to_owned(),
        Step::Call(step) => format!("called with {}", list(&step.call)),
        Step::Reply(_) => "reply".to_owned(),
        Step::Tool(_) => "the reply asks for a tool".to_owned(),
        Step::Fail(step) => format!("the call fails with status {}", step.fail),
        Step::Hang(_) => "the reply begins and does not go on".to_owned(),
        Step::Closed(_) => "the service closes the call".to_owned(),
        Step::Quiet(step) => format!("no call for {} ms", step.quiet),
    };
    match step.session() {
        SESSION => text,
        other => format!("in session {other}: {text}"),
    }
}

fn list(items: &[String]) -> String {
    match items {
        [] => "nothing".to_owned(),
        items => items.join(", "),
    }
}

fn by_revision(kept: Option<&String>) -> String {
    kept.map_or(String::new(), |kept| format!(", by the revision of {kept}"))
}

fn with_answer(text: String, expect: Expect, code: Option<&str>) -> String {
    let code = code.map_or(String::new(), |code| format!(" with {code}"));
    match expect {
        Expect::Ok => text,
        Expect::Refused | Expect::Conflict | Expect::No => format!("{text}: refused{code}"),
        Expect::Either => format!("{text}: accepted or refused{code}"),
    }
}
