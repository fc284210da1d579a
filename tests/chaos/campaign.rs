//! Runs one campaign from its schedule to its records: the system starts, offers and faults happen at their scheduled times and
//! overlap, every fault is healed, and the records are closed when all queues are empty.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use sqlx::Row;
use time::OffsetDateTime;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    arguments::Until,
    audits,
    book::Book,
    checker::{self, Violation},
    clients::Clients,
    dice::Dice,
    faults::{self, TRIPWIRES},
    listener::Listener,
    machine::{Given, Machine},
    plan::{ACCOUNTS, Plan, account_id, canary},
    provider::{PACE, Stub},
    quiesce,
    records::{Offered, Records, ServiceLog, Via},
    system::{OPERATOR_TOKEN, PROVIDER_KEY, SETTINGS, System},
};

/// Interval at which accounts read their own data and try to read foreign data.
const LOOK_EVERY: Duration = Duration::from_millis(400);
/// The shortest time of a timer is longer than a campaign may wait: the campaign makes one of three due at each look, and a deadline of
/// branches sometimes, or when one of them waits for a person.
const DUE: &str = "
    update timer t set due_at = now()
    where t.state = 'waiting' and t.due_at > now()
      and case t.kind
              when 'check_later' then random() < 0.3
              when 'branch_deadline' then random() < 0.01 or random() < 0.3 and exists (
                  select from branch b join session s on s.account_id = b.account_id and s.id = b.session_id
                  where b.account_id = t.account_id and b.group_id::text = t.key and b.state = 'live'
                    and (s.gate is not null or s.phase = 'idle' and s.queued = 0))
              else false
          end";
/// Interval of reading the processes' memory and open files.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// The schedule pauses while more faults wait for their target, or more offers for an answer, than this; at most as long as the
/// schedule itself. What never ends is reported at the end.
const UNDER_WAY_MAX: usize = 12;
const PENDING_MAX: usize = 120;
const WAIT_LOOK: Duration = Duration::from_millis(50);
const LATE_MORE_MS: u64 = 60_000;
/// Interval of progress lines.
const SAY_EVERY: Duration = Duration::from_secs(15);
/// Interval of checks in a campaign that ends with the first violation, and its limit for becoming idle.
const CHECK_EVERY: Duration = Duration::from_millis(1_500);
const REST_LIMIT: Duration = Duration::from_secs(20);
/// A NATS offer younger than this at the time of a wipe may be unread.
const UNREAD_S: i64 = 180;

pub(crate) struct Campaign {
    pub(crate) system: Arc<System>,
    pub(crate) stub: Stub,
    pub(crate) clients: Clients,
    listener: Listener,
    pub(crate) book: Book,
    pub(crate) machine: Machine,
    started_at: OffsetDateTime,
    /// Offers without an answer.
    pending: TaskTracker,
    /// Fault number → how often it hit.
    hits: Mutex<BTreeMap<usize, usize>>,
    zombies_with_work: AtomicUsize,
    /// Delay of the schedule.
    late_ms: AtomicU64,
    begun: Instant,
    weak: std::sync::Weak<Campaign>,
}

/// Results of a campaign, besides the records.
pub(crate) struct Outcome {
    pub(crate) records: Records,
    /// Fault number → how often it hit.
    pub(crate) hits: BTreeMap<usize, usize>,
    /// Processes that were frozen with a provider call in flight.
    pub(crate) zombies_with_work: usize,
    /// Service processes that ended by themselves.
    pub(crate) surprises: Vec<String>,
    /// Queues that did not become empty in time.
    pub(crate) stuck: Vec<String>,
    /// Whether the machine was too slow.
    pub(crate) given: Given,
    /// The violation that ended the campaign early.
    pub(crate) found_meanwhile: Option<Vec<Violation>>,
    pub(crate) took: Duration,
    pub(crate) quiesce_took: Duration,
}

impl Outcome {
    /// The system did not become idle, and could not have.
    pub(crate) fn had_no_time(&self) -> bool {
        !self.stuck.is_empty() && self.given.is_too_little()
    }
}

