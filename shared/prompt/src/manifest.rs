//! The context manifest (B2): every part of a prompt with its source, size and hash, the number of cut bytes, and what was left
//! out. The parts of the layers instructions, context and input, in their order, are slices of exactly what was sent, without a
//! gap; in layout `inline` one line break stands between the instructions and the first item. An audit can prove from it that a
//! prompt holds no part of another task or account. It is shown as JSON and stored packed, in a third of the size: it is written
//! with every turn and seldom read.
//!
//! Of what a turn gets later, results of tools and notes, the parts follow from their rows: [`crate::note_parts`].

use domain::{InstructionLayout, TurnContext};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// First byte of the packed form. A change of the types below, or of the order of their variants, needs another. Version 1 is
/// still read ([`v1`]).
const VERSION: u8 = 2;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The version that wrote it. Version 1 has parts of notes, too, and in layout `inline` its instructions are a part of the
    /// turn's input.
    #[serde(default = "first")]
    pub version: u8,
    /// Whether the instructions were sent apart from the first item or in front of it (S14).
    pub layout: InstructionLayout,
    /// None: version 1.
    #[serde(default)]
    pub context: Option<TurnContext>,
    pub parts: Vec<Part>,
    /// Whole items that a limit kept out.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// The tools that were offered. None: version 1.
    #[serde(default)]
    pub tools: Option<Offer>,
}

/// The version of a shown manifest that names none.
fn first() -> u8 {
    1
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Part {
    pub layer: Layer,
    pub part: PartKind,
    pub source: Source,
    /// Why it is in the prompt.
    pub because: Because,
    /// Size as sent.
    pub bytes: usize,
    pub sha256: Hash,
    /// Bytes of the source that were cut.
    pub cut_bytes: usize,
    /// The limit that cut them; the last one, if several did.
    pub cut_by: Option<Limit>,
}

/// Items of a kind that were left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub part: PartKind,
    pub count: usize,
    /// As they would have been sent; 0 where they were not read.
    pub bytes: usize,
    pub by: Limit,
}

/// The offered tools: their schemas' hashes under their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    pub sha256: Hash,
}

impl Offer {
    /// Of tools as this version defines them, in the order in which they are offered.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Offer {
        let mut offer = Sha256::new();
        for name in names {
            offer.update(name.as_bytes());
            offer.update([0]);
            offer.update(contracts::tools::schema_hash(name));
        }
        Offer {
            sha256: Hash(offer.finalize().into()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Instructions,
    Input,
    /// What an assembled prompt holds of the past, before its input.
    Context,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    Policy,
    Coordinator,
    Taskless,
    Role,
    Interruption,
    /// A notification. One that stands alone in its turn has two parts, around the lines of its task.
    Notification,
    /// The task's description.
    Task,
    /// The heading of the messages.
    Thread,
    Message,
    Briefing,
    Overview,
    /// The headings of a run.
    Followup,
    Stopped,
    Injected,
    /// The task's id, status and title.
    TaskState,
    /// A turn of the past: its item, or its end.
    Entry,
    /// How many entries were left out.
    EntriesLeftOut,
    /// The result of a tool call.
    ToolResult,
    /// The profile's block for subagents.
    Branch,
    /// What was written of the task for whoever joins its work.
    TaskContext,
    /// Subagents at work.
    Subagents,
    /// A file of the session's persona.
    Persona,
    /// The profile's block for orchestrators.
    Orchestrator,
    /// What an orchestrator is called, whom it works for, and how it speaks.
    Identity,
}

/// Why a part is in its prompt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    Always,
    Role,
    Persona,
    Repository,
    Coordinator,
    Taskless,
    Branch,
    TaskContext,
    Interrupted,
    Notification,
    AboutTask,
    NewInThread,
    FirstTurn,
    Overview,
    Past,
    Base,
    /// The turn has called the tool.
    Called,
    /// The session is an orchestrator's.
    Orchestrator,
}

impl PartKind {
    /// The reason of parts of this kind, where no other is stored.
    pub fn because(self) -> Because {
        match self {
            PartKind::Policy => Because::Always,
            PartKind::Coordinator => Because::Coordinator,
            PartKind::Taskless => Because::Taskless,
            PartKind::Role => Because::Role,
            PartKind::Persona => Because::Persona,
            PartKind::Interruption | PartKind::Stopped => Because::Interrupted,
            PartKind::Notification | PartKind::Followup | PartKind::Injected => Because::Notification,
            PartKind::Task | PartKind::TaskState => Because::AboutTask,
            PartKind::Thread | PartKind::Message => Because::NewInThread,
            PartKind::Briefing | PartKind::Overview => Because::Overview,
            PartKind::Entry | PartKind::EntriesLeftOut => Because::Past,
            PartKind::ToolResult => Because::Called,
            PartKind::Branch => Because::Branch,
            PartKind::Orchestrator | PartKind::Identity => Because::Orchestrator,
            PartKind::TaskContext => Because::TaskContext,
            PartKind::Subagents => Because::Past,
        }
    }
}

/// A limit that cuts a text or leaves items out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    RoleBytesMax,
    NameBytesMax,
    IdBytesMax,
    TitleBytesMax,
    BodyBytesMax,
    AboutBytesMax,
    MessageBytesMax,
    DescriptionBytesMax,
    BriefingBytesMax,
    ThreadMessagesMax,
    ContextEntriesMax,
    ContextBytesMax,
    ContextBodyBytesMax,
    ContextReplyBytesMax,
    TaskContextCharactersMax,
}

