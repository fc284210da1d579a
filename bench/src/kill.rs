//! Kills each service with SIGKILL under load, restarts it at once, and measures the time until it completes its next piece of
//! work. Lost or doubled work is checked after the run, as in every run.

use std::time::Duration;

use anyhow::{Context, bail};
use sqlx::PgPool;
use storage::Role;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    figures::Killed,
    stage::{Provider, Stage},
    started::Started,
    subject::SERVICES,
};

const POLL: Duration = Duration::from_millis(2);
const RESUME_LIMIT: Duration = Duration::from_secs(30);

/// Kills one service after the other, evenly over this time, so that there is work at every kill.
pub(crate) async fn each(stage: &Stage, started: &mut Started, time: Duration) -> anyhow::Result<Vec<Killed>> {
    let pause = time / u32::try_from(SERVICES.len() + 1).context("services")?;
    let (mut killed, mut due) = (Vec::new(), Instant::now());
    for role in SERVICES {
        due += pause;
        sleep_until(due).await;
        let work = WorkOf { stage, role };
        let process = started.kill(role.service()).await?;
        let done = work.done().await?;
        let begun = Instant::now();
        started.start_again(process)?;
        match role {
            Role::ToolGateway => started.until_ready(process).await?,
            Role::Owner | Role::Resolver | Role::Delivery | Role::Orchestrator => work.goes_on_from(done).await?,
        }
        killed.push(Killed {
            process: role.service().to_owned(),
            resumed_ms: begun.elapsed().as_secs_f64() * 1e3,
        });
    }
    Ok(killed)
}

/// Measures a service's progress.
struct WorkOf<'a> {
    stage: &'a Stage,
    role: Role,
}

impl WorkOf<'_> {
    async fn goes_on_from(&self, done: i64) -> anyhow::Result<()> {
        let deadline = Instant::now() + RESUME_LIMIT;
        while self.done().await? <= done {
            if Instant::now() > deadline {
                bail!("{} did not resume within {RESUME_LIMIT:?}", self.role.service());
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    async fn done(&self) -> anyhow::Result<i64> {
        let Stage { observer, provider, .. } = self.stage;
        match self.role {
            Role::Resolver => {
                number(
                    observer,
                    "select /* bench */ sum(sequence)::bigint from resolver_partition",
                )
                .await
            }
            Role::Delivery => calls(provider).await,
            Role::Orchestrator => {
                number(
                    observer,
                    "select /* bench */ count(*) from account join message on message.account_id = account.id",
                )
                .await
            }
            // W has no tool calls: the tool-gateway has resumed when it is ready.
            Role::ToolGateway | Role::Owner => Ok(0),
        }
    }
}

async fn number(observer: &PgPool, statement: &'static str) -> anyhow::Result<i64> {
    let number = sqlx::query_scalar(statement).fetch_one(observer).await;
    number.context("could not read a service's progress")
}

async fn calls(provider: &Provider) -> anyhow::Result<i64> {
    i64::try_from(provider.seen().await?.notifications).context("a number of calls")
}
