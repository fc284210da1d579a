//! Decides the outcome of items that wait in closing sessions. Pure.

use time::OffsetDateTime;

/// Why sessions close, as far as the outcome of waiting items depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// `since`: the start of the turn that moved the task, or now if no turn did.
    TaskDone { since: OffsetDateTime },
    /// The task was cancelled or archived, or the agent removed: no item is carried.
    Ended,
}

/// The properties of a waiting item that decide its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    pub from_person: bool,
    pub accepted_at: OffsetDateTime,
    /// `metadata.reopen`: its sender wants to reopen the finished task, or not to.
    pub reopens: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Cancel,
    /// It moves to the next generation.
    Carry,
}

/// The rule of product.md, "Settled": after `done`, items are carried that a person sent after the closing turn's start, since
/// the turn did not know them, and items that reopen the task. All other items end here, and so do those that do not want to
/// reopen it.
pub fn verdict(closing: Closing, item: Waiting) -> Verdict {
    match closing {
        Closing::TaskDone { since } => match item.reopens {
            Some(true) => Verdict::Carry,
            None if item.from_person && item.accepted_at > since => Verdict::Carry,
            Some(false) | None => Verdict::Cancel,
        },
        Closing::Ended => Verdict::Cancel,
    }
}

/// The outcomes of the items that wait in closing sessions.
#[derive(Debug)]
pub struct Judged<T> {
    pub cancelled: Vec<T>,
    /// Items that move from a closed session to its next generation.
    pub moving: Vec<T>,
    /// Items that stay queued, in a session that stays open.
    pub staying: Vec<T>,
}

/// Gives every item its [`verdict`]. Pure; keeps the order.
pub fn judge<T>(
    closing: Closing,
    items: Vec<T>,
    in_closed_session: impl Fn(&T) -> bool,
    waiting: impl Fn(&T) -> Waiting,
) -> Judged<T> {
    let (carried, cancelled): (Vec<T>, Vec<T>) = items
        .into_iter()
        .partition(|item| verdict(closing, waiting(item)) == Verdict::Carry);
    let (moving, staying) = carried.into_iter().partition(in_closed_session);
    Judged {
        cancelled,
        moving,
        staying,
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    #[test]
    fn every_waiting_item_gets_its_verdict() {
        let since = OffsetDateTime::UNIX_EPOCH + Duration::hours(1);
        let (before, after) = (since - Duration::seconds(1), since + Duration::seconds(1));
        let check = |closing, from_person, accepted_at, reopens, expected| {
            assert_eq!(
                verdict(
                    closing,
                    Waiting {
                        from_person,
                        accepted_at,
                        reopens
                    }
                ),
                expected
            );
        };
        let done = Closing::TaskDone { since };
        check(done, true, after, None, Verdict::Carry);
        check(done, true, before, None, Verdict::Cancel);
        check(done, true, since, None, Verdict::Cancel);
        check(done, false, after, None, Verdict::Cancel);
        check(done, true, before, Some(true), Verdict::Carry);
        check(done, false, before, Some(true), Verdict::Carry);
        check(done, true, after, Some(false), Verdict::Cancel);
        check(Closing::Ended, true, after, Some(true), Verdict::Cancel);
    }
}