impl Campaign {
    /// Runs a plan. `directory` keeps logs and data.
    pub(crate) async fn run(plan: &Plan, directory: &Path, until: &Until) -> anyhow::Result<(Arc<Campaign>, Outcome)> {
        let begun = Instant::now();
        let campaign = Campaign::prepare(plan.seed, directory).await?;
        let supervisor = tokio::spawn(Arc::clone(&campaign.system).supervise());
        let looking = tokio::spawn(Arc::clone(&campaign).look(plan.seed));
        let sampling = tokio::spawn(Arc::clone(&campaign).sample());
        let work = async {
            tokio::try_join!(campaign.make_offers(plan), campaign.make_faults(plan))?;
            campaign.stub.heal_all();
            campaign.system.heal().await
        };
        let mut found_meanwhile = None;
        tokio::select! {
            worked = work => worked?,
            // Dropped work may be half done, so only the findings are kept.
            found = campaign.first_violations(plan.seed, until), if matches!(until, Until::Found(_)) => found_meanwhile = Some(found),
        }
        let healed = Instant::now();
        let at_work = campaign.machine.percent_since(begun.into_std());
        let limit = match until {
            Until::Found(_) => REST_LIMIT,
            Until::TheEnd => quiesce::STILL_LIMIT,
        };
        let stuck = match found_meanwhile {
            Some(_) => Vec::new(),
            None => quiesce::wait(&campaign, limit).await?,
        };
        // An audit of a system that is not idle is no finding.
        let mut audits = Vec::new();
        if found_meanwhile.is_none() && stuck.is_empty() {
            for account in 0..ACCOUNTS {
                audits.push(audits::audit(&campaign, account).await.context("the audits")?);
            }
        }
        let quiet_at = OffsetDateTime::now_utc();
        campaign.listener.read_stream(&campaign.system.nats_url).await?;
        looking.abort();
        sampling.abort();
        campaign.book.sampled(campaign.system.samples());
        supervisor.abort();
        if let Err(error) = supervisor.await
            && !error.is_cancelled()
        {
            return Err(error).context("the supervisor panicked");
        }
        let hits = lock(&campaign.hits).clone();
        let outcome = Outcome {
            records: Records {
                audits,
                ..campaign.records(plan.seed, quiet_at)
            },
            hits,
            zombies_with_work: campaign.zombies_with_work.load(Ordering::Relaxed),
            surprises: campaign.system.surprises().await,
            stuck,
            given: Given::new(at_work, campaign.machine.percent_since(healed.into_std())),
            found_meanwhile,
            took: begun.elapsed(),
            quiesce_took: healed.elapsed(),
        };
        Ok((campaign, outcome))
    }

    async fn prepare(seed: u64, directory: &Path) -> anyhow::Result<Arc<Campaign>> {
        // Measured before anything else runs: this is the machine's best.
        let machine = Machine::watch(directory)?;
        let canaries = (0..ACCOUNTS)
            .map(|account| (account_id(account), canary(seed, account)))
            .collect();
        let stub = Stub::start(seed, PACE, canaries, known_secrets()).await?;
        let system = System::prepare(directory, stub.address, SETTINGS).await?;
        sqlx::raw_sql(TRIPWIRES)
            .execute(&system.observer)
            .await
            .context("could not make the tripwires")?;
        system.start().await?;
        let clients = Clients::furnish(&system, seed).await?;
        let listener = Listener::start(&system.nats_url, all_secrets(&system, &clients)).await?;
        Ok(Arc::new_cyclic(|weak| Campaign {
            system: Arc::new(system),
            stub,
            clients,
            listener,
            book: Book::default(),
            machine,
            started_at: OffsetDateTime::now_utc(),
            pending: TaskTracker::new(),
            hits: Mutex::default(),
            zombies_with_work: AtomicUsize::default(),
            late_ms: AtomicU64::default(),
            begun: Instant::now(),
            weak: weak.clone(),
        }))
    }

    /// Checks repeatedly, and ends with a violation. If the database is unavailable, it checks later.
    async fn first_violations(&self, seed: u64, until: &Until) -> Vec<Violation> {
        let wanted = match until {
            Until::Found(words) => words.as_slice(),
            Until::TheEnd => &[],
        };
        loop {
            sleep(CHECK_EVERY).await;
            match checker::check_meanwhile(|| self.records(seed, OffsetDateTime::now_utc())).await {
                Ok(found) if !found.is_empty() && has_each(&found, wanted) => return found,
                Ok(_) | Err(_) => {}
            }
        }
    }

    async fn make_offers(&self, plan: &Plan) -> anyhow::Result<()> {
        let begun = Instant::now();
        for planned in &plan.offers {
            self.moment(begun, planned.at_ms).await;
            let number = self.book.offer(account_id(planned.account), planned.what.clone());
            self.pursue(number, planned.account, planned.via);
        }
        Ok(())
    }

