//! Judges the parts of a turn's prompt. Pure. Each layer has a file of rules; here is what they share: how parts cover a text, and
//! what it means that a source is not there, or gives another text.

use domain::TaskId;
use prompt::{
    Manifest, PROFILE_VERSION,
    manifest::{Hash, Layer, Part, PartKind},
};
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
use crate::turns::sent::word;

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
            judged.extend(case.base());
            judged.extend(case.offer());
        }
        Ok(None) => {
            let ruling = (
                Unproven(UnknownManifest),
                "another version wrote its manifest".to_owned(),
            );
            judged.push(whole("manifest", turn.input.len(), ruling));
        }
        Err(Unreadable) => {
            let ruling = (Violation(UncoveredBytes), "its manifest cannot be read".to_owned());
            judged.push(whole("manifest", turn.input.len(), ruling));
        }
    }
    let columns = [
        ("task_id", turn.task.is_unreadable || turn.home_task.is_unreadable),
        ("context", turn.context.is_unreadable),
        ("notes", turn.notes.is_unreadable),
    ];
    for (column, _) in columns.into_iter().filter(|(_, is_unreadable)| *is_unreadable) {
        let ruling = (Violation(UncoveredBytes), format!("its {column} cannot be read"));
        judged.push(whole(column, 0, ruling));
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
            // Asked of every part: the rule counts their places.
            let ruled = rule(slice.part, slice.text);
            let ruling = match is_its {
                true => ruled,
                false => (
                    Violation(HashMismatch),
                    "the text in its place has another hash".to_owned(),
                ),
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
                (
                    Unproven(UnknownTemplate),
                    format!("profile {version} may render {of} in another way"),
                )
            }
            _ => (
                Violation(HashMismatch),
                format!("{of} gives another text than the one that was sent"),
            ),
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
        // What a branch shows of it is the base's.
        let task = self.turn.task.as_ref().map(TaskId::key);
        let task = task.filter(|_| self.branch().is_none());
        let updated = task.and_then(|task| self.sources.updated.get(&task));
        updated.is_some_and(|updated| *updated > self.turn.knew_at() - TRANSACTION)
    }
}

/// A source of a task: it has to be the turn's own. None: it is.
pub(super) fn foreign(turn: &AuditedTurn, task: Option<&TaskId>, of: &str) -> Option<Ruling> {
    let (own, task) = (turn.task.as_ref().map(TaskId::key), task.map(TaskId::key));
    let name = |task: &Option<TaskId>| {
        task.as_ref()
            .map_or_else(|| "no task".to_owned(), |task| format!("task {task}"))
    };
    (own != task).then(|| {
        let found = format!("{of} is of {}, the turn of {}", name(&task), name(&own));
        (Violation(ForeignTask), found)
    })
}

