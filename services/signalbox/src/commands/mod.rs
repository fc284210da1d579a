//! One file a command. A command returns its exit code, or an error that `main` prints as one line.

pub(crate) mod audit;
pub(crate) mod branches;
pub(crate) mod cancel;
pub(crate) mod context;
pub(crate) mod dead;
pub(crate) mod demo_agent;
pub(crate) mod diff;
pub(crate) mod handover;
pub(crate) mod health;
pub(crate) mod holds;
pub(crate) mod log;
pub(crate) mod mail;
pub(crate) mod members;
pub(crate) mod migrate;
pub(crate) mod nats_keys;
pub(crate) mod nats_users;
pub(crate) mod next;
pub(crate) mod notifications;
pub(crate) mod notify;
pub(crate) mod pause;
pub(crate) mod provider;
pub(crate) mod providers;
pub(crate) mod questions;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod replay;
pub(crate) mod replays;
pub(crate) mod reset;
pub(crate) mod resume;
pub(crate) mod route;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod stop;
pub(crate) mod turns;

use domain::Timestamp;
use time::{UtcOffset, format_description::BorrowedFormatItem, macros::format_description};

/// A timestamp of the API as a table shows it: to the second, without its zone, which is always UTC.
fn moment(at: Option<Timestamp>) -> String {
    const FORM: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    at.and_then(|at| at.0.to_offset(UtcOffset::UTC).format(FORM).ok())
        .unwrap_or_default()
}

/// Notifications, counted.
fn notifications_of(count: i32) -> String {
    counted(count.into(), "notification")
}

fn counted(count: i64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// The filters of a list that were named.
fn filters<'a, const N: usize>(all: [(&'a str, Option<&'a str>); N]) -> Vec<(&'a str, &'a str)> {
    let named = all.into_iter().filter_map(|(name, value)| Some((name, value?)));
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_only_by_what_was_named() {
        assert_eq!(filters([("task", None), ("agent", None)]), []);
        let named = filters([("task", Some("T")), ("agent", None), ("active", Some("true"))]);
        assert_eq!(named, [("task", "T"), ("active", "true")]);
    }
}
