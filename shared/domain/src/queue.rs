//! Edits of the items that wait in a session's queue: who may do what, and the order that follows. Pure; the caller holds the
//! session's lock.
//!
//! | operation | by | of Signalbox's own items |
//! |---|---|---|
//! | replace | the author, an admin | refused |
//! | withdraw | the author, an admin | an admin |
//! | promote, order | whoever controls sessions | allowed |
//! | steer, inject | whoever controls sessions | refused |

use std::collections::HashMap;

use crate::{Actor, Gate, NotificationId, NotificationState, QueueMode, string_enum::string_enum};

string_enum! {
    /// What was done to a queue.
    QueueOp {
        /// Other text, title or mode.
        Replace = "replace",
        Withdraw = "withdraw",
        /// Next, but for the steers at the head.
        Promote = "promote",
        /// The whole queue in another order.
        Order = "order",
        Steer = "steer",
        Inject = "inject",
    }
}

/// Who edits.
#[derive(Clone, Copy, Debug)]
pub struct Editor<'a> {
    pub actor: &'a Actor,
    /// May edit what others wrote.
    pub is_admin: bool,
}

/// An item, as far as the right to edit it goes.
#[derive(Clone, Copy, Debug)]
pub struct Editable<'a> {
    pub state: NotificationState,
    pub kind: &'a str,
    pub author: &'a Actor,
    pub revision: i32,
}

/// Why an edit is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotEditable {
    NotAuthor,
    /// Signalbox's own item.
    Immutable,
    /// Its turn is in progress.
    Started,
    Ended(NotificationState),
    /// It has another revision by now.
    Changed,
}

/// Notifications that Signalbox sends itself. Each is answered alone, and its text stays.
pub const OWN_KINDS: [&str; 9] = [
    "answer",
    "question",
    "review",
    "timer",
    "recovery",
    "branch_result",
    "task_unblocked",
    "dependency_ended",
    crate::mail::ITEM,
];

/// Whether Signalbox sends notifications of this type itself.
pub fn is_own_kind(kind: &str) -> bool {
    OWN_KINDS.contains(&kind)
}

impl Editor<'_> {
    /// The author is who the notification names as its sender.
    fn wrote(&self, author: &Actor) -> bool {
        (self.actor.kind, &self.actor.id) == (author.kind, &author.id)
    }

    /// Whether the item's text is the editor's to change, for as long as the item waits.
    pub fn may_replace(&self, item: &Editable<'_>) -> bool {
        permitted(QueueOp::Replace, item, self, None).is_ok()
    }
}

/// `revision`: the item's, as the editor knows it; none: any.
pub fn permitted(
    op: QueueOp,
    item: &Editable<'_>,
    editor: &Editor<'_>,
    revision: Option<i32>,
) -> Result<(), NotEditable> {
    let (needs_author, changes_own) = match op {
        QueueOp::Replace => (true, false),
        QueueOp::Withdraw => (true, true),
        QueueOp::Promote | QueueOp::Order => (false, true),
        QueueOp::Steer | QueueOp::Inject => (false, false),
    };
    if needs_author && !editor.is_admin && !editor.wrote(item.author) {
        return Err(NotEditable::NotAuthor);
    }
    let is_own = is_own_kind(item.kind);
    // Who only wrote that type withdraws nothing of ours.
    if is_own && (!changes_own || (op == QueueOp::Withdraw && !editor.is_admin)) {
        return Err(NotEditable::Immutable);
    }
    match item.state {
        NotificationState::Queued => {}
        NotificationState::Running => return Err(NotEditable::Started),
        ended @ (NotificationState::Delivered
        | NotificationState::Failed
        | NotificationState::Refused
        | NotificationState::Cancelled) => return Err(NotEditable::Ended(ended)),
    }
    match revision {
        Some(known) if known != item.revision => Err(NotEditable::Changed),
        Some(_) | None => Ok(()),
    }
}

impl Gate {
    /// Whether the edit opens the gate. Another order or another text may end the waiting of a run.
    pub fn is_opened_by_edit(self, op: QueueOp) -> bool {
        match self {
            Gate::Stopped | Gate::NoProgress => matches!(op, QueueOp::Promote | QueueOp::Steer | QueueOp::Inject),
            Gate::Collect => true,
            Gate::Pause | Gate::Config | Gate::Provider | Gate::Approval | Gate::Later => false,
        }
    }
}

/// A waiting item in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    pub id: NotificationId,
    pub position: i64,
    pub mode: QueueMode,
}

/// An item and its new position.
pub type Move = (NotificationId, i64);

