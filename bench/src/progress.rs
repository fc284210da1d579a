//! Follows a run: work is published and polled until all outcomes are recorded and all follow-ups are done, or until the row's time
//! ends. Polling must cost the subject as little as possible.

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
/// Time limit for follow-ups of the last outcome.
const FOLLOW_LIMIT: Duration = Duration::from_secs(30);
/// Interval of counting replies.
const FOLLOW_POLL: Duration = Duration::from_millis(50);

pub(crate) struct Progress<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) subject: Subject,
    pub(crate) work: &'a Work,
    /// By the database's clock: older rows belong to an earlier run.
    pub(crate) since: OffsetDateTime,
    pub(crate) begun: Instant,
}

pub(crate) struct Done {
    pub(crate) recorded: u32,
    pub(crate) recorded_in: Duration,
    /// Unless the time ended before.
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
        let restate = started.restate;
        let publishing = async {
            match self.work.pace {
                Pace::Live if let Subject::Peer(peer) = self.subject => {
                    let feeding = peer.feed(self.stage, restate, self.work);
                    timeout_at(self.deadline(), feeding).await.unwrap_or(Ok(()))
                }
                Pace::Live | Pace::Rate(_) => {
                    // Publishing stops when the time ends.
                    let publishing = load::publish(publisher, self.work, moments);
                    timeout_at(self.deadline(), publishing).await.unwrap_or(Ok(()))
                }
                Pace::Backlog | Pace::Idle(_) | Pace::Steers | Pace::Asks(_) => Ok(()),
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
            // Asking the provider costs the subject nothing.
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

    /// Counts the rows themselves.
    async fn check(&self) -> anyhow::Result<()> {
        let (turns, delivered) = self.subject.outcomes(&self.stage.observer, self.since).await?;
        let wanted = self.work.notifications;
        if (turns, delivered) != (wanted, wanted) {
            bail!("{turns} turns and {delivered} delivered notifications of {wanted}");
        }
        Ok(())
    }
}

/// The database's clock, which sets the rows' timestamps.
pub(crate) async fn now(observer: &PgPool) -> anyhow::Result<OffsetDateTime> {
    let now = sqlx::query_scalar("select /* bench */ clock_timestamp()")
        .fetch_one(observer)
        .await;
    now.context("could not read Postgres' clock")
}
