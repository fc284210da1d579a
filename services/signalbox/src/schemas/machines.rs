//! `schemas/machines/*.md`: state tables, printed from the functions that decide.

use delivery::queue::{Admission, TurnFacts, admit};
use domain::{
    Arrival, BranchEvent, BranchState, BreakerEvent, BreakerState, Gate, QuestionKind, QuestionState, QueueMode,
    SessionEvent, SessionPhase, SessionState, TurnState, TurnStep, Verdict,
};
use storage::session::sessions_lock::SessionFacts;

/// Name and text of each file.
pub(super) fn all() -> Vec<(&'static str, String)> {
    vec![
        ("branch", branch()),
        ("breaker", breaker()),
        ("gate", gate()),
        ("question", question()),
        ("session", session() + &events()),
        ("turn", turn()),
    ]
}

/// The states of a woken session, and the decision for each.
fn session() -> String {
    use SessionPhase::{Backoff, Idle, Running, Waiting};
    let nothing = SessionFacts {
        phase: Idle,
        closed: false,
        queued: 0,
        due: false,
        asked: 0,
        stopping: false,
        lease_dead: false,
    };
    let queued = SessionFacts { queued: 1, ..nothing };
    let closed = SessionFacts { closed: true, ..queued };
    let due = |facts: SessionFacts| SessionFacts { due: true, ..facts };
    let asked = SessionFacts { asked: 2, ..nothing };
    let deserted = |facts: SessionFacts| SessionFacts {
        lease_dead: true,
        ..facts
    };
    let missing = Some(TurnFacts {
        state: TurnState::AwaitingTools,
        next: 2,
        awaited_too_long: false,
    });
    let complete = missing.map(|turn| TurnFacts { next: 0, ..turn });
    let too_long = missing.map(|turn| TurnFacts {
        awaited_too_long: true,
        ..turn
    });
    let situations = [
        (Idle, "open, something queued", queued, None),
        (Idle, "open, nothing queued", nothing, None),
        (Idle, "closed", closed, None),
        (Running, "its holder is alive", queued, complete),
        (
            Running,
            "its holder is gone, a turn is in progress",
            deserted(nothing),
            complete,
        ),
        (
            Running,
            "its holder is gone, closed, a turn is in progress",
            deserted(closed),
            complete,
        ),
        (
            Running,
            "its holder is gone, no turn, something queued",
            deserted(queued),
            None,
        ),
        (
            Waiting,
            "a result is missing, its call was asked for and is not due",
            asked,
            missing,
        ),
        (
            Waiting,
            "a result is missing, its call was asked for and is due",
            due(asked),
            missing,
        ),
        (
            Waiting,
            "a result is missing, its call was not asked for",
            nothing,
            missing,
        ),
        (
            Waiting,
            "a result is missing, the turn is to end",
            SessionFacts {
                stopping: true,
                ..asked
            },
            missing,
        ),
        (Waiting, "all results are in", nothing, complete),
        (Waiting, "results were awaited too long", due(nothing), too_long),
        (Backoff, "not due", queued, complete),
        (Backoff, "due, a turn is in progress", due(nothing), complete),
        (Backoff, "parked: not due, no turn, something queued", queued, None),
        (Backoff, "due, no turn, something queued", due(queued), None),
        (Backoff, "due, no turn, closed", due(closed), None),
    ];
    let mut text = String::from(
        "# A session\n\nGenerated from `delivery::queue::admit`. What a session is found in when something wakes it, and what is \
         done.\n\n| phase | found | then |\n|---|---|---|\n",
    );
    for (phase, found, facts, turn) in situations {
        let then = match admit(SessionFacts { phase, ..facts }, turn) {
            Admission::Start => "start a turn with what is queued",
            Admission::Resume => "carry its turn on",
            Admission::Ask => "ask for the next missing result",
            Admission::Leave => "leave it",
        };
        text += &format!("| {phase} | {found} | {then} |\n");
    }
    text
}

