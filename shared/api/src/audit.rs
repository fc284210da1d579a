//! The audit of isolation: whether every byte of every prompt is known to be of its own task, from rows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A page of the audit: what was read of up to 50 turns. A part is a piece of a prompt with one source, the offer of tools, the
/// result of a tool, or the name of the turn's thread; each has one verdict.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    pub turns: usize,
    pub parts: usize,
    pub bytes: usize,
    /// Parts that rows of their own task prove.
    pub proven: usize,
    /// Parts that a policy of the account lets a turn have: `others` names them.
    pub by_policy: usize,
    /// Parts that cannot be proven: `others` names them.
    pub unproven: usize,
    /// Parts that are not what they say, or are of another task. Empty: isolation held as far as this page goes.
    pub violations: Vec<Finding>,
    /// Further violations of the page, which are not listed.
    #[serde(default)]
    pub violations_left_out: usize,
    /// Parts by policy, and unproven ones.
    #[serde(default)]
    pub others: Vec<Finding>,
    /// Further ones of the page, which are not listed.
    #[serde(default)]
    pub others_left_out: usize,
    /// Ask again with `cursor` set to this; null on the last page.
    pub next_cursor: Option<String>,
}

/// A part that is not proven.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub turn: Uuid,
    /// Its kind, as a manifest has it; `offer`, `thread`, or the name of a layer for a layer as a whole.
    pub part: String,
    pub source: String,
    /// `by_policy`, `unproven` or `violation`.
    pub verdict: String,
    /// A word for the reason.
    pub reason: String,
    pub detail: String,
}

impl Audit {
    /// Adds a further page. Of each list, at most `findings_max` are kept.
    pub fn add(&mut self, page: Audit, findings_max: usize) {
        self.turns += page.turns;
        self.parts += page.parts;
        self.bytes += page.bytes;
        self.proven += page.proven;
        self.by_policy += page.by_policy;
        self.unproven += page.unproven;
        self.violations_left_out += page.violations_left_out;
        self.others_left_out += page.others_left_out;
        for finding in page.violations {
            keep(
                &mut self.violations,
                &mut self.violations_left_out,
                finding,
                findings_max,
            );
        }
        for finding in page.others {
            keep(&mut self.others, &mut self.others_left_out, finding, findings_max);
        }
        self.next_cursor = page.next_cursor;
    }

    pub fn violations_count(&self) -> usize {
        self.violations.len() + self.violations_left_out
    }
}

/// Adds a finding, or counts it.
pub fn keep(kept: &mut Vec<Finding>, left_out: &mut usize, finding: Finding, findings_max: usize) {
    if kept.len() < findings_max {
        kept.push(finding);
    } else {
        *left_out += 1;
    }
}