/// Where a part is stored: `profile/1`, `notification/ci-4711`, `message/0190…`, `turn/0190…/input`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    Message(Uuid),
    Named(String),
    /// The item of an earlier turn.
    TurnInput(Uuid),
    /// The reply of an earlier turn, or how it ended without one.
    TurnReply(Uuid),
}

impl Source {
    pub fn named(name: impl Into<String>) -> Source {
        Source::Named(name.into())
    }

    pub fn notification(id: &domain::NotificationId) -> Source {
        Source::Named(format!("notification/{id}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hash([u8; 32]);

impl Hash {
    pub fn of(text: &str) -> Hash {
        Hash(Sha256::digest(text.as_bytes()).into())
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Message(id) => write!(f, "{MESSAGE}{id}"),
            Source::Named(name) => f.write_str(name),
            Source::TurnInput(id) => write!(f, "{TURN}{id}{INPUT}"),
            Source::TurnReply(id) => write!(f, "{TURN}{id}{REPLY}"),
        }
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl Part {
    /// A part of the text `sent`, uncut, with the reason that its kind implies.
    pub fn of(layer: Layer, part: PartKind, source: Source, sent: &str) -> Part {
        Part {
            layer,
            part,
            source,
            because: part.because(),
            bytes: sent.len(),
            sha256: Hash::of(sent),
            cut_bytes: 0,
            cut_by: None,
        }
    }
}

/// A slice of a text that a part accounts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice<'a> {
    pub part: &'a Part,
    pub text: &'a str,
}

/// How parts account for a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cover<'a> {
    /// In their order, each with whether the slice has the part's hash.
    pub slices: Vec<(Slice<'a>, bool)>,
    /// Parts for which the text is too short.
    pub missing: usize,
    /// The rest of the text, for which no part accounts.
    pub uncovered: &'a str,
}

/// Why parts do not account for a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unaccounted {
    #[error("the parts and the text have different sizes")]
    Bytes,
    #[error("a part's hash is not that of its slice")]
    Hash,
}

impl Manifest {
    pub fn new(layout: InstructionLayout) -> Manifest {
        Manifest {
            version: VERSION,
            layout,
            context: None,
            parts: Vec::new(),
            left_out: Vec::new(),
            tools: None,
        }
    }

    pub fn layer(&self, layer: Layer) -> impl Iterator<Item = &Part> {
        // Version 1 lists notes with the input; they are no slices of it.
        let is_of = move |part: &&Part| part.layer == layer && part.part != PartKind::Injected;
        self.parts.iter().filter(is_of)
    }

    /// The slices of a layer's text. The text of the layer context is that of its items, one after the other. An error: the
    /// sizes do not add up to the text's, or a hash differs.
    pub fn slices<'a>(&'a self, layer: Layer, text: &'a str) -> Result<Vec<Slice<'a>>, Unaccounted> {
        let mut slices = Vec::new();
        let mut rest = text;
        if (self.version, self.layout, layer) == (1, InstructionLayout::Inline, Layer::Input) {
            let instructions = self.layer(Layer::Instructions).map(|part| part.bytes);
            // And the line break behind them.
            let skipped = instructions.fold(1, usize::saturating_add);
            rest = text.get(skipped..).ok_or(Unaccounted::Bytes)?;
        }
        for part in self.layer(layer) {
            let (text, after) = rest.split_at_checked(part.bytes).ok_or(Unaccounted::Bytes)?;
            if Hash::of(text) != part.sha256 {
                return Err(Unaccounted::Hash);
            }
            slices.push(Slice { part, text });
            rest = after;
        }
        match rest {
            "" => Ok(slices),
            _ => Err(Unaccounted::Bytes),
        }
    }

    /// How the parts of a layer account for a text, whatever is wrong with them: an audit names what is.
    pub fn cover<'a>(&'a self, layer: Layer, text: &'a str) -> Cover<'a> {
        let mut cover = Cover {
            slices: Vec::new(),
            missing: 0,
            uncovered: text,
        };
        for part in self.layer(layer) {
            let slice = cover
                .uncovered
                .split_at_checked(part.bytes)
                .filter(|_| cover.missing == 0);
            let Some((slice, after)) = slice else {
                cover.missing += 1;
                continue;
            };
            let is_its = Hash::of(slice) == part.sha256;
            cover.slices.push((Slice { part, text: slice }, is_its));
            cover.uncovered = after;
        }
        cover
    }

    /// The text that the parts of the layer input are slices of. None: a turn of version 1 in layout `inline` whose input does
    /// not begin with its instructions.
    pub fn own_input<'a>(&self, instructions: &str, input: &'a str) -> Option<&'a str> {
        match (self.version, self.layout) {
            (1, InstructionLayout::Inline) => input.strip_prefix(instructions)?.strip_prefix('\n'),
            (_, InstructionLayout::Layered | InstructionLayout::Inline) => Some(input),
        }
    }

    /// The messages of the task's thread that it shows.
    pub fn messages(&self) -> impl Iterator<Item = Uuid> {
        self.parts.iter().filter_map(|part| match part.source {
            Source::Message(id) => Some(id),
            Source::Named(_) | Source::TurnInput(_) | Source::TurnReply(_) => None,
        })
    }

    /// The stored form.
    pub fn packed(&self) -> Vec<u8> {
        let stored = Stored {
            layout: self.layout,
            context: self.context.as_ref().map(StoredContext::from),
            parts: self.parts.iter().map(StoredPart::from).collect(),
            left_out: self.left_out.clone(),
            tools: self.tools,
        };
        postcard::to_extend(&stored, vec![VERSION]).expect("a manifest serialises: texts and numbers")
    }

    /// Whether a version that this one knows has packed it.
    pub fn is_known(packed: &[u8]) -> bool {
        matches!(packed.first(), Some(&(1 | VERSION)))
    }

    /// None: a later version of Signalbox has packed it, or it is cut.
    pub fn unpacked(packed: &[u8]) -> Option<Manifest> {
        match packed.split_first()? {
            (1, packed) => v1::unpacked(packed),
            (&VERSION, packed) => Some(postcard::from_bytes::<Stored>(packed).ok()?.into()),
            (_, _) => None,
        }
    }
}

/// The packed form: `because` stands only where the kind does not say it.
#[derive(Serialize, Deserialize)]
struct Stored {
    layout: InstructionLayout,
    context: Option<StoredContext>,
    parts: Vec<StoredPart>,
    left_out: Vec<LeftOut>,
    tools: Option<Offer>,
}

#[derive(Serialize, Deserialize)]
struct StoredPart {
    layer: Layer,
    part: PartKind,
    source: Source,
    because: Option<Because>,
    bytes: usize,
    sha256: Hash,
    cut_bytes: usize,
    cut_by: Option<Limit>,
}

/// Every field, in a fixed order: the packed form has no names.
#[derive(Serialize, Deserialize)]
struct StoredContext {
    asked: domain::ContextMode,
    used: domain::ContextMode,
    reason: Option<domain::ContextReason>,
    thread: i32,
    from: Option<String>,
    base_sha256: Option<String>,
    lost_after: Option<u32>,
    unconfirmed: bool,
}

impl From<&TurnContext> for StoredContext {
    fn from(context: &TurnContext) -> StoredContext {
        let context = context.clone();
        StoredContext {
            asked: context.asked,
            used: context.used,
            reason: context.reason,
            thread: context.thread,
            from: context.from,
            base_sha256: context.base_sha256,
            lost_after: context.lost_after,
            unconfirmed: context.unconfirmed,
        }
    }
}

impl From<StoredContext> for TurnContext {
    fn from(stored: StoredContext) -> TurnContext {
        TurnContext {
            asked: stored.asked,
            used: stored.used,
            reason: stored.reason,
            thread: stored.thread,
            from: stored.from,
            base_sha256: stored.base_sha256,
            lost_after: stored.lost_after,
            unconfirmed: stored.unconfirmed,
        }
    }
}

impl From<&Part> for StoredPart {
    fn from(part: &Part) -> StoredPart {
        StoredPart {
            layer: part.layer,
            part: part.part,
            source: part.source.clone(),
            because: (part.because != part.part.because()).then_some(part.because),
            bytes: part.bytes,
            sha256: part.sha256,
            cut_bytes: part.cut_bytes,
            cut_by: part.cut_by,
        }
    }
}

impl From<StoredPart> for Part {
    fn from(stored: StoredPart) -> Part {
        Part {
            layer: stored.layer,
            part: stored.part,
            source: stored.source,
            because: stored.because.unwrap_or(stored.part.because()),
            bytes: stored.bytes,
            sha256: stored.sha256,
            cut_bytes: stored.cut_bytes,
            cut_by: stored.cut_by,
        }
    }
}

impl From<Stored> for Manifest {
    fn from(stored: Stored) -> Manifest {
        Manifest {
            version: VERSION,
            layout: stored.layout,
            context: stored.context.map(TurnContext::from),
            parts: stored.parts.into_iter().map(Part::from).collect(),
            left_out: stored.left_out,
            tools: stored.tools,
        }
    }
}

/// A part of version 1 says no reason and no limit: the first follows from its kind.
impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Shown {
            layer: Layer,
            part: PartKind,
            source: Source,
            #[serde(default)]
            because: Option<Because>,
            bytes: usize,
            sha256: Hash,
            cut_bytes: usize,
            #[serde(default)]
            cut_by: Option<Limit>,
        }
        let shown = Shown::deserialize(deserializer)?;
        Ok(Part {
            layer: shown.layer,
            part: shown.part,
            source: shown.source,
            because: shown.because.unwrap_or(shown.part.because()),
            bytes: shown.bytes,
            sha256: shown.sha256,
            cut_bytes: shown.cut_bytes,
            cut_by: shown.cut_by,
        })
    }
}

