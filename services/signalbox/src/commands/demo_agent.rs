//! `signalbox demo-agent`: the scripted agent alone, for a deployment without a model.

use std::process::ExitCode;

use devstack::DemoAgent;
use runtime::shutdown::wait_for_signal;

use crate::{cli::DemoAgentArgs, print::print};

pub(crate) async fn run(args: &DemoAgentArgs) -> anyhow::Result<ExitCode> {
    let agent = DemoAgent::start(args.listen).await?;
    print(&format!("the demo agent answers at {}", agent.url()))?;
    wait_for_signal().await?;
    agent.stop().await;
    Ok(ExitCode::SUCCESS)
}
