//! Runs: waiting items that are answered by one turn. Pure. The head of the queue decides:
//!
//! | head | the run | starts |
//! |---|---|---|
//! | `steer` | the steers behind it, of the same author and task | at once |
//! | `collect` that met a busy session | the same of mode `collect` | when its debounce is over, or the run is full |
//! | anything else | itself | at once |
//!
//! A run ends at the first item that is of another mode, author or task, that met an idle session, or that is
//! Signalbox's own; and at the limits of [`RunLimits`].

use contracts::notification::COLLECT_DEBOUNCE_MS_MAX;
use domain::{Actor, QueueMode, TaskId, queue::is_own_kind};

use crate::store::{context::QueuedItem, runs::Behind};

/// A waiting item, as far as a run depends on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub mode: QueueMode,
    /// With mode `collect`: it met a busy session.
    pub joins: bool,
    pub kind: String,
    /// Whoever speaks for another is another.
    pub author: Actor,
    /// The task's key.
    pub task: Option<String>,
    /// Of its body.
    pub bytes: i64,
    pub waited_ms: i64,
    /// Its own; none: that of the settings.
    pub debounce_ms: Option<i64>,
    /// Attempts at it so far: an item that was put back brings none to a fresh one.
    pub attempts: i32,
}

#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    pub debounce_ms: i64,
    pub wait_ms_max: i64,
    pub items_max: usize,
    pub bytes_max: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// The head and so many items after it start now.
    Start { further: usize },
    /// More may come: look again after this time.
    Wait { ms: i64 },
}

/// The debounce of an item. A value that is no number of milliseconds was stored by an earlier version: it has no meaning.
fn debounce_ms(stored: Option<&serde_json::Value>) -> Option<i64> {
    let ms = stored?.as_u64()?.min(COLLECT_DEBOUNCE_MS_MAX);
    i64::try_from(ms).ok()
}

impl From<&QueuedItem> for Candidate {
    fn from(item: &QueuedItem) -> Candidate {
        let facts = &item.facts;
        Candidate {
            mode: item.queue_mode,
            joins: item.joins,
            kind: facts.kind.clone(),
            author: facts.sender.clone(),
            task: facts.task.as_ref().map(|task| TaskId::key(&task.id).into()),
            bytes: i64::try_from(facts.body.len()).unwrap_or(i64::MAX),
            // The clock may have been set back.
            waited_ms: item.waited_ms.max(0),
            debounce_ms: debounce_ms(item.debounce_ms.as_ref()),
            attempts: item.attempts,
        }
    }
}

impl From<&Behind> for Candidate {
    fn from(item: &Behind) -> Candidate {
        Candidate {
            mode: item.queue_mode,
            joins: item.joins,
            kind: item.kind.clone(),
            author: item.sender.clone(),
            task: item.task_id.clone(),
            bytes: item.body_bytes,
            // The clock may have been set back.
            waited_ms: item.waited_ms.max(0),
            debounce_ms: debounce_ms(item.debounce_ms.as_ref()),
            attempts: item.attempts,
        }
    }
}

impl Candidate {
    /// Whether items after this head may belong to its run.
    pub fn may_head(&self) -> bool {
        let joins = match self.mode {
            QueueMode::Steer => true,
            QueueMode::Collect => self.joins,
            QueueMode::Followup | QueueMode::Inject => false,
        };
        joins && !is_own_kind(&self.kind)
    }

    fn is_followed_by(&self, next: &Candidate) -> bool {
        next.may_head()
            && (next.mode, next.attempts) == (self.mode, self.attempts)
            && next.author == self.author
            && next.task == self.task
    }
}

/// The run at the head of a queue. `following`: the items behind it, in order, as many as a run may have at least.
pub fn run(head: &Candidate, following: &[Candidate], limits: &RunLimits) -> Run {
    if !head.may_head() {
        return Run::Start { further: 0 };
    }
    let same = following.iter().take_while(|next| head.is_followed_by(next)).count();
    let mut bytes = head.bytes;
    let fits = |next: &&Candidate| {
        bytes = bytes.saturating_add(next.bytes);
        bytes <= limits.bytes_max
    };
    let further = following[..same]
        .iter()
        .take(limits.items_max.saturating_sub(1))
        .take_while(fits)
        .count();
    let is_full = further < same || further + 1 >= limits.items_max;
    let newest = further.checked_sub(1).map_or(head, |last| &following[last]);
    let debounce = newest.debounce_ms.unwrap_or(limits.debounce_ms) - newest.waited_ms;
    match debounce.min(limits.wait_ms_max - head.waited_ms) {
        ms @ 1.. if head.mode == QueueMode::Collect && !is_full => Run::Wait { ms },
        _ => Run::Start { further },
    }
}

#[cfg(test)]
mod tests {
    use domain::ActorKind;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: RunLimits = RunLimits {
        debounce_ms: 3_000,
        wait_ms_max: 30_000,
        items_max: 4,
        bytes_max: 100,
    };