/// The moves that bring all waiting items into this order; none: the order is not one of exactly these items. `queue` is in
/// its present order. No position is new: the items exchange those that they have.
pub fn ordered(queue: &[Placed], order: &[NotificationId]) -> Option<Vec<Move>> {
    let sorted = |mut ids: Vec<_>| {
        ids.sort_unstable();
        ids
    };
    let waiting = sorted(queue.iter().map(|item| &item.id).collect());
    (waiting == sorted(order.iter().collect())).then(|| moves(queue, order.iter(), positions(queue)))
}

/// The moves that bring an item to the head of its queue, behind the steers that are there.
pub fn promoted(queue: &[Placed], id: &NotificationId) -> Vec<Move> {
    moves(queue, head_first(queue, id), positions(queue))
}

/// The moves of an item that becomes a steer: as [`promoted`], but with a position as steers have, so that it stays before the
/// steers that come later.
pub fn steered(queue: &[Placed], id: &NotificationId) -> Vec<Move> {
    let position = |item: &Placed| match item.id == *id {
        true => item.mode.position_as(QueueMode::Steer, item.position),
        false => item.position,
    };
    let mut positions: Vec<i64> = queue.iter().map(position).collect();
    positions.sort_unstable();
    moves(queue, head_first(queue, id), positions)
}

fn positions(queue: &[Placed]) -> Vec<i64> {
    queue.iter().map(|item| item.position).collect()
}

fn head_first<'a>(queue: &'a [Placed], id: &'a NotificationId) -> impl Iterator<Item = &'a NotificationId> {
    let is_ahead = |item: &&Placed| item.mode == QueueMode::Steer && item.id != *id;
    let ahead = queue.iter().take_while(is_ahead).count();
    let ids = || queue.iter().map(|item| &item.id);
    let behind = ids().skip(ahead).filter(move |other| *other != id);
    ids().take(ahead).chain([id]).chain(behind)
}

