//! Publishes the sample line by line and shows the outcomes, and everything else that happens. Rows come from the HTTP API
//! ([`rows`]); messages on the bus only say when to read it ([`Hints`]).

use std::{
    collections::{BTreeMap, HashMap},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use contracts::dead::DeadLetter;
use domain::{AccountId, NotificationId, NotificationState, error_chain};
use messaging::Bus;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::warn;

use super::{
    hints::{Hint, Hints},
    look::{dead_row, has_outcome, outcome, rows},
    progress::Progress,
    row::Row,
    sample::SampleLine,
    show::Show,
};
use crate::{
    client::{ApiError, Client},
    print::complain,
};

/// Interval of polling notifications without an outcome, since a hint may be lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A turn that runs longer is shown as running.
const RUNNING_AFTER: Duration = Duration::from_secs(2);
/// After the last outcome, follow-up notifications between agents are awaited this long.
const QUIET: Duration = Duration::from_millis(700);
/// Notifications beside the sample that are followed, and that are read in one pass.
const FOLLOWED_MAX: usize = 1_000;
const LOOKED_AT_MAX: usize = 20;
/// Shown outcomes that are remembered.
const REVEALED_MAX: usize = 10_000;
/// Rows a second beside the sample's; a person cannot read more. The API has the rest.
const ROWS_A_SECOND_MAX: u32 = 20;
const PUBLISH_ATTEMPTS_MAX: u32 = 5;
const PUBLISH_PAUSE: Duration = Duration::from_millis(500);

/// Input of [`follow`].
pub(super) struct FollowOptions {
    pub(super) lines: Vec<SampleLine>,
    pub(super) exit_when_idle: bool,
    /// Time without progress after which the sample fails.
    pub(super) stuck_after: Duration,
}

/// The result of following.
pub(super) enum Ended {
    /// Every line has an outcome, and no other notification is in progress.
    Idle { has_failed: bool },
    /// No progress for too long; the text names what is awaited.
    Stuck { waiting_for: String },
}

/// The exit code for the result of following; none: stopped before.
pub(super) fn verdict(ended: Option<Ended>, stuck_after: Duration) -> anyhow::Result<ExitCode> {
    let failure = match ended {
        Some(Ended::Idle { has_failed: false }) => return Ok(ExitCode::SUCCESS),
        Some(Ended::Idle { has_failed: true }) => "a notification of the sample has failed",
        Some(Ended::Stuck { waiting_for }) => {
            let seconds = stuck_after.as_secs();
            bail!("no progress for {seconds} s: still waiting for {waiting_for}")
        }
        None => "stopped before it was idle",
    };
    complain(failure);
    Ok(ExitCode::FAILURE)
}

/// Ends by itself only when asked to exit. Cancel-safe: dropping it loses nothing.
pub(super) async fn follow(
    wanted: FollowOptions,
    client: &Client,
    bus: &Bus,
    show: &mut Show,
) -> anyhow::Result<Ended> {
    // Subscribed before the first line is published, so that no event is missed.
    let mut hints = Hints::listen(bus.client(), bus.root()).await?;
    let mut follow = Follow {
        client,
        bus,
        show,
        progress: Progress::new(wanted.lines),
        followed: BTreeMap::new(),
        revealed: HashMap::new(),
        rate: Rate::new(Instant::now()),
        moved_at: Instant::now(),
        has_summary: false,
        is_stuck: false,
    };
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        follow.publish_due().await?;
        if let Some(ended) = follow.ended(wanted.exit_when_idle, wanted.stuck_after) {
            return Ok(ended);
        }
        tokio::select! {
            // Cancel-safe: an unread hint stays in the subscription, and a tick repeats.
            hint = hints.next() => match hint {
                Some(hint) => follow.hear(hint).await,
                None => bail!("the connection to NATS is closed"),
            },
            _ = ticks.tick() => follow.look_around().await,
        }
    }
}

/// Account and notification.
type Name = (AccountId, NotificationId);

struct Follow<'a> {
    client: &'a Client,
    bus: &'a Bus,
    show: &'a mut Show,
    progress: Progress,
    /// Notifications whose turn has begun and that have no outcome yet.
    followed: BTreeMap<Name, Followed>,
    /// Shown outcomes: state and turn.
    revealed: HashMap<Name, (String, Option<i64>)>,
    rate: Rate,
    /// Time of the last publication, event or new state.
    moved_at: Instant,
    /// Texts that were shown.
    has_summary: bool,
    is_stuck: bool,
}

