//! The note that goes to an agent beside the results of its tools: messages that came while the agent worked.

use domain::{Actor, NotificationId};
use sea_orm::FromQueryResult;

use crate::{
    input::{BODY, TITLE},
    manifest::{Layer, Part, PartKind, Source},
    marks::{Marks, quotations},
    text::ModelText,
};

/// An item that is given to a turn in progress.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Injected {
    #[sea_orm(from_alias = "id")]
    pub notification: NotificationId,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub title: Option<String>,
    pub body: String,
}

const CAME: &str = "Note from Signalbox: while you worked, this came for you. It belongs to this turn: take it into account \
from here on.\n";

/// Builds the text. The same items and marks give the same bytes.
pub fn note<'a>(items: impl IntoIterator<Item = &'a Injected>, mut marks: Marks) -> String {
    let items = items.into_iter();
    items.fold(CAME.to_owned(), |text, item| text + injected(item, &mut marks).as_str())
}

fn injected(item: &Injected, marks: &mut Marks) -> ModelText {
    let mut piece = ModelText::default().ours("\nFrom: ").actor(&item.sender);
    if let Some(title) = &item.title {
        piece = piece.ours("\nTitle: ").line(title, TITLE);
    }
    piece.ours("\nBody:\n").block(&item.body, BODY, marks)
}

/// The parts of a stored note: its heading, and one for each of its notifications, which end with their quotations.
pub fn note_parts(text: &str, notifications: &[String]) -> Vec<Part> {
    let heading = text.len().min(CAME.len());
    let (heading, rest) = text.split_at_checked(heading).unwrap_or((text, ""));
    let mut parts = vec![Part::of(
        Layer::Input,
        PartKind::Injected,
        Source::named("queue"),
        heading,
    )];
    let mut from = 0;
    for (quotation, id) in quotations(rest).iter().zip(notifications) {
        let part = Part::of(
            Layer::Input,
            PartKind::Injected,
            Source::named(format!("notification/{id}")),
            &rest[from..quotation.to],
        );
        parts.push(Part {
            cut_bytes: quotation.left_out,
            cut_by: (quotation.left_out > 0).then_some(BODY.0),
            ..part
        });
        from = quotation.to;
    }
    parts
}