    fn actor(kind: ActorKind, id: &str) -> Actor {
        Actor {
            kind,
            id: id.to_owned(),
            name: "A".to_owned(),
            via: None,
        }
    }

    fn item(mode: QueueMode, waited_ms: i64) -> Candidate {
        Candidate {
            mode,
            joins: true,
            kind: "notification".to_owned(),
            author: actor(ActorKind::User, "ann"),
            task: Some("t-1".to_owned()),
            bytes: 10,
            waited_ms,
            debounce_ms: None,
            attempts: 0,
        }
    }

    use QueueMode::{Collect, Followup, Inject, Steer};

    #[test]
    fn what_is_one_turn() {
        let check =
            |items: &[Candidate], expected| assert_eq!(run(&items[0], &items[1..], &LIMITS), expected, "{items:?}");
        let start = |further| Run::Start { further };
        let late = || item(Collect, 5_000);
        check(&[item(Followup, 0), item(Followup, 0)], start(0));
        check(&[item(Inject, 0), item(Inject, 0)], start(0));
        check(&[item(Steer, 0), item(Steer, 0), item(Followup, 0)], start(1));
        check(&[late(), late(), late()], start(2));
        check(&[late(), item(Followup, 9_000), late()], start(0));
        let other_author = Candidate {
            author: actor(ActorKind::Service, "ann"),
            ..late()
        };
        check(&[late(), other_author, late()], start(0));
        let in_their_name = Candidate {
            author: Actor {
                via: Some("ci".to_owned()),
                ..late().author
            },
            ..late()
        };
        check(&[late(), in_their_name, late()], start(0));
        let other_task = Candidate { task: None, ..late() };
        check(&[late(), other_task, late()], start(0));
        let put_back = Candidate { attempts: 1, ..late() };
        check(&[put_back.clone(), put_back, late()], start(1));
        let met_rest = Candidate { joins: false, ..late() };
        check(&[met_rest.clone(), late()], start(0));
        check(&[late(), met_rest], start(0));
        let answer = Candidate {
            kind: "answer".to_owned(),
            ..late()
        };
        check(&[answer.clone(), late()], start(0));
        check(&[late(), answer, late()], start(0));
    }

    #[test]
    fn when_a_run_starts() {
        let check =
            |items: &[Candidate], expected| assert_eq!(run(&items[0], &items[1..], &LIMITS), expected, "{items:?}");
        check(&[item(Collect, 0)], Run::Wait { ms: 3_000 });
        check(&[item(Collect, 3_000)], Run::Start { further: 0 });
        // The newest decides, up to the limit of the oldest.
        check(&[item(Collect, 5_000), item(Collect, 1_000)], Run::Wait { ms: 2_000 });
        check(&[item(Collect, 29_500), item(Collect, 0)], Run::Wait { ms: 500 });
        check(&[item(Collect, 30_000), item(Collect, 0)], Run::Start { further: 1 });
        let own = Candidate {
            debounce_ms: Some(0),
            ..item(Collect, 0)
        };
        check(&[item(Collect, 0), own], Run::Start { further: 1 });
        // A full run waits for nothing: by number, by bytes.
        let five: Vec<Candidate> = (0..5).map(|_| item(Collect, 0)).collect();
        check(&five, Run::Start { further: 3 });
        let large = Candidate {
            bytes: 91,
            ..item(Collect, 0)
        };
        check(&[item(Collect, 0), large.clone()], Run::Start { further: 0 });
        check(&[large], Run::Wait { ms: 3_000 });
    }

    fn any_item() -> impl Strategy<Value = Candidate> {
        let mode = prop::sample::select(QueueMode::ALL);
        (mode, any::<bool>(), 0..2_u8, 0..2_u8, 0..60_i64, 0..40_000_i64).prop_map(
            |(mode, joins, author, task, bytes, waited_ms)| Candidate {
                joins,
                author: actor(ActorKind::User, &author.to_string()),
                task: Some(task.to_string()),
                bytes,
                ..item(mode, waited_ms)
            },
        )
    }

    proptest! {
        #[test]
        fn a_run_never_mixes(items in prop::collection::vec(any_item(), 1..12)) {
            match run(&items[0], &items[1..], &LIMITS) {
                Run::Wait { ms } => {
                    prop_assert_eq!(items[0].mode, Collect);
                    prop_assert!(0 < ms && ms <= LIMITS.debounce_ms);
                }
                Run::Start { further } => {
                    let run = &items[..=further];
                    prop_assert!(run.len() <= LIMITS.items_max);
                    let same = |item: &Candidate| (item.mode, &item.author, &item.task) == (run[0].mode, &run[0].author, &run[0].task);
                    prop_assert!(run.iter().all(same));
                    prop_assert!(further == 0 || run.iter().map(|item| item.bytes).sum::<i64>() <= LIMITS.bytes_max);
                }
            }
        }
    }
}
