//! Verdicts on a part of a prompt, with their words.

use api::audit::{Audit, Finding, keep};
use uuid::Uuid;

/// Findings of a page that are listed; of more, the number is given.
pub const FINDINGS_MAX: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Rows of the turn's own task, session or agent give it.
    Proven,
    /// A turn of this kind has it by a policy of the account.
    ByPolicy(Policy),
    Unproven(Doubt),
    Violation(Fault),
}

/// Why a turn may have what is not of its own task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Its task is the account's coordinator task.
    Coordinator,
    /// The account has one session for all tasks of an agent.
    SessionScope,
    /// An orchestrator looks at the sessions on its own board, which are of other tasks.
    Orchestrator,
    /// A session works on tasks of its board that it was given.
    Board,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// A row was removed: with its session, whose time was over, as an old version, or as an artifact.
    Retention,
    /// Another version of Signalbox wrote it, with other words of its own.
    UnknownTemplate,
    /// Another version wrote the manifest.
    UnknownManifest,
    /// The manifest is of version 1, which had other words.
    VersionOne,
    /// The audit of this version does not know the kind of source.
    UnknownSource,
    /// No tool of this version has the name.
    UnknownTool,
    /// A tool outside of Signalbox gave it.
    Outside,
    /// The row has changed since, or its item is of another agent, as after a handover.
    Changed,
    /// Its provider was seen to run another session than the key's.
    Mismatch,
    /// The provider's answer did not name the response that it was to go on from.
    ThreadUnconfirmed,
    /// The rows that it is of were not read: they are too long together, or no part names them.
    Unread,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is of another task.
    ForeignTask,
    /// It names another account.
    ForeignAccount,
    /// Bytes for which no part accounts, or parts for which there are no bytes.
    UncoveredBytes,
    /// The text is not the one that its part, or its source, says.
    HashMismatch,
    /// It is of another session, goes on in a thread of another one, or is not in the base of its branch.
    ForeignThread,
    /// No row is there, though its session is kept.
    SourceMissing,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Proven => "proven",
            Verdict::ByPolicy(_) => "by_policy",
            Verdict::Unproven(_) => "unproven",
            Verdict::Violation(_) => "violation",
        }
    }

    /// The word for its reason. A proven part needs none.
    pub fn reason(self) -> &'static str {
        match self {
            Verdict::Proven => "",
            Verdict::ByPolicy(Policy::Coordinator) => "coordinator",
            Verdict::ByPolicy(Policy::SessionScope) => "session_scope",
            Verdict::ByPolicy(Policy::Orchestrator) => "orchestrator",
            Verdict::ByPolicy(Policy::Board) => "board",
            Verdict::Unproven(doubt) => match doubt {
                Doubt::Retention => "retention",
                Doubt::UnknownTemplate => "unknown_template",
                Doubt::UnknownManifest => "unknown_manifest",
                Doubt::VersionOne => "version_1",
                Doubt::UnknownSource => "unknown_source",
                Doubt::UnknownTool => "unknown_tool",
                Doubt::Outside => "outside",
                Doubt::Changed => "changed",
                Doubt::Mismatch => "mismatch",
                Doubt::ThreadUnconfirmed => "thread_unconfirmed",
                Doubt::Unread => "unread",
            },
            Verdict::Violation(fault) => match fault {
                Fault::ForeignTask => "foreign_task",
                Fault::ForeignAccount => "foreign_account",
                Fault::UncoveredBytes => "uncovered_bytes",
                Fault::HashMismatch => "hash_mismatch",
                Fault::ForeignThread => "foreign_thread",
                Fault::SourceMissing => "source_missing",
            },
        }
    }
}

/// A part with its verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The kind of part, as a manifest has it, or a word for what is no part of it.
    pub part: String,
    pub source: String,
    pub bytes: usize,
    pub verdict: Verdict,
    /// What was expected and found. Ids and sizes, no texts.
    pub detail: String,
}

/// Counts the parts of a turn.
pub fn count(audit: &mut Audit, turn: Uuid, parts: Vec<Judged>) {
    audit.turns += 1;
    for part in parts {
        audit.parts += 1;
        audit.bytes = audit.bytes.saturating_add(part.bytes);
        let finding = |part: Judged| Finding {
            turn,
            part: part.part,
            source: part.source,
            verdict: part.verdict.word().to_owned(),
            reason: part.verdict.reason().to_owned(),
            detail: part.detail,
        };
        match part.verdict {
            Verdict::Proven => audit.proven += 1,
            Verdict::ByPolicy(_) => {
                audit.by_policy += 1;
                keep(
                    &mut audit.others,
                    &mut audit.others_left_out,
                    finding(part),
                    FINDINGS_MAX,
                );
            }
            Verdict::Unproven(_) => {
                audit.unproven += 1;
                keep(
                    &mut audit.others,
                    &mut audit.others_left_out,
                    finding(part),
                    FINDINGS_MAX,
                );
            }
            Verdict::Violation(_) => {
                keep(
                    &mut audit.violations,
                    &mut audit.violations_left_out,
                    finding(part),
                    FINDINGS_MAX,
                );
            }
        }
    }
}
