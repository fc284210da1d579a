//! How far a run has come: work is published, and looked after until all of it is recorded and all that follows is done,
//! or until the row's time is over. Looking must cost who is measured as little as it can.

use std::time::Duration;

use anyhow::{Context, bail};
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    figures::Killed,
    kill,
    load::{self, Moments},
    stage::Stage,
    started::Started,
    subject::Subject,
    work::{Pace, Work},
};

const POLL: Duration = Duration::from_millis(5);
/// For what follows from the last outcome.
const FOLLOW_LIMIT: Duration = Duration::from_secs(30);
/// Replies are counted one by one.
const FOLLOW_POLL: Duration = Duration::from_millis(50);

pub(crate) struct Progress<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) subject: Subject,
    pub(crate) work: &'a Work,
    /// By the database's clock: what is older is none of this run's.
    pub(crate) since: OffsetDateTime,
    pub(crate) begun: Instant,
}

pub(crate) struct Done {
    pub(crate) recorded: u32,
    pub(crate) recorded_in: Duration,
    /// Unless time was over before.
    pub(crate) followed_in: Option<Duration>,
    pub(crate) killed: Vec<Killed>,
}

impl Done {
    pub(crate) fn is_whole(&self, work: &Work) -> bool {
        self.recorded == work.notifications
    }
}

impl Progress<'_> {
    pub(crate) async fn until_done(
        &self,
        started: &mut Started,
        publisher: &async_nats::Client,
        moments: &Moments,
    ) -> anyhow::Result<Done> {
        let publishing = async {
            match self.work.pace {
                Pace::Live | Pace::Rate(_) => {
                    // What is not published when time is over is not published.
                    let publishing = load::publish(publisher, self.work, moments);
                    timeout_at(self.deadline(), publishing).await.unwrap_or(Ok(()))
                }
                Pace::Backlog | Pace::Idle(_) => Ok(()),
            }
        };
        let working = async {
            let killed = match (self.work.kills, self.work.publishing_time()) {
                (true, Some(time)) => kill::each(self.stage, started, time).await?,
                _ => Vec::new(),
            };
            anyhow::Ok((killed, self.until_recorded(started).await?))
        };
        let ((), (killed, (recorded, recorded_in))) = tokio::try_join!(publishing, working)?;
        let mut done = Done {
            recorded,
            recorded_in,
            followed_in: None,
            killed,
        };
        if done.is_whole(self.work) {
            self.until_followed().await?;
            done.followed_in = Some(self.begun.elapsed());
            self.check().await?;
        }
        Ok(done)
    }

    fn deadline(&self) -> Instant {
        self.begun + self.work.limit
    }

    async fn until_recorded(&self, started: &mut Started) -> anyhow::Result<(u32, Duration)> {
        let Stage { provider, observer, .. } = self.stage;
        loop {
            sleep(POLL).await;
            started.check()?;
            let is_over = Instant::now() > self.deadline();
            // To ask the provider costs who is measured nothing.
            if !is_over && provider.seen().await?.notifications < u64::from(self.work.notifications) {
                continue;
            }
            let recorded = self.subject.recorded(observer, self.since).await?;
            if is_over || recorded >= self.work.notifications {
                return Ok((recorded, self.begun.elapsed()));
            }
        }
    }

    async fn until_followed(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + FOLLOW_LIMIT;
        while let Some(replies) = self.subject.replies(&self.stage.observer, self.since).await? {
            if replies == self.work.notifications {
                break;
            }
            if replies > self.work.notifications || Instant::now() > deadline {
                bail!("{replies} replies to {} notifications", self.work.notifications);
            }
            sleep(FOLLOW_POLL).await;
        }
        Ok(())
    }

    /// By the rows themselves, one by one.
    async fn check(&self) -> anyhow::Result<()> {
        let (turns, delivered) = self.subject.outcomes(&self.stage.observer, self.since).await?;
        let wanted = self.work.notifications;
        if (turns, delivered) != (wanted, wanted) {
            bail!("{turns} turns and {delivered} delivered notifications of {wanted}");
        }
        Ok(())
    }
}

/// By the database's clock, which is what rows go by.
pub(crate) async fn now(observer: &PgPool) -> anyhow::Result<OffsetDateTime> {
    let now = sqlx::query_scalar("select /* bench */ clock_timestamp()")
        .fetch_one(observer)
        .await;
    now.context("Postgres does not say what time it is")
}
