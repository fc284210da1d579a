//! `signalbox doctor`: reads the state of an installation and changes nothing. [`postgres`], [`nats`], [`providers`], [`email`], [`ports`],
//! [`work`] and [`collector`] each read one part and judge it in a pure function; the result is a [`Finding`]. A problem names the
//! runbook page of its [`Check`].

mod check;
mod collector;
mod email;
mod finding;
mod nats;
mod ports;
mod postgres;
mod providers;
mod work;

use std::{path::Path, process::ExitCode};

use runtime::{Settings, SettingsError};

use crate::{
    cli::DoctorArgs,
    endpoints::Endpoints,
    print::{code, show},
};
use check::Check;
use finding::Finding;

pub(crate) async fn run(args: &DoctorArgs, json: bool) -> anyhow::Result<ExitCode> {
    let findings = match Settings::load() {
        Ok(settings) => examine(settings, &args.data_dir).await?,
        // Without settings there are no addresses to check.
        Err(error) => vec![Finding::problem(
            Check::Settings,
            error.to_string(),
            "correct this setting, then run the doctor again",
        )],
    };
    show(json, &findings, |findings| Ok(finding::render(findings)))?;
    let is_well = findings.iter().all(|finding| !finding.is_problem());
    Ok(code(is_well))
}

async fn examine(mut settings: Settings, data_dir: &Path) -> anyhow::Result<Vec<Finding>> {
    let readable = "signalbox.toml and the environment can be read";
    let mut findings = vec![Finding::ok(Check::Settings, readable)];
    let up = running_up(&mut settings, data_dir)?;
    findings.extend(up.as_ref().map(|up| {
        let message = format!("checking `signalbox up` in {}, {}", data_dir.display(), up.http_url);
        Finding::ok(Check::Up, message)
    }));
    let (postgres, nats, providers, email, ports, work, collector) = tokio::join!(
        // Boxed: these futures are large.
        Box::pin(postgres::examine(&settings)),
        Box::pin(nats::examine(&settings)),
        providers::examine(&settings, up.is_some()),
        email::examine(&settings),
        ports::examine(&settings, up.as_ref()),
        Box::pin(work::examine(&settings)),
        collector::examine(&settings),
    );
    findings.extend(
        [postgres, nats, providers, email, ports, work, collector]
            .into_iter()
            .flatten(),
    );
    Ok(findings)
}

/// If the settings name no servers, the servers of the `up` with this data directory are checked.
fn running_up(settings: &mut Settings, data_dir: &Path) -> anyhow::Result<Option<Endpoints>> {
    if settings.is_set("database.url") || settings.is_set("nats.url") {
        return Ok(None);
    }
    let Some(endpoints) = Endpoints::read(data_dir)? else {
        return Ok(None);
    };
    let mut set = |setting, url: &str| -> Result<(), SettingsError> { settings.set(setting, url, "endpoints.json") };
    set("database.url", &endpoints.database_url)?;
    set(
        "nats.url",
        endpoints.nats_operator_url.as_ref().unwrap_or(&endpoints.nats_url),
    )?;
    Ok(Some(endpoints))
}
