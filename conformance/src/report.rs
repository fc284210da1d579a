//! Results of cases, as a table for people and as JSON for programs. Decides which cases a driver cannot be asked for.

use std::fmt::{self, Write};

use serde::Serialize;

use crate::{
    case::{Case, Needs},
    protocol::Hello,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    Fail,
    /// It failed as the driver had declared.
    Differs,
    NotSupported,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Differs => "differs",
            Verdict::NotSupported => "not supported",
        })
    }
}

#[derive(Debug, Serialize)]
pub struct CaseResult {
    pub name: String,
    pub verdict: Verdict,
    /// Why it did not pass.
    pub detail: String,
    pub elapsed_ms: u128,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub driver: String,
    pub pass: usize,
    pub fail: usize,
    pub differs: usize,
    pub not_supported: usize,
    pub cases: Vec<CaseResult>,
}

impl Report {
    pub fn new(driver: &str, cases: Vec<CaseResult>) -> Report {
        let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
        Report {
            driver: driver.to_owned(),
            pass: count(Verdict::Pass),
            fail: count(Verdict::Fail),
            differs: count(Verdict::Differs),
            not_supported: count(Verdict::NotSupported),
            cases,
        }
    }

    pub fn table(&self) -> String {
        let width = self
            .cases
            .iter()
            .map(|case| case.name.len())
            .max()
            .unwrap_or_default()
            .max(4);
        let mut text = format!("{:width$}  {:13}  {:>7}  WHY\n", "CASE", "RESULT", "MS");
        for case in &self.cases {
            let CaseResult {
                name,
                verdict,
                elapsed_ms,
                detail,
            } = case;
            let line = format!("{name:width$}  {verdict:13}  {elapsed_ms:>7}  {detail}");
            text += line.trim_end();
            text += "\n";
        }
        let Report {
            driver,
            pass,
            fail,
            differs,
            not_supported,
            ..
        } = self;
        let _ = writeln!(
            text,
            "{driver}: {pass} pass, {fail} fail, {differs} differ, {not_supported} not supported"
        );
        text
    }
}

/// What the driver lacks for a case; none: it can be run.
pub fn lacks(hello: &Hello, case: &Case) -> Option<String> {
    let Needs {
        modes,
        ops,
        features,
        tool,
        queue_items_max,
    } = case.needs();
    let mode = modes
        .iter()
        .find(|mode| !hello.modes.contains(mode))
        .map(|mode| format!("mode {mode}"));
    let op = || {
        ops.iter()
            .find(|op| !hello.ops.contains(op))
            .map(|op| format!("operation {op}"))
    };
    let feature = || {
        features
            .iter()
            .find(|feature| !hello.features.contains(feature))
            .map(|feature| format!("feature {feature}"))
    };
    let tool = || (tool && hello.tool.is_none()).then(|| "tools".to_owned());
    let limit = || (queue_items_max && hello.queue_items_max.is_none()).then(|| "a limit of the queue".to_owned());
    mode.or_else(op).or_else(feature).or_else(tool).or_else(limit)
}