struct Followed {
    since: Instant,
    is_shown: bool,
}

impl Follow<'_> {
    async fn publish_due(&mut self) -> anyhow::Result<()> {
        while let Some(index) = self.progress.due() {
            let line = self.progress.line(index).clone();
            // Read first, so that the outcome of an earlier run is not taken for this run's.
            let known = if self.progress.is_conflict(index) {
                None
            } else {
                let known = outcome(self.client, &line).await;
                known.with_context(|| format!("notification {} of the sample", line.id))?
            };
            self.publish(&line).await?;
            self.progress.publish();
            self.moved_at = Instant::now();
            if let Some(rows) = known {
                let again = rows.into_iter().map(|row| Row { is_again: true, ..row });
                self.end_line(index, again.collect());
            }
        }
        Ok(())
    }

    /// Waits for the broker's acknowledgement. A repeat after a lost acknowledgement counts once, by its id.
    async fn publish(&self, line: &SampleLine) -> anyhow::Result<()> {
        let message = [line.message(self.bus.root())];
        for attempt in 1.. {
            let result = self.bus.publish_all(&message).await.pop();
            match result.expect("one message has one answer") {
                Ok(_) => return Ok(()),
                Err(error) if error.is_retryable() && attempt < PUBLISH_ATTEMPTS_MAX => {
                    let error = error_chain(&error);
                    warn!(error, attempt, "a line of the sample was not acknowledged; retrying");
                    sleep(PUBLISH_PAUSE).await;
                }
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("notification {} of the sample was not published", line.id));
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    fn end_line(&mut self, index: usize, rows: Vec<Row>) {
        let states: Vec<NotificationState> = rows.iter().filter_map(Row::state).collect();
        self.progress.end(index, &states);
        rows.iter().for_each(|row| self.reveal(row));
    }

    /// Shows an outcome once; a redriven notification has a second one.
    fn reveal(&mut self, row: &Row) {
        self.moved_at = Instant::now();
        if let (Ok(account), Ok(id)) = (AccountId::parse(&row.account), NotificationId::parse(&row.notification)) {
            let name = (account, id);
            self.followed.remove(&name);
            if self.revealed.len() >= REVEALED_MAX {
                self.revealed.clear();
            }
            let outcome = (row.state.clone(), row.turn);
            let before = self.revealed.insert(name, outcome.clone());
            if before == Some(outcome) && !row.is_again {
                return;
            }
        }
        self.show.row(row);
    }

    async fn hear(&mut self, hint: Hint) {
        self.moved_at = Instant::now();
        match hint {
            Hint::Started(account, ids) => {
                for id in ids {
                    if self.followed.len() < FOLLOWED_MAX {
                        let begun = Followed {
                            since: Instant::now(),
                            is_shown: false,
                        };
                        self.followed.entry((account.clone(), id)).or_insert(begun);
                    }
                }
            }
            Hint::Ended(account, ids) => {
                for id in ids {
                    self.hear_ended((account.clone(), id)).await;
                }
            }
            Hint::Dead(letter) => self.hear_dead(&letter).await,
        }
    }

    async fn hear_ended(&mut self, name: Name) {
        let line = self.line_of(&name);
        // A row takes several requests, so rows over the limit are not requested.
        if line.is_none() && !self.rate.allows(Instant::now()) {
            self.followed.remove(&name);
            return;
        }
        self.look_at(&name).await;
        if let Some(index) = line {
            self.look_at_line(index).await;
        }
    }

    /// A notification without a row in the API is shown by its dead letter.
    async fn hear_dead(&mut self, letter: &DeadLetter) {
        let published = self.bus.root().read_notification(&letter.subject);
        let of_line = |index: &usize| {
            let line = self.progress.line(*index);
            line.payload == letter.payload.as_bytes()
                && published
                    .as_ref()
                    .is_ok_and(|(account, task)| *account == line.account && *task == line.task)
        };
        let index = self.progress.open().into_iter().find(of_line);
        if let Some(index) = index {
            self.look_at_line(index).await;
            if self.progress.open().contains(&index) {
                let row = dead_row(letter, Some(self.progress.line(index)));
                self.progress.end(index, &[NotificationState::Refused]);
                // The letter is not the outcome of its id if another notification owned that id.
                self.show.row(&row);
            }
        } else if letter.account.is_none() && self.rate.allows(Instant::now()) {
            self.reveal(&dead_row(letter, None));
        }
    }

    /// The open line of a notification: its own id, or one that a fan-out made of it.
    fn line_of(&self, (account, id): &Name) -> Option<usize> {
        self.progress.open().into_iter().find(|&index| {
            let line = self.progress.line(index);
            let rest = id.as_str().strip_prefix(line.id.as_str());
            line.account == *account && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        })
    }

    async fn look_at_line(&mut self, index: usize) {
        if self.progress.is_conflict(index) {
            return;
        }
        let line = self.progress.line(index).clone();
        match outcome(self.client, &line).await {
            Ok(Some(rows)) => self.end_line(index, rows),
            Ok(None) => {}
            Err(error) => not_now(&error),
        }
    }

    /// Shows the outcome if there is one, or that the turn runs, if it has run for long.
    async fn look_at(&mut self, name: &Name) {
        let rows = match rows(self.client, &name.0, name.1.as_str()).await {
            Ok(rows) => rows,
            Err(error) => return not_now(&error),
        };
        if rows.is_empty() {
            self.followed.remove(name);
        }
        for row in rows {
            if has_outcome(&row) {
                self.reveal(&row);
            } else if let Some(followed) = self.followed.get_mut(name)
                && followed.since.elapsed() > RUNNING_AFTER
                && !followed.is_shown
            {
                followed.is_shown = true;
                self.show.row(&row);
            }
        }
    }

    async fn look_around(&mut self) {
        if let Some(skipped) = self.rate.skipped(Instant::now()) {
            self.show.say(&format!("… and {skipped} more, too fast to show"));
        }
        for index in self.progress.open() {
            self.look_at_line(index).await;
        }
        // At the end, only this tells whether begun turns have ended.
        let is_last = self.progress.is_over();
        let due = self.followed.iter().filter(|(_, followed)| {
            let is_long = followed.since.elapsed() > RUNNING_AFTER;
            is_long && (is_last || !followed.is_shown)
        });
        let due: Vec<Name> = due.map(|(name, _)| name.clone()).take(LOOKED_AT_MAX).collect();
        for name in due {
            self.look_at(&name).await;
        }
    }

    fn ended(&mut self, exit_when_idle: bool, stuck_after: Duration) -> Option<Ended> {
        let still = self.moved_at.elapsed();
        if self.progress.is_over() {
            if !self.progress.is_empty() && !self.has_summary {
                self.has_summary = true;
                self.show.say(&self.progress.summary());
            }
            let is_idle = self.followed.is_empty() && still > QUIET;
            // Follow-ups between agents may hang; the sample has its outcomes.
            return (exit_when_idle && (is_idle || still > stuck_after)).then(|| Ended::Idle {
                has_failed: self.progress.has_failed(),
            });
        }
        if still <= stuck_after {
            self.is_stuck = false;
            return None;
        }
        let waiting_for = self.progress.waiting_for();
        if exit_when_idle {
            return Some(Ended::Stuck { waiting_for });
        }
        if !self.is_stuck {
            self.is_stuck = true;
            let seconds = stuck_after.as_secs();
            self.show
                .say(&format!("no progress for {seconds} s; still waiting for {waiting_for}"));
        }
        None
    }
}

/// The next tick reads it again. If that always fails, the sample ends without progress and says so.
fn not_now(error: &ApiError) {
    warn!(
        error = format!("{error:#}"),
        "could not read a notification; will retry"
    );
}

/// Limits the rows of a second.
struct Rate {
    second: Instant,
    shown: u32,
    skipped: u64,
}

impl Rate {
    fn new(now: Instant) -> Rate {
        Rate {
            second: now,
            shown: 0,
            skipped: 0,
        }
    }

    fn allows(&mut self, now: Instant) -> bool {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.shown = 0;
        }
        if self.shown < ROWS_A_SECOND_MAX {
            self.shown += 1;
            return true;
        }
        self.skipped += 1;
        false
    }

    /// Number of skipped rows, reported at most once a second.
    fn skipped(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.skipped > 0 && now.duration_since(self.second) >= Duration::from_secs(1);
        is_due.then(|| std::mem::take(&mut self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_no_more_rows_than_eyes_can_read_and_says_how_many_there_were() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let shown = (0..50).filter(|_| rate.allows(start)).count();
        assert_eq!(shown, 20);
        assert_eq!(rate.skipped(start), None, "not in the same second");
        let later = start + Duration::from_secs(1);
        assert_eq!(rate.skipped(later), Some(30));
        assert_eq!(rate.skipped(later), None);
        assert!(rate.allows(later));
    }
}
