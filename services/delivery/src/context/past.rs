//! The past in an assembled prompt: which calls hold it, and how it becomes part of the turn's manifest. The entries themselves
//! are rendered by `prompt::past`. Pure.

use domain::{ContextMode, TurnContext};
use prompt::{
    Item, Manifest, Past, PastLimits, PastTurn,
    manifest::{Because, Layer, PartKind},
};

use crate::{
    providers::{Continuation, InputItem},
    store::{branches::BranchStart, journal::Journal, past::Loaded},
};

/// Whether the due call of a turn holds the whole turn so far, instead of what is new since its last call.
pub fn sends_whole(context: Option<&TurnContext>, journal: &Journal, found_by: Continuation) -> bool {
    let Some(last) = journal.last() else {
        return true;
    };
    let lost_after = context.and_then(|context| context.lost_after);
    match found_by {
        Continuation::Whole => true,
        // The first call in the thread after a lost one.
        Continuation::Key => {
            lost_after.is_some_and(|rounds| usize::try_from(rounds).is_ok_and(|rounds| rounds == journal.rounds.len()))
        }
        // A server that has lost a response may lose the next one, too: the rest of such a turn names none.
        Continuation::Response => last.response_id.is_none() || context.is_some_and(TurnContext::names_none),
    }
}

/// Whether the due call of a turn holds the turn's past.
pub fn holds_past(context: Option<&TurnContext>, journal: &Journal, found_by: Continuation) -> bool {
    context.is_some_and(has_past) && sends_whole(context, journal, found_by)
}

/// Whether the prompt of a turn has a past: all of it, or of a fork the spawning turn.
pub fn has_past(context: &TurnContext) -> bool {
    context.is_assembled() || is_fork(context)
}

/// Whether a branch's turn goes on from the thread of its parent. That ends before the spawning turn, which is in progress: of the
/// base, it lacks this one turn.
pub fn is_fork(context: &TurnContext) -> bool {
    // A replay of a turn that went on in its thread was not asked for as a fork.
    let is_asked = context.asked == ContextMode::Fork && context.used == ContextMode::Fork;
    is_asked && !context.is_assembled()
}

/// Parts that an input has only where its thread does not have them.
const OF_A_THREAD: [PartKind; 2] = [PartKind::Task, PartKind::Briefing];

/// What a branch's parent knew: the spawning turn, and those before it.
#[derive(Clone, Debug, Default)]
pub struct BaseTurns {
    /// Newest first.
    pub turns: Vec<PastTurn>,
    /// Older ones that were not read.
    pub more: usize,
}

impl BaseTurns {
    pub fn of(branch: &BranchStart, before: &Loaded) -> BaseTurns {
        let turns = branch.spawned_by().into_iter().chain(before.turns.iter().cloned());
        BaseTurns {
            turns: turns.collect(),
            more: before.total.saturating_sub(before.turns.len()),
        }
    }

    /// Of a fork, whose thread has the others.
    pub fn of_fork(branch: &BranchStart) -> BaseTurns {
        BaseTurns {
            turns: branch.spawned_by().into_iter().collect(),
            more: 0,
        }
    }
}

/// The past of a new turn, whose input has all that its thread needs; `base`: of a branch.
pub fn of_new(loaded: &Loaded, base: &BaseTurns, limits: &PastLimits) -> Past {
    assembled(loaded, base, limits, &[])
}

fn assembled(loaded: &Loaded, base: &BaseTurns, limits: &PastLimits, carried: &[PartKind]) -> Past {
    let total = loaded.total.max(loaded.turns.len()) + base.more;
    prompt::past_and_base(&loaded.turns, &base.turns, (total, Because::Past), limits, carried)
}

/// The past of a turn in progress. The same turns and manifest give the same.
pub fn of_open(loaded: &Loaded, base: &BaseTurns, limits: &PastLimits, manifest: Option<&Manifest>) -> Past {
    let has =
        |kind: &PartKind| manifest.is_some_and(|manifest| manifest.layer(Layer::Input).any(|part| part.part == *kind));
    let carried: Vec<PartKind> = OF_A_THREAD.into_iter().filter(|kind| !has(kind)).collect();
    assembled(loaded, base, limits, &carried)
}

