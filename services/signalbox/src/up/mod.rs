//! `signalbox up`: the whole system in one process, with its servers, and a table of what happens.
//!
//! In order of the start: the [`sample`] is read and the [`ports`] are checked, so that a mistake is reported before anything runs;
//! then the [`stack`] (servers), the [`services`], the [`demo`] account (over the API with the operator's token), and
//! `endpoints.json`. [`secrets`] creates the secrets in the data directory. Then [`follow`] publishes the sample and shows its
//! outcomes ([`progress`], [`hints`], [`look`], [`row`], [`show`]). It stops in reverse order and leaves no process behind.

mod demo;
mod follow;
mod hints;
mod look;
mod progress;
mod row;
mod sample;
pub(crate) mod sample_run;
mod secrets;
mod services;
mod show;
mod stack;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use devstack::data_dir_open;
use messaging::{Bus, User};
use orchestrator::{OrchestratorSettings, settings::PublicUrl};
use runtime::{
    Settings, SettingsError, Shutdown, StartError, context, http::local_url, shutdown::wait_for_signal, telemetry,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use self::{
    follow::{Ended, FollowOptions, follow},
    services::Services,
    show::Show,
    stack::Stack,
};
use crate::{cli::UpArgs, client::Client, commands::migrate, endpoints::Endpoints, ports};

const BY: &str = "signalbox up";
const LOG: &str = "signalbox.log";
/// A larger log is renamed at the next start and replaces the previous old log.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Time without progress after which the sample fails: the demo agent answers at once, a model takes longer.
const STUCK_AFTER: Duration = Duration::from_secs(60);
const STUCK_AFTER_WITH_MODEL: Duration = Duration::from_secs(15 * 60);

pub(crate) async fn run(args: &UpArgs, json: bool) -> anyhow::Result<ExitCode> {
    let lines = match &args.sample {
        Some(path) => sample::read(path)?,
        None => Vec::new(),
    };
    let mut settings = Settings::load()?;
    for (setting, url) in [("nats.url", &args.nats_url), ("database.url", &args.database_url)] {
        if let Some(url) = url {
            settings.set(setting, url, BY)?;
        }
    }
    ports::choose(&mut settings, args.http)?;
    let data_dir = data_dir_open(&args.data_dir)?;
    let mut stack = tokio::select! {
        stack = Stack::start(&data_dir, &mut settings) => stack?,
        // The servers that were started are stopped.
        _ = wait_for_signal() => return Ok(ExitCode::SUCCESS),
    };
    let prepared = prepare(&data_dir, &mut settings, &args.data_dir);
    let prepared = prepared.and_then(|log| Ok((log, parties(&stack, &settings)?)));
    let ended = match prepared {
        Ok((log, parties)) => {
            let up = Up {
                args,
                json,
                data_dir,
                settings: Arc::new(settings),
                parties,
                own: stack.own,
                agent_url: stack.agent_url(),
                shutdown: Shutdown::new(),
            };
            let ended = Box::pin(up.live(lines, &mut stack)).await;
            log.flush().await;
            ended
        }
        Err(error) => Err(error),
    };
    let stopped = stack.stop().await;
    let code = ended?;
    stopped.context("shutdown failed")?;
    Ok(code)
}

/// Prepares secrets and log; the caller holds the data directory's lock.
fn prepare(data_dir: &Path, settings: &mut Settings, shown: &Path) -> anyhow::Result<telemetry::TelemetryGuard> {
    Endpoints::remove(data_dir)?;
    if !settings.is_set("orchestrator.operator_token") {
        settings.set("orchestrator.operator_token", &secrets::operator_token(data_dir)?, BY)?;
    }
    if !settings.is_set("envelope.keys") {
        settings.set("envelope.keys.up", &secrets::envelope_key(data_dir)?, BY)?;
    }
    if !settings.is_set("telemetry.log_file") {
        let log = shown.join(LOG);
        if fs::metadata(&log).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
            fs::rename(&log, log.with_extension("log.old")).context("cannot move the old log aside")?;
        }
        settings.set("telemetry.log_file", &log.to_string_lossy(), BY)?;
    }
    Ok(telemetry::init("signalbox", &settings.telemetry).map_err(StartError::from)?)
}

/// Settings for each NATS user.
type Parties = HashMap<User, Arc<Settings>>;

fn parties(stack: &Stack, settings: &Settings) -> Result<Parties, SettingsError> {
    let parties = User::ALL.map(|user| Ok((user, Arc::new(stack.settings_of(user, settings)?))));
    parties.into_iter().collect()
}

struct Up<'a> {
    args: &'a UpArgs,
    json: bool,
    data_dir: PathBuf,
    settings: Arc<Settings>,
    parties: Parties,
    own: stack::Own,
    agent_url: Option<String>,
    shutdown: Shutdown,
}

