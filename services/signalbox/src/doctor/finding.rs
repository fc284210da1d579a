//! The doctor's findings: one line a check, and a fix for each problem.

use serde::Serialize;

use super::Check;
use crate::text::{error_line, one_line};

const MESSAGE_CHARS_MAX: usize = 400;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// It works, but could be better or will be fixed by the next start.
    Hint,
    Problem,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    check: Check,
    status: Status,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    /// The runbook page.
    #[serde(skip_serializing_if = "Option::is_none")]
    runbook: Option<&'static str>,
}

impl Finding {
    pub(super) fn ok(check: Check, message: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Ok, message.as_ref(), None)
    }

    pub(super) fn hint(check: Check, message: impl AsRef<str>, fix: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Hint, message.as_ref(), Some(fix.as_ref()))
    }

    pub(super) fn problem(check: Check, message: impl AsRef<str>, fix: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Problem, message.as_ref(), Some(fix.as_ref()))
    }

    /// An error with its causes.
    pub(super) fn failed(check: Check, error: impl Into<anyhow::Error>, fix: impl AsRef<str>) -> Finding {
        Finding::problem(check, error_line(&error.into()), fix)
    }

    fn new(check: Check, status: Status, message: &str, fix: Option<&str>) -> Finding {
        Finding {
            check,
            status,
            message: one_line(message, MESSAGE_CHARS_MAX),
            fix: fix.filter(|fix| !fix.is_empty()).map(str::to_owned),
            runbook: (status != Status::Ok).then(|| check.runbook()),
        }
    }

    pub(super) fn is_problem(&self) -> bool {
        self.status == Status::Problem
    }
}

/// One line a finding, with fix and runbook below it, and a summary.
pub(super) fn render(findings: &[Finding]) -> String {
    let widths = findings.iter().map(|finding| finding.check.name().len());
    let width = widths.max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let status = match finding.status {
            Status::Ok => "ok",
            Status::Hint => "hint",
            Status::Problem => "PROBLEM",
        };
        let (check, message) = (finding.check.name(), &finding.message);
        text += &format!("{status:<7}  {check:<width$}  {message}\n");
        if let Some(fix) = &finding.fix {
            text += &format!("{:7}  {:width$}  → {fix}\n", "", "");
        }
        if let Some(runbook) = finding.runbook {
            text += &format!("{:7}  {:width$}    {runbook}\n", "", "");
        }
    }
    match findings.iter().filter(|finding| finding.is_problem()).count() {
        0 => text + "\nNo problem found.\n",
        1 => text + "\nOne problem.\n",
        problems => text + &format!("\n{problems} problems.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_and_how_to_mend_it() {
        let findings = [
            Finding::ok(Check::Nats, "2.15"),
            Finding::problem(Check::Postgres, "connection\nrefused", "start it"),
            Finding::hint(Check::DatabaseRoles, "a superuser", "use another"),
        ];
        assert_eq!(
            render(&findings),
            "ok       nats            2.15\n\
             PROBLEM  postgres        connection refused\n\
             \x20                        → start it\n\
             \x20                          docs/runbooks/database-restart.md\n\
             hint     database roles  a superuser\n\
             \x20                        → use another\n\
             \x20                          docs/runbooks/start-refused.md\n\nOne problem.\n"
        );
        assert!(render(&findings[..1]).ends_with("\nNo problem found.\n"));
    }

    #[test]
    fn is_readable_for_programs() {
        let finding = serde_json::to_value(Finding::problem(Check::Nats, "no answer", "start it")).unwrap();
        let expected = serde_json::json!({
            "check": "nats", "status": "problem", "message": "no answer", "fix": "start it",
            "runbook": "docs/runbooks/broker-lost.md",
        });
        assert_eq!(finding, expected);
    }
}
