//! `signalbox replay`: runs a turn again without effects; `--wait` shows its outcome and what differs from the source turn, as
//! [`super::replays`] does later.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::bail;
use api::{
    log::indent,
    replays::{NewReplay, Replay},
};
use domain::{
    ReplayId, ReplayProfile, ReplaySpec, ReplayState,
    replay::{INSTRUCTIONS_BYTES_MAX, ROLE_BYTES_MAX},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{context, diff};
use crate::{
    cli::ReplayArgs,
    client::{ApiError, Client, read_as},
    print::{code, print, print_json, show},
    table::Table,
    text::one_line,
};

/// Interval of polling the API: a turn takes a model's time.
const ASK_EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn run(args: &ReplayArgs, json: bool) -> anyhow::Result<ExitCode> {
    let (client, account) = (args.of.access.client()?, args.of.account.as_str());
    let turn = args.turn.to_string();
    let path = ["api", "orgs", account, "turns", &turn, "replays"];
    let new: NewReplay = client.post(&path, &spec(args)?).await?;
    if !args.wait {
        return show(json, &json!({"id": new.id}), |_| {
            Ok(format!("{}\n{}", new.id, how_to_find(new.id)))
        });
    }
    let outcome = outcome(&client, account, new.id, Duration::from_secs(args.timeout)).await?;
    let replay: Replay = read_as(&outcome)?;
    let differs = differs(&client, account, &replay).await?;
    match json {
        true => print_json(&json!({"replay": outcome, "diff": differs}))?,
        false => {
            let differs = differs.as_ref().map(read_as).transpose()?;
            print(&shown(&replay, differs.as_ref().map(diff::shown)))?;
        }
    }
    Ok(code(replay.state == ReplayState::Finished))
}

/// What differs between the source turn and the replay's own.
pub(super) async fn differs(client: &Client, account: &str, replay: &Replay) -> anyhow::Result<Option<Value>> {
    let Some(own) = replay.turn else {
        return Ok(None);
    };
    let turns = (replay.source_turn.to_string(), own.to_string());
    diff::of(client, account, (&turns.0, &turns.1), true).await.map(Some)
}

fn how_to_find(id: ReplayId) -> String {
    format!("`signalbox replays show {id}` shows how far it is, and its outcome")
}

fn spec(args: &ReplayArgs) -> anyhow::Result<ReplaySpec> {
    let profile = ReplayProfile {
        version: args.profile_version.clone(),
        role: args
            .role
            .as_deref()
            .map(|file| context::text(file, ROLE_BYTES_MAX))
            .transpose()?,
        instructions: (args.instructions.as_deref())
            .map(|file| context::text(file, INSTRUCTIONS_BYTES_MAX))
            .transpose()?,
    };
    Ok(ReplaySpec {
        provider: args.provider.clone(),
        profile: (profile != ReplayProfile::default()).then_some(profile),
    })
}

/// The replay when it is over.
async fn outcome(client: &Client, account: &str, id: ReplayId, limit: Duration) -> anyhow::Result<Value> {
    let deadline = Instant::now() + limit;
    loop {
        let found: Result<Value, ApiError> = client
            .get(&["api", "orgs", account, "replays", &id.to_string()], &[])
            .await;
        match found {
            Ok(found) if is_over(read_as::<Replay>(&found)?.state) => return Ok(found),
            Ok(_) => {}
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() + ASK_EVERY > deadline {
            bail!(
                "replay {id} had no outcome within {} s; it goes on: {}",
                limit.as_secs(),
                how_to_find(id)
            );
        }
        sleep(ASK_EVERY).await;
    }
}

pub(super) fn is_over(state: ReplayState) -> bool {
    match state {
        ReplayState::Queued | ReplayState::Running => false,
        ReplayState::Finished | ReplayState::Failed => true,
    }
}

const NAME_CHARS_MAX: usize = 64;
const WRITES: &str = "writing to a String cannot fail";

/// `differs`: the difference of the two turns.
pub(super) fn shown(replay: &Replay, differs: Option<String>) -> String {
    let history = replay.history.map_or("-", |history| history.as_str());
    let mut text = format!("replay {} {}, history {history}\n", replay.id, replay.state);
    if !replay.calls.is_empty() {
        let mut table = Table::new(&["CALL", "MATCHED"]);
        for call in &replay.calls {
            table.row([&*one_line(&call.name, NAME_CHARS_MAX), call.matched.as_str()]);
        }
        text.push_str(&table.render(""));
    }
    if let Some(unused @ 1..) = replay.unused_calls {
        writeln!(text, "{unused} recorded calls were not made").expect(WRITES);
    }
    if let Some(error) = &replay.error {
        writeln!(text, "error: {}", one_line(error, 500)).expect(WRITES);
    }
    if let Some(reply) = &replay.reply {
        text.push('\n');
        indent(&mut text, reply.trim_end());
    }
    if let Some(differs) = differs {
        write!(text, "\n{differs}").expect(WRITES);
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn says_what_is_changed() {
        let check = |line: &str, expected: Value| {
            let line = format!("signalbox replay {ID} {line}");
            let Command::Replay(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            assert_eq!(serde_json::to_value(spec(&args).unwrap()).unwrap(), expected, "{line}");
        };
        check("", json!({}));
        check("--provider other --wait", json!({"provider": "other"}));
        check("--profile-version 4", json!({"profile": {"version": "4"}}));
        let line = format!("signalbox replay {ID} --role /nonexistent");
        let Command::Replay(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
            panic!("{line}");
        };
        assert!(spec(&args).is_err());
    }

    #[test]
    fn shows_calls_reply_and_difference() {
        let replay = json!({"id": ID, "state": "finished", "source_turn": ID, "session": ID, "turn": ID, "spec": {}, "history": "reassembled",
            "calls": [{"name": "task_history", "matched": "exact"}, {"name": "task_message", "matched": "none"}], "unused_calls": 2,
            "reply": "All \u{1b}[2Jgood.\nCALL          MATCHED\rtask_message  exact\n", "usage": null, "error": null,
            "created_by": {"kind": "user", "id": "u-1", "name": "Ann"}, "created_at": "2026-01-02T03:04:05Z"});
        let text = shown(&read_as(&replay).unwrap(), Some("LAYER\n".to_owned()));
        let expected = format!(
            "replay {ID} finished, history reassembled\nCALL          MATCHED\ntask_history  exact\ntask_message  none\n\
             2 recorded calls were not made\n\n     All \\u{{1b}}[2Jgood.\n     CALL          MATCHED\\u{{d}}task_message  exact\n\nLAYER\n"
        );
        assert_eq!(text, expected);
    }
}
