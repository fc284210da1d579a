//! What becomes of the items that wait where sessions close. Pure.

use time::OffsetDateTime;

/// Why sessions close, as far as it decides what becomes of waiting items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// `since`: the start of the turn that moved the task, or now when no turn did.
    TaskDone { since: OffsetDateTime },
    /// Cancelled, archived, or the agent is gone: nothing waits on.
    Ended,
}

/// What decides about a waiting item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    pub from_person: bool,
    pub accepted_at: OffsetDateTime,
    /// `metadata.reopen`: its sender means to take the finished task up again.
    pub reopens: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Cancel,
    /// It goes to the next generation.
    Carry,
}

/// The rule of product.md, "Settled": after `done`, what a person said during or after the turn that closed the task
/// was not yet known to it, and goes on; all else ends here.
pub fn verdict(closing: Closing, item: Waiting) -> Verdict {
    match closing {
        Closing::TaskDone { since } => {
            if item.reopens || (item.from_person && item.accepted_at > since) {
                Verdict::Carry
            } else {
                Verdict::Cancel
            }
        }
        Closing::Ended => Verdict::Cancel,
    }
}

/// What becomes of the items that wait where sessions close.
#[derive(Debug)]
pub struct Judged<T> {
    pub cancelled: Vec<T>,
    /// They leave a closed session for its next generation.
    pub moving: Vec<T>,
    /// They go on where they are: in a session that stays open.
    pub staying: Vec<T>,
}

/// Gives every item its [`verdict`]. Pure; the order stays.
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
        check(done, true, after, false, Verdict::Carry);
        check(done, true, before, false, Verdict::Cancel);
        check(done, true, since, false, Verdict::Cancel);
        check(done, false, after, false, Verdict::Cancel);
        check(done, true, before, true, Verdict::Carry);
        check(done, false, before, true, Verdict::Carry);
        check(Closing::Ended, true, after, true, Verdict::Cancel);
    }
}
