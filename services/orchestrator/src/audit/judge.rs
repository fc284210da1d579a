//! Judges the parts of a turn's prompt. Pure. Each layer has a file of rules; here is what they share: how parts cover a text, and
//! what it means that a source is not there, or gives another text.

use domain::TaskId;
use prompt::{
    Manifest, PROFILE_VERSION,
    manifest::{Hash, Layer, Part, PartKind},
};
use serde::Serialize;
use time::Duration;

pub use super::past::Rendered;
use super::{
    store::{AuditedTurn, Sources, Unreadable},
    verdict::{
        Doubt::{Changed, Retention, UnknownManifest, UnknownSource, UnknownTemplate, VersionOne},
        Fault::{ForeignTask, HashMismatch, SourceMissing, UncoveredBytes},
        Judged,
        Verdict::{self, Proven, Unproven, Violation},
    },
};

/// A verdict with what was found.
pub(super) type Ruling = (Verdict, String);

/// The least time that closed sessions are kept. After it, rows of a closed session may be gone.
const KEPT: Duration = Duration::DAY;
/// Longer than any transaction: a change that began so long before a turn may be later than what the turn read.
const TRANSACTION: Duration = Duration::minutes(2);

/// A turn before the judge.
pub(super) struct Case<'a> {
    pub turn: &'a AuditedTurn,
    pub manifest: &'a Manifest,
    pub sources: &'a Sources,
}

/// Every part of a turn's prompt with its verdict. The same rows give the same verdicts, but that rows may change or go.
pub fn judge(turn: &AuditedTurn, sources: &Sources, rendered: &mut Rendered) -> Vec<Judged> {
    let mut judged = Vec::new();
    match turn.manifest() {
        Ok(Some(manifest)) => {
            let case = Case {
                turn,
                manifest: &manifest,
                sources,
            };
            case.instructions(&mut judged);
            case.context(rendered, &mut judged);
            case.input(&mut judged);
            judged.extend(case.offer());
        }
        Ok(None) => {
            let ruling = (Unproven(UnknownManifest), "another version wrote its manifest".to_owned());
            judged.push(whole("manifest", turn.input.len(), ruling));
        }
        Err(Unreadable) => {
            let ruling = (Violation(UncoveredBytes), "its manifest cannot be read".to_owned());
            judged.push(whole("manifest", turn.input.len(), ruling));
        }
    }
    super::results::notes(turn, sources, &mut judged);
    super::results::calls(turn, sources, &mut judged);
    judged.push(super::thread::thread(turn));
    judged
}

