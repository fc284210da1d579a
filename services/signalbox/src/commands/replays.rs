//! `signalbox replays`: the replays of a turn, and one of them with its outcome. [`super::replay`] begins them.

use std::process::ExitCode;

use api::replays::Replay;
use serde_json::Value;

use super::{diff, moment, replay};
use crate::{
    cli::{ReplayShowArgs, ReplaysArgs, ReplaysCommand, ReplaysFilter},
    client::read_as,
    print::show,
    table::Table,
};

pub(crate) async fn run(args: &ReplaysArgs, json: bool) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => list(&args.filter, json).await,
        Some(ReplaysCommand::List(filter)) => list(filter, json).await,
        Some(ReplaysCommand::Show(args)) => read(args, json).await,
    }
}

async fn list(filter: &ReplaysFilter, json: bool) -> anyhow::Result<ExitCode> {
    let list = &filter.list;
    let turn = filter.turn.map(|turn| turn.to_string()).unwrap_or_default();
    let path = ["api", "orgs", &list.of.account, "turns", &turn, "replays"];
    let replays = list.of.access.client()?.list(&path, &[], list.limit.into()).await?;
    show(json, &replays, |replays| table(replays))
}

async fn read(args: &ReplayShowArgs, json: bool) -> anyhow::Result<ExitCode> {
    let (client, account) = (args.of.access.client()?, args.of.account.as_str());
    let path = ["api", "orgs", account, "replays", &args.id.to_string()];
    let found: Value = client.get(&path, &[]).await?;
    let replay: Replay = read_as(&found)?;
    let differs = match !json && replay::is_over(replay.state) {
        true => replay::differs(&client, account, &replay).await?,
        false => None,
    };
    show(json, &found, |_| {
        let differs = differs.as_ref().map(read_as).transpose()?;
        Ok(replay::shown(&replay, differs.as_ref().map(diff::shown)))
    })
}

fn table(replays: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["REPLAY", "STATE", "TURN", "BY", "CREATED", "CHANGES"]);
    for replay in replays {
        let replay: Replay = read_as(replay)?;
        table.row([
            &replay.id.to_string(),
            replay.state.as_str(),
            &replay.turn.map(|turn| turn.to_string()).unwrap_or_default(),
            &replay.created_by.name,
            &moment(Some(replay.created_at)),
            &changes(&replay),
        ]);
    }
    Ok(table.render("no replays"))
}

/// What the replay changes, by the options of `signalbox replay`. A text is not repeated.
fn changes(replay: &Replay) -> String {
    let provider = replay.spec.provider.as_ref();
    let provider = provider.map(|name| format!("provider {name}"));
    let profile = replay.spec.profile.clone().unwrap_or_default();
    let version = profile.version.map(|version| format!("profile version {version}"));
    let role = profile.role.map(|_| "role".to_owned());
    let instructions = profile.instructions.map(|_| "instructions".to_owned());
    let changes = [provider, version, role, instructions].into_iter().flatten();
    changes.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn lists_replays_with_what_each_changes() {
        let replay = |state: &str, turn: Value, spec: Value| {
            json!({"id": ID, "state": state, "source_turn": ID, "session": ID, "turn": turn, "spec": spec,
                "history": null, "calls": [], "unused_calls": null, "reply": null, "usage": null, "error": null,
                "created_by": {"kind": "user", "id": "u-1", "name": "Ann"}, "created_at": "2026-01-02T03:04:05Z",
                "a_field": "of a newer server"})
        };
        let other = json!({"provider": "other", "profile": {"version": "4", "role": "You review."}});
        let listed = table(&[
            replay("queued", json!(null), json!({})),
            replay("finished", json!(ID), other),
            replay("failed", json!(ID), json!({"profile": {"instructions": "Be kind."}})),
        ]);
        let blank = "-".to_owned() + &" ".repeat(ID.len() - 1);
        assert_eq!(
            listed.unwrap(),
            format!(
                "REPLAY                                STATE     TURN                                  BY   CREATED            \
                 \x20 CHANGES\n\
                 {ID}  queued    {blank}  Ann  2026-01-02 03:04:05  -\n\
                 {ID}  finished  {ID}  Ann  2026-01-02 03:04:05  provider other, profile version 4, role\n\
                 {ID}  failed    {ID}  Ann  2026-01-02 03:04:05  instructions\n"
            )
        );
        assert_eq!(table(&[]).unwrap(), "no replays\n");
    }

    #[test]
    fn a_list_is_of_a_turn() {
        let check = |line: &str, good: bool| {
            let line = format!("signalbox replays {line}").replace("ID", ID);
            assert_eq!(Cli::try_parse_from(line.split_whitespace()).is_ok(), good, "{line}");
        };
        check("", false);
        check("DEMO-1", false);
        check("ID --account acme --limit 3", true);
        check("list ID", true);
        check("list", false);
        check("show ID", true);
        check("show", false);
        check("show R", false);
    }
}
