//! The entries of an assembled context: earlier turns of a session about one task, oldest first. A user's item is what a turn was
//! about, as its prompt had it, shortened; then comes the agent's reply, or how the turn ended without one. Everything is rendered
//! from the turns' rows, so that any replica, and an audit, gets the same bytes.

use domain::{TurnId, TurnState};

use crate::{
    manifest::{Because, Layer, LeftOut, Limit, Manifest, Part, PartKind, Slice, Source},
    marks::quotations,
    text::{Cap, ModelText},
};

/// An earlier turn, as stored.
#[derive(Clone, Debug)]
pub struct PastTurn {
    pub id: TurnId,
    pub state: TurnState,
    pub input: String,
    /// None: a version of Signalbox that this one does not know wrote it.
    pub manifest: Option<Manifest>,
    /// The texts that it got with the results of its tools.
    pub notes: Vec<String>,
    /// By tool, in the order of their first calls.
    pub called: Vec<CalledTool>,
    pub reply: Option<String>,
}

/// The calls of a tool in a turn.
#[derive(Clone, PartialEq, Eq, Debug, serde::Deserialize)]
pub struct CalledTool {
    pub name: String,
    pub calls: i64,
    /// Those of them that were refused or have failed.
    pub failed: i64,
}

/// Limits of an assembled context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastLimits {
    pub entries_max: usize,
    /// Of all entries together.
    pub bytes_max: usize,
    /// Of each item that a turn was about.
    pub body_bytes_max: usize,
    pub reply_bytes_max: usize,
}

/// A message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    User(String),
    Assistant(String),
}

impl Item {
    pub fn text(&self) -> &str {
        match self {
            Item::User(text) | Item::Assistant(text) => text,
        }
    }
}

/// An assembled context, with its part of the manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Past {
    pub items: Vec<Item>,
    pub parts: Vec<Part>,
    pub left_out: Option<LeftOut>,
}

/// Assembles turns, the newest first; of `total` of them, which may be more than are given. Whole turns are left out from the
/// oldest. `carried`: parts of inputs that come last, each as the newest turn has it that has one, for an input that was made for a
/// thread which had them.
pub fn past(turns: &[PastTurn], total: usize, limits: &PastLimits, because: Because, carried: &[PartKind]) -> Past {
    past_and_base(turns, &[], (total, because), limits, carried)
}

/// The same of a branch: what its parent knew, `base`, comes before its own turns. `total` and `because` are of its own turns.
pub fn past_and_base(
    turns: &[PastTurn],
    base: &[PastTurn],
    (total, because): (usize, Because),
    limits: &PastLimits,
    carried: &[PartKind],
) -> Past {
    let of_base = base.iter().map(|turn| (turn, Because::Base));
    let all = turns.iter().map(|turn| (turn, because)).chain(of_base);
    let mut entries: Vec<[(Item, Part); 2]> = Vec::new();
    let mut bytes = 0;
    let mut out: Option<LeftOut> = None;
    for (turn, because) in all {
        let entry = entry(turn, limits, because);
        let size: usize = entry.iter().map(|(item, _)| item.text().len()).sum();
        let by = match (entries.len() < limits.entries_max, bytes + size <= limits.bytes_max) {
            _ if out.is_some() => out.map(|out| out.by),
            (true, true) => None,
            (true, false) => Some(Limit::ContextBytesMax),
            (false, _) => Some(Limit::ContextEntriesMax),
        };
        match by {
            None => {
                bytes += size;
                entries.push(entry);
            }
            Some(by) => {
                let before = out.map_or(0, |out| out.bytes);
                out = Some(LeftOut {
                    part: PartKind::Entry,
                    count: 0,
                    bytes: before + size,
                    by,
                });
            }
        }
    }
    let left = total.max(turns.len()) + base.len() - entries.len();
    let mut past = Past::default();
    if left > 0 {
        let by = out.map_or(Limit::ContextEntriesMax, |out| out.by);
        past.left_out = Some(LeftOut {
            part: PartKind::Entry,
            count: left,
            bytes: out.map_or(0, |out| out.bytes),
            by,
        });
        let line = entries_left_out(left);
        let source = Source::named("session");
        past.parts
            .push(line.part(Layer::Context, PartKind::EntriesLeftOut, source, Some(because)));
        past.items.push(Item::User(line.into_string()));
    }
    for (item, part) in entries.into_iter().rev().flatten() {
        past.items.push(item);
        past.parts.push(part);
    }
    for kind in carried {
        if let Some(slice) = turns
            .iter()
            .find_map(|turn| turn.slices()?.into_iter().find(|slice| slice.part.part == *kind))
        {
            past.items.push(Item::User(slice.text.to_owned()));
            past.parts.push(Part {
                layer: Layer::Context,
                because: Because::FirstTurn,
                ..slice.part.clone()
            });
        }
    }
    past
}

