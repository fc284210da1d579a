//! What a turn is shown of its task's thread: the newest messages that are not in its context already. Pure.
//!
//! Left out are (a) the message that the notification is about, (b) those that wake this agent by notifications of their own in
//! this session, (c) those of turns of this past, and (d) those that the provider's thread was shown. A message whose notification was
//! withdrawn, or whose turn ended without an answer, wakes no more: it is shown.

use domain::{ContextMode, MessageId, TaskId, context::Told};
use prompt::{
    Extract, InputFacts, Manifest, THREAD_COUNTED_MAX, ThreadMessage,
    manifest::{Because, Part, PartKind},
};

use super::plan::Plan;
use crate::store::context::{Candidate, Candidates};

/// The newest messages of a task's thread, as a new turn finds them.
#[derive(Default)]
pub struct Newest {
    pub candidates: Candidates,
    /// The messages since the provider's thread was told last, or all; at most one more than [`THREAD_COUNTED_MAX`].
    pub total: i64,
    /// Those that the provider's thread has.
    pub there: Vec<MessageId>,
}

/// Completes the facts of a turn's prompt: what goes along with this thread. Gives what the thread has been told when the turn has had
/// an answer, but for the messages, and these: the shown ones, newest first, and behind them the one that the notification is about,
/// which may be older than any candidate.
pub fn complete(
    facts: &mut InputFacts,
    Newest {
        candidates,
        total,
        there,
    }: Newest,
    briefing: Option<String>,
    (plan, told): (&Plan, &Told),
    provider: &str,
) -> (Told, Vec<MessageId>) {
    // A fork's thread was told what its parent's was.
    let is_bare = plan.is_new && plan.context.used != ContextMode::Fork;
    let before = match is_bare {
        true => Told {
            rotated: told.rotated.clone(),
            ..Told::default()
        },
        false => told.clone(),
    };
    let because = |changed| match is_bare {
        true => Because::FirstTurn,
        false => changed,
    };
    let mut after = Told {
        provider: Some(provider.to_owned()),
        is_later: plan.is_later,
        ..before.clone()
    };
    if !is_bare {
        // A task's messages push out those of others, which an agent with one session for all of them may have been told, too.
        after.show(there, usize::MAX);
    }
    if let Some(text) = briefing
        && after.tell(BRIEFING, &text)
    {
        facts.briefing = Some((text, because(Because::Overview)));
    }
    // After the briefing, which a new description may push out of what is remembered.
    if let Some(task) = &facts.task {
        let is_new = after.tell(&of_task(&task.id), &task.description);
        facts.description = is_new.then(|| because(Because::AboutTask));
    }
    let total = match plan.context.used {
        // How many older messages its parent's thread lacked is not known.
        ContextMode::Fork => count(candidates.0.len()),
        ContextMode::Continue | ContextMode::Assembled => total,
    };
    // Its entries tell of turns without an answer, too.
    let has_past = plan.context.is_assembled();
    let candidates = candidates.0.into_iter().map(|candidate| Candidate {
        wakes: candidate.wakes || candidate.was_tried && has_past,
        ..candidate
    });
    facts.extract = extract(Candidates(candidates.collect()), total, facts.about_message, &before);
    let shown = facts.extract.messages.iter().rev().map(|message| message.id);
    (after, shown.chain(facts.about_message).collect())
}

const BRIEFING: &str = "account/briefing";

fn of_task(task: &TaskId) -> String {
    format!("task/{}", task.key())
}

/// What the texts of a turn's prompt are of that go along when they have changed.
pub fn texts(manifest: &Manifest, task: Option<&TaskId>) -> Vec<String> {
    let of = |part: &Part| match part.part {
        PartKind::Task => task.map(of_task),
        PartKind::Briefing => Some(BRIEFING.to_owned()),
        _ => None,
    };
    manifest.parts.iter().filter_map(of).collect()
}