const MESSAGE: &str = "message/";
const TURN: &str = "turn/";
const INPUT: &str = "/input";
const REPLY: &str = "/reply";

/// Packed: the first two variants are as version 1 has them.
#[derive(Serialize, Deserialize)]
enum StoredSource {
    Message([u8; 16]),
    Named(String),
    TurnInput([u8; 16]),
    TurnReply([u8; 16]),
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(self);
        }
        let stored = match self {
            Source::Message(id) => StoredSource::Message(id.into_bytes()),
            Source::Named(name) => StoredSource::Named(name.clone()),
            Source::TurnInput(id) => StoredSource::TurnInput(id.into_bytes()),
            Source::TurnReply(id) => StoredSource::TurnReply(id.into_bytes()),
        };
        stored.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Ok(match StoredSource::deserialize(deserializer)? {
                StoredSource::Message(id) => Source::Message(Uuid::from_bytes(id)),
                StoredSource::Named(name) => Source::Named(name),
                StoredSource::TurnInput(id) => Source::TurnInput(Uuid::from_bytes(id)),
                StoredSource::TurnReply(id) => Source::TurnReply(Uuid::from_bytes(id)),
            });
        }
        let name = String::deserialize(deserializer)?;
        let of_turn = |end: &str| Uuid::try_parse(name.strip_prefix(TURN)?.strip_suffix(end)?).ok();
        let of_message = || Uuid::try_parse(name.strip_prefix(MESSAGE)?).ok();
        let known = of_message().map(Source::Message);
        let known = known.or_else(|| of_turn(INPUT).map(Source::TurnInput));
        let known = known.or_else(|| of_turn(REPLY).map(Source::TurnReply));
        Ok(known.unwrap_or(Source::Named(name)))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Deserialize::deserialize(deserializer).map(Hash);
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(String::deserialize(deserializer)?, &mut hash).map_err(D::Error::custom)?;
        Ok(Hash(hash))
    }
}

