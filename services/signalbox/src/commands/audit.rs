//! `signalbox audit isolation`: whether every byte of every prompt is known to be of its own task.

use std::{fmt::Write as _, process::ExitCode};

use api::audit::{Audit, Finding};

use super::{counted, filters};
use crate::{
    cli::IsolationArgs,
    print::{code, show},
    table::Table,
};

/// Findings that are kept of all pages, of each list.
const FINDINGS_MAX: usize = 10_000;
/// Parts that are no violation and that are shown.
const OTHERS_SHOWN: usize = 50;

pub(crate) async fn isolation(args: &IsolationArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = ["api", "orgs", args.of.account.as_str(), "audit", "isolation"];
    let turn = args.scope.turn.map(|turn| turn.to_string());
    let [since, until] = [args.since, args.until].map(|at| at.map(|at| at.to_string()));
    let mut audit = Audit::default();
    loop {
        let cursor = audit.next_cursor.take();
        let query = filters([
            ("task", args.scope.task.as_deref()),
            ("session", args.scope.session.as_deref()),
            ("turn", turn.as_deref()),
            ("from", since.as_deref()),
            ("until", until.as_deref()),
            ("cursor", cursor.as_deref()),
        ]);
        let page: Audit = client.get(&path, &query).await?;
        audit.add(page, FINDINGS_MAX);
        if audit.next_cursor.is_none() {
            break;
        }
    }
    show(json, &audit, |audit| Ok(shown(audit)))?;
    let is_well = audit.violations_count() == 0 && !(args.strict && audit.unproven > 0);
    Ok(code(is_well))
}

fn shown(audit: &Audit) -> String {
    let mut text = String::new();
    let others = audit.others.iter().take(OTHERS_SHOWN);
    let findings: Vec<&Finding> = audit.violations.iter().chain(others).collect();
    if !findings.is_empty() {
        let mut table = Table::new(&["TURN", "VERDICT", "REASON", "PART", "SOURCE", "DETAIL"]);
        for finding in findings {
            table.row([
                &finding.turn.to_string(),
                &finding.verdict,
                &finding.reason,
                &finding.part,
                &finding.source,
                &finding.detail,
            ]);
        }
        text += &table.render("");
        let more = audit.violations_left_out + audit.others.len().saturating_sub(OTHERS_SHOWN) + audit.others_left_out;
        if more > 0 {
            writeln!(text, "[{more} more; --json has {FINDINGS_MAX} of each kind]").expect(WRITES);
        }
        text.push('\n');
    }
    let count = |count: usize, noun| counted(i64::try_from(count).unwrap_or(i64::MAX), noun);
    let violations = audit.violations_count();
    writeln!(
        text,
        "{}, {}, {}: {} proven, {} by policy, {} unproven, {}",
        count(audit.turns, "turn"),
        count(audit.parts, "part"),
        count(audit.bytes, "byte"),
        audit.proven,
        audit.by_policy,
        audit.unproven,
        count(violations, "violation"),
    )
    .expect(WRITES);
    text
}

const WRITES: &str = "writing to a String cannot fail";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_what_is_not_proven() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let finding = json!({"turn": id, "part": "message", "source": "message/m", "verdict": "violation", "reason": "foreign_task",
            "detail": "message m is of task t-2,\nthe turn of t-1"});
        let mut audit: Audit =
            serde_json::from_value(json!({"turns": 2, "parts": 9, "bytes": 1, "proven": 8, "by_policy": 0,
            "unproven": 0, "violations": [finding], "next_cursor": null}))
            .unwrap();
        assert_eq!(
            shown(&audit),
            format!(
                "TURN                                  VERDICT    REASON        PART     SOURCE     DETAIL\n\
                 {id}  violation  foreign_task  message  message/m  message m is of task t-2, the turn of t-1\n\n\
                 2 turns, 9 parts, 1 byte: 8 proven, 0 by policy, 0 unproven, 1 violation\n"
            )
        );
        audit.violations.clear();
        assert_eq!(
            shown(&audit),
            "2 turns, 9 parts, 1 byte: 8 proven, 0 by policy, 0 unproven, 0 violations\n"
        );
    }
}
