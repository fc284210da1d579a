//! Rules for an assembled context: each entry is a turn of the same past, about the same task, rendered again. Their texts are stored
//! nowhere else.

use std::collections::HashMap;

use prompt::manifest::{Because, Hash, Layer, Part, PartKind, Source};
use uuid::Uuid;

use super::{
    judge::{Case, Ruling, foreign, gone, is_of, of_part, unknown_source},
    verdict::{
        Doubt::{Retention, Unread},
        Fault::ForeignThread,
        Judged,
        Verdict::{Unproven, Violation},
    },
};
use crate::turns::{
    sent::{Earlier, context_text},
    store::PastSource,
};

/// Entries that are rendered already: a turn is an entry of many prompts of a page.
#[derive(Debug, Default)]
pub struct Rendered(HashMap<EntryKey, Option<(usize, Hash)>>);

/// The source, the bytes that were cut off, and, of a spawning turn, the branch that knows the turn.
type EntryKey = (Source, usize, Option<Uuid>);

impl Case<'_> {
    pub(super) fn context(&self, rendered: &mut Rendered, judged: &mut Vec<Judged>) {
        for part in self.manifest.layer(Layer::Context) {
            judged.push(of_part(part, self.entry(part, rendered)));
        }
    }

    fn entry(&self, part: &Part, rendered: &mut Rendered) -> Ruling {
        let is_same = |text: Option<(usize, Hash)>| text == Some((part.bytes, part.sha256));
        let earlier = Earlier {
            pasts: &self.sources.pasts,
            spawning: self.spawning(),
        };
        match (part.part, &part.source) {
            (PartKind::Entry, Source::TurnInput(id) | Source::TurnReply(id)) => {
                let past = match self.past(part, *id) {
                    Ok(past) => past,
                    Err(ruling) => return ruling,
                };
                if !past.is_whole {
                    return (
                        Unproven(Unread),
                        format!("turn {id} is too long to be read with the others"),
                    );
                }
                // Later entries have another text of the spawning turn than its branch has.
                let knows = earlier.spawning.filter(|spawning| spawning.id == *id);
                let knows = knows.and(self.turn.branch_id);
                let render = || context_text(part, self.manifest, earlier);
                let text = rendered.0.entry((part.source.clone(), part.cut_bytes, knows));
                let text = *text.or_insert_with(|| render().map(|text| (text.len(), Hash::of(&text))));
                let of = match knows {
                    Some(_) => format!("turn {id}, as its branch knows it"),
                    None => format!("turn {id}"),
                };
                self.rendered(is_same(text), &of)
            }
            (PartKind::EntriesLeftOut, _) => {
                let text = context_text(part, self.manifest, earlier);
                self.rendered(
                    is_same(text.map(|text| (text.len(), Hash::of(&text)))),
                    "the number of left out entries",
                )
            }
            (PartKind::Task | PartKind::Briefing, _) => self.carried(part),
            (_, _) => unknown_source(),
        }
    }

    /// The turn of an entry, if it is of this past.
    fn past(&self, part: &Part, id: Uuid) -> Result<&PastSource, Ruling> {
        let turn = self.turn;
        let of = format!("turn {id}");
        let Some(past) = self.sources.pasts.get(&id) else {
            // The generation before has a retention of its own, and so has the parent of a branch.
            let is_removed = turn.continues_id.is_some() && !turn.continues_kept || part.because == Because::Base;
            if is_removed {
                return Err((Unproven(Retention), format!("{of} was removed with its session")));
            }
            return Err(gone(turn, &of));
        };
        let is_own = past.session == turn.home_id.uuid() || turn.continues_id == Some(past.session);
        if !is_own && part.because == Because::Base {
            self.of_base(past, &of)?;
        } else if !is_own {
            return Err((Violation(ForeignThread), format!("{of} is of session {}", past.session)));
        }
        foreign(turn, past.task.as_ref(), &of).map_or(Ok(past), Err)
    }

    /// The description or the briefing as an earlier turn has it: of an input that was made for a thread which had it.
    fn carried(&self, part: &Part) -> Ruling {
        let slices = self
            .sources
            .pasts
            .values()
            .filter(|past| past.session == self.turn.home_id.uuid());
        let text = slices.into_iter().find_map(|past| {
            let slices = past
                .turn
                .manifest
                .as_ref()?
                .slices(Layer::Input, &past.turn.input)
                .ok()?;
            let mut own = slices
                .into_iter()
                .filter(|slice| slice.part.part == part.part && slice.part.source == part.source);
            own.find(|slice| is_of(part, slice.text))
                .map(|slice| slice.text.to_owned())
        });
        match text {
            Some(text) => self.input_part(part, &text),
            None => (
                Unproven(Unread),
                "the earlier turn that it is of is no entry of the prompt".to_owned(),
            ),
        }
    }
}
