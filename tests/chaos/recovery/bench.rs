//! A system with the settings of an installation, its load, and its state by the database.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::json;
use sqlx::Row;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::{LIMIT, POLL};
use crate::{
    clients::Clients,
    plan::{AGENTS, account_id},
    provider::{Pace, Stub},
    records::Answer,
    system::System,
};

/// The explicit settings; the rest are defaults.
const SETTINGS: &str = r#"
[process]
dependencies_timeout_ms = 60000
[providers.default]
kind = "openresponses"
model = "stub"
"#;
/// Interval of counting rows. Recorded times come from the rows, and counting costs the database.
const COUNT_PAUSE: Duration = Duration::from_millis(250);
/// One account, since the trial measures sessions and not sharing between accounts.
pub(crate) const TASKS: usize = 8;

pub(crate) struct Bench {
    pub(crate) system: System,
    pub(crate) stub: Stub,
    pub(crate) clients: Clients,
    next: usize,
}

impl Bench {
    pub(crate) async fn open(directory: &Path, pace: Pace, seed: u64) -> anyhow::Result<Bench> {
        Bench::open_with(directory, pace, seed, "").await
    }

    /// With further settings.
    pub(crate) async fn open_with(directory: &Path, pace: Pace, seed: u64, more: &str) -> anyhow::Result<Bench> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711))?;
        let stub = Stub::start(seed, pace, BTreeMap::new(), BTreeMap::new()).await?;
        let system = System::prepare(directory, stub.address, &format!("{SETTINGS}{more}")).await?;
        system.start().await?;
        let clients = Clients::furnish(&system, seed).await?;
        Ok(Bench {
            system,
            stub,
            clients,
            next: 0,
        })
    }

    /// One notification to every session, as fast as the broker accepts; retried until it does.
    pub(crate) async fn wake_all(&mut self, work: &str) -> anyhow::Result<()> {
        let mut publishing = Vec::new();
        for task in 0..TASKS {
            for agent in AGENTS {
                self.next += 1;
                let payload = json!({"id": format!("r-{}", self.next), "agent": agent,
                    "body": format!("work={work} effect=r{};", self.next)});
                publishing.push((format!("signalbox.notification.{}.R-{task}", account_id(0)), payload));
            }
        }
        let clients = &self.clients;
        let all = publishing.into_iter().map(|(subject, payload)| async move {
            loop {
                let answer = clients.publish(subject.clone(), Bytes::from(payload.to_string())).await;
                if answer == Answer::Accepted {
                    return;
                }
                sleep(POLL).await;
            }
        });
        futures::future::join_all(all).await;
        Ok(())
    }

    /// Waits until every session has had a turn since the previous trial.
    pub(crate) async fn settle(&mut self) -> anyhow::Result<()> {
        for service in &self.system.services {
            self.system.ready(service).await?;
        }
        self.wake_all("reply").await?;
        self.at_rest().await
    }

    pub(crate) async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        Ok(sqlx::query(sql).fetch_one(&self.system.observer).await?.get(0))
    }

    /// Polls the database until this holds.
    pub(crate) async fn until(&self, what: &str, sql: &'static str, count: i64, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.count(sql).await;
            if found.as_ref().is_ok_and(|found| *found == count) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("did not happen within {limit:?}: {what}; found {found:?} of {count}");
            }
            sleep(COUNT_PAUSE).await;
        }
    }

    pub(crate) async fn at_rest(&self) -> anyhow::Result<()> {
        const BUSY: &str = "select (select count(*) from notification where state in ('queued', 'running'))
            + (select count(*) from session where phase <> 'idle' or queued > 0) + (select count(*) from outbox)";
        let expected = i64::try_from(self.next).context("a number of notifications")?;
        self.until(
            "all were written down",
            "select count(*) from notification",
            expected,
            LIMIT,
        )
        .await?;
        self.until("everything is at rest", BUSY, 0, LIMIT).await
    }

    /// Session key → time until its next turn ended.
    pub(crate) async fn next_turns(&self, since: OffsetDateTime) -> anyhow::Result<BTreeMap<String, i64>> {
        const ENDED: &str = "select s.key, min(t.finished_at) from turn t
            join session s on s.account_id = t.account_id and s.id = t.session_id
            where t.state = 'finished' and t.finished_at > $1 group by 1";
        let rows = sqlx::query(ENDED).bind(since).fetch_all(&self.system.observer).await?;
        let after = |row: &sqlx::postgres::PgRow| {
            let ended: OffsetDateTime = row.get(1);
            i64::try_from((ended - since).whole_milliseconds()).unwrap_or(i64::MAX)
        };
        Ok(rows.iter().map(|row| (row.get(0), after(row))).collect())
    }

    pub(crate) async fn until_more_than(&self, what: &str, sql: &'static str, count: i64) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.count(sql).await? <= count {
            if Instant::now() > deadline {
                bail!("did not happen within {LIMIT:?}: {what}");
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}