/// The packed form of version 1, of which rows are stored.
mod v1 {
    use domain::InstructionLayout;
    use serde::Deserialize;

    use super::{Hash, Layer, Manifest, Part, PartKind, Source};

    #[derive(Deserialize)]
    struct Stored {
        layout: InstructionLayout,
        parts: Vec<StoredPart>,
    }

    #[derive(Deserialize)]
    struct StoredPart {
        layer: Layer,
        part: PartKind,
        source: Source,
        bytes: usize,
        sha256: Hash,
        cut_bytes: usize,
    }

    pub(super) fn unpacked(packed: &[u8]) -> Option<Manifest> {
        let stored: Stored = postcard::from_bytes(packed).ok()?;
        let part = |stored: StoredPart| Part {
            layer: stored.layer,
            part: stored.part,
            source: stored.source,
            because: stored.part.because(),
            bytes: stored.bytes,
            sha256: stored.sha256,
            cut_bytes: stored.cut_bytes,
            cut_by: None,
        };
        Some(Manifest {
            version: 1,
            parts: stored.parts.into_iter().map(part).collect(),
            ..Manifest::new(stored.layout)
        })
    }
}

#[cfg(test)]
mod tests {
    use domain::{ContextMode, ContextReason, RotationRule};
    use serde_json::json;