/// The next state of a session for each event, open and closed.
fn events() -> String {
    let mut text = String::from(
        "\n## Events\n\nGenerated from `domain::SessionState::on`. A row is the phase, a column what happens to the session, the cell the \
         next phase.\n`—`: not possible; nothing is written, and `signalbox_impossible_steps_total` counts it.\n\n| phase |",
    );
    columns(&mut text, SessionEvent::ALL.iter().map(|event| event.as_str()));
    for closed in [false, true] {
        for &phase in SessionPhase::ALL {
            let name = if closed {
                format!("{phase}, closed")
            } else {
                phase.to_string()
            };
            let cell = |event: &SessionEvent| match (SessionState { phase, closed }).on(*event) {
                Ok(after) if after.closed == closed => after.phase.to_string(),
                Ok(after) => format!("{}, closed", after.phase),
                Err(_) => "—".to_owned(),
            };
            row(&mut text, &name, SessionEvent::ALL.iter().map(cell));
        }
    }
    text.push('\n');
    text
}

fn branch() -> String {
    let mut text = String::from(
        "# A branch\n\nGenerated from `domain::BranchState`. A row is the state, a column what happens to the branch, the cell the next \
         state.\n`—`: it has ended, and stays as it is. The last column: why its session closes, in the same transaction.\n\n\
         `rested`: a turn of it has ended, nothing waits in its queue, and it has no open question, no check-back and no live branch of \
         its own.\n`given_up`: the same, and this turn has failed.\n\n| state |",
    );
    let events = BranchEvent::ALL.iter();
    let names: Vec<&str> = events.map(|event| event.as_str()).chain(["session"]).collect();
    columns(&mut text, names.into_iter());
    for &state in BranchState::ALL {
        let next = |event: &BranchEvent| state.on(*event).map_or("—".to_owned(), |next| next.to_string());
        let session = state.closes().map_or("open".to_owned(), |reason| reason.to_string());
        row(
            &mut text,
            state.as_str(),
            BranchEvent::ALL.iter().map(next).chain([session]),
        );
    }
    text.push('\n');
    text
}

fn breaker() -> String {
    let mut text = String::from(
        "# The breaker of a provider account\n\nGenerated from `domain::BreakerState::on`. A row is the state, a column what happens, the \
         cell the next state.\n`—`: not possible. Outcomes of calls that were sent before it last opened or closed change nothing.\n\n\
         `failed`: at once for `quota`, `unauthorized`, `agent_unauthorized`, and `rate_limited` with a stated wait of 10 s; else with the \
         last of `delivery.breaker_failures`.\n`probed`: its time has come, and a turn tries. `given_back`: the probe ended in a way \
         that says nothing of the provider.\n\n| state |",
    );
    columns(&mut text, BreakerEvent::ALL.iter().map(|event| event.as_str()));
    for &state in BreakerState::ALL {
        let cell = |event: &BreakerEvent| state.on(*event).map_or("—".to_owned(), |next| next.to_string());
        row(&mut text, state.as_str(), BreakerEvent::ALL.iter().map(cell));
    }
    text.push('\n');
    text
}

fn gate() -> String {
    let mut text = String::from(
        "# A gate\n\nGenerated from `domain::Gate`. A session whose gate is set starts no turn. A row is the gate, a column who sends a \
         notification with which queue mode while others wait; the cell: whether the notification opens the gate.\n\
         `alone`: nothing else waits any more. What else opens a gate: docs/runbooks/parked-work.md.\n\n| gate |",
    );
    let arrivals: Vec<(String, Arrival)> = [(false, "other"), (true, "person")]
        .into_iter()
        .flat_map(|(from_person, who)| {
            QueueMode::ALL.iter().map(move |&mode| {
                let arrival = Arrival {
                    mode,
                    from_person,
                    alone: false,
                };
                (format!("{who}, {mode}"), arrival)
            })
        })
        .chain([(
            "other, alone".to_owned(),
            Arrival {
                mode: QueueMode::Followup,
                from_person: false,
                alone: true,
            },
        )])
        .collect();
    columns(&mut text, arrivals.iter().map(|(name, _)| name.as_str()));
    for &gate in Gate::ALL {
        let cell =
            |(_, arrival): &(String, Arrival)| if gate.is_opened_by(*arrival) { "opens" } else { "—" }.to_owned();
        row(&mut text, gate.as_str(), arrivals.iter().map(cell));
    }
    text.push('\n');
    text
}

