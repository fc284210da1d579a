//! `signalbox sample FILE`: publishes and shows a sample as `up --sample` does, against a Signalbox that runs elsewhere. Account
//! and agents are created over its API, notifications are published on its NATS.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use messaging::Bus;
use runtime::{Settings, context, shutdown::wait_for_signal};

use super::{
    demo,
    follow::{FollowOptions, follow, verdict},
    sample,
    show::Show,
};
use crate::cli::SampleArgs;

pub(crate) async fn run(args: &SampleArgs, json: bool) -> anyhow::Result<ExitCode> {
    let lines = sample::read(&args.file)?;
    let nats = Settings::load()?.nats;
    let client = args.access.client()?;
    demo::ensure(&client).await?;
    let bus = Bus::connect(context::bus_options("sample", &nats)?).await?;
    let stuck_after = Duration::from_secs(args.stuck_after_s);
    let wanted = FollowOptions {
        lines,
        exit_when_idle: true,
        stuck_after,
    };
    let mut show = Show::start(json)?;
    let ended = tokio::select! {
        ended = Box::pin(follow(wanted, &client, &bus, &mut show)) => Some(ended),
        // Published lines stay published; only following ends.
        signal = wait_for_signal() => {
            signal.context("cannot listen for signals")?;
            None
        }
    };
    show.finish();
    verdict(ended.transpose()?, stuck_after)
}
