//! `signalbox provider check`: reports what the server of a provider's entry supports, and the settings that fit it. The calls go
//! out from this machine, with the entry as delivery would read it. Writes nothing.

use std::{collections::BTreeMap, process::ExitCode};

use delivery::{
    provider_check::{self, CALLS_MAX, Report, Seen},
    providers::{ProviderSettings, Server},
};
use runtime::{Settings, SettingsError};
use serde_json::json;

use crate::{
    cli::ProviderCheckArgs,
    print::{code, print, print_json},
    text::one_line,
};

const DETAIL_CHARS_MAX: usize = 500;

pub(crate) async fn check(args: &ProviderCheckArgs, json: bool) -> anyhow::Result<ExitCode> {
    let provider = entry(&Settings::load()?, &args.name)?;
    if !json {
        print(&announcement(&args.name, &provider))?;
    }
    let report = provider_check::check(&provider)
        .await
        .map_err(|error| invalid(&args.name, error.to_string()))?;
    if json {
        let Report {
            fits,
            findings,
            settings,
        } = &report;
        print_json(&json!({"provider": args.name, "fits": fits, "findings": findings, "settings": settings}))?;
    } else {
        print(&rendered(&args.name, &report))?;
    }
    Ok(code(report.fits))
}

fn entry(settings: &Settings, name: &str) -> Result<ProviderSettings, SettingsError> {
    let mut providers: BTreeMap<String, ProviderSettings> = settings.section("providers")?;
    let names = providers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    providers.remove(name).ok_or_else(|| {
        let known = if names.is_empty() { "none is set" } else { &names };
        invalid(name, format!("there is no such provider; known are: {known}"))
    })
}

fn invalid(name: &str, problem: String) -> SettingsError {
    SettingsError::Invalid {
        setting: format!("providers.{name}"),
        origin: "signalbox provider check".to_owned(),
        problem,
    }
}

/// Printed before any call is sent, since calls cost money. The query of a URL may hold a credential.
fn announcement(name: &str, provider: &ProviderSettings) -> String {
    let mut url = provider.url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let (kind, server) = (provider.kind.as_str(), provider.server.as_str());
    let model = one_line(&provider.model, DETAIL_CHARS_MAX);
    format!(
        "Provider {name}: kind {kind}, server {server}, model {model}, at {url}\n\
         At most {CALLS_MAX} short calls go to the model. Nothing is written, and no data of yours is sent.\n\
         A call that is not answered ends after {} s (first_byte_timeout_ms).\n",
        provider.limits.first_byte_timeout.as_secs_f64()
    )
}

fn rendered(name: &str, report: &Report) -> String {
    let width = report
        .findings
        .iter()
        .map(|finding| finding.what.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let seen = match finding.seen {
            Seen::Yes => "yes",
            Seen::No => "no",
            Seen::NotSeen => "not seen",
        };
        let detail = one_line(&finding.detail, DETAIL_CHARS_MAX);
        let line = format!("{seen:<8}  {:<width$}  {detail}", finding.what);
        text += &format!("{}\n", line.trim_end());
    }
    if report.settings.is_empty() {
        return text
            + "\nNo turn with a tool call went well, so there are no settings to recommend. Correct what the first `no` names \
               (url, model, api_key, or the server itself), and check again.\n";
    }
    let lead = match report.fits {
        true => "The settings fit:",
        false => "The settings do not fit. These do:",
    };
    let lines = report.settings.join("\n");
    let mut text = format!("{text}\n{lead}\n\n[providers.{name}]\n{lines}\n");
    if !report.fits {
        text += "\nLeave out thread and thread_by where these lines do not have them.\n";
    }
    let openai = format!("server = \"{}\"", Server::OpenAi.as_str());
    if !report.fits && report.settings.contains(&openai) {
        text += "\nWhere vLLM, Ollama or LM Studio answers, write `vllm`, `ollama` or `lmstudio`: the calls are the same.\n";
    }
    text
}