impl Up<'_> {
    /// Runs from the first service's start to the last one's end: until the sample is done, a signal arrives, or something fails.
    async fn live(&self, lines: Vec<sample::SampleLine>, stack: &mut Stack) -> anyhow::Result<ExitCode> {
        let mut show = Show::start(self.json)?;
        // Cancel-safe: dropping the future loses nothing, and the shutdown ends the services.
        let ended = tokio::select! {
            ended = self.serve(lines, &mut show) => ended.map(Some),
            () = runtime::run::until_stopped(&self.shutdown) => Ok(None),
            error = stack.ended() => Err(error),
        };
        runtime::run::stop(&self.shutdown, &self.settings).await;
        show.finish();
        if let Some(failure) = self.shutdown.failure() {
            bail!("{failure}; the log is {}", self.args.data_dir.join(LOG).display());
        }
        match ended? {
            // A signal is the normal end of `up`, unless `--exit-when-idle` was given.
            None if !self.args.exit_when_idle => Ok(ExitCode::SUCCESS),
            ended => follow::verdict(ended, self.stuck_after()),
        }
    }

    async fn serve(&self, lines: Vec<sample::SampleLine>, show: &mut Show) -> anyhow::Result<Ended> {
        let settings = &self.settings;
        migrate::database(settings)
            .await
            .context("the database could not be migrated")?;
        let operator = migrate::streams(&self.parties[&User::Operator])
            .await
            .context("the streams could not be brought up to date")?;
        let (topology, stop) = (migrate::topology(settings), self.shutdown.token());
        self.shutdown
            .spawn("streams", async move { topology.keep(&operator, stop).await });
        let settings_of = |role| Arc::clone(&self.parties[&context::user(role)]);
        let services = Services::start(settings_of, &self.shutdown).await?;
        let token = self.operator_token()?;
        let client = Client::new(&local_url(services.orchestrator), token.clone())?;
        demo::ensure(&client).await?;
        let nats_url =
            |user| -> anyhow::Result<String> { Ok(self.parties[&user].nats.url()?.expose_secret().to_owned()) };
        let endpoints = Endpoints {
            http_url: local_url(services.orchestrator),
            tool_gateway_url: local_url(services.tool_gateway),
            nats_url: nats_url(User::Publisher)?,
            nats_operator_url: Some(nats_url(User::Operator)?),
            database_url: settings.database.url()?.expose_secret().to_owned(),
            operator_token: Some(token.expose_secret().to_owned()),
            resolver_url: Some(local_url(services.resolver)),
            delivery_url: Some(local_url(services.delivery)),
        };
        endpoints.write(&self.data_dir)?;
        self.greet(&endpoints, show)?;
        // Publishes as any other program.
        let bus = Bus::connect(context::bus_options("up", &self.parties[&User::Publisher].nats)?).await?;
        let wanted = FollowOptions {
            lines,
            exit_when_idle: self.args.exit_when_idle,
            stuck_after: self.stuck_after(),
        };
        Box::pin(follow(wanted, &client, &bus, show)).await
    }

    fn operator_token(&self) -> anyhow::Result<SecretString> {
        self.orchestrator()?
            .operator_token
            .ok_or_else(|| anyhow!("orchestrator.operator_token is empty"))
    }

    fn orchestrator(&self) -> Result<OrchestratorSettings, SettingsError> {
        self.settings.section("orchestrator")
    }

    fn stuck_after(&self) -> Duration {
        if self.own.agent {
            STUCK_AFTER
        } else {
            STUCK_AFTER_WITH_MODEL
        }
    }

    fn greet(&self, endpoints: &Endpoints, show: &Show) -> anyhow::Result<()> {
        let data_dir = self.args.data_dir.display();
        let public_url = self.orchestrator()?.public_url;
        let api = public_url
            .as_ref()
            .map_or(endpoints.http_url.as_str(), PublicUrl::as_str);
        let whose = |is_own: bool| if is_own { "its own" } else { "of the settings" };
        show.tell(&json!({"ready": {
            "http_url": endpoints.http_url, "tool_gateway_url": endpoints.tool_gateway_url, "data_dir": data_dir.to_string(),
        }}));
        let (nats, postgres) = (address(&endpoints.nats_url), address(&endpoints.database_url));
        let provider = match &self.agent_url {
            Some(url) => format!("{url}  (scripted demo agent)"),
            None => "of the settings  (does it fit? signalbox provider check default)".to_owned(),
        };
        let option = if self.args.data_dir == Path::new(".data") {
            String::new()
        } else {
            format!(" --data-dir {data_dir}")
        };
        show.say(&format!(
            "Signalbox is up; Ctrl-C ends it.\n\
             \x20 HTTP API      {api}  (operator's token: {data_dir}/endpoints.json)\n\
             \x20 tool-gateway  {}\n\
             \x20 NATS          {nats}  ({})\n\
             \x20 Postgres      {postgres}  ({})\n\
             \x20 provider      {provider}\n\
             \x20 log           {data_dir}/{LOG}\n\
             Ask an agent: signalbox notify {} DEMO-7 coder 'Tests fail on main' --wait{option}\n",
            endpoints.tool_gateway_url,
            whose(self.own.nats),
            whose(self.own.postgres),
            demo::ACCOUNT
        ));
        Ok(())
    }
}

/// A URL without its credentials.
fn address(url: &str) -> String {
    let one = |url: &str| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let rest = rest.split('?').next().unwrap_or_default();
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}://{host}")
    };
    url.split(',').map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_holds_no_credentials() {
        let check = |url: &str, expected: &str| assert_eq!(address(url), expected);
        check("nats://signalbox:secret@127.0.0.1:4222", "nats://127.0.0.1:4222");
        check("nats://a:b@one:1,nats://a:b@two:2", "nats://one:1,nats://two:2");
        check("postgres://u:p@host:5432/db?password=x", "postgres://host:5432/db");
        check("postgres://host/db", "postgres://host/db");
    }
}