    /// Waits for a scheduled time, plus the delay of the schedule.
    async fn moment(&self, begun: Instant, at_ms: u64) {
        loop {
            let due = begun + Duration::from_millis(at_ms + self.late_ms.load(Ordering::Relaxed));
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// On a slow machine, faults without pause would leave no time for work.
    async fn wait_for_room(&self, running: &mut JoinSet<anyhow::Result<()>>, at_ms: u64) -> anyhow::Result<()> {
        let from = Instant::now();
        let late_ms = self.late_ms.load(Ordering::Relaxed);
        let enough = Duration::from_millis((at_ms + LATE_MORE_MS).saturating_sub(late_ms));
        while (running.len() >= UNDER_WAY_MAX || self.pending() >= PENDING_MAX) && from.elapsed() < enough {
            match timeout(WAIT_LOOK, running.join_next()).await {
                Ok(Some(done)) => done.context("a fault panicked")??,
                Ok(None) => sleep(WAIT_LOOK).await,
                Err(_) => {}
            }
        }
        self.late_ms.fetch_add(millis(from.elapsed()), Ordering::Relaxed);
        Ok(())
    }

    async fn make_faults(&self, plan: &Plan) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        let mut said_at = begun;
        for planned in &plan.faults {
            if said_at.elapsed() > SAY_EVERY {
                said_at = Instant::now();
                self.say(&format!(
                    "fault {} of {}, {} under way; {} offers without an answer",
                    planned.number,
                    plan.faults.len(),
                    running.len(),
                    self.pending()
                ));
            }
            self.moment(begun, planned.at_ms).await;
            self.wait_for_room(&mut running, planned.at_ms).await?;
            let (campaign, planned) = (self.shared(), planned.clone());
            running.spawn(async move {
                let hits = faults::run(&campaign, &planned)
                    .await
                    .with_context(|| format!("fault {} ({:?})", planned.number, planned.fault))?;
                lock(&campaign.hits).insert(planned.number, hits);
                anyhow::Ok(())
            });
            while let Some(done) = running.try_join_next() {
                done.context("a fault panicked")??;
            }
        }
        while let Some(done) = running.join_next().await {
            done.context("a fault panicked")??;
        }
        Ok(())
    }

    fn shared(&self) -> Arc<Campaign> {
        self.weak.upgrade().expect("whoever calls has it from its Arc")
    }

    /// Sends an offer in the background until it has an answer.
    pub(crate) fn pursue(&self, number: usize, account: usize, via: Via) {
        let campaign = self.shared();
        self.pending.spawn(async move {
            campaign.clients.pursue(&campaign.book, number, account, via).await;
        });
    }

    /// Sends an offer until it has an answer; gives its number.
    pub(crate) async fn offer(&self, account: usize, via: Via, what: Offered) -> usize {
        self.clients.offer(&self.book, account, via, what).await
    }

    /// Prints progress.
    #[expect(
        clippy::print_stderr,
        reason = "a program for people; the report is on the other stream"
    )]
    pub(crate) fn say(&self, what: &str) {
        eprintln!("{:>7.1} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Offers without an answer.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn zombie_with_work(&self) {
        self.zombies_with_work.fetch_add(1, Ordering::Relaxed);
    }

    /// The time from which a wiped store is empty.
    pub(crate) fn wiping(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    /// Publishers do not know whether a notification was read. Those that published shortly before the wipe check, and publish
    /// missing notifications again.
    pub(crate) fn publish_again(&self, wiped_at: OffsetDateTime) {
        let since = wiped_at - time::Duration::seconds(UNREAD_S);
        let lately = |offer: &crate::records::Offer| {
            offer.tries.iter().any(|tried| {
                tried.via == Via::Nats && tried.ended_at >= since && tried.sent_at <= OffsetDateTime::now_utc()
            })
        };
        let concerned = self.book.recent(usize::MAX, |offer| {
            matches!(offer.what, Offered::Notification { .. } | Offered::Conflict { .. }) && lately(offer)
        });
        let campaign = self.shared();
        self.pending.spawn(async move {
            for offer in concerned {
                let (Offered::Notification { id, agents, .. }, account) = (&offer.what, &offer.account) else {
                    continue;
                };
                const READ: &str = "select count(*) from notification
                    where account_id = $1 and (id = $2 or starts_with(id, $2 || ':'))";
                let read: i64 = loop {
                    let look = sqlx::query(READ).bind(account).bind(id);
                    match look.fetch_one(&campaign.system.observer).await {
                        Ok(row) => break row.get(0),
                        Err(_) => sleep(Duration::from_millis(200)).await,
                    }
                };
                if usize::try_from(read).unwrap_or_default() < agents.len() {
                    let place = campaign.clients.tenants.iter().position(|tenant| tenant.id == *account);
                    let place = place.expect("an offer is of an account of the campaign");
                    campaign
                        .clients
                        .pursue(&campaign.book, offer.number, place, Via::Nats)
                        .await;
                }
            }
        });
    }

    /// Accounts read their own data and try others'. The checker judges the answers. Timers become due.
    async fn look(self: Arc<Self>, seed: u64) {
        let mut dice = Dice::new(seed, "look");
        loop {
            sleep(LOOK_EVERY).await;
            // Without the database nothing becomes due.
            let _ = sqlx::query(DUE).execute(&self.system.observer).await;
            let (own, other) = (dice.below(ACCOUNTS), dice.below(ACCOUNTS));
            let whose = account_id(own);
            let task = *dice.pick(&crate::plan::TASKS);
            let paths = [
                format!("/api/orgs/{whose}/tasks/{task}/messages?limit=20"),
                format!("/api/orgs/{whose}/notifications?limit=20"),
                format!("/api/orgs/{whose}/sessions?limit=20"),
                format!("/api/orgs/{whose}/dead-letters?limit=5"),
                format!("/api/orgs/{whose}/notifications/n-{}", dice.below(500)),
            ];
            let path = dice.pick(&paths);
            // With the key of any account: mostly not the owner's.
            self.clients.look(&self.book, &mut dice, other, path).await;
            self.clients.look(&self.book, &mut dice, own, path).await;
            self.clients.look_as_service(&self.book, &mut dice, own, path).await;
            // One account's session id, requested with the other's key.
            const ANY: &str = "select id from session where account_id = $1 order by random() limit 1";
            let found = sqlx::query(ANY)
                .bind(&whose)
                .fetch_optional(&self.system.observer)
                .await;
            if let Ok(Some(row)) = found {
                let id: uuid::Uuid = row.get(0);
                for path in [
                    format!("/api/orgs/{}/sessions/{id}/turns", account_id(other)),
                    format!("/api/orgs/{}/sessions/{id}", account_id(other)),
                ] {
                    self.clients.look(&self.book, &mut dice, other, &path).await;
                    let path = path.replace(&account_id(other), &whose);
                    self.clients.look_as_service(&self.book, &mut dice, own, &path).await;
                }
            }
        }
    }

    /// Records memory and files of the processes: before the campaign, and repeatedly.
    async fn sample(self: Arc<Self>) {
        loop {
            self.book.sampled(self.system.samples());
            sleep(SAMPLE_EVERY).await;
        }
    }

    fn records(&self, seed: u64, quiet_at: OffsetDateTime) -> Records {
        let logs = self.system.services.iter().map(|service| ServiceLog {
            process: service.process.name(),
            path: service.log.clone(),
        });
        let servers = self.system.server_logs.iter().map(|(process, path)| ServiceLog {
            process: process.clone(),
            path: path.clone(),
        });
        Records {
            seed,
            started_at: self.started_at,
            quiet_at,
            database_url: self.system.database_url.clone(),
            accounts: self.clients.tenants.clone(),
            offers: self.book.offers(),
            aims: self.book.aims(),
            calls: self.stub.calls(),
            faults: self.book.faults(),
            samples: self.book.samples(),
            logs: logs.chain(servers).collect(),
            secrets: all_secrets(&self.system, &self.clients),
            answers: self.book.answers(),
            heard: self.listener.heard(),
            audits: Vec::new(),
        }
    }
}

fn has_each(found: &[Violation], wanted: &[String]) -> bool {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    wanted
        .iter()
        .all(|words| lines.iter().any(|line| line.starts_with(words.as_str())))
}

/// Secrets that are known before the start.
fn known_secrets() -> BTreeMap<String, String> {
    BTreeMap::from([
        ("operator token".to_owned(), OPERATOR_TOKEN.to_owned()),
        ("provider key".to_owned(), PROVIDER_KEY.to_owned()),
        ("envelope key".to_owned(), testkit::ENVELOPE.1.to_owned()),
    ])
}

fn all_secrets(system: &System, clients: &Clients) -> BTreeMap<String, String> {
    let mut secrets = known_secrets();
    secrets.extend(clients.secrets());
    secrets.extend(system.passwords.clone());
    secrets
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// No code panics while it holds this lock, and the guarded data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
