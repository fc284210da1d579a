//! The graph of a task's turns: which follow each other, which made and which got branches, and what of others each prompt held. Pure.

use api::branches::{Edge, EdgeKind, Node};
use prompt::{
    Manifest,
    manifest::{PartKind, Source},
};

use super::store::GraphRow;

/// The node of a turn, and the edges that end in it. None: the row has no turn.
pub fn node(row: &GraphRow) -> Option<(Node, Vec<Edge>)> {
    let turn = row.turn_id?;
    let edge = |from, kind| Edge { from, to: turn, kind };
    let edges = row
        .previous
        .map(|from| edge(from, EdgeKind::Next))
        .into_iter()
        .chain(row.spawned_by.map(|from| edge(from, EdgeKind::Spawned)))
        .chain(row.folded.iter().map(|from| edge(*from, EdgeKind::Folded)));
    let node = Node {
        turn,
        session: row.session_id,
        branch: row.branch_id,
        number: row.number,
        knew: row
            .manifest_packed
            .as_deref()
            .and_then(Manifest::unpacked)
            .map_or_else(Vec::new, knew),
    };
    Some((node, edges.collect()))
}

/// The turns and messages that a prompt held, each once, in their order.
fn knew(manifest: Manifest) -> Vec<String> {
    let mut knew: Vec<String> = Vec::new();
    let shown = manifest
        .parts
        .into_iter()
        .filter_map(|part| match (part.part, part.source) {
            (PartKind::Entry, Source::TurnInput(turn) | Source::TurnReply(turn)) => Some(format!("turn/{turn}")),
            (_, Source::Message(message)) => Some(format!("message/{message}")),
            (_, _) => None,
        });
    for source in shown {
        if knew.last() != Some(&source) && !knew.contains(&source) {
            knew.push(source);
        }
    }
    knew
}

#[cfg(test)]
mod tests {
    use domain::{InstructionLayout, SessionId, TurnId};
    use prompt::manifest::{Layer, Part};
    use storage::session::items_join::Notes;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_node_says_what_it_knew_and_where_it_comes_from() {
        let id = Uuid::from_u128;
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        let sources = [
            (Layer::Context, PartKind::Entry, Source::TurnInput(id(1))),
            (Layer::Context, PartKind::Entry, Source::TurnReply(id(1))),
            (Layer::Context, PartKind::Entry, Source::TurnInput(id(2))),
            (Layer::Input, PartKind::Notification, Source::named("notification/n-1")),
            (Layer::Input, PartKind::Message, Source::Message(id(7))),
        ];
        for (layer, part, source) in sources {
            manifest.parts.push(Part::of(layer, part, source, "text"));
        }
        let row = GraphRow {
            rank: 1,
            begun_at: OffsetDateTime::UNIX_EPOCH,
            lane: id(20),
            place: 1,
            turn_id: Some(TurnId(id(3))),
            session_id: SessionId(id(10)),
            branch_id: Some(id(20).into()),
            number: 1,
            manifest_packed: Some(manifest.packed()),
            notes: Notes::default(),
            previous: None,
            spawned_by: Some(TurnId(id(2))),
            folded: vec![TurnId(id(4))],
        };
        let (node, edges) = super::node(&row).unwrap();
        let named = |n| format!("{}", id(n));
        let knew = [
            format!("turn/{}", named(1)),
            format!("turn/{}", named(2)),
            format!("message/{}", named(7)),
        ];
        assert_eq!(
            (node.knew, node.branch.map(|branch| branch.uuid())),
            (knew.to_vec(), Some(id(20)))
        );
        let lines: Vec<String> = edges
            .iter()
            .map(|edge| format!("{:?} {}", edge.kind, edge.from))
            .collect();
        assert_eq!(lines, [format!("Spawned {}", named(2)), format!("Folded {}", named(4))]);
        assert!(super::node(&GraphRow { turn_id: None, ..row }).is_none());
    }
}