fn question() -> String {
    let mut text = String::from(
        "# A question\n\nGenerated from `domain::QuestionKind` and `QuestionState`. A question is open until it has ended, once.\n\n| state |",
    );
    columns(&mut text, ["ends"].into_iter());
    for &state in QuestionState::ALL {
        let ends: Vec<&str> = QuestionState::ALL
            .iter()
            .filter(|next| state.is_open() && !next.is_open())
            .map(|next| next.as_str())
            .collect();
        let cell = if ends.is_empty() {
            "—".to_owned()
        } else {
            ends.join(", ")
        };
        row(&mut text, state.as_str(), [cell].into_iter());
    }
    text.push_str("\n\nHow a question of each kind is answered; without verdicts, by options and text.\n\n| kind |");
    columns(&mut text, ["verdicts", "executors decide"].into_iter());
    for &kind in QuestionKind::ALL {
        let verdicts: Vec<&str> = kind
            .verdicts()
            .iter()
            .map(|verdict: &Verdict| verdict.as_str())
            .collect();
        let verdicts = if verdicts.is_empty() {
            "—".to_owned()
        } else {
            verdicts.join(", ")
        };
        let decide = if kind.excludes_executors() {
            "never"
        } else {
            "if they are asked"
        };
        row(&mut text, kind.as_str(), [verdicts, decide.to_owned()].into_iter());
    }
    text.push('\n');
    text
}

fn turn() -> String {
    let mut text = String::from(
        "# A turn\n\nGenerated from `domain::TurnState::after`. A row is the state, a column what happens to the turn, the cell \
         the next state.\n`—`: not possible; a stale worker's write is refused. States in bold are over.\n\n| state |",
    );
    columns(&mut text, TurnStep::ALL.iter().map(|step| step.as_str()));
    for &state in TurnState::ALL {
        let name = if state.is_over() {
            format!("**{state}**")
        } else {
            state.to_string()
        };
        let cell = |step: &TurnStep| state.after(*step).map_or("—".to_owned(), |next| next.to_string());
        row(&mut text, &name, TurnStep::ALL.iter().map(cell));
    }
    text.push('\n');
    text
}

fn columns<'a>(text: &mut String, names: impl ExactSizeIterator<Item = &'a str>) {
    let count = names.len();
    for name in names {
        *text += &format!(" {name} |");
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(count));
}

fn row(text: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    *text += &format!("\n| {name} |");
    for cell in cells {
        *text += &format!(" {cell} |");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_session_s_table_says_what_is_done() {
        let text = super::session();
        assert!(text.contains("\n| idle | open, something queued | start a turn with what is queued |\n"));
        assert!(text.contains("\n| running | its holder is alive | leave it |\n"));
    }

    #[test]
    fn a_breaker_s_table_has_a_row_a_state() {
        let text = super::breaker();
        assert!(text.contains("\n| closed | open | — | closed | — |\n"), "{text}");
        assert!(
            text.contains("\n| probing | open | probing | closed | open |\n"),
            "{text}"
        );
    }

    #[test]
    fn a_branch_s_table_has_a_row_a_state() {
        let text = super::branch();
        assert!(
            text.contains("\n| live | finished | failed | cancelled | expired | open |\n"),
            "{text}"
        );
        assert!(text.contains("\n| finished | — | — | — | — | folded |\n"), "{text}");
    }

    #[test]
    fn a_gate_s_table_has_a_row_a_gate() {
        let text = super::gate();
        assert!(
            text.contains("\n| pause | — | — | — | — | — | — | — | — | — |\n"),
            "{text}"
        );
        assert!(
            text.contains("\n| approval | — | — | — | — | opens | opens | opens | opens | — |\n"),
            "{text}"
        );
    }

    #[test]
    fn a_question_s_table_has_its_verdicts() {
        let text = super::question();
        assert!(
            text.contains("\n| open | answered, withdrawn, lapsed, cancelled |\n"),
            "{text}"
        );
        assert!(text.contains("\n| review | approved, changes | never |\n"), "{text}");
    }

    #[test]
    fn a_turn_s_table_has_a_row_a_state() {
        let text = super::turn();
        assert!(text.contains(
            "\n| calling | calling | calling | awaiting_tools | finished | — | started | failed | aborted | unknown |\n"
        ));
        assert!(text.contains("\n| **finished** | — | — | — | — | — | — | — | — | — |\n"));
    }
}
