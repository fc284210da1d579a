//! I32: in one thread of a provider nothing is told twice, read from the manifests of the turns by the rule of `prompt::told`. Always.
//! Descriptions are not compared: the campaign's tasks have none.
//!
//! I33: a turn begins without a past only where no turn of its session had a reply before. Always.

use std::collections::{BTreeMap, HashMap};

use domain::{ContextReason, SessionId, TurnId};
use prompt::{
    Manifest,
    told::{ToldTurn, Twice, twice},
};
use uuid::Uuid;

use super::{
    Violation,
    evidence::{Evidence, Name, TurnRow},
};

/// Always.
pub(super) fn nothing_twice(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut wrote: HashMap<Name<'_>, Vec<Uuid>> = HashMap::new();
    for message in &evidence.rows.messages {
        if let (Some(turn), Ok(id)) = (&message.turn_id, Uuid::try_parse(&message.id)) {
            wrote.entry((&message.account_id, turn)).or_default().push(id);
        }
    }
    let mut accounts: BTreeMap<&str, Vec<ToldTurn>> = BTreeMap::new();
    for (&(account, _), turns) in &evidence.turns_of {
        let read = turns.iter().filter_map(|turn| {
            let wrote = wrote.get(&(account, turn.id.as_str()));
            read(turn, wrote.cloned().unwrap_or_default())
        });
        accounts.entry(account).or_default().extend(read);
    }
    let of = |account: &str, twice: &Twice| Violation {
        invariant: "I32",
        expected: "a thread is told nothing twice",
        found: format!(
            "{} by turns {} and {} of {account}, in thread {}",
            twice.source, twice.before, twice.turn, twice.thread
        ),
    };
    accounts
        .iter()
        .flat_map(|(account, turns)| twice(turns).iter().map(|twice| of(account, twice)).collect::<Vec<_>>())
        .collect()
}

/// Always.
pub(super) fn past_known(evidence: &Evidence<'_>) -> Vec<Violation> {
    let begins = |turn: &TurnRow| {
        let packed = hex::decode(turn.manifest.as_ref()?).ok()?;
        let context = Manifest::unpacked(&packed)?.context?;
        Some(context.reason == Some(ContextReason::First))
    };
    let of_session = |turns: &[&TurnRow]| {
        let first_reply = turns
            .iter()
            .filter(|turn| turn.state == "finished")
            .map(|turn| turn.number)
            .min()?;
        let late = turns
            .iter()
            .find(|turn| turn.number > first_reply && begins(turn) == Some(true))?;
        Some(Violation {
            invariant: "I33",
            expected: "a turn begins without a past only where no turn had a reply before",
            found: format!("turn {} of {} knows none before it", late.id, late.account_id),
        })
    };
    evidence
        .turns_of
        .values()
        .filter_map(|turns| of_session(turns))
        .collect()
}

/// None: it has no manifest that can be read.
fn read(turn: &TurnRow, wrote: Vec<Uuid>) -> Option<ToldTurn> {
    let packed = hex::decode(turn.manifest.as_ref()?).ok()?;
    Some(ToldTurn {
        session: SessionId(Uuid::try_parse(&turn.session_id).ok()?),
        id: TurnId(Uuid::try_parse(&turn.id).ok()?),
        is_answered: turn.state == "finished",
        manifest: Manifest::unpacked(&packed)?,
        input: String::new(),
        noted: turn.noted.clone(),
        wrote,
    })
}

#[cfg(test)]
mod tests {
    use domain::{ContextMode, ContextReason, InstructionLayout, TurnContext};
    use prompt::manifest::{Layer, Part, PartKind, Source};

    use super::{super::fabricated::Story, *};

    fn id(n: u128) -> String {
        Uuid::from_u128(n).to_string()
    }

    fn packed(thread: i32, parts: Vec<Part>) -> Option<String> {
        let context = TurnContext {
            asked: ContextMode::Continue,
            used: ContextMode::Continue,
            reason: None,
            thread,
            from: None,
            base_sha256: None,
            lost_after: None,
            unconfirmed: false,
        };
        let manifest = Manifest {
            context: Some(context),
            parts,
            ..Manifest::new(InstructionLayout::Layered)
        };
        Some(hex::encode(manifest.packed()))
    }

    fn about(id: &str) -> Part {
        let source = Source::named(format!("notification/{id}"));
        Part::of(Layer::Input, PartKind::Notification, source, "")
    }

    fn shows(message: u128) -> Part {
        let source = Source::Message(Uuid::from_u128(message));
        Part::of(Layer::Input, PartKind::Message, source, "")
    }

    /// Turn 1 has replied with message 7, and turn 2 follows in the same thread.
    fn story() -> Story {
        let mut story = Story::delivered();
        let rows = &mut story.rows;
        rows.turns.push(rows.turns[0].clone());
        for (turn, n) in rows.turns.iter_mut().zip(1..) {
            (turn.id, turn.session_id, turn.number) = (id(n), id(1), i64::try_from(n).unwrap());
            turn.manifest = packed(1, vec![about(&format!("n-{n}"))]);
        }
        for message in &mut rows.messages {
            message.turn_id = Some(id(1));
        }
        rows.messages[1].id = id(7);
        story
    }

    #[test]
    fn what_is_told_once_is_fine() {
        let mut story = story();
        assert_eq!(story.judge(nothing_twice), []);
        story.rows.turns[1].manifest = packed(1, vec![about("n-2"), shows(8)]);
        assert_eq!(story.judge(nothing_twice), []);
        // In another thread it is new.
        story.rows.turns[1].manifest = packed(2, vec![about("n-2"), shows(7)]);
        assert_eq!(story.judge(nothing_twice), []);
        // What broke off may come again.
        story.rows.turns[1].manifest = packed(1, vec![about("n-1"), shows(7)]);
        story.rows.turns[0].state = "failed".to_owned();
        assert_eq!(story.judge(nothing_twice), []);
    }

    #[test]
    fn what_a_thread_was_told_before_is_found() {
        for (parts, what) in [
            (vec![about("n-1")], "notification/n-1 by turns"),
            (vec![about("n-2"), shows(7)], "message/"),
        ] {
            let mut story = story();
            story.rows.turns[1].manifest = packed(1, parts);
            assert!(story.finds(nothing_twice, what), "{what}");
        }
        let mut noted = story();
        noted.rows.turns[0].noted.push("n-2".to_owned());
        assert!(noted.finds(nothing_twice, "notification/n-2 by turns"));
    }

    #[test]
    fn a_turn_after_a_reply_knows_its_past() {
        let begins = |manifest: &Option<String>| {
            let packed = hex::decode(manifest.as_ref().unwrap()).unwrap();
            let mut manifest = Manifest::unpacked(&packed).unwrap();
            let context = manifest.context.as_mut().unwrap();
            context.reason = Some(ContextReason::First);
            Some(hex::encode(manifest.packed()))
        };
        let mut story = story();
        story.rows.turns[0].manifest = begins(&story.rows.turns[0].manifest);
        assert_eq!(story.judge(past_known), []);
        story.rows.turns[1].manifest = begins(&story.rows.turns[1].manifest);
        assert!(story.finds(past_known, "knows none before it"));
        story.rows.turns[0].state = "failed".to_owned();
        assert_eq!(story.judge(past_known), []);
    }

    #[test]
    fn accounts_have_threads_of_their_own() {
        let mut story = story();
        story.rows.turns[1].manifest = packed(1, vec![about("n-1")]);
        story.rows.turns[1].account_id = "other".to_owned();
        assert_eq!(story.judge(nothing_twice), []);
    }
}
