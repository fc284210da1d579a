//! Assembled contexts: golden files, and rules over any number of turns.

use domain::{AccountId, InstructionLayout, TurnId, TurnState};
use prompt::{
    CalledTool, Further, InputFacts, Item, Manifest, MarkSecret, Past, PastLimits, PastTurn, input,
    manifest::{Because, Hash, Layer, Limit, PartKind},
    past, past_and_base, spawning,
};
use proptest::prelude::*;
use uuid::Uuid;

use crate::golden::facts;

const LIMITS: PastLimits = PastLimits {
    entries_max: 50,
    bytes_max: 131_072,
    body_bytes_max: 4_096,
    reply_bytes_max: 8_192,
};

/// Turn `n`, as it was begun with these facts.
fn turn(n: u128, facts: &InputFacts, reply: Option<&str>) -> PastTurn {
    let id = TurnId(Uuid::from_u128(n));
    let account = AccountId::parse("acme").unwrap();
    let mut manifest = Manifest::new(InstructionLayout::Layered);
    let input = input(facts, MarkSecret::new([7; 32]).marks(&account, id), &mut manifest);
    PastTurn {
        id,
        state: if reply.is_some() {
            TurnState::Finished
        } else {
            TurnState::Aborted
        },
        input,
        manifest: Some(manifest),
        notes: Vec::new(),
        called: Vec::new(),
        reply: reply.map(str::to_owned),
    }
}

fn three() -> Vec<PastTurn> {
    let called = |name: &str, calls, failed| CalledTool {
        name: name.to_owned(),
        calls,
        failed,
    };
    let first = turn(1, &facts(), Some("I look."));
    let second = PastTurn {
        called: vec![called("task_history", 2, 0), called("no \"tool\"\n", 1, 1)],
        notes: vec!["Note from Signalbox: more.\n\nBody:\n[begin abc]\nLook there.\n[end abc]\n".to_owned()],
        ..turn(
            2,
            &InputFacts {
                description: None,
                ..facts()
            },
            None,
        )
    };
    let run = Further {
        notification: domain::NotificationId::parse("ci-9").unwrap(),
        title: None,
        body: "And this.".to_owned(),
    };
    let third = InputFacts {
        further: vec![run],
        description: None,
        ..facts()
    };
    vec![turn(3, &third, Some("Done.")), second, first]
}

/// As a model reads it.
fn shown(past: &Past) -> String {
    let item = |item: &Item| match item {
        Item::User(text) => format!("--- user\n{text}"),
        Item::Assistant(text) => format!("--- assistant\n{text}\n"),
    };
    past.items.iter().map(item).collect()
}

/// The parts are slices of the items, one for each.
fn check_parts(past: &Past) {
    assert_eq!(past.items.len(), past.parts.len());
    for (item, part) in past.items.iter().zip(&past.parts) {
        assert_eq!((part.bytes, part.sha256), (item.text().len(), Hash::of(item.text())));
        assert_eq!(part.layer, Layer::Context);
    }
}

#[test]
fn contexts_are_pinned() {
    let assembled = past(&three(), 3, &LIMITS, Because::Past, &[]);
    check_parts(&assembled);
    insta::assert_snapshot!("context_assembled", shown(&assembled));
    // The input of a turn whose thread was lost has no description: the past brings it.
    let lost = past(
        &three()[1..],
        2,
        &LIMITS,
        Because::Past,
        &[PartKind::Task, PartKind::Briefing],
    );
    check_parts(&lost);
    insta::assert_snapshot!("context_lost", shown(&lost));
    let limits = PastLimits {
        entries_max: 1,
        body_bytes_max: 8,
        reply_bytes_max: 4,
        ..LIMITS
    };
    let short = past(&three(), 3, &limits, Because::Past, &[]);
    check_parts(&short);
    insta::assert_snapshot!("context_short", shown(&short));
    let cut: Vec<_> = short
        .parts
        .iter()
        .map(|part| (part.cut_bytes > 0, part.cut_by))
        .collect();
    assert_eq!(
        cut,
        [
            (false, None),
            (true, Some(Limit::ContextBodyBytesMax)),
            (true, Some(Limit::ContextReplyBytesMax))
        ]
    );
    let left_out = short.left_out.unwrap();
    assert_eq!((left_out.count, left_out.by), (2, Limit::ContextEntriesMax));
}