/// Puts the past into a manifest, in the place of any other, with the context that asks for it.
pub fn enter(past: &Past, context: &TurnContext, manifest: &mut Manifest) {
    manifest.parts.retain(|part| part.layer != Layer::Context);
    manifest.left_out.retain(|left_out| left_out.part != PartKind::Entry);
    manifest.parts.extend(past.parts.iter().cloned());
    manifest.left_out.extend(past.left_out);
    manifest.context = Some(context.clone());
}

/// The items that are sent before a turn's input.
pub fn items(past: Past) -> Vec<InputItem> {
    let item = |item| match item {
        Item::User(text) => InputItem::User(text),
        Item::Assistant(text) => InputItem::Assistant(text),
    };
    past.items.into_iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use domain::ContextReason;

    use super::*;
    use crate::store::journal::Round;

    fn context(used: ContextMode, reason: Option<ContextReason>, lost_after: Option<u32>) -> TurnContext {
        TurnContext {
            asked: ContextMode::Continue,
            used,
            reason,
            thread: 1,
            from: None,
            base_sha256: None,
            lost_after,
            unconfirmed: false,
        }
    }

    fn journal(ids: &[Option<&str>]) -> Journal {
        let round = |id: &Option<&str>| Round {
            response_id: id.map(str::to_owned),
            text: String::new(),
            reasoning: Vec::new(),
            calls: Vec::new(),
            usage: None,
        };
        Journal {
            rounds: ids.iter().map(round).collect(),
        }
    }

    #[test]
    fn a_call_holds_what_its_thread_does_not_have() {
        use Continuation::{Key, Response, Whole};
        let goes_on = context(ContextMode::Continue, None, None);
        let lost = |after| context(ContextMode::Continue, Some(ContextReason::ThreadLost), Some(after));
        let began_lost = context(ContextMode::Continue, Some(ContextReason::ThreadLost), None);
        let unreliable = context(ContextMode::Assembled, Some(ContextReason::ThreadUnreliable), None);
        let process = context(ContextMode::Assembled, Some(ContextReason::ProviderThreadProcess), None);
        let check = |context: &TurnContext, ids: &[Option<&str>], found_by, whole, past| {
            let journal = journal(ids);
            let is = (
                sends_whole(Some(context), &journal, found_by),
                holds_past(Some(context), &journal, found_by),
            );
            assert_eq!(is, (whole, past), "{context:?} {ids:?} {found_by:?}");
        };
        for found_by in [Key, Response, Whole] {
            check(&goes_on, &[], found_by, true, false);
            check(&began_lost, &[], found_by, true, true);
            check(&process, &[], found_by, true, true);
        }
        let one = [Some("r1")];
        check(&goes_on, &one, Key, false, false);
        check(&goes_on, &one, Response, false, false);
        check(&goes_on, &[None], Response, true, false);
        check(&process, &one, Key, false, false);
        check(&process, &one, Whole, true, true);
        check(&began_lost, &one, Response, false, false);
        // Lost between rounds: the whole turn once, and then what is new.
        check(&lost(1), &one, Key, true, true);
        check(&lost(1), &[Some("r1"), Some("r2")], Key, false, false);
        check(&lost(0), &one, Key, false, false);
        // By response: the rest of the turn names no response.
        check(&lost(1), &[Some("r1"), Some("r2")], Response, true, true);
        check(&unreliable, &one, Response, true, true);
        // A fork has the turn that made it, as long as its parent's thread is there.
        let fork = |reason, lost_after| TurnContext {
            asked: ContextMode::Fork,
            from: Some("r0".to_owned()),
            ..context(ContextMode::Fork, reason, lost_after)
        };
        check(&fork(None, None), &[], Response, true, true);
        check(&fork(None, None), &one, Response, false, false);
        check(&fork(None, None), &[None], Response, true, true);
        assert!(is_fork(&fork(None, None)) && !is_fork(&fork(Some(ContextReason::ThreadLost), None)));
        // A replay goes on from the response that its source turn went on from.
        check(&context(ContextMode::Fork, None, None), &[], Response, true, false);
        // A version before this one began it.
        assert!(!sends_whole(None, &journal(&one), Key) && !holds_past(None, &journal(&[]), Key));
    }
}
