//! `signalbox reset`: ends a session's generation, and says what follows.

use std::process::ExitCode;

use anyhow::Context;
use api::sessions::{Reset, ResetReason, ResetState, Resetting, Session};
use domain::{ResetInFlight, ResetQueue};
use serde_json::Value;

use super::notifications_of;
use crate::{cli::ResetArgs, client::read_as, print::show, text::one_line};

pub(crate) async fn run(args: &ResetArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = ["api", "orgs", &args.of.account, "sessions", &args.session];
    let reset = Reset {
        reason: ResetReason::parse(&args.reason)
            .map_err(anyhow::Error::msg)
            .context("--reason")?,
        queue: Some(args.queue),
        in_flight: Some(args.in_flight),
    };
    let session: Session = client.get(&path, &[]).await?;
    let answer: Value = client.post(&[&path[..], &["reset"]].concat(), &reset).await?;
    show(json, &answer, |answer| {
        Ok(what_follows(args, read_as(answer)?, session.queued))
    })
}

fn what_follows(args: &ResetArgs, answer: Resetting, queued: i32) -> String {
    let id = one_line(&args.session, 64);
    let turn = answer.turn.map(|turn| turn.to_string()).unwrap_or_default();
    let next = answer.session.map(|session| session.to_string()).unwrap_or_default();
    let waiting = notifications_of(queued);
    let queue = match (queued, args.queue) {
        (0, _) => "nothing waits".to_owned(),
        (_, ResetQueue::Keep) => format!("{waiting} moved with it"),
        (_, ResetQueue::Cancel) => format!("{waiting} cancelled"),
    };
    let in_flight = match args.in_flight {
        ResetInFlight::Cancel => "its notifications are cancelled",
        ResetInFlight::Requeue => "its notifications go to the next generation",
    };
    match answer.state {
        ResetState::Reset => format!("session {id} is reset: the next generation is {next}; {queue}"),
        ResetState::Stopping => {
            format!("turn {turn} is stopping, {in_flight}; session {id} is reset when it has ended")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn says_what_follows() {
        let check = |line: &str, answer: Value, queued, expected: &str| {
            let line = format!("signalbox reset {ID} --reason stuck {line}");
            let Command::Reset(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            let answer = read_as(&answer).unwrap();
            assert_eq!(
                what_follows(&args, answer, queued),
                expected.replace("ID", ID),
                "{line}"
            );
        };
        let reset = || json!({"state": "reset", "session": ID});
        check(
            "",
            reset(),
            0,
            "session ID is reset: the next generation is ID; nothing waits",
        );
        check(
            "",
            reset(),
            2,
            "session ID is reset: the next generation is ID; 2 notifications moved with it",
        );
        check(
            "--queue cancel",
            reset(),
            1,
            "session ID is reset: the next generation is ID; 1 notification cancelled",
        );
        let stopping = || json!({"state": "stopping", "turn": ID});
        check(
            "",
            stopping(),
            2,
            "turn ID is stopping, its notifications are cancelled; session ID is reset when it has ended",
        );
        check(
            "--in-flight requeue",
            stopping(),
            0,
            "turn ID is stopping, its notifications go to the next generation; session ID is reset when it has ended",
        );
    }

    #[test]
    fn a_reset_has_a_reason() {
        assert!(Cli::try_parse_from(["signalbox", "reset", ID]).is_err());
        assert!(Cli::try_parse_from(["signalbox", "reset", ID, "--reason", "x", "--queue", "drop"]).is_err());
    }
}
