//! What the doctor says: one line a check, and how to mend what is wrong.

use std::{fmt::Write, path::Path};

use runtime::SettingsError;
use serde::Serialize;

use crate::text::{error_line, one_line};

const SAID_CHARS_MAX: usize = 400;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// It works; it could be better, or will be seen to at the next start.
    Hint,
    Problem,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    check: &'static str,
    status: Status,
    said: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, said: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Ok, said.as_ref(), None)
    }

    pub(super) fn hint(check: &'static str, said: impl AsRef<str>, mend: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Hint, said.as_ref(), Some(mend.as_ref()))
    }

    pub(super) fn problem(check: &'static str, said: impl AsRef<str>, mend: impl AsRef<str>) -> Finding {
        Finding::new(check, Status::Problem, said.as_ref(), Some(mend.as_ref()))
    }

    /// What an error says, with its causes.
    pub(super) fn failed(check: &'static str, error: impl Into<anyhow::Error>, mend: impl AsRef<str>) -> Finding {
        Finding::problem(check, error_line(&error.into()), mend)
    }

    fn new(check: &'static str, status: Status, said: &str, mend: Option<&str>) -> Finding {
        Finding {
            check,
            status,
            said: one_line(said, SAID_CHARS_MAX),
            mend: mend.filter(|mend| !mend.is_empty()).map(str::to_owned),
        }
    }

    pub(super) fn is_problem(&self) -> bool {
        self.status == Status::Problem
    }
}

/// A line each, the mending below it, and what it all comes to.
pub(super) fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let status = match finding.status {
            Status::Ok => "ok",
            Status::Hint => "hint",
            Status::Problem => "PROBLEM",
        };
        writeln!(text, "{status:<7}  {:<width$}  {}", finding.check, finding.said).expect(INFALLIBLE);
        if let Some(mend) = &finding.mend {
            writeln!(text, "{:7}  {:width$}  → {mend}", "", "").expect(INFALLIBLE);
        }
    }
    match findings.iter().filter(|finding| finding.is_problem()).count() {
        0 => text.push_str("\nAll is well.\n"),
        1 => text.push_str("\nOne problem.\n"),
        problems => writeln!(text, "\n{problems} problems.").expect(INFALLIBLE),
    }
    text
}

const INFALLIBLE: &str = "a String takes all that is written to it";

pub(super) fn settings(read: &Result<(), SettingsError>) -> Finding {
    match read {
        Ok(()) => Finding::ok("settings", "signalbox.toml and the environment can be read"),
        Err(error) => Finding::problem("settings", error.to_string(), "correct this setting, then ask again"),
    }
}

pub(super) fn up(http_url: Option<&str>, data_dir: &Path) -> Option<Finding> {
    let said = format!("looking at `signalbox up` in {}, {}", data_dir.display(), http_url?);
    Some(Finding::ok("up", said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_and_how_to_mend_it() {
        let findings = [
            Finding::ok("nats", "2.15"),
            Finding::problem("postgres", "connection\nrefused", "start it"),
            Finding::hint("database user", "a superuser", "use another"),
        ];
        assert_eq!(
            render(&findings),
            "ok       nats           2.15\n\
             PROBLEM  postgres       connection refused\n                        → start it\n\
             hint     database user  a superuser\n                        → use another\n\nOne problem.\n"
        );
        assert!(render(&findings[..1]).ends_with("\nAll is well.\n"));
    }

    #[test]
    fn is_readable_for_programs() {
        let finding = serde_json::to_value(Finding::problem("nats", "no answer", "start it")).unwrap();
        let expected =
            serde_json::json!({"check": "nats", "status": "problem", "said": "no answer", "mend": "start it"});
        assert_eq!(finding, expected);
    }
}
