//! The note that goes to an agent beside the results of its tools: messages that came while the agent worked.

use domain::{Actor, NotificationId};
use sea_orm::FromQueryResult;
use storage::manifest::{Manifest, PartKind};

use super::{
    input::{BODY_BYTES_MAX, Input, TITLE_BYTES_MAX, named, of_notification},
    marks::Marks,
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

/// Builds the text and adds its parts to the turn's manifest. The same items and marks give the same bytes.
pub fn note<'a>(items: impl IntoIterator<Item = &'a Injected>, marks: Marks, manifest: &mut Manifest) -> String {
    let mut note = Input {
        text: String::new(),
        marks,
        manifest,
    };
    note.add(PartKind::Injected, named("queue"), ModelText::default().ours(CAME));
    for item in items {
        let mut piece = ModelText::default().ours("\nFrom: ").actor(&item.sender);
        if let Some(title) = &item.title {
            piece = piece.ours("\nTitle: ").line(title, TITLE_BYTES_MAX);
        }
        let piece = piece
            .ours("\nBody:\n")
            .block(&item.body, BODY_BYTES_MAX, &mut note.marks);
        note.add(PartKind::Injected, of_notification(&item.notification), piece);
    }
    note.text
}