/// A row of a session is not there.
pub(super) fn gone(turn: &AuditedTurn, of: &str) -> Ruling {
    // Of a replay, the session of its source turn.
    let is_there = turn.session_key.is_some() && turn.home_kind.is_some();
    let is_removed = match (is_there, turn.home_closed_at) {
        (false, _) => true,
        (true, None) => false,
        (true, Some(closed)) => turn.read_at - closed > KEPT,
    };
    match is_removed {
        true => (Unproven(Retention), format!("{of} was removed with its session")),
        false => (
            Violation(SourceMissing),
            format!("{of} is not there, though its session is kept"),
        ),
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

#[cfg(test)]
pub(crate) mod tests {
    use domain::{AccountId, AgentId, Generation, InstructionLayout, SessionId, TurnId};
    use prompt::manifest::Source;
    use serde_json::Value;
    use storage::session::items_join::Notes;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    pub(crate) const AGENT: AgentId = AgentId(Uuid::from_u128(3));

    /// A turn on task `t-1`, in an open session, without a prompt.
    pub(crate) fn turn() -> AuditedTurn {
        AuditedTurn {
            account: AccountId::parse("acme").unwrap(),
            id: TurnId(Uuid::from_u128(1)),
            session: SessionId(Uuid::from_u128(2)),
            task: Some(TaskId::parse("t-1").unwrap()).into(),
            agent: AGENT,
            generation: Generation(1),
            number: 7,
            profile_version: PROFILE_VERSION.to_owned(),
            profile_hash: Hash::of("").to_string(),
            input: String::new(),
            manifest: Value::Null,
            manifest_packed: Some(Manifest::new(InstructionLayout::Layered).packed()),
            tools: None,
            context: None.into(),
            notes: Notes::default().into(),
            started_at: OffsetDateTime::UNIX_EPOCH + Duration::DAY,
            read_at: OffsetDateTime::UNIX_EPOCH + Duration::days(30),
            persona_version_id: None,
            home_key: Some(format!("task:t-1:agent:{AGENT}:acme:v1")),
            instructions: Some(String::new()),
            session_key: Some(format!("task:t-1:agent:{AGENT}:acme:v1")),
            session_kind: Some("task".to_owned()),
            replay_id: None,
            home_id: SessionId(Uuid::from_u128(2)),
            home_number: 7,
            home_generation: Generation(1),
            home_started_at: OffsetDateTime::UNIX_EPOCH + Duration::DAY,
            home_kind: Some("task".to_owned()),
            home_closed_at: None,
            home_opened_at: None,
            home_task: Some(TaskId::parse("t-1").unwrap()).into(),
            stop_kind: None,
            stop_by: None,
            continues_id: None,
            continues_kept: false,
            source_turn_id: None,
            branch_id: None,
            was_handed_over: false,
            parent_session_id: None,
            parent_continues_id: None,
            is_mismatched: false,
            mixes_tasks: false,
            spawning_number: None,
            from_is_own: false,
            coordinator_task: None,
            briefing: String::new(),
            agent_slug: None,
            agent_name: None,
            agent_role: None,
            replay_instructions: None,
            task_display: None,
            task_title: None,
            task_description: None,
        }
    }

    /// Verdict and reason.
    pub(in super::super) fn words((verdict, _): &Ruling) -> String {
        format!("{} {}", verdict.word(), verdict.reason()).trim_end().to_owned()
    }

    fn with(change: impl FnOnce(&mut AuditedTurn)) -> AuditedTurn {
        let mut turn = turn();
        change(&mut turn);
        turn
    }

    #[test]
    fn a_missing_row_is_gone_with_its_session_or_a_violation() {
        let closed =
            |days: i64| move |turn: &mut AuditedTurn| turn.home_closed_at = Some(turn.read_at - Duration::days(days));
        let check = |turn: AuditedTurn, expected: &str| assert_eq!(words(&gone(&turn, "it")), expected);
        check(turn(), "violation source_missing");
        check(with(closed(1)), "violation source_missing");
        check(with(closed(2)), "unproven retention");
        check(with(|turn| turn.session_key = None), "unproven retention");
        check(with(|turn| turn.home_kind = None), "unproven retention");
    }

    #[test]
    fn a_source_is_of_the_turn_s_task() {
        let task = |id: &str| TaskId::parse(id).unwrap();
        let check = |turn: &AuditedTurn, of: Option<&str>, is_own: bool| {
            let ruling = foreign(turn, of.map(task).as_ref(), "it");
            assert_eq!(
                ruling.as_ref().map(words),
                (!is_own).then(|| "violation foreign_task".to_owned()),
                "{of:?}"
            );
        };
        let (own, taskless) = (turn(), with(|turn| *turn.task = None));
        for (of, is_own) in [
            (Some("t-1"), true),
            (Some("T-1"), true),
            (Some("t-2"), false),
            (None, false),
        ] {
            check(&own, of, is_own);
        }
        check(&taskless, None, true);
        check(&taskless, Some("t-1"), false);
    }

    #[test]
    fn another_text_is_a_violation_unless_another_version_or_a_person_wrote_it() {
        let (own, old) = (turn(), with(|turn| turn.profile_version = "0".to_owned()));
        let sources = Sources::default();
        let two = Manifest::new(InstructionLayout::Layered);
        let one = Manifest {
            version: 1,
            ..two.clone()
        };
        let check = |turn: &AuditedTurn, manifest: &Manifest, (is_same, has_changed): (bool, bool), expected: &str| {
            let case = Case {
                turn,
                manifest,
                sources: &sources,
            };
            let ruling = case.rendered_before(is_same, has_changed, "it");
            assert_eq!(
                words(&ruling),
                expected,
                "{is_same} {has_changed} {}",
                turn.profile_version
            );
        };
        for has_changed in [false, true] {
            check(&own, &two, (true, has_changed), "proven");
            check(&own, &one, (true, has_changed), "proven");
        }
        check(&own, &two, (false, false), "violation hash_mismatch");
        check(&own, &two, (false, true), "unproven changed");
        check(&own, &one, (false, false), "unproven version_1");
        check(&old, &two, (false, false), "unproven unknown_template");
    }

    #[test]
    fn a_task_has_changed_if_its_change_may_be_later_than_the_turn() {
        let turn = turn();
        let manifest = Manifest::new(InstructionLayout::Layered);
        let check = |after: Option<Duration>, expected: bool| {
            let mut sources = Sources::default();
            let at = after.map(|after| (TaskId::parse("t-1").unwrap(), turn.started_at + after));
            sources.updated.extend(at);
            let case = Case {
                turn: &turn,
                manifest: &manifest,
                sources: &sources,
            };
            assert_eq!(case.task_has_changed(), expected, "{after:?}");
        };
        check(None, false);
        check(Some(Duration::hours(-1)), false);
        check(Some(Duration::seconds(-1)), true);
        check(Some(Duration::hours(1)), true);
    }

    /// It shows the task as its parent knew it.
    #[test]
    fn a_branch_knows_the_task_as_it_was_when_it_was_made() {
        let made = |kind: &str| {
            with(|turn| {
                turn.home_kind = Some(kind.to_owned());
                turn.home_opened_at = Some(turn.started_at - Duration::HOUR);
            })
        };
        assert_eq!(made("task").knew_at(), turn().started_at);
        assert_eq!(made("branch").knew_at(), turn().started_at - Duration::HOUR);
    }

    #[test]
    fn a_manifest_that_cannot_be_read_is_told_from_one_of_another_version() {
        let check = |packed: Option<Vec<u8>>, expected: &str| {
            let turn = with(|turn| turn.manifest_packed = packed);
            let judged = judge(&turn, &Sources::default(), &mut Rendered::default());
            let found = &judged[0];
            assert_eq!(
                (found.part.as_str(), words(&(found.verdict, String::new())).as_str()),
                ("manifest", expected)
            );
        };
        check(Some(vec![2, 1]), "violation uncovered_bytes");
        check(Some(vec![1]), "violation uncovered_bytes");
        check(Some(vec![77, 1]), "unproven unknown_manifest");
        check(Some(Vec::new()), "unproven unknown_manifest");
        check(None, "unproven unknown_manifest");
    }

    #[test]
    fn parts_cover_their_text() {
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        let part = |text| Part::of(Layer::Input, PartKind::Message, Source::Message(Uuid::nil()), text);
        manifest.parts = vec![part("one "), part("two")];
        let check = |text: &str, expected: &[&str]| {
            let (turn, sources) = (turn(), Sources::default());
            let case = Case {
                turn: &turn,
                manifest: &manifest,
                sources: &sources,
            };
            let mut judged = Vec::new();
            case.slices(Layer::Input, text, |_, _| proven(), &mut judged);
            let lines: Vec<String> = judged
                .iter()
                .map(|part| format!("{} {}", part.part, words(&(part.verdict, String::new()))))
                .collect();
            assert_eq!(lines, expected, "{text}");
        };
        check("one two", &["message proven", "message proven"]);
        check("one twi", &["message proven", "message violation hash_mismatch"]);
        check(
            "one two.",
            &["message proven", "message proven", "input violation uncovered_bytes"],
        );
        check("one tw", &["message proven", "input violation uncovered_bytes"]);
        check("", &["input violation uncovered_bytes"]);
    }
}