/// `about`: the message that the notification is about.
pub fn extract(candidates: Candidates, total: i64, about: Option<MessageId>, told: &Told) -> Extract {
    let since = told.at.unwrap_or(i64::MIN);
    let is_since = |candidate: &&Candidate| Told::moment(candidate.message.at) >= since;
    let looked_at = candidates.0.iter().filter(is_since).count();
    let is_new = |candidate: &Candidate| {
        Some(candidate.message.id) != about
            && !candidate.wakes
            && !candidate.is_past
            && !told.ids.contains(&candidate.message.id)
    };
    let mut messages: Vec<ThreadMessage> = candidates
        .0
        .into_iter()
        .filter(is_new)
        .map(|candidate| candidate.message)
        .collect();
    messages.reverse();
    // Those before the candidates were not looked at one by one.
    let older = total.saturating_sub(count(looked_at)).max(0);
    let new = match total {
        ..=THREAD_COUNTED_MAX => count(messages.len()).saturating_add(older),
        _ => total,
    };
    Extract { messages, new }
}

fn count(messages: usize) -> i64 {
    i64::try_from(messages).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use domain::{Actor, ActorKind};
    use uuid::Uuid;

    use super::*;

    fn id(n: u128) -> MessageId {
        MessageId(Uuid::from_u128(n))
    }

    /// Message `n`, written at second `n`.
    fn candidate(n: u8) -> Candidate {
        let message = ThreadMessage {
            id: id(n.into()),
            author: Actor {
                kind: ActorKind::User,
                id: "ann".to_owned(),
                name: "Ann".to_owned(),
                via: None,
            },
            body: String::new(),
            at: time::OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(n.into()),
        };
        Candidate {
            message,
            wakes: false,
            was_tried: false,
            is_past: false,
        }
    }

    /// The numbers of the shown messages of 9, 8 and 7, and how many are new.
    fn shown(change: impl Fn(&mut Candidate), total: i64, about: Option<MessageId>, told: &Told) -> (Vec<u128>, i64) {
        let mut candidates: Vec<Candidate> = [9, 8, 7].map(candidate).into();
        candidates.iter_mut().for_each(change);
        let extract = extract(Candidates(candidates), total, about, told);
        let ids = extract.messages.iter().map(|message| message.id.uuid().as_u128());
        (ids.collect(), extract.new)
    }

    fn only(n: u128, change: fn(&mut Candidate)) -> impl Fn(&mut Candidate) {
        move |candidate| {
            if candidate.message.id == id(n) {
                change(candidate);
            }
        }
    }

    #[test]
    fn shows_the_newest_oldest_first() {
        assert_eq!(shown(|_| {}, 3, None, &Told::default()), (vec![7, 8, 9], 3));
        let none = extract(Candidates::default(), 0, None, &Told::default());
        assert_eq!((none.messages.len(), none.new), (0, 0));
    }

    #[test]
    fn leaves_out_the_one_that_the_notification_is_about() {
        assert_eq!(shown(|_| {}, 3, Some(id(8)), &Told::default()), (vec![7, 9], 2));
    }

    #[test]
    fn leaves_out_those_that_wake_the_agent_by_themselves() {
        let wakes = only(9, |candidate| candidate.wakes = true);
        assert_eq!(shown(wakes, 3, None, &Told::default()), (vec![7, 8], 2));
    }

    #[test]
    fn leaves_out_those_of_turns_of_this_past() {
        let is_past = only(7, |candidate| candidate.is_past = true);
        assert_eq!(shown(is_past, 3, None, &Told::default()), (vec![8, 9], 2));
    }

    #[test]
    fn leaves_out_those_that_the_thread_was_shown() {
        let told = Told {
            ids: vec![id(8), id(7)],
            at: Some(9_000),
            ..Told::default()
        };
        assert_eq!(shown(|_| {}, 1, None, &told), (vec![9], 1));
        // A message may be older than the last turn and not be there when the turn began.
        let late = Told {
            ids: vec![id(9), id(7)],
            ..told
        };
        assert_eq!(shown(|_| {}, 1, None, &late), (vec![8], 1));
    }

    #[test]
    fn says_how_many_are_new_besides_the_shown_ones() {
        assert_eq!(shown(|_| {}, 40, None, &Told::default()).1, 40);
        assert_eq!(shown(|_| {}, 101, None, &Told::default()).1, 101);
        let told = Told {
            ids: vec![id(7)],
            at: Some(8_000),
            ..Told::default()
        };
        assert_eq!(shown(|_| {}, 2, None, &told), (vec![8, 9], 2));
        let own = only(9, |candidate| candidate.is_past = true);
        assert_eq!(shown(own, 12, None, &Told::default()), (vec![7, 8], 11));
    }
}
