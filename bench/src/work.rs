//! The work: a number of notifications, over a number of (task, agent) pairs, at a pace.

use std::time::Duration;

use clap::ValueEnum;
use contracts::Root;

/// Tasks of one account. Each has the account's one agent, so a task is a pair.
pub(crate) const TASKS_AN_ACCOUNT: u32 = 100;
pub(crate) const AGENT: &str = "coder";
/// The answers' text; longer ones repeat it.
pub(crate) const TEXT: &str = "Noted. There is nothing else to do about this notification for the moment.";

/// How the provider answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Answer {
    /// One JSON object.
    Whole,
    /// Server-sent events, word by word.
    Streamed,
    /// One tool call first, then a text.
    AfterTool,
    /// Three tool calls first, two of the same tool, then a text.
    AfterTools,
    /// None to notifications with an even number: their calls are held. The others are answered as a whole.
    HeldOnEven,
}

impl Answer {
    pub(crate) fn calls_a_turn(self) -> u32 {
        match self {
            Self::AfterTool | Self::AfterTools => 2,
            Self::Whole | Self::Streamed | Self::HeldOnEven => 1,
        }
    }
}

/// What is asked of running services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum People {
    /// Reads the number of unread mails and the first page; the slower of the two counts.
    Inbox,
    /// Moves a task for which others wait, once the turns that followed the move before are done.
    Board,
    /// Searches what an orchestrator remembers.
    Memory,
    /// Connects to NATS with a key.
    Callout,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// As fast as possible, while they are processed.
    Live,
    /// All published before the services start.
    Backlog,
    /// So many a second.
    Rate(u32),
    /// No notifications, for so long.
    Idle(Duration),
    /// Every second one steers: it ends the call of the one before.
    Steers,
    /// No notifications: people ask as often, one after the other or some at once.
    Asks(People),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    pub(crate) notifications: u32,
    pub(crate) pairs: u32,
    pub(crate) pace: Pace,
    pub(crate) answer: Answer,
    pub(crate) body_bytes: usize,
    pub(crate) reply_bytes: usize,
    pub(crate) delay: Duration,
    /// Provider calls at a time, over all processes.
    pub(crate) in_flight: usize,
    /// Replicas of each service.
    pub(crate) replicas: usize,
    /// Old notifications in the database.
    pub(crate) stored: u32,
    /// The run does not wait for notifications that are unfinished by then.
    pub(crate) limit: Duration,
    /// Each service is killed once, and restarted at once.
    pub(crate) kills: bool,
}

impl Work {
    pub(crate) fn new(notifications: u32) -> Work {
        Work {
            notifications,
            pairs: 1_000.min(notifications),
            pace: Pace::Live,
            answer: Answer::Whole,
            body_bytes: 200,
            reply_bytes: TEXT.len(),
            delay: Duration::ZERO,
            in_flight: 128,
            replicas: 1,
            stored: 0,
            limit: Duration::from_secs(60),
            kills: false,
        }
    }

    pub(crate) fn accounts(&self) -> u32 {
        self.pairs.div_ceil(TASKS_AN_ACCOUNT)
    }

    /// Time to publish all notifications, for a pace with a rate.
    pub(crate) fn publishing_time(&self) -> Option<Duration> {
        match self.pace {
            Pace::Rate(rate) => Some(Duration::from_secs(1) * self.notifications / rate),
            Pace::Live | Pace::Backlog | Pace::Idle(_) | Pace::Steers | Pace::Asks(_) => None,
        }
    }

    /// The pair of the `number`th notification: pairs take turns.
    pub(crate) fn pair(&self, number: u32) -> u32 {
        number % self.pairs
    }
}

pub(crate) fn account(pair: u32) -> String {
    format!("a{}", pair / TASKS_AN_ACCOUNT)
}

pub(crate) fn task(pair: u32) -> String {
    format!("t-{}", pair % TASKS_AN_ACCOUNT)
}

pub(crate) fn subject(root: &Root, pair: u32) -> String {
    format!("{root}.notification.{}.{}", account(pair), task(pair))
}

pub(crate) fn notification_id(number: u32) -> String {
    format!("{ID}{number}")
}

const ID: &str = "n-";

pub(crate) fn number_of(notification_id: &str) -> Option<u32> {
    notification_id.strip_prefix(ID)?.parse().ok()
}

/// A notification's text. The provider finds pair and number in it, wherever it stands in a prompt.
pub(crate) fn body(pair: u32, number: u32, bytes: usize) -> String {
    filled(mark(pair, number), " please look into it,", bytes)
}

/// A reply of so many bytes.
pub(crate) fn reply(bytes: usize) -> String {
    filled(TEXT.to_owned(), TEXT, bytes)
}

fn filled(mut text: String, filler: &str, bytes: usize) -> String {
    while text.len() < bytes {
        text.push_str(filler);
    }
    text.truncate(bytes);
    text
}

const MARK: &str = "work-";

/// Prefix of pair and number.
pub(crate) fn mark(pair: u32, number: u32) -> String {
    format!("{MARK}{pair}-{number}-")
}

/// Pair and number of the newest notification in a request.
pub(crate) fn marked(request: &[u8]) -> Option<(u32, u32)> {
    let at = memchr::memmem::rfind(request, MARK.as_bytes())? + MARK.len();
    let rest = &request[at..request.len().min(at + MARK_BYTES_MAX)];
    let mut numbers = rest.split(|byte| *byte == b'-');
    let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

/// Two 32-bit numbers and the separator between them.
const MARK_BYTES_MAX: usize = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_found_again_in_a_prompt() {
        let prompt = format!("before {} between {} after", body(7, 12, 200), body(31, 45_678, 8_000));
        assert_eq!(marked(prompt.as_bytes()), Some((31, 45_678)));
        assert_eq!(body(31, 45_678, 8_000).len(), 8_000);
        assert_eq!(marked(b"nothing"), None);
        assert_eq!(marked(b"work-12-x"), None);
    }

    #[test]
    fn pairs_fill_accounts() {
        let work = Work {
            pairs: 250,
            ..Work::new(1_000)
        };
        assert_eq!(work.accounts(), 3);
        assert_eq!((account(249), task(249)), ("a2".to_owned(), "t-49".to_owned()));
    }
}