impl PastTurn {
    /// The slices of its input. None: they cannot be told.
    fn slices(&self) -> Option<Vec<Slice<'_>>> {
        self.manifest.as_ref()?.slices(Layer::Input, &self.input).ok()
    }
}

/// How many turns before the first entry are not in the context.
pub fn entries_left_out(count: usize) -> ModelText {
    ModelText::default()
        .ours("Note from Signalbox: earlier turns of this conversation that are left out here: ")
        .value(count)
        .ours(".\n")
}

/// A turn as its branch knows it: it was in progress, and had said this.
pub fn spawning(turn: PastTurn, said: &[String], notes: usize) -> PastTurn {
    let said: Vec<&str> = said
        .iter()
        .map(|text| text.trim())
        .filter(|text| !text.is_empty())
        .collect();
    let mut known = turn.notes;
    known.truncate(notes);
    PastTurn {
        state: TurnState::Calling,
        notes: known,
        called: Vec::new(),
        reply: Some(said.join("\n\n")).filter(|said| !said.is_empty()),
        ..turn
    }
}

/// The two items of a turn, each with its part.
fn entry(turn: &PastTurn, limits: &PastLimits, because: Because) -> [(Item, Part); 2] {
    let about = entry_input(turn, limits.body_bytes_max);
    let part = about.part(
        Layer::Context,
        PartKind::Entry,
        Source::TurnInput(turn.id.uuid()),
        Some(because),
    );
    let (is_reply, end) = entry_reply(turn, limits.reply_bytes_max);
    let end_part = end.part(
        Layer::Context,
        PartKind::Entry,
        Source::TurnReply(turn.id.uuid()),
        Some(because),
    );
    let end = match is_reply {
        true => Item::Assistant(end.into_string()),
        false => Item::User(end.into_string()),
    };
    [(Item::User(about.into_string()), part), (end, end_part)]
}

/// What a turn was about: its notifications as its prompt had them, each body cut at `body_bytes_max`, and the tools that it
/// called.
pub fn entry_input(turn: &PastTurn, body_bytes_max: usize) -> ModelText {
    let cap = (Limit::ContextBodyBytesMax, body_bytes_max);
    let mut text = match turn.slices() {
        Some(slices) => {
            let is_about = |kind: PartKind| matches!(kind, PartKind::Notification | PartKind::Followup);
            let about = slices.iter().filter(|slice| is_about(slice.part.part));
            // One text: a part may end within a line.
            let about: String = about.map(|slice| slice.text).collect();
            shortened(ModelText::default(), &about, cap)
        }
        None => ModelText::default().ours("Note from Signalbox: this turn's notification cannot be read.\n"),
    };
    for note in &turn.notes {
        text = shortened(text.ours("\n"), note, cap);
    }
    if turn.called.is_empty() {
        return text;
    }
    text = text.ours("\nTools that you called: ");
    for (n, tool) in turn.called.iter().enumerate() {
        text = text
            .ours(if n == 0 { "" } else { ", " })
            .line(&tool.name, TOOL)
            .ours(" ")
            .value(tool.calls);
        if tool.failed > 0 {
            text = text.ours(" (failed: ").value(tool.failed).ours(")");
        }
    }
    text.ours("\n")
}

/// Delivery's limit, unless an operator has set another.
const BODY_BYTES_LIKELY: usize = 4_096;

/// What a turn was about, cut by so many bytes, whatever the limit was: every limit that cuts as much gives the same text. None: no
/// limit does.
pub fn entry_input_cut(turn: &PastTurn, cut_bytes: usize) -> Option<ModelText> {
    let longest = std::iter::once(&turn.input)
        .chain(&turn.notes)
        .map(String::len)
        .max()
        .unwrap_or_default();
    let likely = if cut_bytes == 0 { longest } else { BODY_BYTES_LIKELY };
    let text = entry_input(turn, likely);
    if text.left_out() == cut_bytes {
        return Some(text);
    }
    let (mut least, mut most) = (0, longest);
    while least < most {
        let limit = least + (most - least) / 2;
        match entry_input(turn, limit).left_out() > cut_bytes {
            true => least = limit + 1,
            false => most = limit,
        }
    }
    Some(entry_input(turn, least)).filter(|text| text.left_out() == cut_bytes)
}