#[test]
fn contexts_of_branches_are_pinned() {
    let said = ["I split this.".to_owned(), " ".to_owned(), "Two parts.".to_owned()];
    let mut turns = three();
    let now = PastTurn {
        notes: vec![
            "Note from Signalbox: known.\n".to_owned(),
            "Note from Signalbox: too late.\n".to_owned(),
        ],
        ..turns.remove(0)
    };
    let now = spawning(now, &said, 1);
    // A branch whose parent's thread has the rest: only the turn that made it.
    let fork = past_and_base(&[], std::slice::from_ref(&now), (0, Because::Past), &LIMITS, &[]);
    check_parts(&fork);
    insta::assert_snapshot!("context_fork", shown(&fork));
    let base: Vec<PastTurn> = std::iter::once(now).chain(turns).collect();
    let own = turn(9, &facts(), Some("My own."));
    let branch = past_and_base(&[own], &base, (1, Because::Past), &LIMITS, &[]);
    check_parts(&branch);
    insta::assert_snapshot!("context_branch", shown(&branch));
    let from_base = branch.parts.iter().filter(|part| part.because == Because::Base).count();
    assert_eq!(
        (from_base, branch.parts.len()),
        (6, 8),
        "three turns of its parent, and its own"
    );
    assert!(!shown(&branch).contains("too late"), "{}", shown(&branch));
}

#[test]
fn a_turn_that_cannot_be_read_says_so() {
    for manifest in [None, Some(Manifest::new(InstructionLayout::Layered))] {
        let unread = PastTurn {
            manifest,
            ..turn(1, &facts(), Some("Done."))
        };
        let past = past(&[unread], 1, &LIMITS, Because::Past, &[PartKind::Task]);
        assert_eq!(past.items.len(), 2);
        assert!(past.items[0].text().contains("cannot be read"), "{:?}", past.items);
    }
}

proptest! {
    /// Whole turns are left out, from the oldest, and the rest fits.
    #[test]
    fn a_context_keeps_its_limits(
        sizes in prop::collection::vec((0_usize..9_000, 0_usize..9_000), 0..12),
        more in 0_usize..3, entries_max in 1_usize..10, bytes_max in 1_usize..60_000,
    ) {
        let limits = PastLimits { entries_max, bytes_max, ..LIMITS };
        let turns: Vec<PastTurn> = (1..).zip(&sizes).map(|(n, (body, reply))| {
            let facts = InputFacts { body: "b".repeat(*body), ..facts() };
            turn(n, &facts, Some(&"r".repeat(*reply)))
        }).collect();
        let past = past(&turns, turns.len() + more, &limits, Because::Past, &[]);
        check_parts(&past);
        let entries = past.parts.iter().filter(|part| part.part == PartKind::Entry);
        let (count, bytes) = entries.fold((0, 0), |(count, bytes), part| (count + 1, bytes + part.bytes));
        let kept = count / 2;
        prop_assert!(kept <= entries_max && bytes <= bytes_max, "{kept} {bytes}");
        prop_assert_eq!(past.left_out.map_or(0, |left_out| left_out.count), turns.len() + more - kept);
        // The newest stay, oldest first.
        let ids: Vec<_> = past.parts.iter().rev().filter(|part| part.part == PartKind::Entry).step_by(2).collect();
        for (turn, part) in turns.iter().zip(ids) {
            prop_assert_eq!(&part.source, &prompt::manifest::Source::TurnReply(turn.id.uuid()));
        }
    }
}
