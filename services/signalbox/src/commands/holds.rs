//! `signalbox holds`: what is paused, by whom and why, and the command that resumes it.

use std::process::ExitCode;

use api::holds::Hold;
use domain::HoldScope;
use serde_json::Value;

use super::{moment, resume};
use crate::{
    cli::{ListArgs, ScopeArgs},
    client::read_as,
    print::show,
    table::Table,
    text::one_line,
};

pub(crate) async fn run(args: &ListArgs, json: bool) -> anyhow::Result<ExitCode> {
    let path = ["api", "orgs", &args.of.account, "holds"];
    let client = args.of.access.client()?;
    let holds = client.list(&path, &[("active", "true")], args.limit.into()).await?;
    show(json, &holds, |holds| table(&args.of.account, holds))
}

fn table(account: &str, holds: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["PAUSED", "BY", "SINCE", "UNTIL", "REASON", "ENDS WITH"]);
    for hold in holds {
        let hold: Hold = read_as(hold)?;
        let id = Some(hold.scope.id.clone());
        let scope = match hold.scope.kind.parse() {
            Ok(HoldScope::Session) => ScopeArgs {
                session: id,
                ..ScopeArgs::default()
            },
            Ok(HoldScope::Task) => ScopeArgs {
                task: id,
                ..ScopeArgs::default()
            },
            Ok(HoldScope::Agent) => ScopeArgs {
                agent: id,
                ..ScopeArgs::default()
            },
            Ok(HoldScope::Account) | Err(_) => ScopeArgs {
                all: true,
                ..ScopeArgs::default()
            },
        };
        table.row([
            &one_line(&format!("{} {}", hold.scope.kind, hold.scope.id), 80),
            &one_line(&hold.by.name, 64),
            &moment(Some(hold.created_at)),
            &moment(hold.until),
            &one_line(&hold.reason, 60),
            &resume::command(account, &scope),
        ]);
    }
    Ok(table.render("nothing is paused"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_what_is_paused_and_how_it_ends() {
        let hold = |kind: &str, id: &str, until: Value| {
            json!({"id": "0190b5a8-0000-7000-8000-000000000001", "scope": {"kind": kind, "id": id}, "reason": "lunch\nbreak",
                "by": {"kind": "user", "id": "k", "name": "Ann"}, "running": "finish", "until": until,
                "created_at": "2026-01-02T03:04:05Z", "active": true, "released_at": null, "released_by": null})
        };
        let holds = [
            hold("task", "demo-8", json!(null)),
            hold("account", "acme", json!("2026-01-03T03:04:05Z")),
        ];
        assert_eq!(
            table("acme", &holds).unwrap(),
            "PAUSED        BY   SINCE                UNTIL                REASON       ENDS WITH\n\
             task demo-8   Ann  2026-01-02 03:04:05  -                    lunch break  signalbox resume --task demo-8 --account acme\n\
             account acme  Ann  2026-01-02 03:04:05  2026-01-03 03:04:05  lunch break  signalbox resume --all --account acme\n"
        );
    }
}
