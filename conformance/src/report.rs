//! Results of cases, as a table for people and as JSON for programs.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::protocol::words;

words! {
    Verdict {
        Pass = "pass",
        Fail = "fail",
        /// It failed as the driver had declared.
        Differs = "differs",
        NotSupported = "not supported",
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
