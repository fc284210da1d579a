//! `signalbox stop`: stops the turn in progress of a session, and says what happens to the notifications that wait behind it.

use std::process::ExitCode;

use api::sessions::{Session, Stop, StopState, Stopping};
use domain::{StopThen, TurnId};
use serde_json::Value;

use super::{notifications_of, resume};
use crate::{
    cli::{ScopeArgs, StopArgs},
    client::read_as,
    print::show,
    text::one_line,
};

pub(crate) async fn run(args: &StopArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = ["api", "orgs", &args.of.account, "sessions", &args.session];
    // Read first: the stop is for the turn that is in progress now, and no later one.
    let session: Session = client.get(&path, &[]).await?;
    let stop = Stop {
        turn_id: args.turn.or(session.active_turn_id.map(TurnId)),
        then: Some(args.then),
    };
    let answer: Value = client.post(&[&path[..], &["stop"]].concat(), &stop).await?;
    show(json, &answer, |answer| {
        Ok(what_follows(args, read_as(answer)?, session.queued))
    })
}

fn what_follows(args: &StopArgs, answer: Stopping, queued: i32) -> String {
    let session = one_line(&args.session, 64);
    let turn = answer.turn_id.map(|turn| turn.to_string()).unwrap_or_default();
    let waiting = notifications_of(queued);
    match (answer.state, args.then) {
        (StopState::Nothing, _) => format!("session {session} has no turn in progress: nothing was stopped"),
        (StopState::Over, _) => format!("turn {turn} is not in progress: nothing was stopped"),
        (StopState::Stopping, _) if queued == 0 => format!("turn {turn} is stopping; nothing waits behind it"),
        (StopState::Stopping, StopThen::Hold) => {
            let of = ScopeArgs {
                session: Some(args.session.clone()),
                ..ScopeArgs::default()
            };
            let resume = resume::command(&args.of.account, &of);
            let wait = if queued == 1 { "waits" } else { "wait" };
            format!("turn {turn} is stopping; {waiting} {wait} until `{resume}` or a new one from a person")
        }
        (StopState::Stopping, StopThen::Continue) => {
            format!("turn {turn} is stopping; {waiting} will follow in order")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn says_what_was_stopped_and_what_follows() {
        const TURN: &str = "0190b5a8-0000-7000-8000-000000000001";
        let check = |line: &str, state: &str, queued, expected: &str| {
            let line = format!("signalbox stop {TURN} {line}");
            let Command::Stop(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            let turn_id = if state == "nothing" { json!(null) } else { json!(TURN) };
            let answer = read_as(&json!({"state": state, "turn_id": turn_id})).unwrap();
            let expected = expected.replace("TURN", TURN);
            assert_eq!(what_follows(&args, answer, queued), expected, "{line} {state}");
        };
        check(
            "",
            "nothing",
            3,
            "session TURN has no turn in progress: nothing was stopped",
        );
        check("", "over", 3, "turn TURN is not in progress: nothing was stopped");
        check("", "stopping", 0, "turn TURN is stopping; nothing waits behind it");
        check(
            "",
            "stopping",
            1,
            "turn TURN is stopping; 1 notification waits until `signalbox resume TURN` or a new one from a person",
        );
        check(
            "--account acme",
            "stopping",
            3,
            "turn TURN is stopping; 3 notifications wait until `signalbox resume TURN --account acme` or a new one from a person",
        );
        check(
            "--then continue",
            "stopping",
            3,
            "turn TURN is stopping; 3 notifications will follow in order",
        );
    }
}