impl Case<'_> {
    /// Judges the parts of a layer, which are slices of a stored text, and whether they cover it.
    pub(super) fn slices(
        &self,
        layer: Layer,
        text: &str,
        mut rule: impl FnMut(&Part, &str) -> Ruling,
        judged: &mut Vec<Judged>,
    ) {
        let cover = self.manifest.cover(layer, text);
        for (slice, is_its) in &cover.slices {
            let ruling = match is_its {
                true => rule(slice.part, slice.text),
                false => (Violation(HashMismatch), "the text in its place has another hash".to_owned()),
            };
            judged.push(of_part(slice.part, ruling));
        }
        let uncovered = match (cover.missing, cover.uncovered.len()) {
            (0, 0) => return,
            (0, bytes) => format!("{bytes} bytes for which no part accounts"),
            (parts, bytes) => format!("{parts} parts for which there is no text; {bytes} bytes are left"),
        };
        let ruling = (Violation(UncoveredBytes), uncovered);
        judged.push(whole(&word(&layer), cover.uncovered.len(), ruling));
    }

    /// Whether a template's own words are those of this version.
    fn is_of_this_version(&self) -> bool {
        self.turn.profile_version == PROFILE_VERSION
    }

    /// The turn is on the account's coordinator task.
    pub(super) fn is_coordinator(&self) -> bool {
        is_coordinator(self.turn)
    }

    /// It was when it began: its instructions say so.
    pub(super) fn was_coordinator(&self) -> bool {
        let mut parts = self.manifest.layer(Layer::Instructions);
        parts.any(|part| part.part == PartKind::Coordinator)
    }

    /// A part of a row that does not change: it has to be rendered to the same text.
    pub(super) fn rendered(&self, is_same: bool, of: &str) -> Ruling {
        if is_same {
            return proven();
        }
        match self.manifest.version {
            1 => (Unproven(VersionOne), format!("version 1 rendered {of} in another way")),
            _ if !self.is_of_this_version() => {
                let version = &self.turn.profile_version;
                (Unproven(UnknownTemplate), format!("profile {version} may render {of} in another way"))
            }
            _ => (Violation(HashMismatch), format!("{of} gives another text than the one that was sent")),
        }
    }

    /// A part of a row that people change: a text that differs has to be older than the last change.
    pub(super) fn rendered_before(&self, is_same: bool, has_changed: bool, of: &str) -> Ruling {
        if !is_same && has_changed {
            return (Unproven(Changed), format!("{of} has changed since"));
        }
        self.rendered(is_same, of)
    }

    /// Whether title and description of the turn's task may be other ones than when the turn began.
    pub(super) fn task_has_changed(&self) -> bool {
        let task = self.turn.task.as_ref().map(TaskId::key);
        let updated = task.and_then(|task| self.sources.updated.get(&task));
        updated.is_some_and(|updated| *updated > self.turn.started_at - TRANSACTION)
    }
}

/// A source of a task: it has to be the turn's own. None: it is.
pub(super) fn foreign(turn: &AuditedTurn, task: Option<&TaskId>, of: &str) -> Option<Ruling> {
    let (own, task) = (turn.task.as_ref().map(TaskId::key), task.map(TaskId::key));
    let name = |task: &Option<TaskId>| task.as_ref().map_or_else(|| "no task".to_owned(), |task| format!("task {task}"));
    (own != task).then(|| {
        let found = format!("{of} is of {}, the turn of {}", name(&task), name(&own));
        (Violation(ForeignTask), found)
    })
}

/// A row of a session is not there.
pub(super) fn gone(turn: &AuditedTurn, of: &str) -> Ruling {
    let is_removed = match (&turn.session_key, turn.session_closed_at) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(closed)) => turn.read_at - closed > KEPT,
    };
    match is_removed {
        true => (Unproven(Retention), format!("{of} was removed with its session")),
        false => (Violation(SourceMissing), format!("{of} is not there, though its session is kept")),
    }
}

pub(super) fn is_coordinator(turn: &AuditedTurn) -> bool {
    let own = turn.task.as_ref().map(TaskId::key);
    own.is_some() && own == turn.coordinator_task.as_ref().map(TaskId::key)
}

pub(super) fn proven() -> Ruling {
    (Proven, String::new())
}

pub(super) fn unknown_source() -> Ruling {
    let found = "the audit of this version does not know this kind of source";
    (Unproven(UnknownSource), found.to_owned())
}

/// Whether a text is the one that a part accounts for.
pub(super) fn is_of(part: &Part, text: &str) -> bool {
    part.bytes == text.len() && part.sha256 == Hash::of(text)
}

pub(super) fn of_part(part: &Part, (verdict, detail): Ruling) -> Judged {
    Judged {
        part: word(&part.part),
        source: part.source.to_string(),
        bytes: part.bytes,
        verdict,
        detail,
    }
}

/// What is no part of a manifest.
pub(super) fn whole(name: &str, bytes: usize, (verdict, detail): Ruling) -> Judged {
    Judged {
        part: name.to_owned(),
        source: String::new(),
        bytes,
        verdict,
        detail,
    }
}

/// The word of a kind.
fn word(kind: &impl Serialize) -> String {
    let word = serde_json::to_value(kind).ok();
    word.and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
}