    use super::*;

    const TEXT: &str = "red";

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(InstructionLayout::Inline);
        let named = Source::named("notification/ci-4711");
        manifest.parts.push(Part {
            cut_bytes: 70_000,
            cut_by: Some(Limit::BodyBytesMax),
            ..Part::of(Layer::Input, PartKind::Notification, named, TEXT)
        });
        let message = Source::Message(Uuid::from_u128(7));
        manifest
            .parts
            .push(Part::of(Layer::Input, PartKind::Message, message, ""));
        for source in [
            Source::TurnInput(Uuid::from_u128(8)),
            Source::TurnReply(Uuid::from_u128(8)),
        ] {
            manifest.parts.push(Part {
                because: Because::Base,
                ..Part::of(Layer::Context, PartKind::Entry, source, "")
            });
        }
        manifest.context = Some(TurnContext {
            asked: ContextMode::Continue,
            used: ContextMode::Continue,
            reason: Some(ContextReason::Rotated(RotationRule::TokensMax)),
            thread: 1,
            from: Some("resp_1".to_owned()),
            base_sha256: None,
            lost_after: None,
            unconfirmed: false,
        });
        manifest.left_out.push(LeftOut {
            part: PartKind::Entry,
            count: 3,
            bytes: 900,
            by: Limit::ContextEntriesMax,
        });
        manifest.tools = Some(Offer {
            sha256: Hash::of("tools"),
        });
        manifest
    }

    #[test]
    fn packed_and_shown_forms_hold_the_same() {
        let none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let entry = |what: &str| {
            json!({"layer": "context", "part": "entry", "source": format!("turn/00000000-0000-0000-0000-000000000008/{what}"),
                   "because": "base", "bytes": 0, "sha256": none, "cut_bytes": 0, "cut_by": null})
        };
        let shown = json!({
            "version": 2,
            "layout": "inline",
            "context": {"asked": "continue", "used": "continue", "reason": "rotated:tokens_max", "thread": 1, "from": "resp_1",
                        "base_sha256": null, "lost_after": null, "unconfirmed": false},
            "parts": [
                {"layer": "input", "part": "notification", "source": "notification/ci-4711", "because": "notification", "bytes": 3,
                 "sha256": "b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a", "cut_bytes": 70_000,
                 "cut_by": "body_bytes_max"},
                {"layer": "input", "part": "message", "source": "message/00000000-0000-0000-0000-000000000007",
                 "because": "new_in_thread", "bytes": 0, "sha256": none, "cut_bytes": 0, "cut_by": null},
                entry("input"),
                entry("reply"),
            ],
            "left_out": [{"part": "entry", "count": 3, "bytes": 900, "by": "context_entries_max"}],
            "tools": {"sha256": Hash::of("tools").to_string()},
        });
        assert_eq!(serde_json::to_value(manifest()).unwrap(), shown);
        assert_eq!(serde_json::from_value::<Manifest>(shown).unwrap(), manifest());
        assert_eq!(Manifest::unpacked(&manifest().packed()), Some(manifest()));
    }

    /// Rows of this form are stored: they are read for as long as their sessions are kept.
    #[test]
    fn version_1_is_read() {
        let packed = "010102010501146e6f74696669636174696f6e2f63692d3437313103b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf9959\
                      0ed75af0a2040108000000000000000000000000000000000700e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85500";
        let read = Manifest::unpacked(&hex::decode(packed).unwrap()).unwrap();
        let mut expected = manifest();
        expected.parts.truncate(2);
        expected.parts[0].cut_by = None;
        let expected = Manifest {
            version: 1,
            context: None,
            left_out: Vec::new(),
            tools: None,
            ..expected
        };
        assert_eq!(read, expected);
        let shown = json!({"layout": "inline", "parts": [
            {"layer": "input", "part": "notification", "source": "notification/ci-4711", "bytes": 3,
             "sha256": "b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a", "cut_bytes": 70_000},
            {"layer": "input", "part": "message", "source": "message/00000000-0000-0000-0000-000000000007", "bytes": 0,
             "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "cut_bytes": 0},
        ]});
        assert_eq!(serde_json::from_value::<Manifest>(shown).unwrap(), expected);
    }

    /// Rows of this form are stored: a change of these bytes needs another version byte.
    #[test]
    fn the_packed_form_stays() {
        let packed = hex::encode(manifest().packed());
        insta::assert_snapshot!(packed);
    }

    #[test]
    fn other_versions_and_cut_bytes_are_not_read() {
        let mut packed = manifest().packed();
        assert_eq!(Manifest::unpacked(&packed[..packed.len() - 1]), None);
        packed[0] += 1;
        assert_eq!(Manifest::unpacked(&packed), None);
        assert_eq!(Manifest::unpacked(b""), None);
    }

    #[test]
    fn slices_cover_their_text() {
        let manifest = manifest();
        let slices = manifest.slices(Layer::Input, TEXT).unwrap();
        assert_eq!(slices.iter().map(|slice| slice.text).collect::<Vec<_>>(), [TEXT, ""]);
        let check = |text, why| assert_eq!(manifest.slices(Layer::Input, text), Err(why), "{text}");
        check("reds", Unaccounted::Bytes);
        check("re", Unaccounted::Bytes);
        check("rad", Unaccounted::Hash);
        // Not at a character's boundary.
        check("reé", Unaccounted::Bytes);
        assert_eq!(manifest.slices(Layer::Instructions, ""), Ok(Vec::new()));
    }

    #[test]
    fn a_cover_names_what_does_not_add_up() {
        let manifest = manifest();
        let check = |text: &str, slices: &[(&str, bool)], missing: usize, uncovered: &str| {
            let cover = manifest.cover(Layer::Input, text);
            let found: Vec<(&str, bool)> = cover
                .slices
                .iter()
                .map(|(slice, is_its)| (slice.text, *is_its))
                .collect();
            assert_eq!(
                (&*found, cover.missing, cover.uncovered),
                (slices, missing, uncovered),
                "{text}"
            );
        };
        check("red", &[("red", true), ("", true)], 0, "");
        check("rad", &[("rad", false), ("", true)], 0, "");
        check("reds", &[("red", true), ("", true)], 0, "s");
        // What follows a part that is not there cannot be told apart.
        check("re", &[], 2, "re");
        check("aé", &[("aé", false), ("", true)], 0, "");
        check("aaé", &[], 2, "aaé");
    }

    #[test]
    fn the_first_version_has_instructions_in_its_input_when_they_are_sent_inline() {
        let mut manifest = manifest();
        assert_eq!(manifest.own_input("Be kind.", "red"), Some("red"));
        manifest.version = 1;
        assert_eq!(manifest.own_input("Be kind.", "Be kind.\nred"), Some("red"));
        assert_eq!(manifest.own_input("Be kind.", "Be bad.\nred"), None);
        assert_eq!(manifest.own_input("Be kind.", "Be kind."), None);
    }

    #[test]
    fn an_offer_is_told_by_names_and_schemas() {
        let [one, two] =
            [&["task_history"][..], &["task_history", "no_reply"]].map(|names| Offer::of(names.iter().copied()));
        assert_ne!(one, two);
        assert_eq!(Offer::of(["task_history"].into_iter()), one);
    }
}