/// Those whose position changes.
fn moves<'a>(queue: &[Placed], order: impl Iterator<Item = &'a NotificationId>, positions: Vec<i64>) -> Vec<Move> {
    let before: HashMap<&NotificationId, i64> = queue.iter().map(|item| (&item.id, item.position)).collect();
    order
        .zip(positions)
        .filter(|(id, position)| before.get(id) != Some(position))
        .map(|(id, position)| (id.clone(), position))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ActorKind;

    fn person(id: &str) -> Actor {
        Actor {
            kind: ActorKind::User,
            id: id.to_owned(),
            name: "same name".to_owned(),
            via: None,
        }
    }

    #[test]
    fn who_may_do_what_to_an_item() {
        use NotEditable::{Changed, Ended, Immutable, NotAuthor, Started};
        use NotificationState::{Delivered, Queued, Running};
        use QueueOp::{Inject, Order, Promote, Replace, Steer, Withdraw};
        let (ann, bob) = (person("ann"), person("bob"));
        let namesake = Actor {
            kind: ActorKind::Service,
            ..ann.clone()
        };
        let check = |op, (kind, state): (&str, NotificationState), actor: &Actor, is_admin, known, expected| {
            let item = Editable {
                state,
                kind,
                author: &ann,
                revision: 3,
            };
            let editor = Editor { actor, is_admin };
            let found = permitted(op, &item, &editor, known);
            assert_eq!(found, expected, "{op} {kind} {state} {actor:?} {is_admin} {known:?}");
        };
        let text = ("notification", Queued);
        for op in [Replace, Withdraw] {
            check(op, text, &ann, false, Some(3), Ok(()));
            check(op, text, &bob, true, None, Ok(()));
            check(op, text, &bob, false, Some(3), Err(NotAuthor));
            check(op, text, &namesake, false, Some(3), Err(NotAuthor));
            check(op, text, &ann, false, Some(2), Err(Changed));
            check(op, ("notification", Running), &ann, false, Some(2), Err(Started));
        }
        for op in [Promote, Order, Steer, Inject] {
            check(op, text, &bob, false, None, Ok(()));
            check(
                op,
                ("notification", Delivered),
                &bob,
                false,
                None,
                Err(Ended(Delivered)),
            );
        }
        for kind in OWN_KINDS {
            let own = (kind, Queued);
            for op in [Replace, Steer, Inject] {
                check(op, own, &ann, true, None, Err(Immutable));
            }
            check(Withdraw, own, &ann, false, None, Err(Immutable));
            check(Withdraw, own, &bob, false, None, Err(NotAuthor));
            for (op, is_admin) in [(Withdraw, true), (Promote, false), (Order, false)] {
                check(op, own, &bob, is_admin, None, Ok(()));
            }
        }
    }

    #[test]
    fn a_person_s_stop_is_undone_by_what_starts_something() {
        let opening = QueueOp::ALL.iter().filter(|op| Gate::Stopped.is_opened_by_edit(**op));
        let opening: Vec<&QueueOp> = opening.collect();
        assert_eq!(opening, [&QueueOp::Promote, &QueueOp::Steer, &QueueOp::Inject]);
    }

    fn id(id: impl ToString) -> NotificationId {
        NotificationId::parse(&id.to_string()).unwrap()
    }

    fn item(number: i64, mode: QueueMode) -> Placed {
        Placed {
            id: id(number),
            position: mode.position(number),
            mode,
        }
    }

    /// The queue after the moves, in its order.
    fn after(queue: &[Placed], moves: &[Move]) -> Vec<Placed> {
        let mut queue = queue.to_vec();
        for (id, position) in moves {
            queue.iter_mut().find(|item| item.id == *id).unwrap().position = *position;
        }
        queue.sort_by_key(|item| item.position);
        queue
    }

    fn ids(queue: &[Placed]) -> Vec<&str> {
        queue.iter().map(|item| item.id.as_str()).collect()
    }

    #[test]
    fn items_move_within_the_places_that_there_are() {
        use QueueMode::{Followup, Steer};
        let queue = [item(4, Steer), item(1, Followup), item(2, Followup), item(7, Followup)];
        let moved = after(&queue, &promoted(&queue, &id(7)));
        assert_eq!(ids(&moved), ["4", "7", "1", "2"]);
        assert_eq!(positions(&moved), positions(&queue));
        assert_eq!(promoted(&queue, &id(1)), [], "it is there already");

        let order = ["7", "4", "2", "1"].map(id);
        let moved = after(&queue, &ordered(&queue, &order).unwrap());
        assert_eq!(
            (ids(&moved), positions(&moved)),
            (vec!["7", "4", "2", "1"], positions(&queue))
        );
        for others in [
            &["7", "4", "2"][..],
            &["7", "4", "2", "2"],
            &["7", "4", "2", "1", "1"],
            &["7", "4", "2", "8"],
        ] {
            let order: Vec<NotificationId> = others.iter().map(id).collect();
            assert_eq!(ordered(&queue, &order), None, "{others:?}");
        }
    }

    #[test]
    fn a_steered_item_stands_behind_earlier_steers_and_before_later_ones() {
        use QueueMode::{Followup, Steer};
        let mut queue = vec![item(4, Steer), item(1, Followup), item(2, Followup), item(7, Followup)];
        queue = after(&queue, &steered(&queue, &id(2)));
        queue.push(item(8, Steer));
        queue.sort_by_key(|item| item.position);
        assert_eq!(ids(&queue), ["4", "2", "8", "1", "7"]);
        let again = steered(&queue, &id(4));
        assert_eq!(ids(&after(&queue, &again)), ["4", "2", "8", "1", "7"]);
    }

    proptest! {
        #[test]
        fn edits_and_claims_and_entries_keep_one_place_an_item(
            deeds in prop::collection::vec((0..6u8, 0..8usize, any::<bool>()), 1..40)
        ) {
            let mut queue: Vec<Placed> = Vec::new();
            let mut tail = 0;
            for (deed, at, steers) in deeds {
                let before = positions(&queue);
                let named = queue.get(at % queue.len().max(1)).map(|item| item.id.clone());
                match (deed, named) {
                    (0 | 1, _) | (_, None) => {
                        tail += 1;
                        queue.push(item(tail, if steers { QueueMode::Steer } else { QueueMode::Followup }));
                        queue.sort_by_key(|item| item.position);
                    }
                    // Taken by a claim, or withdrawn.
                    (2, Some(id)) => queue.retain(|item| item.id != id),
                    (3, Some(id)) => {
                        queue = after(&queue, &promoted(&queue, &id));
                        prop_assert_eq!(positions(&queue), before);
                    }
                    (4, Some(_)) => {
                        let mut order: Vec<NotificationId> = queue.iter().map(|item| item.id.clone()).collect();
                        let by = at % order.len();
                        order.rotate_left(by);
                        queue = after(&queue, &ordered(&queue, &order).unwrap());
                        prop_assert_eq!(queue.iter().map(|item| item.id.clone()).collect::<Vec<_>>(), order);
                        prop_assert_eq!(positions(&queue), before);
                    }
                    (_, Some(id)) => {
                        let ahead = queue.iter().take_while(|item| item.mode == QueueMode::Steer && item.id != id).count();
                        queue = after(&queue, &steered(&queue, &id));
                        prop_assert_eq!(&queue[ahead].id, &id);
                        queue[ahead].mode = QueueMode::Steer;
                    }
                }
                // Every number is used once, as a steer's or as another's: so the next number is free in both.
                let numbers = queue.iter().map(|item| match item.position < 0 {
                    true => QueueMode::Steer.position_as(QueueMode::Followup, item.position),
                    false => item.position,
                });
                let mut numbers: Vec<i64> = numbers.collect();
                numbers.sort_unstable();
                prop_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", numbers);
                prop_assert!(numbers.iter().all(|number| (1..=tail).contains(number)), "{:?}", numbers);
            }
        }
    }
}
