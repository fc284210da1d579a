//! `signalbox providers`: which providers take no calls at the moment, why, and when they are tried again; and the request to try one
//! at once.

use std::process::ExitCode;

use api::{
    Items,
    providers::{Probe, Provider, ProviderAccount},
};
use serde_json::Value;

use super::moment;
use crate::{
    cli::{ProvidersArgs, ProvidersCommand},
    client::read_as,
    print::show,
    table::Table,
    text::one_line,
};

pub(crate) async fn run(args: &ProvidersArgs, json: bool) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.account) {
        (Some(ProvidersCommand::Probe { key, access }), _) => {
            let path = ["api", "providers", key, "probe"];
            let account: Value = access.client()?.post(&path, &Probe {}).await?;
            show(json, &account, |account| Ok(what_follows(&read_as(account)?)))
        }
        (None, Some(account)) => {
            let path = ["api", "orgs", account, "providers"];
            let page: Items<Value> = args.access.client()?.get(&path, &[]).await?;
            show(json, &page.items, |providers| of_account(providers))
        }
        (None, None) => {
            let page: Items<Value> = args.access.client()?.get(&["api", "providers"], &[]).await?;
            show(json, &page.items, |accounts| of_all(accounts))
        }
    }
}

fn of_account(providers: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["PROVIDER", "STATE", "CAUSE", "UNTIL", "RESET"]);
    for provider in providers {
        let provider: Provider = read_as(provider)?;
        table.row([
            &provider.name,
            &provider.state,
            provider.class.as_deref().unwrap_or_default(),
            &moment(provider.until),
            &moment(provider.reset_at),
        ]);
    }
    Ok(table.render("the account has no agent, so it uses no provider"))
}

fn of_all(accounts: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&[
        "KEY",
        "STATE",
        "CAUSE",
        "FAILURES",
        "UNTIL",
        "RESET",
        "PARKED",
        "PROVIDERS",
        "DETAIL",
    ]);
    for account in accounts {
        let account: ProviderAccount = read_as(account)?;
        table.row([
            &account.key,
            &account.state,
            account.class.as_deref().unwrap_or_default(),
            &account.failures.to_string(),
            &moment(account.probe_until.or(account.probe_at)),
            &moment(account.reset_at),
            &account.parked.to_string(),
            &account.providers.join(", "),
            account.detail.as_deref().unwrap_or_default(),
        ]);
    }
    Ok(table.render("every provider takes calls"))
}

fn what_follows(account: &ProviderAccount) -> String {
    let key = one_line(&account.key, 64);
    match account.state.as_str() {
        "open" => format!(
            "{key}: the next turn that looks is the probe ({} sessions wait)",
            account.parked
        ),
        "probing" => format!("{key}: a turn is trying it already"),
        _ => format!("{key} takes calls: there is nothing to try"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(state: &str) -> Value {
        json!({"key": "openai-team", "providers": ["gpt", "gpt-mini"], "state": state, "class": "quota", "detail": "HTTP 402\u{1b}[31m",
            "failures": 0, "opens": 2, "reset_at": null, "probe_at": "2026-01-02T03:04:05Z", "probe_until": null,
            "changed_at": "2026-01-02T03:00:00Z", "parked": 12})
    }

    #[test]
    fn shows_what_waits_and_until_when() {
        let shown = of_all(&[account("open")]).unwrap();
        let row = shown.lines().last().unwrap();
        for part in [
            "openai-team",
            "open",
            "quota",
            "2026-01-02 03:04:05",
            "12",
            "gpt, gpt-mini",
            "HTTP 402",
        ] {
            assert!(row.contains(part), "{part}: {row}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
        let provider = json!({"name": "gpt", "state": "closed", "class": null, "until": null, "reset_at": null});
        assert!(
            of_account(&[provider])
                .unwrap()
                .lines()
                .last()
                .unwrap()
                .starts_with("gpt       closed")
        );
        assert_eq!(of_all(&[]).unwrap(), "every provider takes calls\n");
    }

    #[test]
    fn says_what_a_probe_does() {
        let check = |state: &str, expected: &str| {
            assert_eq!(what_follows(&read_as(&account(state)).unwrap()), expected);
        };
        check(
            "open",
            "openai-team: the next turn that looks is the probe (12 sessions wait)",
        );
        check("probing", "openai-team: a turn is trying it already");
        check("closed", "openai-team takes calls: there is nothing to try");
    }
}