/// The end of a turn, with a reply that is cut by so many bytes. None: it is shorter.
pub fn entry_reply_cut(turn: &PastTurn, cut_bytes: usize) -> Option<ModelText> {
    let length = turn.reply.as_ref().map_or(0, String::len);
    let (_, text) = entry_reply(turn, length.checked_sub(cut_bytes)?);
    Some(text).filter(|text| text.left_out() == cut_bytes)
}

/// A model may call tools by any name.
const TOOL: Cap = (Limit::NameBytesMax, 64);

/// The reply of a turn, or the line that says how it ended without one; and whether it is a reply.
pub fn entry_reply(turn: &PastTurn, reply_bytes_max: usize) -> (bool, ModelText) {
    match turn.reply.as_deref().filter(|reply| !reply.trim().is_empty()) {
        Some(reply) => (
            true,
            ModelText::default().own(reply, (Limit::ContextReplyBytesMax, reply_bytes_max)),
        ),
        None if !turn.state.is_over() => (
            false,
            ModelText::default().ours("Note from Signalbox: this turn goes on elsewhere; it has made you.\n"),
        ),
        None => (
            false,
            ModelText::default()
                .ours("Note from Signalbox: this turn ended without an answer: ")
                .value(turn.state)
                .ours(".\n"),
        ),
    }
}

/// Appends a rendered text, with shorter quotations. Their marks stay.
fn shortened(mut text: ModelText, rendered: &str, cap: Cap) -> ModelText {
    let mut at = 0;
    for quotation in quotations(rendered) {
        text = text.rendered(&rendered[at..quotation.from]);
        text = text.marked(quotation.mark, quotation.text, quotation.left_out, cap);
        at = quotation.to;
    }
    text.rendered(&rendered[at..])
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, InstructionLayout};
    use uuid::Uuid;

    use super::*;
    use crate::MarkSecret;

    /// A turn about one notification with this text, and a note with another.
    fn turn(body: &str, noted: &str, reply: Option<&str>) -> PastTurn {
        let account = AccountId::parse("acme").unwrap();
        let mut marks = MarkSecret::new([7; 32]).marks(&account, TurnId(Uuid::nil()));
        let cap = (Limit::BodyBytesMax, 1_000_000);
        let [input, note] = [body, noted].map(|text| ModelText::default().ours("Body:\n").block(text, cap, &mut marks));
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        manifest.parts.push(input.part(
            Layer::Input,
            PartKind::Notification,
            Source::named("notification/n"),
            None,
        ));
        PastTurn {
            id: TurnId(Uuid::nil()),
            state: TurnState::Finished,
            input: input.into_string(),
            manifest: Some(manifest),
            notes: vec![note.into_string()],
            called: vec![CalledTool {
                name: "task_history".to_owned(),
                calls: 2,
                failed: 1,
            }],
            reply: reply.map(str::to_owned),
        }
    }

    /// An audit does not know the limit that delivery had; it knows how much was cut.
    #[test]
    fn an_entry_is_found_again_by_what_was_cut_from_it() {
        let turn = turn(&"é".repeat(300), &"ab".repeat(700), Some(&"ö".repeat(100)));
        for limit in [0, 1, 2, 3, 299, 300, 301, 599, 600, 601, 1_000, 1_399, 1_400, 5_000] {
            let sent = entry_input(&turn, limit);
            let again = entry_input_cut(&turn, sent.left_out()).expect("that much was cut");
            assert_eq!(again.as_str(), sent.as_str(), "{limit}");
            let (_, sent) = entry_reply(&turn, limit);
            let again = entry_reply_cut(&turn, sent.left_out()).expect("that much was cut");
            assert_eq!(again.as_str(), sent.as_str(), "{limit}");
        }
        assert!(entry_input_cut(&turn, 5_000).is_none(), "more than there is");
        assert!(entry_reply_cut(&turn, 201).is_none(), "more than there is");
        assert!(entry_reply_cut(&turn, 1).is_none(), "half a character");
    }

    #[test]
    fn a_turn_without_a_reply_says_how_it_ended() {
        let turn = turn("b", "c", None);
        assert!(
            entry_reply_cut(&turn, 0)
                .unwrap()
                .as_str()
                .contains("ended without an answer: finished")
        );
        assert!(entry_reply_cut(&turn, 1).is_none());
    }
}
